//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// testServing is the first part of step 10: the API server connects to a kubelet with a serving certificate from the
// Deployment, and to no kubelet that signed its own.
func (c *cluster) testServing(t *testing.T, m, selfSigned *machine) {
	c.wantOurs(t, m, c.served(t, m))
	c.wantReachable(t, m)
	c.nodeReady(t, selfSigned.name)
	answer, err := c.health(selfSigned)
	if err == nil || !strings.Contains(answer, "x509: ") {
		t.Errorf("the API server talks to %s, which made its certificate itself, want that it can't be verified: %v\n%s", selfSigned.name, err, answer)
	}
}

// testServingRotation is the second part: the certificate is renewed, and the API server still connects after the old
// certificate has expired.
func (c *cluster) testServingRotation(t *testing.T, m *machine) {
	before, old := m.kubeletID(t), c.served(t, m)
	c.until(t, renewal, m.name+" has a new serving certificate", func(context.Context) (bool, error) {
		now, err := c.servedBy(m)
		return err == nil && !now.Equal(old), err
	})
	c.wantOurs(t, m, c.served(t, m))
	c.wantReachable(t, m)
	c.until(t, time.Until(old.NotAfter)+time.Second, "the old serving certificate has ended", func(context.Context) (bool, error) {
		return time.Now().After(old.NotAfter), nil
	})
	c.wantReachable(t, m)
	if before != m.kubeletID(t) {
		t.Error("the kubelet is not the same process as before")
	}
}

// served returns the certificate that the kubelet presents at its address.
func (c *cluster) served(t *testing.T, m *machine) *x509.Certificate {
	t.Helper()
	cert, err := c.servedBy(m)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// servedBy connects as the API server does, with the CAs in its file.
func (c *cluster) servedBy(m *machine) (*x509.Certificate, error) {
	file, err := os.ReadFile(c.kubeletCA)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(file)
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", net.JoinHostPort(m.address, "10250"), &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet of %s: %w", m.name, err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// wantOurs checks that the kubelet requested this certificate itself, and that the Deployment signed it.
func (c *cluster) wantOurs(t *testing.T, m *machine, cert *x509.Certificate) {
	t.Helper()
	requests, err := c.requestsTo(t.Context(), certificatesv1.KubeletServingSignerName, m.name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		if one := issued(&requests[i]); one == nil || !one.Equal(cert) {
			continue
		}
		if who := requests[i].Spec.Username; who != "system:node:"+m.name {
			t.Errorf("request %s was made by %q, not by the kubelet", requests[i].Name, who)
		}
		for _, subresource := range []string{"approval", "status"} {
			c.wantWriter(t, "update", requests[i].Name, subresource, "csr-controller-manager")
		}
		return
	}
	t.Errorf("the certificate that %s serves is in none of its %d requests", m.name, len(requests))
}

// wantReachable checks that the API server can connect to the kubelet: kubectl exec always opens a new connection.
func (c *cluster) wantReachable(t *testing.T, m *machine) {
	t.Helper()
	pod := "on-" + m.name
	c.wantLog(t, pod)
	if output := c.kubectl(t, "exec", pod, "--", "/pause", "reached"); output != "reached\n" {
		t.Errorf("kubectl exec says %q", output)
	}
}

// health returns the kubelet's health, read through the API server.
func (c *cluster) health(m *machine) (string, error) {
	return c.tryKubectl("get", "--raw", "/api/v1/nodes/"+m.name+"/proxy/healthz")
}
