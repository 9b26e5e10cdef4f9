package fairqueue

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// keyOf reads "alice/node-1/name@7": requester, lane, name and creation time.
func keyOf(text string) Key {
	text, created, _ := strings.Cut(text, "@")
	parts := strings.Split(text, "/")
	key := Key{Name: parts[2], UID: types.UID(parts[2]), Requester: Digest(parts[0]), Lane: Digest(parts[0], parts[1])}
	_, _ = fmt.Sscan(created, &key.Created)
	return key
}

// queueOf returns a queue with keys, which spaces separate.
func queueOf(t *testing.T, workers int, keys string) *Queue {
	t.Helper()
	q := New("test", workers)
	t.Cleanup(q.ShutDown)
	for _, key := range strings.Fields(keys) {
		q.Add(keyOf(key))
	}
	return q
}

// free reports whether Get would return a key at once.
func free(q *Queue) bool { return q.Len() > 0 }

// taken returns the names of the keys that free workers get now.
func taken(q *Queue) string {
	var names []string
	for free(q) {
		key, _ := q.Get()
		names = append(names, key.Name)
	}
	return strings.Join(names, " ")
}

// checkEmpty checks that q holds nothing of keys that are done.
func checkEmpty(t *testing.T, q *Queue) {
	t.Helper()
	expect.Equal(t, "requesters, lanes and turns in the empty queue", len(q.order.requesters)+len(q.order.lanes)+len(q.order.turns), 0)
}

// TestOrder checks which keys free workers get, in which order, and again after some of them are done. A key that is added
// while it is in progress comes once more, after it is done.
func TestOrder(t *testing.T) {
	for name, test := range map[string]struct {
		workers int
		add     string
		steps   []string // what is taken; then "KEY: what is taken after KEY is done", or "+KEY: what is taken after it is added"
	}{
		"requesters take turns":                     {100, "a/1/a1@1 a/2/a2@1 a/3/a3@1 b/1/b1@1 c/1/c1@1", []string{"a1 b1 c1 a2 a3"}},
		"one of a lane at a time, the newest first": {100, "a/1/old@1 a/1/newest@3 a/1/newer@2 a/2/other@1", []string{"newest other"}},
		"one requester gets half of the workers":    {4, "a/1/a1@1 a/2/a2@1 a/3/a3@1 a/4/a4@1 b/1/b1@1", []string{"a1 b1 a2"}},
		"one worker":                                {1, "a/1/a1@1 b/1/b1@1", []string{"a1 b1"}},
		"a key that is queued already":              {100, "a/1/a1@1 a/1/a1@1", []string{"a1"}},
		"a key that is done frees its lane and its worker": {4, "a/1/a1@2 a/1/older@1 a/2/a2@1 a/3/a3@1", []string{
			"a1 a2", "a/2/a2@1: a3", "a/1/a1@2: older", "a/3/a3@1: ", "a/1/older@1: ",
		}},
		"a key that is added during the work on it": {2, "a/1/a1@1", []string{
			"a1", "+a/1/a1@1: ", "+a/1/a1@1: ", "a/1/a1@1: a1", "a/1/a1@1: ",
		}},
	} {
		q := queueOf(t, test.workers, test.add)
		for i, step := range test.steps {
			key, want, found := strings.Cut(step, ": ")
			switch added, adds := strings.CutPrefix(key, "+"); {
			case adds:
				q.Add(keyOf(added))
			case found:
				q.Done(keyOf(key))
			default:
				want = step
			}
			expect.Equal(t, fmt.Sprintf("%s, step %d: took", name, i), taken(q), want)
		}
		if len(test.steps) > 1 {
			checkEmpty(t, q)
		}
	}
}

