package loop

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

var (
	ecdsaUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	rsaUsages   = append(slices.Clip(ecdsaUsages), certificatesv1.UsageKeyEncipherment)
)

func TestKubeletBootstrap(t *testing.T) {
	kit.Parallel(t)
	k := startKubelets(t)
	k.startLoop(t, csrenv.Options{})
	for name, test := range map[string]struct {
		key      crypto.Signer
		lifetime time.Duration
		usages   []certificatesv1.KeyUsage
		keyUsage x509.KeyUsage
		validity time.Duration // the backdating of five minutes is on top of what is under eight hours
	}{
		"ecdsa":            {usages: ecdsaUsages, keyUsage: x509.KeyUsageDigitalSignature, validity: 365 * 24 * time.Hour},
		"rsa":              {key: newRSAKey(t), usages: rsaUsages, keyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, validity: 365 * 24 * time.Hour},
		"ten-minutes":      {lifetime: 10 * time.Minute, usages: ecdsaUsages, keyUsage: x509.KeyUsageDigitalSignature, validity: 15 * time.Minute},
		"ten-hours":        {lifetime: 10 * time.Hour, usages: ecdsaUsages, keyUsage: x509.KeyUsageDigitalSignature, validity: 10 * time.Hour},
		"over-the-longest": {lifetime: 400 * 24 * time.Hour, usages: ecdsaUsages, keyUsage: x509.KeyUsageDigitalSignature, validity: 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			node := k.node(t, name)
			node.Lifetime = test.lifetime
			if test.key != nil {
				if err := node.UseKey(test.key); err != nil {
					t.Fatal(err)
				}
			}
			cert := join(t, node)
			checkAsked(t, k.requestsFor(t, node), asked{kit.Bootstrapper, test.usages, int32(test.lifetime.Seconds()), "AutoApproved", kit.NodeMessage})
			if got := cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore); got != test.validity {
				t.Errorf("valid for %s, want %s", got, test.validity)
			}
			if cert.Leaf.KeyUsage != test.keyUsage || !slices.Equal(cert.Leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
				t.Errorf("usages %b %v", cert.Leaf.KeyUsage, cert.Leaf.ExtKeyUsage)
			}
			if _, err := node.Register(t.Context(), cert); err != nil {
				t.Error(err)
			}
		})
	}
}

func newRSAKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// join bootstraps node and checks that the API server accepts its certificate.
func join(t *testing.T, node *kubelet.Node) *tls.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kubeletWait)
	defer cancel()
	cert, err := node.Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.CheckIdentity(ctx, cert); err != nil {
		t.Error(err)
	}
	return cert
}

// rotate runs client-go's certificate manager until it has a certificate other than old, which may be nil.
func (k *kubelets) rotate(t *testing.T, node *kubelet.Node, old *tls.Certificate) *tls.Certificate {
	t.Helper()
	rotation, err := node.Rotation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rotation.Start()
	defer rotation.Stop()
	var cert *tls.Certificate
	k.waitFor(t, "a new certificate", func(context.Context) (bool, error) {
		cert = rotation.Current()
		return cert != nil && (old == nil || cert.Leaf.SerialNumber.Cmp(old.Leaf.SerialNumber) != 0), nil
	})
	if err := node.CheckIdentity(t.Context(), cert); err != nil {
		t.Error(err)
	}
	return cert
}

func TestKubeletRotation(t *testing.T) {
	kit.Parallel(t)
	k := startKubelets(t)
	clock := clocktesting.NewFakeClock(time.Now())
	k.startLoop(t, csrenv.Options{Clock: clock})
	t.Run("first", func(t *testing.T) {
		node := k.node(t, "first")
		k.rotate(t, node, nil)
		checkAsked(t, k.requestsFor(t, node), asked{kit.Bootstrapper, ecdsaUsages, 0, "AutoApproved", kit.NodeMessage})
	})
	t.Run("renewal", func(t *testing.T) {
		node := k.node(t, "renewal")
		node.Lifetime = 58 * time.Minute
		clock.SetTime(time.Now().Add(-55 * time.Minute))
		old := join(t, node)
		clock.SetTime(time.Now()) // 95 % of the validity are over, and client-go renews after 90 % at the latest
		renewed := k.rotate(t, node, old)
		if got := renewed.Leaf.NotAfter.Sub(renewed.Leaf.NotBefore); got != 63*time.Minute {
			t.Errorf("valid for %s, want 63m0s", got)
		}
		checkAsked(t, k.requestsFor(t, node),
			asked{kit.Bootstrapper, ecdsaUsages, 3480, "AutoApproved", kit.NodeMessage},
			asked{node.User(), ecdsaUsages, 3480, "AutoApproved", kit.SelfNodeMessage})
	})
}
