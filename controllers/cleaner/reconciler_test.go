package cleaner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	gocmp "github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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

func created(at time.Time) func(*request) {
	return func(obj *request) { obj.CreationTimestamp = metav1.NewTime(at) }
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// issued makes an approved request with a certificate that expires after lifetime.
func issued(lifetime time.Duration) func(*request) {
	authority, _, err := ca.New(ca.NewOptions{CommonName: "a", Lifetime: lifetime}, now)
	return func(obj *request) {
		with("Approved")(obj)
		obj.Status.Certificate = must(authority, err).CertificatePEM()
	}
}

// trimmed returns obj as the manager's cache holds it.
func trimmed(obj *request) *request {
	return must(csr.Trim{Ours: func(string) bool { return false }}.Transform(obj)).(*request)
}

// world is a Reconciler, its cache, its API server and its limiter. Any other call panics.
type world struct {
	*Reconciler
	client.Client
	flowcontrol.RateLimiter
	stopManager           context.CancelFunc
	served                *request
	deleted               []*client.Preconditions
	waits                 int
	get, stop, deleteWith error // the errors of calls
}

func (w *world) Wait(context.Context) error {
	w.waits++
	return w.stop
}

func (w *world) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	*obj.(*request) = *w.served
	return w.get
}

// Delete has the manager stop meanwhile. It fails without the time for an admission webhook, which may take 30 seconds.
func (w *world) Delete(ctx context.Context, _ client.Object, options ...client.DeleteOption) error {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < 30*time.Second {
		return fmt.Errorf("the call ends at %s", deadline)
	}
	if w.stopManager(); ctx.Err() != nil {
		return ctx.Err()
	}
	called := (&client.DeleteOptions{}).ApplyOptions(options)
	w.deleted = append(w.deleted, (*client.Preconditions)(called.Preconditions))
	return w.deleteWith
}

// newWorld returns a Reconciler at the instant at with served in its cache.
func newWorld(served *request, at time.Time) *world {
	w := &world{served: served}
	w.Reconciler = &Reconciler{
		Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Limiter: w, Client: w,
		ServerTime: servertime.Of(clocktesting.NewFakePassiveClock(at)),
	}
	return w
}

