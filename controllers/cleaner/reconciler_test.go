package cleaner

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/servertimetest"
)

type request = certificatesv1.CertificateSigningRequest

var (
	now      = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	requests = schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
)

// object returns a pending request that was created now, for a signer that is not configured.
func object(modify ...func(*request)) *request {
	obj := &request{ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now)}}
	obj.Spec.SignerName = "example.com/foreign"
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func with(kind certificatesv1.RequestConditionType) func(*request) {
	return func(obj *request) { csr.AddCondition(obj, kind, "", "", now) }
}

// issued adds a certificate that expires after lifetime.
func issued(t *testing.T, lifetime time.Duration) func(*request) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now, NotAfter: now.Add(lifetime)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return func(obj *request) {
		obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
}

// trimmed returns obj as the manager's cache holds it.
func trimmed(t *testing.T, obj *request) *request {
	t.Helper()
	held, err := csr.Trim{Ours: func(string) bool { return false }}.Transform(obj)
	if err != nil {
		t.Fatal(err)
	}
	return held.(*request)
}

// world is a Reconciler, its cache, its API server and its limiter.
type world struct {
	*Reconciler
	flowcontrol.RateLimiter
	deleted               []client.DeleteOptions
	waits                 int
	get, stop, deleteWith error // the errors of calls
}

// Wait counts the calls. It is the method of the limiter that the cleaner uses.
func (w *world) Wait(context.Context) error {
	w.waits++
	return w.stop
}

// newWorld returns a Reconciler at the instant at with served in its cache.
func newWorld(served *request, at time.Time) *world {
	w := &world{}
	calls := interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			*obj.(*request) = *served
			return w.get
		},
		Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, options ...client.DeleteOption) error {
			called := client.DeleteOptions{}
			w.deleted = append(w.deleted, *called.ApplyOptions(options))
			return w.deleteWith
		},
	}
	w.Reconciler = &Reconciler{
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Limiter: w,
		Client:     fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(calls).Build(),
		ServerTime: servertime.Of(clocktesting.NewFakePassiveClock(at)),
	}
	return w
}

// once calls Reconcile, and fails the test unless its error begins with want, and is nil if that is empty. It must delete so many
// requests, and wait so often for the rate of deletions.
func (w *world) once(t *testing.T, want string, deleted, waits int) {
	t.Helper()
	w.deleted, w.waits = nil, 0
	got := ""
	result, err := w.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-1"}})
	if err != nil {
		got = err.Error()
	}
	if result != (reconcile.Result{}) || !strings.HasPrefix(got, want) || want == "" && got != "" || len(w.deleted) != deleted || w.waits != waits {
		t.Errorf("%+v, error %q, want %q; %d deletions, want %d; %d waits, want %d", result, got, want, len(w.deleted), deleted, w.waits, waits)
	}
}

