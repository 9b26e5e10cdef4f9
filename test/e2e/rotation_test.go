//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

const (
	// lifetime is the value of manifests/config. A kubelet renews when 70 to 90 % of the lifetime and the five
	// minutes before it have passed, which is 36 s to 2 m 12 s after the issuance.
	lifetime = 3 * time.Minute
	renewal  = lifetime // bounds the wait for a renewal
	// credentialID is the key of the certificate's ID in the API server's answer.
	credentialID = "authentication.kubernetes.io/credential-id"
)

// testRotation is step 2.
func (c *cluster) testRotation(t *testing.T, m *machine) {
	outages, before := c.watchOutages(t, m.name), m.kubeletID(t)
	oldFile, old := m.current(t)
	newFile, renewed := c.renewed(t, m, old)
	for file, cert := range map[string]*x509.Certificate{oldFile: old, newFile: renewed} {
		c.wantIdentity(t, m, file, cert)
	}
	c.until(t, time.Until(old.NotAfter)+time.Second, "the old certificate has ended", func(context.Context) (bool, error) {
		return time.Now().After(old.NotAfter), nil
	})
	if who, err := c.whoAmI(t.Context(), []byte(oldFile)); !apierrors.IsUnauthorized(err) {
		t.Errorf("with the ended certificate the API server takes one for %q: %v, want Unauthorized", who.Username, err)
	}
	c.until(t, time.Minute, "the kubelet renews its lease without the old certificate", func(ctx context.Context) (bool, error) {
		lease := &coordinationv1.Lease{}
		err := c.admin.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: m.name}, lease)
		return err == nil && lease.Spec.RenewTime.After(old.NotAfter), err
	})
	if before != m.kubeletID(t) {
		t.Error("the kubelet is not the same process as before")
	}
	for _, outage := range outages() {
		t.Errorf("Node %s was not ready: %s", m.name, outage)
	}
}

// current returns the certificate that the kubelet uses: the file with the key, and the decoded certificate.
func (m *machine) current(t *testing.T) (string, *x509.Certificate) {
	t.Helper()
	data, err := m.certificateFile()
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(data, data)
	if err != nil {
		t.Fatal(err)
	}
	return string(data), both.Leaf
}

// renewed waits until the kubelet has another certificate than old.
func (c *cluster) renewed(t *testing.T, m *machine, old *x509.Certificate) (string, *x509.Certificate) {
	t.Helper()
	c.until(t, renewal, m.name+" has a new client certificate", func(context.Context) (bool, error) {
		now, err := m.certificate()
		return err == nil && now.SerialNumber.Cmp(old.SerialNumber) != 0, err
	})
	return m.current(t)
}

// wantIdentity checks that the API server identifies the holder of cert as the node, by exactly that certificate.
func (c *cluster) wantIdentity(t *testing.T, m *machine, file string, cert *x509.Certificate) {
	t.Helper()
	who, err := c.whoAmI(t.Context(), []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf("X509SHA256=%x", sha256.Sum256(cert.Raw))
	if who.Username != "system:node:"+m.name || !slices.Contains(who.Extra[credentialID], id) {
		t.Errorf("the API server takes the certificate of %s for %q by %s, want %s", m.name, who.Username, who.Extra[credentialID], id)
	}
}

// watchOutages records each time that the Node is not ready, until the returned function is called.
func (c *cluster) watchOutages(t *testing.T, name string) func() []string {
	t.Helper()
	events, err := c.admin.Watch(t.Context(), &corev1.NodeList{}, client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", name)})
	if err != nil {
		t.Fatal(err)
	}
	var outages []string
	var done sync.WaitGroup
	done.Go(func() {
		for event := range events.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok && !ready(node) {
				outages = append(outages, fmt.Sprintf("%s: %v", time.Now().Format(time.TimeOnly), node.Status.Conditions))
			}
		}
	})
	return func() []string {
		events.Stop()
		done.Wait()
		return outages
	}
}

// signedBy reports whether ca signed cert.
func signedBy(cert *x509.Certificate, ca *csrenv.CA) (bool, error) {
	parent, err := tls.X509KeyPair(ca.CertPEM, ca.KeyPEM)
	if err != nil {
		return false, err
	}
	return cert.CheckSignatureFrom(parent.Leaf) == nil, nil
}
