//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// ring returns the CAs in a Secret.
func (c *cluster) ring(t *testing.T, name string) keypair.Ring {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, secret); err != nil {
		t.Fatal(err)
	}
	ring, err := keypair.ParseRing(secret.Data)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// wantNoClients checks that a kubelet's serving certificate, or any certificate that a CA of servers could issue, is no
// client certificate for the API server. cas is the number of CAs in the Secret for servers.
func (c *cluster) wantNoClients(t *testing.T, cas int) {
	t.Helper()
	tried := map[string][]byte{}
	for _, m := range c.machines {
		file, err := run(m.command("cat", "/var/lib/kubelet/pki/kubelet-server-current.pem"))
		if err != nil {
			t.Fatal(err)
		}
		tried["what "+m.name+" serves with"] = []byte(file)
	}
	servers := c.ring(t, servingSecret)
	for what, one := range map[string]keypair.Pair{"the CA that signs": servers.Signing, "the candidate": servers.Candidate, "the CA that retires": servers.Retiring} {
		if one.Empty() {
			continue
		}
		minted, err := clientPair(&csrenv.CA{CertPEM: one.Cert, KeyPEM: one.Key}, "intruder", "system:masters")
		if err != nil {
			t.Fatal(err)
		}
		tried["a certificate of "+what+" for servers"] = slices.Concat(minted.cert, minted.key)
	}
	for what, file := range tried {
		if who, err := c.whoAmI(t.Context(), file); !apierrors.IsUnauthorized(err) {
			t.Errorf("with %s the API server takes one for %q: %v, want Unauthorized", what, who.Username, err)
		}
	}
	if minted := len(tried) - len(c.machines); minted != cas {
		t.Errorf("%d CAs are for servers, want %d", minted, cas)
	}
}

// pretender is a Node without a kubelet.
const pretender = "pretender"

// wantServersOf pretends to be a kubelet with a certificate of each of these CAs, and checks which certificates the
// API server accepts.
func (c *cluster) wantServersOf(t *testing.T, cas map[string]bool) {
	t.Helper()
	servers, clients := c.ring(t, servingSecret), c.ring(t, signingSecret)
	known := map[string]keypair.Pair{
		"the old CA": {Cert: c.next.CertPEM, Key: c.next.KeyPEM}, "the clients' CA": clients.Signing,
		"the servers' CA": servers.Signing, "the servers' next CA": servers.Candidate, "the servers' old CA": c.retired,
	}
	c.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pretender}, Spec: corev1.NodeSpec{Unschedulable: true}})
	defer c.kubectl(t, "delete", "node", pretender)
	c.kubectl(t, "patch", "node", pretender, "--subresource=status", "--patch="+
		`{"status": {"addresses": [{"type": "InternalIP", "address": "`+controlPlaneAddress+`"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}`)
	for what, good := range cas {
		answer, err := c.pretend(t, known[what])
		if good && answer != "ok" || !good && (err == nil || !strings.Contains(answer, "x509: ")) {
			t.Errorf("a kubelet with a certificate of %s answers %q: %v, want that it is reached: %t", what, answer, err, good)
		}
	}
}

// pretend serves as a kubelet with a certificate of one, and returns what the API server gets from it.
func (c *cluster) pretend(t *testing.T, one keypair.Pair) (string, error) {
	t.Helper()
	served, err := issue(&csrenv.CA{CertPEM: one.Cert, KeyPEM: one.Key}, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:" + pretender, Organization: []string{"system:nodes"}},
		IPAddresses: []net.IP{net.ParseIP(controlPlaneAddress)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(served.cert, served.key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(controlPlaneAddress, "10250"), &tls.Config{Certificates: []tls.Certificate{both}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })}
	server.SetKeepAlivesEnabled(false) // the next server has another certificate
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(listener) }()
	defer func() { _ = server.Shutdown(context.WithoutCancel(t.Context())); <-ended }()
	return c.tryKubectl("get", "--raw", "/api/v1/nodes/"+pretender+"/proxy/healthz")
}