// TestReconcileDeletesWhenDue checks which requests are deleted, and that a changed request is spared.
func TestReconcileDeletesWhenDue(t *testing.T) {
	t.Parallel()
	const hour, day = time.Hour, 24 * time.Hour
	leaving := func(obj *request) { obj.DeletionTimestamp = &metav1.Time{Time: now} }
	approved, ten := []func(*request){with("Approved")}, 10*time.Minute
	hasCert := func(lifetime time.Duration) []func(*request) {
		return []func(*request){with("Approved"), issued(t, lifetime)}
	}
	for name, test := range map[string]struct {
		change []func(*request)
		keep   csr.Retention
		age    time.Duration
		gone   bool
	}{
		"pending":                       {},
		"pending, due in ten minutes":   {age: day - ten},
		"pending, exactly due":          {age: day}, // "older" is strict, as in kube-controller-manager
		"pending, a nanosecond overdue": {age: day + 1, gone: true},
		"pending, long ago":             {age: 1000 * day, gone: true},
		"approved":                      {change: approved, age: 55 * time.Minute},
		"approved, due":                 {change: approved, age: hour + 1, gone: true},
		"denied, due":                   {change: []func(*request){with("Denied")}, age: hour + 1, gone: true},
		"failed, due":                   {change: []func(*request){with("Failed")}, age: hour + 1, gone: true},
		"unknown condition":             {change: []func(*request){with("Vetted")}, age: hour + 1},
		"kept for ever":                 {keep: csr.Retention{Pending: -1}, age: 1000 * day},
		"being deleted":                 {change: []func(*request){leaving}, age: 1000 * day},
		"created in the future":         {age: -hour},
		"issued":                        {change: hasCert(2 * hour), age: 55 * time.Minute},
		"certificate expires":           {change: hasCert(ten), age: ten - time.Second},
		"certificate has expired":       {change: hasCert(ten), age: ten + 1, gone: true},
	} {
		for _, form := range []string{"whole", "trimmed"} {
			t.Run(name+", "+form, func(t *testing.T) {
				t.Parallel()
				served := object(test.change...)
				if form == "trimmed" {
					served = trimmed(t, served)
				}
				before, deletions := served.DeepCopy(), 0
				w := newWorld(served, now.Add(test.age))
				if test.keep != (csr.Retention{}) {
					w.Retention.Default = test.keep
				}
				if test.gone {
					deletions = 1
				}
				w.once(t, "", deletions, 1)
				for _, options := range w.deleted {
					if must := options.Preconditions; must == nil || *must.UID != "uid-1" || *must.ResourceVersion != "7" {
						t.Errorf("deleted with %+v", must)
					}
				}
				if diff := cmp.Diff(before, served); diff != "" {
					t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
				}
			})
		}
	}
}

// TestReconcileNeedsEverything checks the errors of calls. The rate of deletions bounds the attempts. Nothing is deleted
// while no API server tells the time.
func TestReconcileNeedsEverything(t *testing.T) {
	t.Parallel()
	down, gone := errors.New("down"), apierrors.NewNotFound(requests, "csr-1")
	for name, test := range map[string]struct {
		change           func(*world)
		want             string
		deletions, waits int
	}{
		"not found":         {change: func(w *world) { w.get = gone }},
		"cannot be read":    {change: func(w *world) { w.get = down }, want: "read request: down"},
		"stopping":          {change: func(w *world) { w.stop = context.Canceled }, waits: 1},
		"deleted meanwhile": {change: func(w *world) { w.deleteWith = gone }, deletions: 1, waits: 1},
		"changed meanwhile": {change: func(w *world) { w.deleteWith = apierrors.NewConflict(requests, "csr-1", down) }, deletions: 1, waits: 1},
		"cannot be deleted": {change: func(w *world) { w.deleteWith = down }, want: "delete request: down", deletions: 1, waits: 1},
		"may not be deleted": {
			change: func(w *world) { w.deleteWith = apierrors.NewForbidden(requests, "csr-1", down) }, deletions: 1, waits: 1,
			want: `delete request: certificatesigningrequests.certificates.k8s.io "csr-1" is forbidden: down`,
		},
		"no server time": {
			change: func(w *world) { w.ServerTime = &servertime.Clock{} }, waits: 1,
			want: "the time of the API servers is not known: no API server can be asked",
		},
		"the signer keeps it longer": {
			change: func(w *world) {
				w.Retention.Signers = map[string]csr.Retention{"example.com/foreign": {Pending: 26 * time.Hour}}
			}, waits: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(object(), now.Add(25*time.Hour))
			test.change(w)
			w.once(t, test.want, test.deletions, test.waits)
		})
	}
}

// TestErrorsAreCounted checks that a Reconcile that fails is counted with its reason, and no other.
func TestErrorsAreCounted(t *testing.T) {
	t.Parallel()
	counted := func() float64 {
		value := &dto.Metric{}
		if err := errorsTotal.WithLabelValues("Timeout").Write(value); err != nil {
			t.Fatal(err)
		}
		return value.GetCounter().GetValue()
	}
	w, before := newWorld(object(), now), counted()
	w.once(t, "", 0, 1)
	w.get = apierrors.NewTimeoutError("slow", 1)
	w.once(t, "read request: Timeout: slow", 0, 0)
	if after := counted(); after != before+1 {
		t.Errorf("%v errors are counted, want 1", after-before)
	}
}

