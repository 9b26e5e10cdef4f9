//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// testSplit is step 6: it follows requests through all three Deployments. One is approved and signed, and one that is denied is deleted,
// each by another identity.
func (c *cluster) testSplit(t *testing.T) {
	c.install(t, "manifests/split", c.ca)
	c.deploymentsAvailable(t, "csr-approver", "csr-signer", "csr-cleaner")
	c.joinLight(t, "split")
	requests, err := c.requestsOf(t.Context(), "split")
	if err != nil || len(requests) != 1 {
		t.Fatalf("%d requests of the node, want 1: %v", len(requests), err)
	}
	name := requests[0].Name
	c.wantWriter(t, "update", name, "approval", "csr-approver")
	c.wantWriter(t, "update", name, "status", "csr-signer")

	denied := requestFor(t, "split-denied", "split-denied")
	denied.Spec.SignerName = "example.com/nobodys"
	c.create(t, denied)
	csr.AddCondition(denied, certificatesv1.CertificateDenied, "ForTheTest", "so that it is deleted soon", time.Now())
	if err := c.admin.SubResource("approval").Update(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	c.until(t, 30*time.Second, "the denied request is deleted", func(ctx context.Context) (bool, error) {
		_, err := c.get(ctx, denied.Name)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	c.wantWriter(t, "delete", denied.Name, "", "csr-cleaner")
}

func (c *cluster) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}
