package nodeidentity

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/informertest"
)

var filmed = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// lives are the words for the states of a node's Lease.
var lives = map[bootstrap.LeaseState]string{
	bootstrap.LeaseUnknown: "unknown", bootstrap.LeaseRenewing: "alive", bootstrap.LeaseSilent: "dead",
}

// leases holds what was seen of Leases, by node.
type leases map[string]*observed

func (l leases) see(node string, renewed time.Time, lasts time.Duration, at time.Time) {
	l[node] = observationOf(l[node], leaseOf(node, renewed, lasts), at)
}

// of returns the state of node at an instant.
func (l leases) of(node string, at time.Time) bootstrap.LeaseState {
	if l[node] == nil {
		return bootstrap.LeaseUnknown
	}
	return stateOf(l[node], slices.Collect(maps.Values(l)), at)
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
	lease.Spec.LeaseDurationSeconds = new(int32(lasts / time.Second))
	return lease
}

// play plays what is seen of Leases. Nodes are letters, and their clocks differ from ours by years. The steps are:
//
//	ab       the nodes a and b renew their Leases
//	70s:ab   70 seconds pass, in which a and b renew every ten seconds
//	1s/1ms:b a second passes, in which b renews every millisecond
//	+5s      five seconds pass, and nobody renews
//	-a       the Lease of a is deleted
//	=a       the Lease of a is updated without a renewal
//	reset    all Leases are read again after a failure of the watch
//	a?dead   a is dead
func play(t *testing.T, steps string) {
	t.Helper()
	seen, now := leases{}, filmed
	renew := func(nodes string) {
		for _, node := range nodes {
			seen.see(string(node), now.AddDate(-7, 0, 0), 40*time.Second, now)
		}
	}
	length := func(text string) time.Duration {
		passed, err := time.ParseDuration(text)
		expect.Error(t, text, err, "")
		return passed
	}
	for step := range strings.FieldsSeq(steps) {
		node, want, asks := strings.Cut(step, "?")
		long, nodes, passes := strings.Cut(step, ":")
		switch {
		case asks:
			expect.Equal(t, fmt.Sprintf("after %s %s is", now.Sub(filmed), node), lives[seen.of(node, now)], want)
		case passes:
			long, pause, _ := strings.Cut(long, "/")
			for end := now.Add(length(long)); now.Before(end); renew(nodes) {
				now = now.Add(min(length(cmp.Or(pause, "10s")), end.Sub(now)))
			}
		case step[0] == '+':
			now = now.Add(length(step[1:]))
		case step[0] == '-':
			delete(seen, step[1:])
		case step[0] == '=':
			seen.see(step[1:], seen[step[1:]].renewed, seen[step[1:]].lasts, now)
		case step == "reset":
			seen.reset(now)
		case step == "a=200s":
			seen.see("a", filmed, 200*time.Second, now)
		case step == "a=never":
			seen.see("a", time.Time{}, 0, now)
		case step == "a=earlier":
			seen.see("a", filmed.AddDate(-20, 0, 0), 0, now)
		default:
			renew(step)
		}
	}
}

// TestLife checks what is known about a node after each story.
func TestLife(t *testing.T) {
	for name, steps := range map[string]string{
		"no Lease":                                 "100s:b a?unknown",
		"a fresh start proves nothing":             "ab a?unknown b?unknown",
		"a renewed Lease is alive":                 "ab 10s:ab a?alive",
		"alive for a minute after a renewal":       "ab 10s:ab 59s:b a?alive 2s:b a?dead",
		"dead a minute after a start, not earlier": "ab 69s:b a?unknown 1s:b a?dead b?alive", // b is first seen to renew after ten seconds
		"alive again":                              "ab 90s:b a?dead a a?alive",
		"a single node never dies":                 "a 60s:a +600s a?unknown",
		"one other node of many is not enough":     "abc 600s:b a?unknown c?unknown b?alive",
		"one other node, however fast it renews":   "abc 200s/100ms:b a?unknown",
		"two other nodes are enough":               "abcde 69s:bc a?unknown 1s:bc a?dead e?dead c?alive",
		"two other nodes, not a minute of each":    "abc 40s:b 40s:c a?unknown 59s:bc a?unknown 11s:bc a?dead",
		"its own renewal is not another node's":    "abc 30s:ab 90s:b a?unknown",
		"the second other node stops":              "abc 90s:bc a?dead 30s:b a?unknown",
		"a node without a Lease is not needed":     "abc 90s:b -c a?dead",
		"no Lease changes":                         "abc 60s:abc +600s a?unknown b?unknown",
		"an API outage proves nothing":             "ab 60s:ab +600s a?unknown b a?unknown 50s:b a?unknown a a?alive",
		"one renewal at the end of an outage":      "ab 10s:ab +59s b +2s a?unknown",
		"a proof ends with an outage":              "ab 90s:b a?dead +21s a?unknown",
		"a step of the clock proves nothing":       "ab 60s:ab +24h ba 10s:ab a?alive +-24h a?unknown b 59s:b a?unknown",
		"a failed watch proves nothing":            "ab 65s:b reset 65s:b a?unknown 5s:b a?dead",
		"a burst after a silence is one instant":   "ab +300s 30ms/1ms:b a?unknown",
		"a long duration extends the minute":       "a=200s b 209s:b a?unknown 1s:b a?dead",
		"never renewed":                            "a=never b 600s:b a?unknown",
		"a deleted Lease is forgotten":             "ab 90s:b -a a?unknown a a?unknown",
		"a renewal with an earlier time counts":    "ab 90s:b a=earlier a?alive",
		"an update without a renewal is none":      "ab" + strings.Repeat(" 10s:b =a", 9) + " a?dead",
	} {
		t.Run(name, func(t *testing.T) {
			play(t, steps)
		})
	}
}

