package approver

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// named returns a change that sets a request's name.
func named(name string) func(*request) {
	return func(obj *request) { obj.Name, obj.UID = name, types.UID("uid-of-"+name) }
}

// of returns a request of node's kubelet for a serving certificate with names.
func of(t *testing.T, node string, names ...string) *request {
	t.Helper()
	return asks(t, nil, named(node), user("system:node:"+node), says(t, nodeTemplate(node, names...)))
}

// holding returns a Reconciler with objs in its cache.
func holding(t *testing.T, objs ...*request) *Reconciler {
	t.Helper()
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme)
	for _, obj := range objs {
		builder.WithObjects(obj)
	}
	r := &Reconciler{Client: builder.Build(), Rules: []Rule{NodeClient(), {SignerName: servingSigner, Judge: newKnown().judge}}}
	for _, obj := range objs {
		r.queues(obj)
	}
	return r
}

func newTestQueue(t *testing.T) workQueue {
	t.Helper()
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(q.ShutDown)
	return q
}

// woken empties q and returns the names in it.
func woken(q workQueue) string {
	var names []string
	for q.Len() > 0 {
		key, _ := q.Get()
		q.Done(key)
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestWhoIsWoken checks that a freed name wakes only the requests for exactly that name. Any node may claim and
// release addresses.
func TestWhoIsWoken(t *testing.T) {
	t.Parallel()
	approved := of(t, "e", "10.0.0.1")
	with("Approved")(approved)
	r := holding(t, of(t, "a", "10.0.0.1", "2001:db8::1"), of(t, "b", "10.0.0.2", "b.example.com"), of(t, "c", "10.0.0.3"), approved,
		object(t, named("d")), object(t, named("f"), func(obj *request) { obj.Spec.SignerName = "example.com/other" }))
	for name, test := range map[string]struct {
		change func(wakeUps)
		want   string
	}{
		"an address":                  {func(w wakeUps) { w.free(sans("10.0.0.1")) }, "a"},
		"some":                        {func(w wakeUps) { w.free(sans("10.0.0.2", "10.0.0.3", "10.0.0.4")) }, "b c"},
		"an address in another form":  {func(w wakeUps) { w.free(sans("::ffff:10.0.0.1")) }, "a"},
		"a name":                      {func(w wakeUps) { w.free(sans("B.example.com.")) }, "b"},
		"an address without requests": {func(w wakeUps) { w.free(sans("10.0.0.9")) }, ""},
		"a node":                      {func(w wakeUps) { w.node("b") }, "b"},
		"any node":                    {func(w wakeUps) { w.node("") }, "a b c"},
		"a node and a name":           {func(w wakeUps) { w.node("c"); w.free(sans("b.example.com")) }, "b c"},
		"a node without requests":     {func(w wakeUps) { w.node("z") }, ""},
	} {
		w, q := newWakeUps(), newTestQueue(t)
		w.nodes.runs, w.freed.runs = true, true
		test.change(w)
		r.enqueueNodes(q, w.nodes.take())
		r.enqueueFreed(q, w.freed.take())
		if got := woken(q); got != test.want {
			t.Errorf("%s: woken are %q, want %q", name, got, test.want)
		}
	}
}

// TestWhoHasThousandsPending checks that only the newest of one requester's requests for one node are woken, and all
// requests of others.
func TestWhoHasThousandsPending(t *testing.T) {
	t.Parallel()
	objs := []*request{of(t, "honest", "10.0.0.1")}
	for i := range 2000 {
		obj := objs[0].DeepCopy()
		named(fmt.Sprintf("hostile-%04d", i))(obj)
		obj.Spec.Username = "system:node:hostile"
		obj.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i) * time.Second))
		objs = append(objs, obj)
	}
	r, q := holding(t, objs...), newTestQueue(t)
	r.enqueueNodes(q, map[string]bool{"": true})
	want := "honest"
	for i := range mostWoken {
		want += fmt.Sprintf(" hostile-%04d", 2000-mostWoken+i)
	}
	if got := woken(q); got != want {
		t.Errorf("woken are %q, want %q", got, want)
	}
}

