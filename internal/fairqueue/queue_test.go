package fairqueue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keyOf reads "alice/node-1/name@7": requester, lane, name and creation time.
func keyOf(text string) Key {
	text, created, _ := strings.Cut(text, "@")
	parts := strings.Split(text, "/")
	key := Key{Name: parts[2], UID: types.UID(parts[2]), Requester: Digest(parts[0]), Lane: Digest(parts[0], parts[1])}
	_, _ = fmt.Sscan(created, &key.Created)
	return key
}

func queueOf(t *testing.T, workers int, keys ...string) *Queue {
	t.Helper()
	q := New("test", workers)
	t.Cleanup(q.ShutDown)
	for _, key := range keys {
		q.Add(keyOf(key))
	}
	return q
}

// free reports whether Get would return a key at once.
func free(q *Queue) bool { return q.Len() > 0 }

// queued returns the number of keys that wait for a worker.
func queued(q *Queue) (n int) {
	for _, in := range q.order.lanes {
		n += len(in.keys)
	}
	return n
}

// taken returns the names of the keys that free workers get now.
func taken(q *Queue, most int) []string {
	var names []string
	for range most {
		if !free(q) {
			break
		}
		key, _ := q.Get()
		names = append(names, key.Name)
	}
	return names
}

func TestOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		workers int
		add     []string
		want    []string
	}{
		"requesters take turns": {
			workers: 100, add: []string{"a/1/a1@1", "a/2/a2@1", "a/3/a3@1", "b/1/b1@1", "c/1/c1@1"},
			want: []string{"a1", "b1", "c1", "a2", "a3"},
		},
		"one request of a lane at a time, the newest first": {
			workers: 100, add: []string{"a/1/old@1", "a/1/newest@3", "a/1/newer@2", "a/2/other@1"},
			want: []string{"newest", "other"},
		},
		"one requester gets half of the workers": {
			workers: 4, add: []string{"a/1/a1@1", "a/2/a2@1", "a/3/a3@1", "a/4/a4@1", "b/1/b1@1"},
			want: []string{"a1", "b1", "a2"},
		},
		"one worker": {workers: 1, add: []string{"a/1/a1@1", "b/1/b1@1"}, want: []string{"a1", "b1"}},
		"a key that is queued already": {
			workers: 100, add: []string{"a/1/a1@1", "a/1/a1@1"}, want: []string{"a1"},
		},
	} {
		q := queueOf(t, test.workers, test.add...)
		if diff := cmp.Diff(test.want, taken(q, 100)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestDoneFreesLaneAndWorker(t *testing.T) {
	t.Parallel()
	q := queueOf(t, 4, "a/1/a1@2", "a/1/a1-older@1", "a/2/a2@1", "a/3/a3@1")
	if got := taken(q, 9); !slices.Equal(got, []string{"a1", "a2"}) {
		t.Fatalf("took %q", got)
	}
	q.Done(keyOf("a/2/a2@1"))
	if got := taken(q, 9); !slices.Equal(got, []string{"a3"}) {
		t.Errorf("after a2 is done: took %q", got)
	}
	q.Done(keyOf("a/1/a1@2"))
	if got := taken(q, 9); !slices.Equal(got, []string{"a1-older"}) {
		t.Errorf("after a1 is done: took %q", got)
	}
	q.Done(keyOf("a/3/a3@1"))
	q.Done(keyOf("a/1/a1-older@1"))
	if len(q.order.requesters)+len(q.order.lanes)+len(q.order.turns) != 0 {
		t.Errorf("the empty queue holds %d requesters and %d lanes", len(q.order.requesters), len(q.order.lanes))
	}
}

func TestAddDuringWorkQueuesAgain(t *testing.T) {
	t.Parallel()
	q := queueOf(t, 2, "a/1/a1@1")
	key, _ := q.Get()
	q.Add(key)
	q.Add(key)
	if got := taken(q, 9); len(got) > 0 {
		t.Fatalf("took %q in progress", got)
	}
	q.Done(key)
	if got := taken(q, 9); !slices.Equal(got, []string{"a1"}) {
		t.Errorf("took %q", got)
	}
	q.Done(key)
	if queued(q) != 0 || len(q.order.turns) != 0 {
		t.Errorf("%d keys are queued", queued(q))
	}
}

// A requester whose 2,000 requests never end leaves half of the workers to others.
func TestHangingRequesterLeavesWorkers(t *testing.T) {
	t.Parallel()
	q := queueOf(t, 50)
	for n := range 2000 {
		q.Add(keyOf(fmt.Sprintf("hostile/node-%d/h-%d@1", n, n)))
	}
	if got := taken(q, 50); len(got) != 25 {
		t.Fatalf("one requester holds %d of 50 workers", len(got))
	}
	for n := range 100 {
		q.Add(keyOf(fmt.Sprintf("honest-%d/node/b-%d@1", n, n)))
		key, _ := q.Get()
		if want := fmt.Sprintf("b-%d", n); key.Name != want {
			t.Fatalf("got %s, want %s", key.Name, want)
		}
		q.Done(key)
	}
}

// TestGetWaitsForWork checks that a waiting worker gets a key as soon as one may be worked on, and that a queue which is
// shut down returns no further key, even if keys are queued.
func TestGetWaitsForWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New("test", 4)
		got := make(chan string, 9)
		for range 3 {
			go func() {
				for {
					key, shutdown := q.Get()
					if shutdown {
						got <- "shut down"
						return
					}
					got <- key.Name
					time.Sleep(time.Minute)
					q.Done(key)
				}
			}()
		}
		all := func(want ...string) {
			t.Helper()
			synctest.Wait()
			var names []string
			for len(got) > 0 {
				names = append(names, <-got)
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		all()
		q.Add(keyOf("a/1/a1@2"))
		all("a1")
		q.Add(keyOf("a/1/a2@1")) // its lane is busy
		q.Add(keyOf("b/1/b1@2"))
		all("b1")
		time.Sleep(time.Minute)
		all("a2")
		q.Add(keyOf("a/1/a3@1"))
		q.ShutDown()
		q.Add(keyOf("c/1/late@1"))
		all("shut down", "shut down")
		time.Sleep(time.Minute)
		all("shut down")
	})
}

// TestNoWorkerWaitsWhileAKeyIsFree runs many workers and keys, and checks that every key gets a worker.
func TestNoWorkerWaitsWhileAKeyIsFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := New("test", 8)
		var done atomic.Int32
		for worker := range 8 {
			go func() {
				for {
					key, shutdown := q.Get()
					if shutdown {
						return
					}
					time.Sleep(time.Duration(1+(int(key.Created)+worker)%5) * time.Second)
					q.Done(key)
					done.Add(1)
				}
			}()
		}
		for n := range 600 {
			q.Add(keyOf(fmt.Sprintf("r%d/n%d/k%d@%d", n%3, n%7, n, n%11)))
			if n%50 == 0 {
				time.Sleep(3 * time.Second)
			}
		}
		time.Sleep(time.Hour)
		if got := done.Load(); got != 600 {
			t.Errorf("%d of 600 keys got a worker", got)
		}
		q.ShutDown()
	})
}

