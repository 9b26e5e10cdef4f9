package loop

import (
	"context"
	"crypto"
	"crypto/ecdsa"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err := kit.Admin(t).List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, obj := range list.Items {
		req, err := csr.Parse(&obj)
		if err != nil {
			t.Fatal(err)
		}
		if req.Cert.Subject.CommonName == node.User() {
			how := csr.Condition(&obj, certificatesv1.CertificateApproved)
			all = append(all, fmt.Sprintf("%s %v %d %s %s", obj.Spec.Username, obj.Spec.Usages, ptr.Deref(obj.Spec.ExpirationSeconds, 0), how.Reason, how.Message))
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

// TestKubeletBootstrap joins kubelets with client-go's code, which register with their certificates.
func TestKubeletBootstrap(t *testing.T) {
	kit.Parallel(t)
	node := kubelets(t)
	startSuite(t, csrenv.Options{})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key      crypto.Signer
		lifetime time.Duration
		asked    string
		keyUsage x509.KeyUsage
		validity time.Duration // the backdating of five minutes is on top of what is under eight hours
	}{
		"ecdsa": {nil, 0, usages + "0 ", x509.KeyUsageDigitalSignature, 365 * 24 * time.Hour},
		"rsa": {rsaKey, 0, " [digital signature client auth key encipherment] 0 ", x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
			365 * 24 * time.Hour},
		"ten-minutes": {nil, 10 * time.Minute, usages + "600 ", x509.KeyUsageDigitalSignature, 15 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			node := node(name)
			node.Lifetime = test.lifetime
			if test.key != nil {
				if err := node.UseKey(test.key); err != nil {
					t.Fatal(err)
				}
			}
			cert := join(t, node)
			hasAsked(t, node, kit.Bootstrapper+test.asked+bootstrapped)
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
func rotate(t *testing.T, node *kubelet.Node, old *tls.Certificate) *tls.Certificate {
	t.Helper()
	rotation, err := node.Rotation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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

// TestKubeletRotation has client-go's certificate manager get a first certificate, and renew one.
func TestKubeletRotation(t *testing.T) {
	kit.Parallel(t)
	node, clock := kubelets(t), clocktesting.NewFakeClock(time.Now())
	startSuite(t, csrenv.Options{Clock: clock})
	first := node("first")
	rotate(t, first, nil)
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

// stopped is a kubelet that was stopped while its request was pending.
type stopped struct {
	*kubelet.Node
	request *kit.Request
	key     crypto.PublicKey
}

// resumes returns the request of the kubelet as a new process finds it, which knows only the folder of the first one.
func (s stopped) resumes(t *testing.T) *kubelet.Pending {
	t.Helper()
	again := &kubelet.Node{Name: s.Name, Dir: s.Dir, Bootstrap: s.Bootstrap}
	pending, err := again.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if pending.UID != s.request.UID || pending.Name != s.request.Name {
		t.Errorf("resumed request %s (%s), want %s (%s)", pending.Name, pending.UID, s.request.Name, s.request.UID)
	}
	return pending
}

// gets waits for the certificate, and checks that it belongs to the first request and its key.
func (s stopped) gets(t *testing.T, resumed *kubelet.Pending) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kubeletWait)
	defer cancel()
	cert, err := resumed.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if public, ok := cert.Leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(s.key) {
		t.Error("the certificate is for another key")
	}
	if !kit.Leaf(t, kit.Reaches(t, s.request, csr.Issued)).Equal(cert.Leaf) {
		t.Errorf("the certificate is not that of request %s", s.request.Name)
	}
	if err := s.CheckIdentity(ctx, cert); err != nil {
		t.Error(err)
	}
	hasAsked(t, s.Node, kit.Bootstrapper+usages+"0 "+bootstrapped)
}

// TestKubeletRestart tests a promise of KEP-266: a kubelet that restarts while its request is pending finds the same request
// again, by the same key.
func TestKubeletRestart(t *testing.T) {
	kit.Parallel(t)
	node := kubelets(t)
	stops := func(name string) stopped {
		t.Helper()
		one := stopped{Node: node(name)}
		pending, err := one.Request(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if one.key, err = one.PendingKey(); err != nil {
			t.Fatal(err)
		}
		one.request = &kit.Request{ObjectMeta: metav1.ObjectMeta{Name: pending.Name, UID: pending.UID}}
		return one
	}
	early := stops("before-the-loop-runs")
	startSuite(t, csrenv.Options{SkipRBAC: true})
	refused, away := stops("while-the-loop-refuses"), stops("issued-while-away")
	for _, one := range []stopped{early, refused, away} {
		kit.HasEvent(t, one.request, "NotAuthorized")
	}
	earlyAgain, refusedAgain := early.resumes(t), refused.resumes(t)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayJoin)
	early.gets(t, earlyAgain)
	refused.gets(t, refusedAgain)
	kit.Reaches(t, away.request, csr.Issued)
	away.gets(t, away.resumes(t))
}