// TestAWakeUpLooksAtLittle checks that the cost of a wake-up does not grow with a node's requests. It skips requests
// that are decided or deleted.
func TestAWakeUpLooksAtLittle(t *testing.T) {
	t.Parallel()
	r := holding(t)
	made := of(t, "hostile")
	hostile := func(i int) *request { // with one key for all: computing keys is slow
		obj := made.DeepCopy()
		named(fmt.Sprintf("hostile-%04d", i))(obj)
		return obj
	}
	var last *request
	for i := range 2000 {
		last = hostile(i)
		r.queues(last)
		r.queues(last) // like a resync
	}
	looks := func() (count int) {
		r.index.woken(mostWoken, func(requestInfo) bool { count++; return true })
		return count
	}
	if got := looks(); got != mostWoken {
		t.Errorf("%d of 2000 are looked at, want %d", got, mostWoken)
	}
	first := hostile(0)
	if !r.index.superseded(first.Name) || r.index.superseded(last.Name) {
		t.Error("of 2000 of one second, not the newest alone are looked at again before a minute has passed")
	}
	events := r.queued()
	for i := range 1998 {
		obj := hostile(i)
		if i%2 == 0 {
			with("Approved")(obj)
			events.Update(event.UpdateEvent{ObjectNew: obj})
		} else {
			events.Delete(event.DeleteEvent{Object: obj})
		}
	}
	if got := looks(); got != 2 {
		t.Errorf("%d are looked at when two are left", got)
	}
	again := last.DeepCopy()
	again.UID, again.Spec.Username = "another", "system:node:other"
	events.Create(event.CreateEvent{Object: again})
	if got := looks(); got != 2 {
		t.Errorf("%d are looked at when one of two is made anew", got)
	}
}

// TestChangesAreGathered checks that waiting requests are looked up at a bounded rate, however often an address is
// released.
func TestChangesAreGathered(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	w, rounds := newDebouncer[int](20*time.Millisecond), make(chan map[int]bool)
	source := w.source(func(_ workQueue, news map[int]bool) { rounds <- news })
	if err := source.Start(ctx, newTestQueue(t)); err != nil {
		t.Fatal(err)
	}
	w.add(1)
	w.add(2, 3)
	if got := <-rounds; len(got) != 3 {
		t.Errorf("the first round is %v", got)
	}
	start := time.Now()
	for i := range 1000 {
		w.add(i)
	}
	if got := <-rounds; len(got) != 1000 || time.Since(start) < w.delay {
		t.Errorf("the second round is of %d, after %s", len(got), time.Since(start))
	}
}

// TestWakeUpsAreGathered checks how long each kind of change is collected before it wakes requests.
func TestWakeUpsAreGathered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		woken := make(chan time.Duration)
		start := time.Now()
		texts := func(workQueue, map[string]bool) { woken <- time.Since(start) }
		digests := func(workQueue, map[uint64]bool) { woken <- time.Since(start) }
		w := newWakeUps()
		for _, source := range []source.Source{w.nodes.source(texts), w.freed.source(digests), w.answered.source(texts)} {
			if err := source.Start(ctx, nil); err != nil {
				t.Fatal(err)
			}
		}
		w.node("a")
		w.free(sans("10.0.0.1"))
		w.answered.add("csr-1")
		for _, want := range []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond} {
			if got := <-woken; got != want {
				t.Errorf("requests are woken after %s, want %s", got, want)
			}
		}
	})
}

// TestDebouncerGathersNothingBeforeItsSourceStarts checks that a debouncer keeps nothing before its source starts. A
// standby never takes what a debouncer collects.
func TestDebouncerGathersNothingBeforeItsSourceStarts(t *testing.T) {
	t.Parallel()
	w := newWakeUps()
	w.node("a")
	w.free(sans("10.0.0.1"))
	if nodes, freed := w.nodes.take(), w.freed.take(); len(nodes) > 0 || len(freed) > 0 {
		t.Errorf("gathered %v and %v", nodes, freed)
	}
}

// TestTheQueueReadsNothing checks that the queue reads no request while it holds its lock. The position of a request
// is known before.
func TestTheQueueReadsNothing(t *testing.T) {
	t.Parallel()
	r := holding(t)
	r.Client = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			t.Error("a request is read")
			return nil
		},
	}).Build()
	order := r.NewQueue()
	for i := range 3 {
		obj := of(t, "hostile", "10.0.0.1")
		named(fmt.Sprintf("hostile-%d", i))(obj)
		obj.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i) * time.Second))
		if !r.queues(obj) {
			t.Fatal("it is not queued")
		}
		order.Push(queueKey(obj.Name))
	}
	honest := of(t, "honest", "10.0.0.2")
	r.queues(honest)
	order.Push(queueKey("honest"))
	order.Push(queueKey("unknown")) // a request without a known requester has its own share
	var got []string
	for order.Len() > 0 {
		got = append(got, order.Pop().Name)
	}
	if want := "hostile-2 honest unknown hostile-1 hostile-0"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestNamesOutliveNoRequest checks that the index holds no text of a requester, and drops a deleted request.
