//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// reloads is the API server's counter of reloads of CA files, among others of --kubelet-certificate-authority.
const reloads = "rest_client_transport_ca_reload_total{"

// ask writes the annotation, as kubectl annotate does, and waits until the manager has accepted it.
func (c *cluster) ask(t *testing.T, name string, operation v1alpha1.Operation) {
	t.Helper()
	c.kubectl(t, "annotate", "signingauthority", name, v1alpha1.OperationAnnotation+"="+string(operation))
	c.until(t, 30*time.Second, string(operation)+" is taken", func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: name}, obj)
		return obj.Annotations[v1alpha1.OperationAnnotation] == "", err
	})
}

// reaches waits until the authority is in phase and also reports success.
func (c *cluster) reaches(t *testing.T, name string, timeout time.Duration, phase v1alpha1.Phase, also func(*v1alpha1.SigningAuthorityStatus) bool) *v1alpha1.SigningAuthorityStatus {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	c.until(t, timeout, fmt.Sprintf("the authority %s is %s", name, phase), func(ctx context.Context) (bool, error) {
		if err := c.admin.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
			return false, err
		}
		if obj.Status.Phase != phase || also != nil && !also(&obj.Status) {
			return false, fmt.Errorf("it is %q, and waits for %q: %+v", obj.Status.Phase, obj.Status.WaitingFor, obj.Status.Conditions)
		}
		return true, nil
	})
	return &obj.Status
}

// toldRefused checks that the status refuses the last operation, and waits for an Event about it.
func (c *cluster) toldRefused(t *testing.T, name, part string) {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	if last := obj.Status.LastOperation; last == nil || last.Result != v1alpha1.Refused || !strings.Contains(last.Message, part) {
		t.Errorf("the last operation is %+v, want it refused with %q", last, part)
	}
	c.until(t, 30*time.Second, "an Event refuses the operation", func(ctx context.Context) (bool, error) {
		events := &eventsv1.EventList{}
		if err := c.admin.List(ctx, events, client.InNamespace(corev1.NamespaceDefault)); err != nil {
			return false, err
		}
		return slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
			return event.Regarding.Name == name && event.Reason == "RotationRefused" && strings.Contains(event.Note, part)
		}), nil
	})
}

// reloaded waits until the API server has read the current file of --kubelet-certificate-authority. It does so when
// it connects to a kubelet, at most every five minutes.
func (c *cluster) reloaded(t *testing.T) {
	t.Helper()
	begin, before := time.Now(), c.looks(t)
	c.until(t, 6*time.Minute, "the API server has read the kubelets' CAs again", func(context.Context) (bool, error) {
		_, err := c.tryKubectl("logs", "on-worker")
		return c.looks(t) != before, err
	})
	t.Logf("the API server has read the kubelets' CAs again after %s", time.Since(begin).Round(time.Second))
}

// looks returns the API server's reload counters.
func (c *cluster) looks(t *testing.T) string {
	t.Helper()
	var found []string
	for line := range strings.Lines(c.kubectl(t, "get", "--raw", "/metrics")) {
		if strings.HasPrefix(line, reloads) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}

// readySince returns since when each Node has been Ready without a break, from the time of the last change.
func (c *cluster) readySince(t *testing.T) string {
	t.Helper()
	list := &corev1.NodeList{}
	if err := c.admin.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, node := range list.Items {
		if c.machines[node.Name] == nil {
			continue
		}
		for _, one := range node.Status.Conditions {
			if one.Type == corev1.NodeReady {
				all = append(all, fmt.Sprintf("%s %s %s", node.Name, one.Status, one.LastTransitionTime))
			}
		}
	}
	return strings.Join(all, "\n")
}

// certOf returns the certificate of a CA in a status.
func certOf(t *testing.T, one *v1alpha1.CAStatus) *x509.Certificate {
	t.Helper()
	certs, err := ca.ParseCertificates([]byte(one.Certificate))
	if err != nil || len(certs) != 1 {
		t.Fatalf("%d certificates: %v", len(certs), err)
	}
	return certs[0]
}