// FuzzQueue checks that no key is lost, and that lanes and shares hold, for any order of calls.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 200, 4, 5, 201, 202, 6, 0, 203})
	f.Fuzz(func(t *testing.T, calls []byte) {
		q := queueOf(t, 4)
		var working []Key
		wanted := map[Key]bool{}
		take := func() {
			key, _ := q.Get()
			if !wanted[key] {
				t.Fatalf("got %v, which is not queued", key)
			}
			delete(wanted, key)
			perRequester := 1
			for _, other := range working {
				if other.Lane == key.Lane {
					t.Fatalf("two requests of a lane in progress")
				}
				if other.Requester == key.Requester {
					perRequester++
				}
			}
			if perRequester > 2 {
				t.Fatalf("%d requests of a requester in progress", perRequester)
			}
			working = append(working, key)
		}
		done := func(n int) {
			q.Done(working[n])
			working = slices.Delete(working, n, n+1)
		}
		for _, call := range calls {
			switch {
			case call < 200:
				key := keyOf(fmt.Sprintf("r%d/n%d/k%d@%d", call%3, call%7, call, call%5))
				q.Add(key)
				wanted[key] = true
			case call%2 == 0 && free(q):
				take()
			case len(working) > 0:
				done(int(call) % len(working))
			}
			if queued(q) > len(wanted) {
				t.Fatalf("%d keys are queued, want %d", queued(q), len(wanted))
			}
		}
		for len(wanted)+len(working) > 0 {
			for free(q) {
				take()
			}
			if len(working) == 0 {
				t.Fatalf("%d keys never get a worker", len(wanted))
			}
			done(0)
		}
		if len(q.order.requesters)+len(q.order.lanes)+len(q.order.turns) > 0 {
			t.Errorf("the empty queue holds %d requesters and %d lanes", len(q.order.requesters), len(q.order.lanes))
		}
	})
}

