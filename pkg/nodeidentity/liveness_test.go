package nodeidentity

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

var filmed = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// film holds what was seen of Leases, and an instant in seconds since its start.
type film struct {
	leases
	t   testing.TB
	now float64
}

// leases holds what was seen of Leases, by node.
type leases map[string]*observed

func (l leases) see(node string, renewed time.Time, lasts time.Duration, at time.Time) {
	l[node] = observe(l[node], leaseOf(node, renewed, lasts), at)
}

// of returns the state of node at an instant.
func (l leases) of(node string, at time.Time) Life {
	if l[node] == nil {
		return Unknown
	}
	return life(l[node], slices.Collect(maps.Values(l)), at)
}

// reset reads all Leases again after a failure of the watch.
func (l leases) reset(at time.Time) {
	for node, seen := range l {
		delete(l, node)
		l.see(node, seen.renewed, seen.lasts, at)
	}
}

func leaseOf(node string, renewed time.Time, lasts time.Duration) *coordinationv1.Lease {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: node}}
	if !renewed.IsZero() {
		lease.Spec.RenewTime = &metav1.MicroTime{Time: renewed}
	}
	seconds := int32(lasts / time.Second)
	lease.Spec.LeaseDurationSeconds = &seconds
	return lease
}

func (f *film) at() time.Time { return filmed.Add(time.Duration(f.now * float64(time.Second))) }

// renew shows a Lease that was renewed at this instant, by the node's own clock, which differs by years.
func (f *film) renew(nodes ...string) {
	for _, node := range nodes {
		f.see(node, f.at().AddDate(-7, 0, 0), 40*time.Second, f.at())
	}
}

// pass lets time pass while nodes renew every ten seconds.
func (f *film) pass(seconds float64, nodes ...string) {
	for end := f.now + seconds; f.now < end; {
		f.now = min(f.now+10, end)
		f.renew(nodes...)
	}
}