// TestLeases follows Leases through the informer, with a failure of the watch.
func TestLeases(t *testing.T) {
	var changed []string
	clock := clocktesting.NewFakePassiveClock(filmed)
	l, err := NewLeases(&rest.Config{}, nil, clock, logr.Discard(), func(node string) { changed = append(changed, node) })
	expect.NoError(t, err)
	is := func(node, want string) { // its life, or why that is not known
		t.Helper()
		life, renewed, err := l.Of(node)
		got := fmt.Sprintf("%s, has a Lease: %t", lives[life], !renewed.IsZero())
		if err != nil {
			got = err.Error()
		}
		expect.Equal(t, node, got, want)
	}
	var events *watch.FakeWatcher
	read := func() {
		events = informertest.Read(t, l.leases, leaseOf("a", filmed, 0), leaseOf("b", clock.Now(), 0), leaseOf("c", clock.Now(), 0))
	}
	// handled waits until all events are handled: only then another is received.
	handled := func() { events.Action(watch.Bookmark, &coordinationv1.Lease{}) }
	pass := func() { // a minute in which b and c renew
		for range 7 {
			clock.SetTime(clock.Now().Add(10 * time.Second))
			events.Modify(leaseOf("b", clock.Now(), 0))
			events.Modify(leaseOf("c", clock.Now(), 0))
			handled()
		}
	}
	is("a", "leases: not read yet")
	read()
	is("a", "unknown, has a Lease: true")
	is("e", "unknown, has a Lease: false")
	pass()
	is("a", "dead, has a Lease: true")
	is("b", "alive, has a Lease: true")

	informertest.Fail(t, l.leases, apierrors.NewUnauthorized("who"))
	is("a", "leases: list leases.coordination.k8s.io: who")
	read()
	is("a", "unknown, has a Lease: true") // every minute begins again after a failure
	events.Delete(leaseOf("b", filmed, 0))
	events.Add(leaseOf("d", filmed, 0))
	handled()
	is("b", "unknown, has a Lease: false")
	expect.Equal(t, "changed nodes", changed, []string{"", "", "b"})
}

// TestWhoRenewsIsNeverDead plays random stories. Nodes renew every ten seconds, stop or return. API servers are
// unreachable, watches fail or hang and then deliver all events at once, processes restart, and clocks are stepped.
// Events arrive late, but in order. A node that has renewed within the last minute is not dead, if the Lease is also
// read directly. No node is dead while fewer than two other nodes live, if there are so many.
func TestWhoRenewsIsNeverDead(t *testing.T) {
	deaths := 0
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		now, offset := 0, 0               // true seconds, and how far our clock is ahead
		away, hangs := 0, 0               // until when the API server is unreachable, and the watch hangs
		stopped := map[string]int{}       // until when a node is stopped
		renewed := map[string]int{}       // true renewals, by node
		seen := leases{}                  // what was seen
		events := []func(now time.Time){} // what will be seen
		truly := func(second int) time.Time { return filmed.Add(time.Duration(second) * time.Second) }
		start := func() { // a process: its first observation is the state of all Leases
			seen, events = leases{}, nil
			for node, last := range renewed {
				seen.see(node, truly(last), 40*time.Second, truly(now+offset))
			}
		}
		for i := range random.IntN(5) + 1 {
			renewed[fmt.Sprintf("n%d", i)] = -i
		}
		start()
		for now = 1; now <= 3000; now++ {
			until := now + random.IntN(200)
			switch random.IntN(600) {
			case 0:
				away = until
			case 1, 2:
				hangs = until
			case 3, 4, 5, 6, 7, 8:
				stopped[fmt.Sprintf("n%d", random.IntN(5))] = until
			case 9:
				start()
			case 10:
				seen.reset(truly(now + offset))
			case 11:
				offset += (25 + random.IntN(4000)) * (2*random.IntN(2) - 1)
			}
			for node, last := range renewed {
				if now >= away && now >= stopped[node] && now-last >= 10 {
					renewed[node] = now
					at := truly(now)
					events = append(events, func(now time.Time) { seen.see(node, at, 40*time.Second, now) })
				}
			}
			if now >= hangs && now >= away {
				for _, event := range events {
					event(truly(now + offset))
				}
				events = nil
			}
			living := 0 // two renewals may be in flight
			for _, last := range renewed {
				if now-last <= 30 {
					living++
				}
			}
			for node, last := range renewed {
				if seen.of(node, truly(now+offset)) != bootstrap.LeaseSilent || !seen[node].renewed.Equal(truly(last)) {
					continue // it lives, or has returned unseen: before an approval the Lease is read directly
				}
				deaths++
				if now-last < 60 || living < min(2, len(renewed)-1) {
					t.Fatalf("seed %d: after %d s %s is dead; renewals: %v", seed, now, node, renewed)
				}
			}
		}
	}
	expect.True(t, deaths != 0, "nobody ever died: the property proves nothing")
}
