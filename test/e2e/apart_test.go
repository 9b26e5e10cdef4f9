//go:build e2e

package e2e

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
