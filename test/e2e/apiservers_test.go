//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// TestAPIServersGetTheBundleLate runs a rotation that waits for API servers that it finds by the endpoints of the
// Service kubernetes. One of two gets the bundle late, and a third is added when all seemed to trust it.
func TestAPIServersGetTheBundleLate(t *testing.T) {
	a := startAPIServers(t)
	a.runRotation(t)
	a.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
	a.ask(t, authorityName, v1alpha1.OperationStart)
	a.waitsFor(t, firstAPIServer, secondAPIServer)
	both := a.published(t)
	a.trusts(t, firstAPIServer, both)
	waiting := a.waitsFor(t, secondAPIServer)
	if trust := trustOf(waiting); trust[firstAPIServer] != "Recognised" || trust[secondAPIServer] != "Refused" {
		t.Errorf("the API servers are %v", trust)
	}
	a.trusts(t, secondAPIServer, both)
	a.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(status *v1alpha1.SigningAuthorityStatus) bool {
		trust := trustOf(status)
		return trust[firstAPIServer] == "Recognised" && trust[secondAPIServer] == "Recognised"
	})

	a.startOne(t, thirdAPIServer) // with the CA that signed when its host was set up
	a.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(status *v1alpha1.SigningAuthorityStatus) bool {
		return trustOf(status)[thirdAPIServer] == "Refused" && slices.ContainsFunc(status.Conditions, func(one metav1.Condition) bool {
			return one.Type == v1alpha1.ConditionTrusted && one.Status == metav1.ConditionFalse && strings.Contains(one.Message, thirdAPIServer)
		})
	})
	for _, operation := range []v1alpha1.Operation{v1alpha1.OperationAttest, v1alpha1.OperationAccept, v1alpha1.OperationComplete} {
		a.ask(t, authorityName, operation)
		a.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, nil)
	}
	a.trusts(t, thirdAPIServer, both)
	a.completes(t)
	for _, address := range []string{firstAPIServer, secondAPIServer, thirdAPIServer} {
		a.reaches(t, authorityName, time.Minute, v1alpha1.Completing, func(status *v1alpha1.SigningAuthorityStatus) bool {
			return strings.Contains(strings.Join(status.WaitingFor, "\n"), thirdAPIServer+":443: ")
		})
		a.trusts(t, address, a.published(t))
	}
	a.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
}

// trustOf returns the answers of the API servers, by their addresses.
func trustOf(status *v1alpha1.SigningAuthorityStatus) map[string]string {
	trust := map[string]string{}
	for _, one := range status.APIServers {
		trust[strings.TrimSuffix(one.Address, ":443")] = one.Trust
	}
	return trust
}

// waitsFor waits until the authority waits for exactly these API servers.
func (a *apiServers) waitsFor(t *testing.T, addresses ...string) *v1alpha1.SigningAuthorityStatus {
	t.Helper()
	return a.reaches(t, authorityName, time.Minute, v1alpha1.Preparing, func(status *v1alpha1.SigningAuthorityStatus) bool {
		for _, address := range []string{firstAPIServer, secondAPIServer} {
			named := slices.ContainsFunc(status.WaitingFor, func(one string) bool { return strings.HasPrefix(one, address+":443: ") })
			if named != slices.Contains(addresses, address) {
				return false
			}
		}
		return len(status.WaitingFor) == len(addresses)
	})
}

// completes requests the completion until it is accepted.
func (a *apiServers) completes(t *testing.T) {
	t.Helper()
	a.until(t, time.Minute, "it begins to complete", func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		if err := a.admin.Get(ctx, client.ObjectKey{Name: authorityName}, obj); err != nil || obj.Status.Phase == v1alpha1.Completing {
			return true, err
		}
		a.ask(t, authorityName, v1alpha1.OperationComplete)
		return false, nil
	})
}