func (f *film) is(node string, want Life) {
	f.t.Helper()
	if got := f.of(node, f.at()); got != want {
		f.t.Errorf("after %vs %s is %s, want %s", f.now, node, got, want)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*film){
		"no lease": func(f *film) { f.pass(100, "b"); f.is("a", Unknown) },
		"a fresh start proves nothing": func(f *film) {
			f.renew("a", "b")
			f.is("a", Unknown)
			f.is("b", Unknown)
		},
		"a renewed Lease is alive": func(f *film) { f.renew("a", "b"); f.pass(10, "a", "b"); f.is("a", Alive) },
		"alive for a minute after a renewal": func(f *film) {
			f.renew("a", "b")
			f.pass(10, "a", "b")
			f.pass(59, "b")
			f.is("a", Alive)
			f.pass(2, "b")
			f.is("a", Dead)
		},
		"dead a minute after a start, not earlier": func(f *film) {
			f.renew("a", "b")
			f.pass(69, "b") // the first renewal of another Lease is seen after ten seconds
			f.is("a", Unknown)
			f.pass(1, "b")
			f.is("a", Dead)
			f.is("b", Alive)
		},
		"alive again": func(f *film) {
			f.renew("a", "b")
			f.pass(90, "b")
			f.is("a", Dead)
			f.renew("a")
			f.is("a", Alive)
		},
		"a single node never dies": func(f *film) { f.renew("a"); f.pass(60, "a"); f.pass(600); f.is("a", Unknown) },
		"one other node of many is not enough": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(600, "b")
			f.is("a", Unknown)
			f.is("c", Unknown)
			f.is("b", Alive)
		},
		"one other node is not enough, however fast it renews": func(f *film) {
			f.renew("a", "b", "c")
			for range 2000 {
				f.now += 0.1
				f.renew("b")
			}
			f.is("a", Unknown)
		},
		"two other nodes are enough": func(f *film) {
			f.renew("a", "b", "c", "d", "e")
			f.pass(69, "b", "c")
			f.is("a", Unknown)
			f.pass(1, "b", "c")
			f.is("a", Dead)
			f.is("e", Dead)
			f.is("c", Alive)
		},
		"two other nodes together, not a minute of each": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(40, "b")
			f.pass(40, "c")
			f.is("a", Unknown)
			f.pass(59, "b", "c")
			f.is("a", Unknown)
			f.pass(11, "b", "c") // b has renewed without a pause for a minute
			f.is("a", Dead)
		},
		"its own renewal does not count as another node's": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(30, "a", "b")
			f.pass(90, "b")
			f.is("a", Unknown)
		},
		"the second other node stops": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(90, "b", "c")
			f.is("a", Dead)
			f.pass(30, "b")
			f.is("a", Unknown)
		},
		"a node whose Lease was deleted is not needed": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(90, "b")
			delete(f.leases, "c")
			f.is("a", Dead)
		},
		"no Lease changes": func(f *film) {
			f.renew("a", "b", "c")
			f.pass(60, "a", "b", "c")
			f.pass(600)
			f.is("a", Unknown)
			f.is("b", Unknown)
		},
		"an API outage proves nothing": func(f *film) {
			f.renew("a", "b")
			f.pass(60, "a", "b")
			f.now += 600
			f.is("a", Unknown)
			f.renew("b") // b is the first to return
			f.is("a", Unknown)
			f.pass(50, "b")
			f.is("a", Unknown)
			f.renew("a")
			f.is("a", Alive)
		},
		"one renewal at the end of an outage is not a minute of watching": func(f *film) {
			f.renew("a", "b")
			f.pass(10, "a", "b")
			f.now += 59
			f.renew("b")
			f.now += 2
			f.is("a", Unknown)
		},
		"a proof from before an outage ends with the outage": func(f *film) {
			f.renew("a", "b")
			f.pass(90, "b")
			f.is("a", Dead)
			f.now += 21
			f.is("a", Unknown)
		},
		"a step of the clock proves nothing": func(f *film) {
			f.renew("a", "b")
			f.pass(60, "a", "b")
			f.now += 86400
			f.renew("b", "a")
			f.pass(10, "a", "b")
			f.is("a", Alive)
			f.now -= 86400
			f.is("a", Unknown)
			f.renew("b")
			f.pass(59, "b")
			f.is("a", Unknown)
		},
		"a failed watch proves nothing": func(f *film) {
			f.renew("a", "b")
			f.pass(65, "b")
			f.reset(f.at())
			f.pass(65, "b")
			f.is("a", Unknown)
			f.pass(5, "b")
			f.is("a", Dead)
		},
		"a burst after a silence is one instant": func(f *film) {
			f.renew("a", "b")
			f.now += 300
			for range 30 {
				f.now += 0.001
				f.renew("b")
			}
			f.is("a", Unknown)
		},
		"a long Lease duration extends the minute": func(f *film) {
			f.see("a", filmed, 200*time.Second, f.at())
			f.renew("b")
			f.pass(209, "b")
			f.is("a", Unknown)
			f.pass(1, "b")
			f.is("a", Dead)
		},
		"never renewed": func(f *film) {
			f.see("a", time.Time{}, 0, f.at())
			f.renew("b")
			f.pass(600, "b")
			f.is("a", Unknown)
		},
		"a deleted Lease is forgotten": func(f *film) {
			f.renew("a", "b")
			f.pass(90, "b")
			delete(f.leases, "a")
			f.is("a", Unknown)
			f.see("a", filmed, 0, f.at())
			f.is("a", Unknown)
		},
		"a renewal with an earlier time counts": func(f *film) {
			f.renew("a", "b")
			f.pass(90, "b")
			f.see("a", filmed.AddDate(-20, 0, 0), 0, f.at())
			f.is("a", Alive)
		},
		"an update without a renewal does not count": func(f *film) {
			f.renew("a", "b")
			for range 9 {
				f.pass(10, "b")
				f.see("a", f.leases["a"].renewed, f.leases["a"].lasts, f.at())
			}
			f.is("a", Dead)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(&film{t: t, leases: leases{}})
		})
	}
}

// TestLeases follows Leases through the informer, with a failure of the watch.
func TestLeases(t *testing.T) {
	t.Parallel()
	var told []string
	clock := clocktesting.NewFakePassiveClock(filmed)
	l, err := NewLeases(&rest.Config{}, nil, clock, logr.Discard(), func(node string) { told = append(told, node) })
	if err != nil {
		t.Fatal(err)
	}
	is := func(node string, want Life, known bool) {
		t.Helper()
		if got, at, err := l.Of(node); err != nil || got != want || at.IsZero() == known {
			t.Errorf("%s: %s, renewed at %s, error %v", node, got, at, err)
		}
	}
	if _, _, err := l.Of("a"); !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("before they are read: %v", err)
	}
	read := func(nodes ...string) {
		var all []*observed
		for _, node := range nodes {
			all = append(all, l.leases.Convert(leaseOf(node, clock.Now(), 0)))
		}
		l.leases.Fake(nil, all...)
		l.leases.OnSync()
	}
	pass := func() {
		for range 7 {
			clock.SetTime(clock.Now().Add(10 * time.Second))
			b, c := l.leases.Convert(leaseOf("b", clock.Now(), 0)), l.leases.Convert(leaseOf("c", clock.Now(), 0))
			a, _, _ := l.leases.Get("kube-node-lease", "a")
			l.leases.Fake(nil, a, b, c)
		}
	}
	read("a", "b", "c", "d")
	is("a", Unknown, true)
	is("e", Unknown, false)
	read("a", "b", "c") // d was deleted during a gap in the watch
	is("d", Unknown, false)
	pass()
	is("a", Dead, true)
	is("b", Alive, true)

	l.leases.Fake(errors.New("down"))
	if _, _, err := l.Of("b"); err == nil || err.Error() != "leases: down" {
		t.Errorf("while they can't be read: %v", err)
	}
	a := leaseOf("a", filmed, 0)
	l.leases.Fake(nil, l.leases.Convert(a), l.leases.Convert(leaseOf("b", clock.Now(), 0)), l.leases.Convert(leaseOf("c", clock.Now(), 0)))
	is("a", Unknown, true) // every minute begins again after a failure
	pass()
	is("a", Dead, true)
	gone, _, _ := l.leases.Get("kube-node-lease", "b")
	l.leases.OnChange(gone, nil)
	l.leases.OnChange(nil, gone)
	if !slices.Equal(told, []string{"", "", "b"}) {
		t.Errorf("told of %q", told)
	}
}

