//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// testNewCA is step 4: the Secret's new CA signs, in the same processes as before.
func (c *cluster) testNewCA(t *testing.T) {
	before := c.starts(t)
	if ok, err := signedBy(c.joinLight(t, "before-the-new-ca"), c.ca); !ok || err != nil {
		t.Fatalf("the certificate is not of the first CA: %v", err)
	}
	if err := c.admin.Update(t.Context(), signingSecretOf(c.next)); err != nil {
		t.Fatal(err)
	}
	tries := 0
	c.until(t, 10*time.Second, "the next certificate is of the new CA", func(context.Context) (bool, error) {
		tries++
		return signedBy(c.joinLight(t, fmt.Sprintf("after-the-new-ca-%d", tries)), c.next)
	})
	if tries > 2 { // the first may have been faster than the Secret
		t.Errorf("the new CA signed only the request number %d", tries)
	}
	if after := c.starts(t); !maps.Equal(before, after) {
		t.Errorf("starts of the manager's containers were %v, now %v", before, after)
	}
}

// starts returns the restarts of each pod's container, by the pod's UID.
func (c *cluster) starts(t *testing.T) map[string]int32 {
	t.Helper()
	starts := map[string]int32{}
	for _, pod := range c.pods(t.Context(), t) {
		for _, status := range pod.Status.ContainerStatuses {
			starts[string(pod.UID)+" "+status.ContainerID] = status.RestartCount
		}
	}
	return starts
}

// joinLight gets a client certificate like a bootstrapping kubelet, without running pods. It checks that the API
// server identifies the holder as that node.
func (c *cluster) joinLight(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	node := &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: c.bootstrapConfig(bootstrapToken)}
	cert, err := node.Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.CheckIdentity(ctx, cert); err != nil {
		t.Fatal(err)
	}
	return cert.Leaf
}

// testNewCAReachesKubelet waits until the real kubelet has a certificate of the new CA.
func (c *cluster) testNewCAReachesKubelet(t *testing.T, m *machine) {
	outages := c.watchOutages(t, m.name)
	file, cert := m.current(t)
	for range 2 { // one may have been signed just before
		if ok, err := signedBy(cert, c.next); ok || err != nil {
			break
		}
		file, cert = c.renewed(t, m, cert)
	}
	if ok, err := signedBy(cert, c.next); !ok {
		t.Errorf("the kubelet's certificate is not of the new CA: %v", err)
	}
	c.wantIdentity(t, m, file, cert)
	for _, outage := range outages() {
		t.Errorf("Node %s was not ready: %s", m.name, outage)
	}
}
