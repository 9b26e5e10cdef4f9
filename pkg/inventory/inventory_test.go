package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

func TestEntryOwns(t *testing.T) {
	t.Parallel()
	entry := inventory.Entry{
		SANs:     []san.SAN{san.Parse("node-1.example.com"), san.Parse("10.0.0.1")},
		Suffixes: []string{"nodes.example.org"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/64")},
	}
	short := inventory.Entry{SANs: entry.SANs, ShortNames: true}
	for text, want := range map[string]struct{ entry, short bool }{
		"node-1.example.com":         {true, true},
		"NODE-1.EXAMPLE.COM.":        {true, true},
		"node-1":                     {false, true},
		"node-1.example":             {},
		"node-1.example.com.evil.io": {},
		"xnode-1.example.com":        {},
		"example.com":                {},
		"10":                         {},
		"10.0.0.1":                   {true, true},
		"::ffff:10.0.0.1":            {true, true},
		"10.0.0.2":                   {},
		"10.1.255.255":               {true, false},
		"10.2.0.0":                   {},
		"fd00::ffff":                 {true, false},
		"fd00:0:0:1::1":              {},
		"x.nodes.example.org":        {true, false},
		"y.x.nodes.example.org":      {true, false},
		"nodes.example.org":          {},
		"xnodes.example.org":         {},
	} {
		value := san.Parse(text)
		if entry.Owns(value) != want.entry || short.Owns(value) != want.short {
			t.Errorf("%s: %t, with short names %t", text, entry.Owns(value), short.Owns(value))
		}
	}
	if entry.Owns(san.SAN{}) || (&inventory.Entry{Prefixes: []netip.Prefix{{}}}).Owns(san.SAN{}) {
		t.Error("somebody owns nothing")
	}
}

// owner is a source that knows the owner of a name.
type owner struct {
	source
	who string
	err error
}

func (o owner) Owner(san.SAN) (string, error) { return o.who, o.err }

type source struct {
	entry *inventory.Entry
	err   error
	asked *int
}

func (source) Name() string { return "test" }
func (s source) Lookup(context.Context, string, *csr.Request) (*inventory.Entry, error) {
	*s.asked++
	return s.entry, s.err
}

func TestTheFirstThatKnowsAnswersAlone(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	strong, weak := &inventory.Entry{Source: "strong"}, &inventory.Entry{Source: "weak"}
	for name, test := range map[string]struct {
		first, second source
		want          *inventory.Entry
		rank, asked   int
		err           error
	}{
		"both know":                       {source{entry: strong}, source{entry: weak}, strong, 0, 1, nil},
		"only the weak one knows":         {source{}, source{entry: weak}, weak, 1, 2, nil},
		"nobody knows":                    {source{}, source{}, nil, 0, 2, nil},
		"the strong one is down":          {source{err: down}, source{entry: weak}, nil, 0, 1, down},
		"the weak one is down":            {source{entry: strong}, source{err: down}, strong, 0, 1, nil},
		"the weak one is down and needed": {source{}, source{err: down}, nil, 0, 2, down},
	} {
		asked := 0
		test.first.asked, test.second.asked = &asked, &asked
		found, err := inventory.Sources{test.first, test.second}.Lookup(t.Context(), "a", nil)
		if found.Entry != test.want || found.Rank != test.rank || !errors.Is(err, test.err) || asked != test.asked {
			t.Errorf("%s: %+v, error %v, %d asked", name, found, err, asked)
		}
		if err != nil && err.Error() != "ask test: down" {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestEntryInMessages checks that a message shows the first names and addresses of a node, however many it has.
func TestEntryInMessages(t *testing.T) { // not in parallel, because it counts allocations
	few := inventory.Entry{
		SANs: []san.SAN{san.Parse("a.example.com")}, Suffixes: []string{"example.org"}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
	}
	many := inventory.Entry{Suffixes: few.Suffixes, Prefixes: few.Prefixes}
	for i := range 25_000 {
		many.SANs = append(many.SANs, san.SAN{Address: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})})
	}
	twelve := `["10.1.0.0" "10.1.0.1" "10.1.0.2" "10.1.0.3" "10.1.0.4" "10.1.0.5" "10.1.0.6" "10.1.0.7" "10.1.0.8" "10.1.0.9" "10.1.0.10" "10.1.0.11"`
	exact := inventory.Entry{SANs: many.SANs[:11], Prefixes: few.Prefixes, Suffixes: few.Suffixes}
	for want, entry := range map[string]*inventory.Entry{
		`[]`: {}, `["a.example.com" "10.1.0.0/16" "*.example.org"]`: &few, twelve + ` "and 24990 more"]`: &many, twelve + `]`: {SANs: many.SANs[:12]},
		strings.Replace(twelve, "10.1.0.11", "10.1.0.0/16", 1) + ` "and 1 more"]`: &exact,
	} {
		if got := entry.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if allocations := testing.AllocsPerRun(10, func() { _ = many.String() }); allocations > 100 {
		t.Errorf("%v allocations for a Node with 25,000 addresses", allocations)
	}
}

// slow is a Slow source whose lookups wait until the test ends them.
type slow struct {
	source
	end     chan struct{}
	running atomic.Int32
}

func (*slow) Concurrency() int { return 32 }

func (s *slow) Lookup(context.Context, string, *csr.Request) (*inventory.Entry, error) {
	s.running.Add(1)
	defer s.running.Add(-1)
	<-s.end
	return s.entry, s.err
}

func requestOf(user string) *csr.Request {
	return &csr.Request{Requester: csr.Requester{Username: user}}
}

// TestLimitedNeverWaitsForAPlace checks that lookups beyond the places fail at once, that one requester gets at most
// half of the places, and that a place is free again after its lookup.
func TestLimitedNeverWaitsForAPlace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ places, all, each int }{{8, 8, 4}, {5, 5, 2}, {1, 1, 1}, {0, 1, 1}, {100, 32, 16}} {
		synctest.Test(t, func(t *testing.T) {
			asked := &slow{source: source{entry: &inventory.Entry{}}, end: make(chan struct{})}
			limited := inventory.Limited(asked, test.places)
			var busy atomic.Int32
			start := func(user string, count int) {
				t.Helper()
				for range count {
					go func() {
						if _, err := limited.Lookup(t.Context(), "a", requestOf(user)); errors.Is(err, inventory.ErrBusy) {
							busy.Add(1)
						} else if err != nil {
							t.Error(err)
						}
					}()
				}
				synctest.Wait()
			}
			start("hostile", 100)
			if got := int(asked.running.Load()); got != test.each || int(busy.Load()) != 100-test.each {
				t.Errorf("of %d places one requester has %d, and %d lookups are refused", test.places, got, busy.Load())
			}
			for i := range 100 {
				start(fmt.Sprint("other-", i), 1)
			}
			if got := int(asked.running.Load()); got != test.all {
				t.Errorf("of %d places %d are taken, want %d", test.places, got, test.all)
			}
			close(asked.end)
			synctest.Wait()
			busy.Store(0)
			start("hostile", 1)
			if asked.running.Load() != 0 || busy.Load() != 0 {
				t.Errorf("%d lookups run, %d are refused after all have ended", asked.running.Load(), busy.Load())
			}
		})
	}
}