// once calls Reconcile, and fails the test unless its error begins with want, and is nil if that is empty. It must delete so many
// requests, and wait so often for the rate of deletions.
func (w *world) once(t *testing.T, want string, deleted, waits int) {
	t.Helper()
	w.deleted, w.waits = nil, 0
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w.stopManager = stop
	result, err := w.Reconcile(ctx, reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-1"}})
	got := strings.TrimPrefix(fmt.Sprint(err), "<nil>")
	if result != (reconcile.Result{}) || !strings.HasPrefix(got, want) || want == "" && got != "" || len(w.deleted) != deleted || w.waits != waits {
		t.Errorf("%+v, error %q, want %q; %d deletions, want %d; %d waits, want %d", result, got, want, len(w.deleted), deleted, w.waits, waits)
	}
}

// TestReconcileDeletesWhenDue checks which requests are deleted, and that a changed request is spared.
func TestReconcileDeletesWhenDue(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	leaving := func(obj *request) { obj.DeletionTimestamp = &metav1.Time{Time: now} }
	const ten = 10 * time.Minute
	for name, test := range map[string]struct {
		change func(*request)
		keep   csr.Retention
		age    time.Duration
		gone   bool
	}{
		"pending":                       {},
		"pending, due in ten minutes":   {age: day - ten},
		"pending, exactly due":          {age: day}, // "older" is strict, as in kube-controller-manager
		"pending, a nanosecond overdue": {age: day + 1, gone: true},
		"approved":                      {change: with("Approved"), age: 55 * time.Minute},
		"approved, due":                 {change: with("Approved"), age: hour + 1, gone: true},
		"denied, due":                   {change: with("Denied"), age: hour + 1, gone: true},
		"failed, due":                   {change: with("Failed"), age: hour + 1, gone: true},
		"unknown condition":             {change: with("Vetted"), age: hour + 1},
		"kept for ever":                 {keep: csr.Retention{Pending: -1}, age: 1000 * day},
		"being deleted":                 {change: leaving, age: 1000 * day},
		"created in the future":         {age: -hour},
		"issued":                        {change: issued(2 * hour), age: 55 * time.Minute},
		"certificate expires":           {change: issued(ten), age: ten - time.Second},
		"certificate has expired":       {change: issued(ten), age: ten + 1, gone: true},
	} {
		for _, form := range []string{"whole", "trimmed"} {
			t.Run(name+", "+form, func(t *testing.T) {
				served := object()
				if test.change != nil {
					test.change(served)
				}
				if form == "trimmed" {
					served = trimmed(served)
				}
				before, w := served.DeepCopy(), newWorld(served, now.Add(test.age))
				w.Retention.Default = cmp.Or(test.keep, w.Retention.Default)
				w.once(t, "", map[bool]int{true: 1}[test.gone], 1)
				for _, must := range w.deleted {
					if must == nil || *must.UID != "uid-1" || *must.ResourceVersion != "7" {
						t.Errorf("deleted with %+v", must)
					}
				}
				if diff := gocmp.Diff(before, served); diff != "" {
					t.Errorf("the cache's object was changed (-before +after):\n%s", diff)
				}
			})
		}
	}
}

// TestReconcileNeedsEverything checks the errors of calls, which are counted. The rate of deletions bounds the attempts. Nothing
// is deleted while no API server tells the time.
func TestReconcileNeedsEverything(t *testing.T) {
	down, gone := errors.New("down"), apierrors.NewNotFound(requests, "csr-1")
	counted := func() float64 {
		value := &dto.Metric{}
		return must(value, errorsTotal.WithLabelValues("Timeout").Write(value)).GetCounter().GetValue()
	}
	before := counted()
	for name, test := range map[string]struct {
		change           func(*world)
		want             string
		deletions, waits int
	}{
		"not found":         {change: func(w *world) { w.get = gone }},
		"cannot be read":    {change: func(w *world) { w.get = down }, want: "read request: down"},
		"times out":         {change: func(w *world) { w.get = apierrors.NewTimeoutError("slow", 1) }, want: "read request: Timeout: slow"},
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
		t.Log(name)
		w := newWorld(object(), now.Add(25*time.Hour))
		test.change(w)
		w.once(t, test.want, test.deletions, test.waits)
	}
	if after := counted(); after != before+1 {
		t.Errorf("%v errors are counted as Timeout, want 1", after-before)
	}
}

// TestReconcileCountsAgesInServerTime checks that ages count by the API servers' time. A clock that is wrong deletes
// nothing early.
func TestReconcileCountsAgesInServerTime(t *testing.T) {
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
	w, recorder := newWorld(object(with("Denied")), now.Add(2*time.Hour)), events.NewFakeRecorder(10)
	w.DryRun, w.reporter = true, report.New(recorder, clocktesting.NewFakePassiveClock(now.Add(2*time.Hour)))
	for range 3 {
		w.once(t, "", 0, 0)
	}
	const want = "Normal WouldDelete Due: the request is Denied and due for deletion since 2026-03-01T13:00:00Z"
	if told := len(recorder.Events); told != 1 || <-recorder.Events != want {
		t.Errorf("%d Events, want one: %s", told, want)
	}
}

// passing is a cleaner that passes, in a synctest bubble, over a cache with one informer, whose requests are in store.
type passing struct {
	cache.Informers
	toolscache.SharedIndexInformer
	store   toolscache.Store
	unready atomic.Bool
	queue   queue
	clean   *Reconciler
}

func (p *passing) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return p, nil
}
func (p *passing) AddIndexers(toolscache.Indexers) error { return nil }
func (p *passing) HasSynced() bool                       { return !p.unready.Load() }
func (p *passing) GetStore() toolscache.Store            { return p.store }