// TestReconcileCountsAgesInServerTime checks that ages count by the API servers' time. A clock that is wrong deletes
// nothing early.
func TestReconcileCountsAgesInServerTime(t *testing.T) {
	t.Parallel()
	const day, hour = 24 * time.Hour, time.Hour
	for name, test := range map[string]struct {
		ahead, step time.Duration // the API server's clock, and how far it is ahead after it was noted
		age         time.Duration // of the request, by this machine's clock
		deletions   int
		want        string // the begin of the error
	}{
		"both clocks agree":                             {age: day + time.Minute, deletions: 1},
		"this clock is set forward by 25 h":             {ahead: -25 * hour, age: 25 * hour},
		"this clock is an hour behind":                  {ahead: hour, age: 23*hour + time.Minute, deletions: 1},
		"this clock is a year behind":                   {ahead: 365 * day, age: -365 * day},
		"the API server's clock is set forward by 25 h": {step: 25 * hour, want: "the time of the API servers is not known: "},
		"the API server's clock is set back by 2 days":  {step: -2 * day, age: 2 * day},
		"it is set back, and the request is due still":  {step: -2 * day, age: 4 * day, deletions: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(object(created(time.Now().Add(-test.age))), now)
			var set func(time.Duration)
			w.ServerTime, set = servertimetest.Measured(t, test.ahead)
			if test.step != 0 {
				set(test.step)
			}
			if test.want != "" { // another call notes it
				_, _ = w.ServerTime.Fresh(t.Context())
			}
			w.once(t, test.want, test.deletions, 1)
		})
	}
}

// TestDryRunDeletesNothing checks that a dry run tells once what it would delete.
func TestDryRunDeletesNothing(t *testing.T) {
	t.Parallel()
	w, recorder := newWorld(object(with("Denied")), now.Add(2*time.Hour)), events.NewFakeRecorder(10)
	w.DryRun, w.Reporter = true, report.New(recorder, clocktesting.NewFakePassiveClock(now.Add(2*time.Hour)))
	for range 3 {
		w.once(t, "", 0, 0)
	}
	const want = "Normal WouldDelete Due: the request is Denied and due for deletion since 2026-03-01T13:00:00Z"
	if told := len(recorder.Events); told != 1 {
		t.Errorf("%d Events", told)
	} else if got := <-recorder.Events; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// filled is a cache with one informer. It cannot be read before the kind is installed.
type filled struct {
	cache.Informers
	toolscache.SharedIndexInformer
	store             toolscache.Store
	installed, synced atomic.Bool
}

func (f *filled) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	if !f.installed.Load() {
		return nil, errors.New("no matches for kind")
	}
	return f, nil
}
func (f *filled) AddIndexers(toolscache.Indexers) error { return nil }
func (f *filled) HasSynced() bool                       { return f.synced.Load() }
func (f *filled) GetStore() toolscache.Store            { return f.store }

// shifted is a clock that differs from the machine's.
type shifted struct {
	clock.RealClock
	by atomic.Int64 // a time.Duration
}

func (s *shifted) Now() time.Time { return s.RealClock.Now().Add(time.Duration(s.by.Load())) }

// passing is a cleaner that passes over a cache in a synctest bubble, by the clock of an API server.
type passing struct {
	filled
	server shifted
	queue  queue
	clean  *Reconciler
}

