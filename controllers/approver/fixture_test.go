package approver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

var leafKey = sync.OnceValue(func() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return key
})

// payload returns template as PKCS#10 in PEM.
func payload(t testing.TB, template *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, leafKey())
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// object returns a new request of a bootstrapping kubelet, changed by modify.
func object(t testing.TB, modify ...func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    payload(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}),
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			Username:   "system:bootstrap:abcdef",
			Groups:     []string{"system:bootstrappers"},
		},
	}
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func user(name string) func(*certificatesv1.CertificateSigningRequest) {
	return func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Username = name }
}

// parts holds a Reconciler and everything that it uses.
type parts struct {
	reconciler *Reconciler
	clock      *clocktesting.FakePassiveClock
	recorder   *events.FakeRecorder
	// grants are the subresources that a review allows. If fault is set, reviews fail with it.
	grants []string
	fault  error
	// reviews are the permissions that were reviewed.
	reviews []authorizationv1.ResourceAttributes
	// served is the object in the cache. missing reports that there is none.
	served   *certificatesv1.CertificateSigningRequest
	getFault error
	// written are the objects that were written to /approval. The writes fail with writeFault.
	written    []*certificatesv1.CertificateSigningRequest
	writeFault error
}

func newParts(t testing.TB, served *certificatesv1.CertificateSigningRequest) *parts {
	t.Helper()
	p := &parts{served: served, clock: clocktesting.NewFakePassiveClock(now), recorder: events.NewFakeRecorder(100)}
	p.reconciler = &Reconciler{
		ServerTime: servertime.Of(p.clock),
		Rules:      []Rule{NodeClient()},
		Client:     p.client(t),
		Live: liveFunc(func(now *request) error { // it was changed meanwhile
			*now = *p.served.DeepCopy()
			now.ResourceVersion += "1"
			return nil
		}),
		Authorizer: authz.Func(p.review),
		Reporter:   report.New(p.recorder, p.clock),
		Clock:      p.clock,
	}
	return p
}

// client returns a client that serves only what an approver may do. Every other call panics, because the underlying
// fake client is empty.
func (p *parts) client(t testing.TB) client.Client {
	return fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			if p.getFault == nil {
				*obj.(*certificatesv1.CertificateSigningRequest) = *p.served // shared, like a cache read without a deep copy
			}
			return p.getFault
		},
		SubResourceUpdate: func(_ context.Context, _ client.Client, subResource string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
			if subResource != "approval" {
				t.Errorf("update of %s", subResource)
			}
			p.written = append(p.written, obj.(*certificatesv1.CertificateSigningRequest).DeepCopy())
			return p.writeFault
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			t.Error("list")
			return nil
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

func (p *parts) review(ctx context.Context, who csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	p.reviews = append(p.reviews, what)
	for _, granted := range p.grants {
		if granted == what.Subresource && who.Username == p.served.Spec.Username {
			return p.fault == nil, p.fault
		}
	}
	return false, p.fault
}

func (p *parts) reconcile(t testing.TB) (reconcile.Result, error) {
	t.Helper()
	return p.reconciler.Reconcile(t.Context(), fairqueue.KeyOf(p.served, p.reconciler.RequestLimits.NodeOf(p.served)))
}

// events returns the Events so far.
func (p *parts) events() []string {
	var taken []string
	for len(p.recorder.Events) > 0 {
		taken = append(taken, <-p.recorder.Events)
	}
	return taken
}

// liveFunc answers the API server's read of a request.
type liveFunc func(*request) error

func (f liveFunc) Get(ctx context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f(obj.(*request))
}

func (liveFunc) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

func parse(t *testing.T, obj *request) *csr.Request {
	t.Helper()
	req, err := csr.Parse(obj)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// audited makes p write an audit log. The result returns its records as "event verdict".
func (p *parts) audited(t *testing.T) func() []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	p.reconciler.Audit = opened
	return func() []string {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for line := range strings.Lines(string(data)) {
			var record audit.Record
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				t.Fatal(err)
			}
			all = append(all, string(record.Event)+" "+record.Verdict)
		}
		return all
	}
}
