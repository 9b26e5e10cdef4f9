package rotation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// losesTrust takes the rights on the ConfigMap of the trust bundle. The self-check doesn't ask for them, because only a
// SigningAuthority names the ConfigMap. The condition Published must name the verb, the ConfigMap and what to grant.
func (h *roleHolder) losesTrust(t *testing.T, r *rotating) {
	t.Helper()
	for verb, use := range map[string]func(*testing.T){
		"get":   func(*testing.T) {}, // each reconcile reads it
		"patch": func(t *testing.T) { r.spoilTrust(t) },
	} {
		right := verb + " configmaps csr-trust in " + kit.SystemNamespace
		taken := h.find(func(each string) bool { return each == right })
		if len(taken) != 1 {
			t.Fatalf("no role grants %s", right)
		}
		h.take(t, taken)
		use(t)
		r.publishes(t, metav1.ConditionFalse, fmt.Sprintf("cannot %s resource \"configmaps\"", verb),
			"ConfigMap "+kit.SystemNamespace+"/csr-trust can't be brought up to date: grant the manager get, create and patch on configmaps csr-trust")
		h.take(t, nil)
		r.publishes(t, metav1.ConditionTrue)
	}
}

// spoilTrust empties the published bundle, so that the manager has to write it again.
func (r *rotating) spoilTrust(t *testing.T) {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-trust"}}
	if err := r.admin.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"ca.crt":""}}`))); err != nil {
		t.Fatal(err)
	}
}

// publishes waits until the condition Published has status and contains each of parts.
func (r *rotating) publishes(t *testing.T, status metav1.ConditionStatus, parts ...string) {
	t.Helper()
	kit.Within(t, afterLoss, "Published is "+string(status), func(context.Context) error {
		condition := meta.FindStatusCondition(r.get(t, "cluster").Status.Conditions, v1alpha1.ConditionPublished)
		if condition == nil {
			return errors.New("it is not set")
		}
		for _, part := range parts {
			if !strings.Contains(condition.Message, part) {
				return fmt.Errorf("%q is not in: %s", part, condition.Message)
			}
		}
		if condition.Status != status {
			return fmt.Errorf("it is %s: %s", condition.Status, condition.Message)
		}
		return nil
	})
}
