package cleaner

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// ofNode returns a request for node, created after that many seconds.
func ofNode(t *testing.T, node string, seconds int, modify ...func(*request)) *request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := object(modify...)
	obj.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(seconds) * time.Second))
	obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	if obj.Spec.SignerName == "example.com/foreign" {
		obj.Spec.SignerName = "kubernetes.io/kube-apiserver-client-kubelet"
	}
	return obj
}

// among adds others to the requests in r's cache, and indexes them as a manager does.
func among(r *Reconciler, others ...*request) {
	served := r.Client
	r.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
			for _, other := range others {
				if other.Name == key.Name {
					*obj.(*request) = *other
					return nil
				}
			}
			return served.Get(ctx, key, obj, options...)
		},
		Delete: func(ctx context.Context, _ client.WithWatch, obj client.Object, options ...client.DeleteOption) error {
			return served.Delete(ctx, obj, options...)
		},
	})
	mine := &request{}
	_ = served.Get(context.Background(), client.ObjectKey{Name: "csr-1"}, mine)
	for _, obj := range append(others, mine) {
		r.pending.observe(obj, r.RequestLimits)
	}
	r.pending.complete.Store(true)
}

func TestReconcileDeletesWhatIsSuperseded(t *testing.T) {
	t.Parallel()
	const minute, hour = time.Minute, time.Hour
	serving := func(obj *request) { obj.Spec.SignerName = "kubernetes.io/kubelet-serving" }
	named := func(name string) func(*request) { return func(obj *request) { obj.Name = name } }
	someone := func(obj *request) { obj.Spec.Username = "someone" }
	for name, test := range map[string]struct {
		served *request // nil means a pending request of node a
		others []*request
		off    bool
		age    time.Duration
		again  time.Duration
		gone   bool
	}{
		"younger than SupersededAfter":         {others: []*request{ofNode(t, "a", 60)}, age: 59 * minute, again: minute + time.Millisecond},
		"the only request":                     {age: 2 * hour, again: hour + time.Millisecond},
		"a newer request, not long enough":     {others: []*request{ofNode(t, "a", 900)}, age: 70 * minute, again: 5*minute + time.Millisecond},
		"a newer request, exactly long enough": {others: []*request{ofNode(t, "a", 900)}, age: 75 * minute, again: time.Millisecond},
		"a newer request":                      {others: []*request{ofNode(t, "a", 900)}, age: 75*minute + 1, gone: true},
		"several newer requests":               {others: []*request{ofNode(t, "a", 2700, named("c")), ofNode(t, "a", 900, named("b"))}, age: 75*minute + 1, gone: true},
		"an older request":                     {others: []*request{ofNode(t, "a", -900)}, age: 2 * hour, again: hour + time.Millisecond},
		"a request of the same second":         {others: []*request{ofNode(t, "a", 0)}, age: 2 * hour, again: hour + time.Millisecond},
		"another node":                         {others: []*request{ofNode(t, "b", 900)}, age: 2 * hour, again: hour + time.Millisecond},
		"another requester":                    {others: []*request{ofNode(t, "a", 900, someone)}, age: 2 * hour, again: hour + time.Millisecond},
		"another signer":                       {others: []*request{ofNode(t, "a", 900, serving)}, age: 2 * hour, again: hour + time.Millisecond},
		"a newer request that is approved":     {others: []*request{ofNode(t, "a", 900, with("Approved"))}, age: 2 * hour, again: hour + time.Millisecond},
		"a newer request that is denied":       {others: []*request{ofNode(t, "a", 900, with("Denied"))}, age: 2 * hour, again: hour + time.Millisecond},
		"both for serving certificates":        {served: ofNode(t, "a", 0, serving), others: []*request{ofNode(t, "a", 900, serving)}, age: 75*minute + 1, gone: true},
		"a signer without kubelet requests":    {served: ofNode(t, "a", 0, func(obj *request) { obj.Spec.SignerName = "example.com/a" }), others: []*request{ofNode(t, "a", 900)}, age: 2 * hour, again: 22*hour + time.Millisecond},
		"approved":                             {served: ofNode(t, "a", 0, with("Approved")), others: []*request{ofNode(t, "a", 900)}, age: 50 * minute, again: 10*minute + time.Millisecond},
		"malformed":                            {served: object(func(obj *request) { obj.Spec.SignerName = "kubernetes.io/kubelet-serving" }), age: 2 * hour, again: 22*hour + time.Millisecond},
		"disabled":                             {others: []*request{ofNode(t, "a", 900)}, off: true, age: 2 * hour, again: 22*hour + time.Millisecond},
		"its retention ends first":             {age: 24 * hour, again: time.Millisecond},
		"its retention has ended":              {age: 25 * hour, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served := test.served
			if served == nil {
				served = ofNode(t, "a", 0)
			}
			for _, other := range test.others {
				if other.Name == "csr-1" {
					other.Name = "csr-2"
				}
			}
			r, deleted, _ := newReconciler(served, now.Add(test.age), nil, nil)
			among(r, test.others...)
			r.SupersededAfter = hour
			if test.off {
				r.SupersededAfter = 0
			}
			if test.again > horizon+time.Millisecond {
				test.again = 0 // the search finds it
			}
			again, problem := reconcileOnce(t, r)
			if again != test.again || problem != "" || (len(*deleted) == 1) != test.gone {
				t.Errorf("again after %s, want %s; %d deletions; error %q", again, test.again, len(*deleted), problem)
			}
		})
	}
}