// TestWhoRenewsIsNeverDead plays random stories. Nodes renew every ten seconds, stop or return. API servers are
// unreachable, watches fail or hang and then deliver all events at once, processes restart, and clocks are stepped.
// Events arrive late, but in order. A node that has renewed within the last minute is not dead, if the Lease is also
// read directly. No node is dead while fewer than two other nodes live, if there are so many.
func TestWhoRenewsIsNeverDead(t *testing.T) {
	t.Parallel()
	deaths := 0
	for seed := range uint64(300) {
		s := newStory(seed)
		for range 3000 {
			s.second()
			for node := range s.renewed {
				if s.leases.of(node, s.clock()) != Dead || !s.leases[node].renewed.Equal(truly(s.renewed[node])) {
					continue // it lives, or has returned unseen: before an approval the Lease is read directly
				}
				deaths++
				if quiet := s.now - s.renewed[node]; quiet < 60 {
					t.Fatalf("seed %d: after %d s %s is dead, which renewed %d s ago", seed, s.now, node, quiet)
				}
				if s.othersLive(node) < min(2, len(s.renewed)-1) {
					t.Fatalf("seed %d: after %d s %s is dead, and not two others were alive: %v", seed, s.now, node, s.renewed)
				}
			}
		}
	}
	if deaths == 0 {
		t.Error("nobody ever died: the property proves nothing")
	}
}

// story is the true state of a cluster, and what was seen of its Leases.
type story struct {
	*rand.Rand
	leases  leases
	now     int            // true seconds
	offset  int            // of our clock
	renewed map[string]int // true renewals, by node
	stopped map[string]int // the time until which a node is stopped
	away    int            // the time until which the API server is unreachable
	hangs   int            // the time until which the watch hangs
	queue   []func()
}

func newStory(seed uint64) *story {
	s := &story{Rand: rand.New(rand.NewPCG(seed, 1)), renewed: map[string]int{}, stopped: map[string]int{}}
	for i := range s.IntN(5) + 1 {
		s.renewed[fmt.Sprintf("n%d", i)] = -i
	}
	s.start()
	return s
}

// start starts a process: its first observation is the state of all Leases.
func (s *story) start() {
	s.leases, s.queue = leases{}, nil
	for node, last := range s.renewed {
		s.leases.see(node, truly(last), 40*time.Second, s.clock())
	}
}

// truly returns the instant of a renewal.
func truly(renewed int) time.Time { return filmed.Add(time.Duration(renewed) * time.Second) }

func (s *story) clock() time.Time { return filmed.Add(time.Duration(s.now+s.offset) * time.Second) }

func (s *story) second() {
	s.now++
	s.happens()
	for node, last := range s.renewed {
		if s.now < s.away || s.now < s.stopped[node] || s.now-last < 10 {
			continue
		}
		s.renewed[node] = s.now
		renewed := truly(s.now)
		s.queue = append(s.queue, func() { s.leases.see(node, renewed, 40*time.Second, s.clock()) })
	}
	if s.now >= s.hangs && s.now >= s.away {
		for _, event := range s.queue {
			event()
		}
		s.queue = nil
	}
}

// othersLive counts the nodes other than node that renew. Two renewals may be in flight.
func (s *story) othersLive(node string) int {
	others := 0
	for other, last := range s.renewed {
		if other != node && s.now-last <= 30 {
			others++
		}
	}
	return others
}

// happens starts or ends a random failure.
func (s *story) happens() {
	long := func() int { return s.now + s.IntN(200) }
	switch s.IntN(600) {
	case 0:
		s.away = long()
	case 1, 2:
		s.hangs = long()
	case 3, 4, 5, 6, 7, 8:
		s.stopped[fmt.Sprintf("n%d", s.IntN(5))] = long()
	case 9:
		s.start()
	case 10:
		s.leases.reset(s.clock())
	case 11:
		s.offset += (25 + s.IntN(4000)) * (2*s.IntN(2) - 1)
	}
}