// passes calls before, starts a cleaner whose cache has requests of those ages, and calls test. The names of the requests are
// csr-0, csr-1 and so on.
func passes(t *testing.T, before func(*passing), test func(*testing.T, *passing), ages ...time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Hour, time.Hour)
		p := &passing{queue: workqueue.NewTypedRateLimitingQueue(limiter)}
		defer p.queue.ShutDown()
		p.clean = &Reconciler{Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, ServerTime: servertime.Of(clock.RealClock{})}
		p.store = toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
		for i, age := range ages {
			obj := object(created(time.Now().Add(-age)), func(obj *request) { obj.Name = fmt.Sprint("csr-", i) })
			_ = must(obj, p.store.Add(trimmed(obj)))
		}
		before(p)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go p.clean.enqueueDue(ctx, p, logr.Discard(), p.queue)
		test(t, p)
	})
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

// TestPassFindsDueRequests checks that requests enter the queue when they are due, and not earlier. A pass does not shorten the
// back-off of a deletion that fails.
func TestPassFindsDueRequests(t *testing.T) {
	passes(t, func(*passing) {}, func(t *testing.T, p *passing) {
		p.after(t, 0, "csr-3")
		p.after(t, 10*time.Second, "csr-2", "csr-3")
		gone := object(func(obj *request) { obj.Name = "csr-3" })
		_ = must(gone, p.store.Delete(gone))
		p.after(t, 10*time.Second, "csr-2")
		key := reconcile.Request{NamespacedName: types.NamespacedName{Name: "csr-2"}}
		p.queue.AddRateLimited(key)
		p.after(t, 59*time.Minute)
		p.after(t, time.Minute, "csr-2")
		p.queue.Forget(key)
		p.after(t, 3*time.Hour, "csr-1", "csr-2")
		p.after(t, 20*time.Hour, "csr-0", "csr-1", "csr-2")
	}, 0, 20*time.Hour, 24*time.Hour-time.Second, 30*time.Hour)
}

// TestPassReportsWhatNoURLNames checks that a request whose name is too long for a URL never enters the queue, and is
// reported once.
func TestPassReportsWhatNoURLNames(t *testing.T) {
	recorder := events.NewFakeRecorder(100)
	passes(t, func(p *passing) { p.clean.reporter = report.New(recorder, clock.RealClock{}) }, func(t *testing.T, p *passing) {
		for i, name := range []string{strings.Repeat("\x01", 400_000), strings.Repeat("a", 2049), strings.Repeat("%", 700)} {
			obj := object(created(time.Now().Add(-30*time.Hour)), func(obj *request) { obj.Name, obj.UID = name, types.UID(fmt.Sprint(i)) })
			_ = must(obj, p.store.Add(trimmed(obj)))
			p.after(t, time.Minute, "csr-0")
			const want = "Warning RequestTooLarge the name is too long for a URL, so this request cannot be deleted by its name: delete it with all " +
				"requests for its signer (docs/runbooks/stolen-credentials.md), and install config/request-limits"
			if told := len(recorder.Events); told != 1 || <-recorder.Events != want {
				t.Errorf("%d Events, want one: %s", told, want)
			}
			p.after(t, 10*time.Minute, "csr-0")
			if told := len(recorder.Events); told != 0 {
				t.Errorf("%d Events ten minutes later", told)
			}
		}
	}, 30*time.Hour)
}

// TestPassNeedsTheTimeAndTheCache checks that nothing is enqueued before the time is known and the cache is complete.
func TestPassNeedsTheTimeAndTheCache(t *testing.T) {
	passes(t, func(p *passing) { p.clean.ServerTime = &servertime.Clock{} }, func(t *testing.T, p *passing) {
		p.after(t, time.Minute)
	}, 30*time.Hour)
	passes(t, func(p *passing) { p.unready.Store(true) }, func(t *testing.T, p *passing) {
		p.after(t, time.Minute)
		p.unready.Store(false)
		p.after(t, time.Minute, "csr-0")
	}, 30*time.Hour)
}
