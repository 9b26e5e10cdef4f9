package loop

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// kubeletWait bounds the waits of kubelets.
const kubeletWait = 30 * time.Second

// kubelets permits bootstrappers to create requests. It returns a function that makes a kubelet with their token.
func kubelets(t *testing.T) func(name string) *kubelet.Node {
	t.Helper()
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	bootstrap := kit.WithToken(t, kit.BootstrapperToken)
	c := kit.ClientOf(t, bootstrap)
	kit.Eventually(t, "the permission to request", func(ctx context.Context) error {
		return c.Create(ctx, kit.NodeRequest(t, "any"), client.DryRunAll)
	})
	return func(name string) *kubelet.Node {
		return &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: bootstrap}
	}
}

// startSuite runs the loop as a test suite of somebody does, whose administrator binds the roles of kubelets.
func startSuite(t *testing.T, opts csrenv.Options) {
	t.Helper()
	opts.CA = kit.ControlPlane(t).CA
	env, err := csrenv.Start(t.Context(), kit.ControlPlane(t).Config, opts)
	kit.NoError(t, err)
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// hasAsked checks who has made the requests for node, with which usages and seconds, and how they were approved.
func hasAsked(t *testing.T, node *kubelet.Node, want ...string) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list))
	var all []string
	for _, obj := range list.Items {
		req, err := csr.Parse(&obj)
		kit.NoError(t, err)
		if req.Cert.Subject.CommonName == node.User() {
			how := csr.Condition(&obj, certificatesv1.CertificateApproved)
			seconds := ptr.Deref(obj.Spec.ExpirationSeconds, 0)
			all = append(all, fmt.Sprintf("%s %v %d %s %s", obj.Spec.Username, obj.Spec.Usages, seconds, how.Reason, how.Message))
		}
	}
	slices.Sort(all)
	if !slices.Equal(all, want) {
		t.Errorf("requests\n%q, want\n%q", all, want)
	}
}

const (
	usages       = " [digital signature client auth] "
	bootstrapped = "AutoApproved " + kit.NodeMessage
)

// TestKubelets has kubelets with client-go's code. They join and register with their certificates. The certificate manager gets a
// first certificate, and renews one.
func TestKubelets(t *testing.T) {
	kit.Parallel(t)
	node, clock := kubelets(t), clocktesting.NewFakeClock(time.Now())
	startSuite(t, csrenv.Options{Clock: clock})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	kit.NoError(t, err)
	const year, ofRSA = 365 * 24 * time.Hour, x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	for name, test := range map[string]struct {
		key      crypto.Signer
		lifetime time.Duration
		asked    string
		keyUsage x509.KeyUsage
		validity time.Duration // the backdating of five minutes is on top of what is under eight hours
	}{
		"ecdsa":       {nil, 0, usages + "0 ", x509.KeyUsageDigitalSignature, year},
		"rsa":         {rsaKey, 0, " [digital signature client auth key encipherment] 0 ", ofRSA, year},
		"ten-minutes": {nil, 10 * time.Minute, usages + "600 ", x509.KeyUsageDigitalSignature, 15 * time.Minute},
	} {
		node := node(name)
		node.Lifetime = test.lifetime
		if test.key != nil {
			kit.NoError(t, node.UseKey(test.key))
		}
		leaf := join(t, node).Leaf
		hasAsked(t, node, kit.Bootstrapper+test.asked+bootstrapped)
		if got := leaf.NotAfter.Sub(leaf.NotBefore); got != test.validity {
			t.Errorf("%s: valid for %s, want %s", name, got, test.validity)
		}
		if leaf.KeyUsage != test.keyUsage || !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			t.Errorf("%s: usages %b %v", name, leaf.KeyUsage, leaf.ExtKeyUsage)
		}
	}
	first := node("first")
	_, err = first.Register(t.Context(), rotate(t, first, nil))
	kit.NoError(t, err)
	hasAsked(t, first, kit.Bootstrapper+usages+"0 "+bootstrapped)

	renews := node("renewal")
	renews.Lifetime = 58 * time.Minute
	clock.SetTime(time.Now().Add(-55 * time.Minute))
	old := join(t, renews)
	clock.SetTime(time.Now()) // 95 % of the validity are over, and client-go renews after 90 % at the latest
	renewed := rotate(t, renews, old)
	if got := renewed.Leaf.NotAfter.Sub(renewed.Leaf.NotBefore); got != 63*time.Minute {
		t.Errorf("valid for %s, want 63m0s", got)
	}
	hasAsked(t, renews, kit.Bootstrapper+usages+"3480 "+bootstrapped, renews.User()+usages+"3480 AutoApproved "+kit.SelfNodeMessage)
}

// join bootstraps node and checks that the API server accepts its certificate.
func join(t *testing.T, node *kubelet.Node) *tls.Certificate {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kubeletWait)
	defer cancel()
	cert, err := node.Join(ctx)
	kit.NoError(t, err)
	if err := node.CheckIdentity(ctx, cert); err != nil {
		t.Error(err)
	}
	return cert
}

// rotate runs client-go's certificate manager until it has a certificate other than old, which may be nil.
func rotate(t *testing.T, node *kubelet.Node, old *tls.Certificate) *tls.Certificate {
	t.Helper()
	rotation, err := node.Rotation(t.Context())
	kit.NoError(t, err)
	rotation.Start()
	defer rotation.Stop()
	var cert *tls.Certificate
	kit.Eventually(t, "a new certificate", func(context.Context) error {
		if cert = rotation.Current(); cert == nil || old != nil && cert.Leaf.SerialNumber.Cmp(old.Leaf.SerialNumber) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	if err := node.CheckIdentity(t.Context(), cert); err != nil {
		t.Error(err)
	}
	return cert
}