func TestNamesOutliveNoRequest(t *testing.T) { // not parallel, because it measures the whole heap
	const requests, long = 100, 1 << 17
	for name, dryRun := range map[string]bool{"for real": false, "dry run": true} {
		r := holding(t)
		r.DryRun, r.Reporter = dryRun, report.New(events.NewFakeRecorder(1000), clocktesting.NewFakePassiveClock(now))
		r.limiter = newLimiter(Limit{Burst: 1}, clocktesting.NewFakePassiveClock(now))
		r.Requests = &requestcache.Cache{}
		before := heap()
		for i := range requests {
			obj := object(t, named(fmt.Sprint("csr-", i)), user(strings.Repeat("u", long)+fmt.Sprint(i)))
			r.queues(obj)
			r.opinions.of(obj, now)
			r.opinions.note(obj, Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: "NotAuthorized", Message: obj.Spec.Username}})
			req, err := csr.Parse(obj)
			if err != nil {
				t.Fatal(err)
			}
			r.limiter.take(req)
			r.Reporter.Request(obj, obj.Spec.Username, "Approve", "NotAuthorized", obj.Spec.Username)
		}
		if grown := heap() - before; grown > requests*long/4 {
			t.Errorf("%s: %d bytes are kept of %d requesters", name, grown, requests)
		}
		deleted := r.queued()
		for i := range requests {
			deleted.Delete(event.DeleteEvent{Object: object(t, named(fmt.Sprint("csr-", i)))})
			r.opinions.countDeleted(fmt.Sprint("csr-", i))
		}
		if kept := len(r.index.requests) + r.index.undecided.Len() + r.Requests.Parsed() + r.opinions.last.Len(); kept > 0 {
			t.Errorf("%s: %d are kept of requests that are gone", name, kept)
		}
		runtime.KeepAlive(r)
	}
}

// heap returns the bytes of the heap that are in use.
func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// TestRequestInfo checks that a request that was created again under the same name replaces the old entry.
func TestRequestInfo(t *testing.T) {
	t.Parallel()
	var p pendingIndex
	for name, test := range map[string]struct {
		obj             *request
		requester, node string
	}{
		"a renewal":                         {object(t, user("system:node:a")), "system:node:a", "a"},
		"a bootstrap":                       {object(t), "system:bootstrap:abcdef", "a"},
		"a node that requests another node": {object(t, user("system:node:b")), "system:node:b", "a"},
		"serving":                           {of(t, "a", "10.0.0.1"), "system:node:a", "a"},
		"malformed":                         {object(t, malformedRequest, user("system:node:a")), "system:node:a", ""},
		"no node, with its own name":        {object(t, user("x"), says(t, nodeTemplate("x"))), "x", "x"},
	} {
		test.obj.Name, test.obj.UID = "csr-1", types.UID(name)
		for range 2 {
			p.add(test.obj, nil, csr.Limits{}, true)
			key := pending.Key{Signer: test.obj.Spec.SignerName, Requester: pending.DigestOf(test.requester), Node: pending.DigestOf(test.node)}
			want := pending.Request{Name: "csr-1", UID: test.obj.UID, Key: key, Created: now}
			if found, _ := p.find("csr-1"); found != want {
				t.Errorf("%s: %+v, want %+v", name, found, want)
			}
		}
	}
	p.add(of(t, "a", slices.Repeat([]string{"10.0.0.1", "a"}, 1000)...), nil, csr.Limits{}, true)
	if got := p.requests["a"]; got.Name == "" || len(got.sans) > 0 {
		t.Errorf("%d names of a request that is too large are remembered", len(got.sans))
	}
}

