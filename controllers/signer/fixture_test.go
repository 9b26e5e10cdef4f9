package signer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

type request = certificatesv1.CertificateSigningRequest

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

var (
	leafKey = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	weakKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 1024)) })
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// root is a CA in PEM.
type root struct{ cert, key []byte }

// newRoot returns a CA that is valid from an hour before now to lifetime after now.
func newRoot(t testing.TB, lifetime time.Duration) root {
	t.Helper()
	authority, key, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, now)
	if err != nil {
		t.Fatal(err)
	}
	return root{authority.CertificatePEM(), key}
}

func nodeRequest() *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}
}

// payload returns template as PKCS#10 in PEM, signed with key.
func payload(t testing.TB, template *x509.CertificateRequest, key any) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// object returns an approved request of a kubelet for a client certificate, changed by modify.
func object(t testing.TB, modify ...func(*request)) *request {
	t.Helper()
	obj := &request{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    payload(t, nodeRequest(), leafKey()),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
		},
	}
	with("Approved", "True")(obj)
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func with(kind certificatesv1.RequestConditionType, status corev1.ConditionStatus) func(*request) {
	return func(obj *request) {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: status, LastUpdateTime: metav1.NewTime(now),
		})
	}
}

func signerName(name string) func(*request) {
	return func(obj *request) { obj.Spec.SignerName = name }
}

func usages(usages ...certificatesv1.KeyUsage) func(*request) {
	return func(obj *request) { obj.Spec.Usages = usages }
}

func template(t testing.TB, change func(*x509.CertificateRequest)) func(*request) {
	return func(obj *request) {
		changed := nodeRequest()
		change(changed)
		obj.Spec.Request = payload(t, changed, leafKey())
	}
}

func profile(t testing.TB, config ca.ProfileConfig) ca.Profile {
	t.Helper()
	checked, err := ca.NewProfile(config)
	if err != nil {
		t.Fatal(err)
	}
	return checked
}

// newPair returns a KeyPair that is named after a Secret, like a pair after SetupWithManager.
func newPair() (*keypair.KeyPair, *clocktesting.FakePassiveClock, *events.FakeRecorder) {
	pair := keypair.New(keypair.Secret{Namespace: "ns", Name: "ca"})
	clock, recorder := clocktesting.NewFakePassiveClock(now), events.NewFakeRecorder(100)
	pair.Clock, pair.Reporter = clock, report.New(recorder, clock)
	return pair, clock, recorder
}

// state returns the key ID of pair at now, or the reason and message of its absence.
func state(pair *keypair.KeyPair, now time.Time) string {
	authority, err := pair.Authority(now)
	if err == nil {
		return authority.KeyID()
	}
	var unavailable *keypair.Unavailable
	if !errors.As(err, &unavailable) {
		return "not an *Unavailable: " + err.Error()
	}
	return unavailable.Reason + ": " + unavailable.Message
}

func taken(recorder *events.FakeRecorder) []string {
	var taken []string
	for len(recorder.Events) > 0 {
		taken = append(taken, <-recorder.Events)
	}
	return taken
}

// parts holds a Reconciler and everything that it uses.
type parts struct {
	reconciler *Reconciler
	pair       *keypair.KeyPair
	clock      *clocktesting.FakePassiveClock
	recorder   *events.FakeRecorder
	served     *request
	getFault   error
	written    []*request
	writeFault error
}

func newParts(t testing.TB, served *request) *parts {
	t.Helper()
	p := &parts{served: served}
	p.pair, p.clock, p.recorder = newPair()
	signers := map[string]Signer{
		"example.com/custom": {Profile: profile(t, ca.ProfileConfig{}), Usages: []certificatesv1.KeyUsage{"client auth"}, KeyPair: p.pair},
	}
	for _, name := range csr.BuiltinSigners() {
		signers[name] = Signer{Profile: profile(t, ca.ProfileConfig{ForbiddenSubjects: forbiddenByDefault}), KeyPair: p.pair}
	}
	p.reconciler = &Reconciler{
		Signers: signers, Retention: csr.RetentionPolicy{Default: csr.DefaultRetention},
		Client: p.client(t), Live: p.client(t), Reporter: report.New(p.recorder, p.clock), Clock: p.clock,
		ServerTime: servertime.Of(p.clock),
	}
	return p
}

func (p *parts) client(t testing.TB) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			if p.getFault == nil {
				*obj.(*request) = *p.served // shared, like a cache read without a deep copy
			}
			return p.getFault
		},
		SubResourceUpdate: func(ctx context.Context, _ client.Client, subResource string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
			if subResource != "status" {
				t.Errorf("update of %s", subResource)
			}
			if ctx.Err() != nil { // like a real client
				return ctx.Err()
			}
			p.written = append(p.written, obj.(*request).DeepCopy())
			return p.writeFault
		},
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			t.Error("create")
			return nil
		},
		Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			t.Error("update")
			return nil
		},
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			t.Error("patch")
			return nil
		},
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			t.Error("delete")
			return nil
		},
	}).Build()
}

func (p *parts) reconcile(t testing.TB) (reconcile.Result, error) {
	t.Helper()
	return p.reconciler.Reconcile(t.Context(), keyOf(p.served))
}

func keyOf(obj *request) fairqueue.Key { return fairqueue.KeyOf(obj, csr.Limits{}.NodeOf(obj)) }

// trust makes it known what the cluster does with the CA. The zero trust is that of a CA that nothing trusts.
func (p *parts) trust(found caTrust) {
	found.authority = must(p.pair.Authority(now))
	p.reconciler.trusts.Store(p.pair, found)
}

// load gives the pair a CA with that lifetime that the cluster does not trust.
func (p *parts) load(t testing.TB, lifetime time.Duration) root {
	t.Helper()
	made := newRoot(t, lifetime)
	p.pair.Load(made.cert, made.key)
	p.trust(caTrust{})
	taken(p.recorder)
	return made
}