// passes tests a cleaner whose cache has requests of those ages. Their names are csr-0, csr-1 and so on.
func passes(t *testing.T, test func(t *testing.T, p *passing), ages ...time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Hour, time.Hour)
		p := &passing{queue: workqueue.NewTypedRateLimitingQueue(limiter)}
		t.Cleanup(p.queue.ShutDown)
		p.clean = &Reconciler{
			Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, ServerTime: servertime.Apart(clock.RealClock{}, &p.server),
		}
		p.store = toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
		for i, age := range ages {
			obj := object(created(time.Now().Add(-age)), func(obj *request) { obj.Name = fmt.Sprint("csr-", i) })
			if err := p.store.Add(trimmed(t, obj)); err != nil {
				t.Fatal(err)
			}
		}
		p.installed.Store(true)
		p.synced.Store(true)
		test(t, p)
	})
}

func created(at time.Time) func(*request) {
	return func(obj *request) { obj.CreationTimestamp = metav1.NewTime(at) }
}

// start starts the passes. They end with the test.
func (p *passing) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go p.clean.enqueueDue(ctx, p, logr.Discard(), p.queue)
}

// after takes the names in the queue after a time.
func (p *passing) after(t *testing.T, pause time.Duration, want ...string) {
	t.Helper()
	time.Sleep(pause)
	synctest.Wait()
	var got []string
	for p.queue.Len() > 0 {
		key, _ := p.queue.Get()
		got = append(got, key.Name)
		p.queue.Done(key)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("due: %q, want %q", got, want)
	}
}

// TestPassFindsDueRequests checks that requests enter the queue when they are due, and not earlier.
func TestPassFindsDueRequests(t *testing.T) {
	t.Parallel()
	passes(t, func(t *testing.T, p *passing) {
		p.start(t)
		p.after(t, 0, "csr-3")
		p.after(t, 10*time.Second, "csr-2", "csr-3")
		if err := p.store.Delete(trimmed(t, object(func(obj *request) { obj.Name = "csr-3" }))); err != nil {
			t.Fatal(err)
		}
		p.after(t, 10*time.Second, "csr-2")
		p.after(t, 4*time.Hour, "csr-1", "csr-2")
		p.after(t, 20*time.Hour, "csr-0", "csr-1", "csr-2")
	}, 0, 20*time.Hour, 24*time.Hour-time.Second, 30*time.Hour)
}

// TestPassLeavesRetriesToTheQueue checks that a pass does not shorten the back-off of a deletion that fails.
func TestPassLeavesRetriesToTheQueue(t *testing.T) {
	t.Parallel()
	passes(t, func(t *testing.T, p *passing) {
		p.start(t)
		p.after(t, 0, "csr-0")
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-0"}}
		p.queue.AddRateLimited(key)
		p.after(t, 59*time.Minute)
		p.after(t, time.Minute, "csr-0")
		p.queue.Forget(key)
		p.after(t, 10*time.Second, "csr-0")
	}, 30*time.Hour)
}

// TestPassFollowsTheAPIServersTime sets the API server's clock, which was a day behind. Requests that are due now must
// not wait for long.
func TestPassFollowsTheAPIServersTime(t *testing.T) {
	t.Parallel()
	passes(t, func(t *testing.T, p *passing) {
		p.server.by.Store(int64(-24 * time.Hour))
		p.start(t)
		p.after(t, time.Minute)
		p.server.by.Store(0)
		p.after(t, 10*time.Second, "csr-0")
		p.server.by.Store(int64(-24 * time.Hour))
		p.after(t, 10*time.Second)
	}, 30*time.Hour)
}

// TestPassNeedsTheTimeAndTheCache checks that nothing is enqueued before the time is known and the cache is complete.
func TestPassNeedsTheTimeAndTheCache(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*passing){
		"unknown time":  func(p *passing) { p.clean.ServerTime = &servertime.Clock{} },
		"no such kind":  func(p *passing) { p.installed.Store(false) },
		"cache unready": func(p *passing) { p.synced.Store(false) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			passes(t, func(t *testing.T, p *passing) {
				spoil(p)
				p.start(t)
				p.after(t, time.Minute)
				p.installed.Store(true)
				p.synced.Store(true)
				if name != "unknown time" {
					p.after(t, time.Minute, "csr-0")
				}
			}, 30*time.Hour)
		})
	}
}