// TestGetWaitsForWork checks that a waiting worker gets a key as soon as one may be worked on, and that a queue which is
// shut down returns no further key, even if keys are queued.
func TestGetWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New("test", 4)
		got := make(chan string, 9)
		for range 3 { // workers that take a minute for each key
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
		for i, step := range []struct {
			pause time.Duration
			add   string
			want  string
		}{
			{0, "", ""},
			{0, "a/1/a1@2", "a1"},
			{0, "a/1/a2@1 b/1/b1@2", "b1"}, // the lane of a2 is busy
			{time.Minute, "", "a2"},
			{0, "a/1/a3@1 stop c/1/late@1", "shut down, shut down"},
			{time.Minute, "", "shut down"},
		} {
			time.Sleep(step.pause)
			for add := range strings.FieldsSeq(step.add) {
				if add == "stop" {
					q.ShutDown()
				} else {
					q.Add(keyOf(add))
				}
			}
			synctest.Wait()
			var names []string
			for len(got) > 0 {
				names = append(names, <-got)
			}
			expect.Equal(t, fmt.Sprintf("step %d: got", i), strings.Join(names, ", "), step.want)
		}
	})
}

// FuzzQueue checks that no key is lost, and that lanes and shares hold, for any order of calls.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 200, 4, 5, 201, 202, 6, 0, 203})
	f.Fuzz(func(t *testing.T, calls []byte) {
		q := queueOf(t, 4, "")
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
		checkEmpty(t, q)
	})
}

// TestIndex checks which keys a mark finds: of each lane the newest ones.
func TestIndex(t *testing.T) {
	var i Index
	for n, text := range []string{"a/1/a1@1", "a/1/a2@2", "a/1/a3@3", "b/1/b1@1", "c/1/c1@1"} {
		i.Put(keyOf(text), Digest("node", "x"), uint64(n))
	}
	i.Put(keyOf("c/1/c1@1"), Digest("node", "y"))
	holds := func(keys []Key, want string) {
		t.Helper()
		var names []string
		for _, key := range keys {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		expect.Equal(t, "keys", strings.Join(names, " "), want)
	}
	holds(i.All(), "a1 a2 a3 b1 c1")
	holds(i.Marked(2, map[uint64]bool{Digest("node", "x"): true}), "a2 a3 b1")
	holds(i.Marked(2, map[uint64]bool{Digest("node", "y"): true, 0: true}), "a1 c1")
	holds(i.Marked(2, nil), "")
	i.Remove("a3")
	i.Remove("absent")
	holds(i.All(), "a1 a2 b1 c1")
}

// TestKeyOf checks which requests have the same requester and the same lane.
func TestKeyOf(t *testing.T) {
	of := func(name, user, node string) Key {
		return KeyOf(&certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.Unix(7, 0)},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Username: user},
		}, node)
	}
	first, nameless := of("csr-1", "alice", "a"), of("csr-1", "alice", "")
	expect.Equal(t, "key", first, Key{Name: "csr-1", UID: "uid-of-csr-1", Created: 7, Requester: first.Requester, Lane: first.Lane})
	for name, test := range map[string]struct {
		a, b            Key
		requester, lane bool
	}{
		"the same node":         {first, of("csr-2", "alice", "a"), true, true},
		"another node":          {first, of("csr-2", "alice", "b"), true, false},
		"another requester":     {first, of("csr-2", "bob", "a"), false, false},
		"no node":               {first, of("csr-2", "alice", ""), true, false},
		"no node, two requests": {nameless, of("csr-2", "alice", ""), true, false},
		"a user name of 1 MiB":  {first, of("csr-2", strings.Repeat("u", 1<<20), "a"), false, false},
	} {
		requester, lane := test.a.Requester == test.b.Requester, test.a.Lane == test.b.Lane
		expect.Equal(t, name+": the same requester, the same lane", []any{requester, lane}, []any{test.requester, test.lane})
	}
	expect.True(t, Digest("a", "bc") != Digest("ab", "c") && Digest("a") != Digest("a", ""), "digests of different parts are equal")
}