// TestSupersededByNothingAnyMore checks a cache that is newer than the index. A request that is decided or deleted by
// now supersedes nothing.
func TestSupersededByNothingAnyMore(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]*request{
		"approved":     ofNode(t, "a", 900, with("Approved")),
		"another node": ofNode(t, "b", 900),
		"recreated":    ofNode(t, "a", 901),
		"deleted":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			served, newer := ofNode(t, "a", 0), ofNode(t, "a", 900)
			newer.Name = "csr-2"
			r, deleted, _ := newReconciler(served, newer.CreationTimestamp.Add(2*time.Hour), nil, nil)
			r.SupersededAfter = time.Hour
			among(r, newer)
			reads := r.Client
			r.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
					switch {
					case key.Name != newer.Name:
						return reads.Get(ctx, key, obj, options...)
					case now == nil:
						return apierrors.NewNotFound(requests, key.Name)
					}
					*obj.(*request) = *now
					return nil
				},
			})
			if again, problem := reconcileOnce(t, r); again != time.Second || problem != "" || len(*deleted) != 0 {
				t.Errorf("again after %s, %d deletions, error %q", again, len(*deleted), problem)
			}
		})
	}
}

func TestSupersededWaitsForTheCache(t *testing.T) {
	t.Parallel()
	r, deleted, _ := newReconciler(ofNode(t, "a", 0), now.Add(2*time.Hour), nil, nil)
	among(r, ofNode(t, "a", 900, func(obj *request) { obj.Name = "csr-2" }))
	r.SupersededAfter = time.Hour
	r.pending.complete.Store(false)
	if again, problem := reconcileOnce(t, r); again != time.Second+time.Millisecond || problem != "" || len(*deleted) != 0 {
		t.Errorf("again after %s, %d deletions, error %q", again, len(*deleted), problem)
	}
}

// TestSupersededIsNoNamesake checks a request whose name another request had, which the index still holds.
func TestSupersededIsNoNamesake(t *testing.T) {
	t.Parallel()
	mine := ofNode(t, "a", 0)
	r, deleted, _ := newReconciler(mine, now.Add(4*time.Hour), nil, nil)
	among(r, ofNode(t, "a", 900, func(obj *request) { obj.Name = "csr-2" }))
	r.SupersededAfter = time.Hour
	mine.UID = "uid-2"
	if again, problem := reconcileOnce(t, r); again != 0 || problem != "" || len(*deleted) != 0 {
		t.Errorf("again after %s, %d deletions, error %q", again, len(*deleted), problem)
	}
}

func TestSupersededFault(t *testing.T) {
	t.Parallel()
	r, deleted, _ := newReconciler(ofNode(t, "a", 0), now.Add(2*time.Hour), nil, nil)
	r.SupersededAfter = time.Hour
	among(r, ofNode(t, "a", 900, func(obj *request) { obj.Name = "csr-2" }))
	reads := r.Client
	r.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
			if key.Name == "csr-2" {
				return errors.New("down")
			}
			return reads.Get(ctx, key, obj, options...)
		},
	})
	if _, problem := reconcileOnce(t, r); problem != "read the newer request csr-2 for the same node: down" || len(*deleted) != 0 {
		t.Errorf("%d deletions, error %q", len(*deleted), problem)
	}
}

func TestDryRunDeletesNothing(t *testing.T) {
	t.Parallel()
	r, deleted, limiter := newReconciler(object(with("Denied")), now.Add(2*time.Hour), nil, nil)
	recorder := events.NewFakeRecorder(10)
	r.DryRun, r.Reporter = true, report.New(recorder, r.Clock)
	for range 3 {
		if again, problem := reconcileOnce(t, r); again != 0 || problem != "" {
			t.Errorf("again after %s, error %q", again, problem)
		}
	}
	if len(*deleted) != 0 || limiter.waits != 0 {
		t.Fatalf("%d deletions, %d waits", len(*deleted), limiter.waits)
	}
	if want, got := []string{"Normal WouldDelete Due: the request is Denied and due for deletion since 2026-03-01T13:00:00Z"}, told(recorder); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}

	served := ofNode(t, "a", 0)
	r, deleted, _ = newReconciler(served, now.Add(2*time.Hour), nil, nil)
	among(r, ofNode(t, "a", 900, func(obj *request) { obj.Name = "csr-2" }))
	r.DryRun, r.Reporter, r.SupersededAfter = true, report.New(recorder, r.Clock), time.Hour
	if _, problem := reconcileOnce(t, r); problem != "" || len(*deleted) != 0 {
		t.Errorf("%d deletions, error %q", len(*deleted), problem)
	}
	if want, got := []string{"Normal WouldDelete Superseded: the request is Pending and due for deletion since 2026-03-01T13:15:00Z"}, told(recorder); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// told returns the Events since the last call.
func told(recorder *events.FakeRecorder) (all []string) {
	for len(recorder.Events) > 0 {
		all = append(all, <-recorder.Events)
	}
	return all
}
