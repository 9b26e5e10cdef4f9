package loop

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// kubelets permits bootstrappers to create requests. It returns a function that makes a kubelet with their token.
func kubelets(t *testing.T) func(name string) *kubelet.Node {
	t.Helper()
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	bootstrap := kit.WithToken(t, kit.BootstrapperToken)
	return func(name string) *kubelet.Node {
		return &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: bootstrap}
	}
}

// startSuite runs the loop as a test suite of somebody does, whose administrator binds the roles of kubelets.
func startSuite(t *testing.T, opts csrenv.Options) {
	t.Helper()
	opts.CA = kit.ControlPlane(t).CA
	kit.AtEnd(t, kit.Must(csrenv.Start(t.Context(), kit.ControlPlane(t).Config, opts))(t).Stop)
}

// hasAsked checks who has made the requests for node, with which usages and seconds, and how they were approved.
func hasAsked(t *testing.T, node *kubelet.Node, want ...string) {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list))
	var all []string
	for _, obj := range list.Items {
		if kit.Must(csr.Parse(&obj))(t).Cert.Subject.CommonName == node.User() {
			how := csr.Condition(&obj, certificatesv1.CertificateApproved)
			seconds := ptr.Deref(obj.Spec.ExpirationSeconds, 0)
			all = append(all, fmt.Sprintf("%s %v %d %s %s", obj.Spec.Username, obj.Spec.Usages, seconds, how.Reason, how.Message))
		}
	}
	slices.Sort(all)
	kit.Equal(t, "requests", all, want)
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
	rsaKey := kit.Must(rsa.GenerateKey(rand.Reader, 2048))(t)
	const year, ofRSA = 365 * 24 * time.Hour, x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	for name, test := range map[string]struct {
		key      crypto.Signer
		lifetime *time.Duration
		asked    string
		keyUsage x509.KeyUsage
		validity time.Duration // the backdating of five minutes is on top of what is under eight hours
	}{
		"ecdsa":       {nil, nil, usages + "0 ", x509.KeyUsageDigitalSignature, year},
		"rsa":         {rsaKey, nil, " [digital signature client auth key encipherment] 0 ", ofRSA, year},
		"ten-minutes": {nil, new(10 * time.Minute), usages + "600 ", x509.KeyUsageDigitalSignature, 15 * time.Minute},
	} {
		node := node(name)
		node.Key, node.Lifetime = test.key, test.lifetime
		leaf := node.Join(t).Leaf
		hasAsked(t, node, kit.Bootstrapper+test.asked+bootstrapped)
		kit.Equal(t, name+": validity", leaf.NotAfter.Sub(leaf.NotBefore), test.validity)
		kit.Equal(t, name+": key usage", leaf.KeyUsage, test.keyUsage)
		kit.Equal(t, name+": extended key usages", leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth})
	}
	first := node("first")
	first.Register(t, first.Rotate(t, nil))
	hasAsked(t, first, kit.Bootstrapper+usages+"0 "+bootstrapped)

	renews := node("renewal")
	renews.Lifetime = new(58 * time.Minute)
	clock.SetTime(time.Now().Add(-55 * time.Minute))
	old := renews.Join(t)
	clock.SetTime(time.Now()) // 95 % of the validity are over, and client-go renews after 90 % at the latest
	renewed := renews.Rotate(t, old).Leaf
	kit.Equal(t, "validity after the renewal", renewed.NotAfter.Sub(renewed.NotBefore), 63*time.Minute)
	hasAsked(t, renews, kit.Bootstrapper+usages+"3480 "+bootstrapped, renews.User()+usages+"3480 AutoApproved "+kit.SelfNodeMessage)
}