func TestIndex(t *testing.T) {
	t.Parallel()
	var i Index
	for n, text := range []string{"a/1/a1@1", "a/1/a2@2", "a/1/a3@3", "b/1/b1@1", "c/1/c1@1"} {
		i.Put(keyOf(text), Digest("node", "x"), uint64(n))
	}
	i.Put(keyOf("c/1/c1@1"), Digest("node", "y"))
	names := func(keys []Key) (all []string) {
		for _, key := range keys {
			all = append(all, key.Name)
		}
		slices.Sort(all)
		return all
	}
	for _, test := range []struct {
		got  []Key
		want []string
	}{
		{i.All(), []string{"a1", "a2", "a3", "b1", "c1"}},
		{i.Marked(2, map[uint64]bool{Digest("node", "x"): true}), []string{"a2", "a3", "b1"}},
		{i.Marked(2, map[uint64]bool{Digest("node", "y"): true, 0: true}), []string{"a1", "c1"}},
		{i.Marked(2, nil), nil},
	} {
		if diff := cmp.Diff(test.want, names(test.got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	i.Remove("a3")
	i.Remove("absent")
	if got := names(i.All()); !slices.Equal(got, []string{"a1", "a2", "b1", "c1"}) {
		t.Errorf("after the removal: %q", names(i.All()))
	}
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	request := func(name, user string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.Unix(7, 0)},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Username: user},
		}
	}
	type same struct{ requester, lane bool }
	of := KeyOf(request("csr-1", "alice"), "a")
	if of.Name != "csr-1" || of.UID != "uid-of-csr-1" || of.Created != 7 {
		t.Errorf("key %+v", of)
	}
	for name, test := range map[string]struct {
		got  Key
		want same
	}{
		"the same node":        {KeyOf(request("csr-2", "alice"), "a"), same{true, true}},
		"another node":         {KeyOf(request("csr-2", "alice"), "b"), same{true, false}},
		"another requester":    {KeyOf(request("csr-2", "bob"), "a"), same{false, false}},
		"no node":              {KeyOf(request("csr-2", "alice"), ""), same{true, false}},
		"a user name of 1 MiB": {KeyOf(request("csr-2", strings.Repeat("u", 1<<20)), "a"), same{false, false}},
	} {
		if got := (same{test.got.Requester == of.Requester, test.got.Lane == of.Lane}); got != test.want {
			t.Errorf("%s: the same requester and lane: %+v, want %+v", name, got, test.want)
		}
	}
	if a, b := KeyOf(request("csr-1", "alice"), ""), KeyOf(request("csr-2", "alice"), ""); a.Lane == b.Lane {
		t.Error("two requests without a node share a lane")
	}
}

func TestDigestKeepsPartsApart(t *testing.T) {
	t.Parallel()
	first, again := Digest("a", "b"), Digest("a", "b")
	if Digest("a", "bc") == Digest("ab", "c") || Digest("a") == Digest("a", "") || first != again {
		t.Error("digests of different parts are equal, or those of equal parts differ")
	}
}

// BenchmarkFloodOfOneLane measures a lane of 100,000 keys, as one requester can make them for one node: each is added, in
// the order in which a cache lists them, and taken.
func BenchmarkFloodOfOneLane(b *testing.B) {
	for b.Loop() {
		q := New("test", 50)
		for n := range 100_000 {
			q.Add(Key{Name: strconv.Itoa(n), Created: int64(n * 7919 % 100_003)})
		}
		for range 100_000 {
			key, _ := q.Get()
			q.Done(key)
		}
		q.ShutDown()
	}
}