// TestIndexHoldsTheRequestItself checks that the index does not take a request for another one of the same name.
func TestIndexHoldsTheRequestItself(t *testing.T) {
	t.Parallel()
	var p pendingIndex
	held, other, unknown := object(t), object(t), object(t, named("unknown"))
	other.UID, unknown.UID = "another", ""
	p.add(held, nil, csr.Limits{}, true)
	for name, test := range map[string]struct {
		obj  *request
		want bool
	}{
		"the request":                  {held, true},
		"another request of that name": {other, false},
		"an unknown request":           {unknown, false},
	} {
		if got := p.holds(test.obj); got != test.want {
			t.Errorf("%s: held %t, want %t", name, got, test.want)
		}
	}
}

// TestNewestOfOneSecondAreNotSuperseded checks that of the requests of one second, exactly the newest few are not
// superseded.
func TestNewestOfOneSecondAreNotSuperseded(t *testing.T) {
	t.Parallel()
	var p pendingIndex
	for i := range mostWoken + 2 {
		p.add(object(t, named(fmt.Sprint("csr-", i))), nil, csr.Limits{}, true)
	}
	superseded := 0
	for i := range mostWoken + 2 {
		if p.superseded(fmt.Sprint("csr-", i)) {
			superseded++
		}
	}
	if superseded != 2 {
		t.Errorf("%d of %d requests are superseded, want 2", superseded, mostWoken+2)
	}
}

// TestDecidedRequestsAreNotQueued checks that a decided request is queued only in a dry run, which compares it.
func TestDecidedRequestsAreNotQueued(t *testing.T) {
	t.Parallel()
	other := func(obj *request) { obj.Spec.SignerName = "example.com/other" }
	for name, test := range map[string]struct {
		change []func(*request)
		dryRun bool
		want   bool
	}{
		"undecided":                        {want: true},
		"decided":                          {change: []func(*request){with("Approved")}},
		"another signer":                   {change: []func(*request){other}},
		"undecided, dry run":               {dryRun: true, want: true},
		"decided, dry run":                 {change: []func(*request){with("Approved")}, dryRun: true, want: true},
		"another signer, decided, dry run": {change: []func(*request){other, with("Approved")}, dryRun: true},
	} {
		r := newParts(t, object(t)).reconciler
		r.DryRun = test.dryRun
		r.Track(object(t))
		obj := object(t, test.change...)
		if got := r.queues(obj); got != test.want || r.index.holds(obj) != test.want {
			t.Errorf("%s: queued %t, in the index %t, want %t", name, got, r.index.holds(obj), test.want)
		}
		if got, want := r.Waits(obj), len(test.change) == 0; got != want {
			t.Errorf("%s: waits %t, want %t", name, got, want)
		}
	}
}

// TestNothingFreedWakesNothing checks that the end of no name causes no lookup of waiting requests.
func TestNothingFreedWakesNothing(t *testing.T) {
	t.Parallel()
	w := newWakeUps()
	w.freed.runs = true
	if w.free(nil); len(w.freed.changed) != 0 {
		t.Error("waiting requests are looked up although nothing became free")
	}
	if w.free(sans("10.0.0.1")); len(w.freed.changed) != 1 {
		t.Error("waiting requests are not looked up after an address became free")
	}
}

// TestSupersededAreLeftInPeace checks that a superseded request is judged once a minute, however new it is.
func TestSupersededAreLeftInPeace(t *testing.T) {
	t.Parallel()
	first := object(t)
	p := newParts(t, first)
	pauseOf := func(obj *request) time.Duration {
		t.Helper()
		p.served = obj
		p.reconciler.queues(obj)
		result, err := p.reconcile(t)
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	later := func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(time.Second)) }
	others := []*request{
		object(t, named("of another"), later, user("system:bootstrap:uvwxyz")),
		object(t, named("for another node"), later, says(t, nodeTemplate("b"))),
		object(t, named("of its age")),
	}
	for _, obj := range append(others, first) {
		if got := pauseOf(obj); got != time.Second {
			t.Errorf("%s: looked at again after %s", obj.Name, got)
		}
	}
	if newer, older := pauseOf(object(t, named("newer"), later)), pauseOf(first); newer != time.Second || older != time.Minute {
		t.Errorf("the newer one is looked at again after %s, the older after %s", newer, older)
	}
}

func TestAnswersReachAStandby(t *testing.T) {
	var answered []string
	wake := newWakeUps()
	wake.answered.also = func(name string) { answered = append(answered, name) }
	wake.answered.add("a", "b") // the controller does not run
	if !slices.Equal(answered, []string{"a", "b"}) || len(wake.answered.changes) != 0 {
		t.Errorf("answered %v, collected %v", answered, wake.answered.changes)
	}
}
