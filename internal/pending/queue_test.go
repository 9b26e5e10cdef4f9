package pending

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func keyOf(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// queueByName returns a Queue of requests whose names describe them: requester/node/age in seconds.
func queueByName() *Queue {
	return NewQueue(func(name string) (Request, bool) {
		parts := strings.Split(name, "/")
		var age int
		_, _ = fmt.Sscan(parts[2], &age)
		key := Key{Requester: DigestOf(parts[0]), Node: DigestOf(parts[1])}
		return Request{Name: name, Key: key, Created: now.Add(-time.Duration(age) * time.Second)}, true
	})
}

func popAll(s *Queue) string {
	var all []string
	for s.Len() > 0 {
		all = append(all, s.Pop().Name)
	}
	return strings.Join(all, " ")
}

func TestQueueOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ push, want string }{
		"nothing":                                    {"", ""},
		"the newest first":                           {"a/n/3 a/n/1 a/n/2", "a/n/1 a/n/2 a/n/3"},
		"same age, last added":                       {"a/n/1/x a/n/1/y a/n/1/z", "a/n/1/z a/n/1/y a/n/1/x"},
		"nodes in turn":                              {"a/n/1 a/n/2 a/n/3 a/m/9 a/m/8", "a/n/1 a/m/8 a/n/2 a/m/9 a/n/3"},
		"requesters in turn":                         {"a/n/1 a/n/2 a/n/3 b/n/9", "a/n/1 b/n/9 a/n/2 a/n/3"},
		"many nodes of one requester are one":        {"a/1/1 a/2/1 a/3/1 a/4/1 b/x/9 b/y/9", "a/1/1 b/x/9 a/2/1 b/y/9 a/3/1 a/4/1"},
		"a late requester waits for one other":       {"a/1/1 a/2/1 a/3/1 b/x/1 c/x/1", "a/1/1 b/x/1 c/x/1 a/2/1 a/3/1"},
		"a name does not matter":                     {"zzz/n/1 aaa/n/1 zzz/n/2 aaa/n/2", "zzz/n/1 aaa/n/1 zzz/n/2 aaa/n/2"},
		"an empty requester takes turns like others": {"//1 a/n/1 //2", "//1 a/n/1 //2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := queueByName()
			for _, item := range strings.Fields(test.push) {
				s.Push(keyOf(item))
			}
			if got := popAll(s); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// TestQueueIsFair checks that a requester with thousands of requests, for one node or for many, delays another
// requester by one request.
func TestQueueIsFair(t *testing.T) {
	t.Parallel()
	for name, item := range map[string]func(int) string{
		"for one node":   func(i int) string { return fmt.Sprintf("hostile/n/%d", i) },
		"for many nodes": func(i int) string { return fmt.Sprintf("hostile/n%d/1", i) },
	} {
		s := queueByName()
		for i := range 2000 {
			s.Push(keyOf(item(i)))
		}
		s.Pop()
		s.Push(keyOf("honest/n/1"))
		if first, second := s.Pop().Name, s.Pop().Name; first != "honest/n/1" && second != "honest/n/1" {
			t.Errorf("%s: %s and %s go before the honest one", name, first, second)
		}
	}
}

// TestQueueResumesInTurns checks the order if many requests of one requester resume at once. A new request of another
// requester comes after two of them, and a resumed one after three.
func TestQueueResumesInTurns(t *testing.T) {
	t.Parallel()
	s := queueByName()
	for i := range 2000 {
		name := fmt.Sprintf("hostile/n/%d", i)
		s.Resume(name)
		s.Push(keyOf(name))
	}
	s.Push(keyOf("honest/n/1"))
	s.Resume("patient/n/1")
	s.Push(keyOf("patient/n/1"))
	var first []string
	for range 4 {
		first = append(first, s.Pop().Name)
	}
	if !slices.Contains(first[:3], "honest/n/1") || !slices.Contains(first, "patient/n/1") {
		t.Errorf("first come %q", first)
	}
}

// TestQueueResumes checks that a resumed request goes first once, and that resumed requests of one requester keep
// their order.
func TestQueueResumes(t *testing.T) {
	t.Parallel()
	s := queueByName()
	s.Push(keyOf("a/n/1"))
	s.Push(keyOf("b/n/1"))
	s.Resume("b/n/1") // it is in the queue already, and keeps its position
	for _, name := range []string{"b/n/2", "a/n/2"} {
		s.Resume(name)
		s.Push(keyOf(name))
	}
	if got, want := popAll(s), "b/n/2 a/n/1 a/n/2 b/n/1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, name := range []string{"a/n/1", "b/n/2", "b/n/1"} {
		s.Push(keyOf(name))
	}
	if got, want := popAll(s), "a/n/1 b/n/1 b/n/2"; got != want {
		t.Errorf("then %s, want %s", got, want)
	}
}

// TestQueueLosesNothing checks that every pushed item is popped exactly once.
func TestQueueLosesNothing(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	s, inside := queueByName(), map[string]bool{}
	for i := range 20_000 {
		if len(inside) > 0 && random.IntN(2) == 0 {
			name := s.Pop().Name
			if !inside[name] {
				t.Fatalf("%s comes without having been pushed", name)
			}
			delete(inside, name)
			continue
		}
		name := fmt.Sprintf("r%d/n%d/%d/%d", random.IntN(5), random.IntN(5), random.IntN(5), i)
		if random.IntN(4) == 0 {
			s.Resume(name)
		}
		s.Push(keyOf(name))
		inside[name] = true
		if s.Len() != len(inside) {
			t.Fatalf("%d items, want %d", s.Len(), len(inside))
		}
	}
}
