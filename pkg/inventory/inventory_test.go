package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func TestEntryOwns(t *testing.T) {
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
		"node-1.example.com.evil.io": {},
		"example.com":                {},
		"10.0.0.1":                   {true, true},
		"::ffff:10.0.0.1":            {true, true},
		"10.1.255.255":               {true, false},
		"fd00::ffff":                 {true, false},
		"fd00:0:0:1::1":              {},
		"x.nodes.example.org":        {true, false},
		"nodes.example.org":          {},
		"xnodes.example.org":         {},
	} {
		value := san.Parse(text)
		expect.Equal(t, text, []bool{entry.Owns(value), short.Owns(value)}, []bool{want.entry, want.short})
	}
	expect.True(t, !entry.Owns(san.SAN{}) && !(&inventory.Entry{Prefixes: []netip.Prefix{{}}}).Owns(san.SAN{}), "somebody owns nothing")
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
		"the strong one is down":          {source{err: down}, source{entry: weak}, nil, 0, 1, down},
		"the weak one is down and needed": {source{}, source{err: down}, nil, 0, 2, down},
	} {
		asked := 0
		test.first.asked, test.second.asked = &asked, &asked
		found, err := inventory.Sources{test.first, test.second}.Lookup(t.Context(), "a", nil)
		expect.True(t, found.Entry == test.want && found.Rank == test.rank && errors.Is(err, test.err) && asked == test.asked,
			"%s: %+v, error %v, %d asked", name, found, err, asked)
		expect.True(t, err == nil || err.Error() == "ask test: down", "%s: error %v", name, err)
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
		expect.Equal(t, "text", entry.String(), want)
	}
	allocations := testing.AllocsPerRun(10, func() { _ = many.String() })
	expect.True(t, allocations <= 100, "%v allocations for a Node with 25,000 addresses", allocations)
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
	for _, test := range []struct{ places, all, each int32 }{{8, 8, 4}, {5, 5, 2}, {1, 1, 1}, {0, 1, 1}, {100, 32, 16}} {
		synctest.Test(t, func(t *testing.T) {
			asked := &slow{source: source{entry: &inventory.Entry{}}, end: make(chan struct{})}
			limited := inventory.Limited(asked, int(test.places))
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
			both := []int32{asked.running.Load(), busy.Load()}
			expect.Equal(t, fmt.Sprintf("one requester: lookups for %d places, and refused", test.places), both, []int32{test.each, 100 - test.each})
			for i := range 100 {
				start(fmt.Sprint("other-", i), 1)
			}
			expect.Equal(t, fmt.Sprintf("taken of %d places", test.places), asked.running.Load(), test.all)
			close(asked.end)
			synctest.Wait()
			busy.Store(0)
			start("hostile", 1)
			expect.Equal(t, "lookups that run or are refused after all have ended", asked.running.Load()+busy.Load(), 0)
		})
	}
}

// world holds what each Node reports.
type world map[string][]string

// holders returns the Nodes that report value or have it as their name, in any order.
func (w world) holders(value san.SAN) []string {
	var all []string
	for node, reported := range w {
		if inventory.IsName(node, value) || slices.ContainsFunc(reported, func(text string) bool { return san.Parse(text) == value }) {
			all = append(all, node)
		}
	}
	return all
}

// reports is the source that trusts Nodes.
type reports struct{ source }

func (reports) Name() string { return "node" }

// claim returns the claim of node to text. rows is the only source that is stronger than the reports of Nodes.
func (w world) claim(t testing.TB, rows *static.Source, node, text string) inventory.Claim {
	t.Helper()
	var own *inventory.Entry
	if _, exists := w[node]; exists {
		own = &inventory.Entry{Source: "Node " + node, SelfReported: true}
	}
	sources := inventory.Sources{rows, reports{source{entry: own, asked: new(int)}}}
	found, err := sources.Lookup(t.Context(), node, nil)
	if err != nil || found.Entry == nil {
		t.Fatalf("node %s: found %+v, error %v", node, found, err)
	}
	value := san.Parse(text)
	holders := slices.Sorted(slices.Values(w.holders(value)))
	owner, err := sources.Owner(found, value)
	expect.NoError(t, err)
	claim := found.Claim(node, value, holders, owner)
	slices.Reverse(holders)
	expect.Equal(t, "the claim with holders in another order", found.Claim(node, value, holders, owner), claim)
	return claim
}

func rowsOf(t testing.TB, rows ...static.Row) *static.Source {
	t.Helper()
	source, mistakes := static.New(nil, rows)
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return source
}

var free = inventory.Claim{}

// TestClaim has a row for each rule about Nodes that only report about themselves, and for each way in which an
// administrator's rows decide.
func TestClaim(t *testing.T) {
	notReported, notOwned := inventory.Claim{NotReported: true}, inventory.Claim{NotOwned: true}
	contested := func(other string, nodes int) inventory.Claim { return inventory.Claim{Other: other, Nodes: nodes} }
	named := func(other string, nodes int) inventory.Claim {
		return inventory.Claim{Other: other, Named: true, Nodes: nodes}
	}
	dualStack := world{"v": {"10.0.0.1", "fd00::1"}, "stale": {"10.0.0.1"}, "third": {"fd00::1"}}
	byAddress := world{"10.0.0.5": {"10.0.0.5"}, "a": {"10.0.0.1"}, "other": {"10.0.0.5"}}
	both := world{"a": {"10.0.0.1"}, "b": {"10.0.0.1"}}
	behind := world{"a": {"192.0.2.1", "a.example.com"}, "b": {"192.0.2.1", "a.example.com"}, "c": nil}
	three := world{"a": {"10.0.0.1"}, "b": {"10.0.0.1"}, "c": {"10.0.0.1"}}
	liar, longer := world{"a": {"a.example.com"}, "liar": {"a.example.com"}}, world{"a": {"a.example.com"}, "a.example.com": nil}
	below := world{"a": {"x.example.com"}, "x.example.com": nil}
	type rows = []static.Row
	a := static.Row{Name: "a", Addresses: []string{"10.0.0.1"}, DNSNames: []string{"a.example.com"}, ShortNames: true}
	spans := static.Row{NamePattern: "[ab]", Addresses: []string{"10.0.0.0/24"}, Suffixes: []string{"example.com"}}
	nat := static.Row{NamePattern: ".*", DNSNames: []string{"${node}", "${node}.example.com"}, Addresses: []string{"192.0.2.1"}}
	ownerA := inventory.Claim{Owner: "row 1 of configuration (node a)"}
	lists, inSpan, forAll := rows{a}, rows{spans}, rows{nat}
	for name, test := range map[string]struct {
		world
		rows        rows
		node, value string
		want        inventory.Claim
	}{
		"in another notation":                         {world{"a": {"::ffff:10.0.0.1"}}, nil, "a", "10.0.0.1", free},
		"it does not report it":                       {world{"a": {"10.0.0.1"}}, nil, "a", "10.0.0.2", notOwned},
		"only another Node reports it":                {world{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}, nil, "a", "10.0.0.2", notOwned},
		"another Node reports it too":                 {both, nil, "a", "10.0.0.1", contested("b", 2)},
		"three Nodes report it":                       {three, nil, "b", "10.0.0.1", contested("a", 3)},
		"its own name, which it does not report":      {world{"a.example.com": {"10.0.0.1"}}, nil, "a.example.com", "a.example.com", free},
		"its own name, which a liar reports":          {world{"a": {"a"}, "liar": {"a"}}, nil, "a", "a", free},
		"the liar does not get that name":             {world{"a": {"a"}, "liar": {"a"}}, nil, "liar", "a", named("a", 2)},
		"the name of a Node that reports nothing":     {world{"a": nil, "liar": {"a"}}, nil, "liar", "a", named("a", 2)},
		"the name of a Node, and another liar":        {world{"b": nil, "a-liar": {"b"}, "liar": {"b"}}, nil, "liar", "b", named("b", 3)},
		"a name that begins with its name":            {world{"a": {"a.example.com"}}, nil, "a", "a.example.com", free},
		"a longer name that a liar reports":           {liar, nil, "a", "a.example.com", contested("liar", 2)},
		"a longer name that is the name of a Node":    {longer, nil, "a", "a.example.com", named("a.example.com", 2)},
		"dual stack, the first address with a stale":  {dualStack, nil, "v", "10.0.0.1", contested("stale", 2)},
		"its address, which another Node reports too": {byAddress, nil, "10.0.0.5", "10.0.0.5", contested("other", 2)},
		"a Node is named by the address of another":   {world{"a": {"10.0.0.1"}, "10.0.0.1": nil}, nil, "a", "10.0.0.1", free},
		"it does not get an address by its name":      {world{"a": {"10.0.0.1"}, "10.0.0.1": nil}, nil, "10.0.0.1", "10.0.0.1", notOwned},

		"a row lists it, and others report it":          {both, lists, "a", "10.0.0.1", free},
		"a row lists it for another node":               {both, lists, "b", "10.0.0.1", ownerA},
		"a row lists its short name":                    {world{"b": {"a"}}, lists, "a", "a", free},
		"a row lists its own name for another":          {world{"a.example.com": {"a.example.com"}}, lists, "a.example.com", "a.example.com", ownerA},
		"the row of the node lacks what it reports":     {world{"a": {"10.0.0.2"}}, lists, "a", "10.0.0.2", notOwned},
		"the row of the node lacks its own name":        {world{"a": {"a"}}, rows{{Name: "a", Addresses: []string{"10.0.0.1"}}}, "a", "a", notOwned},
		"in a CIDR, and only it reports it":             {world{"a": {"10.0.0.1"}, "b": nil}, inSpan, "a", "10.0.0.1", free},
		"in a CIDR, and it does not report it":          {world{"a": nil, "b": {"10.0.0.1"}}, inSpan, "a", "10.0.0.1", notReported},
		"in a CIDR, and another Node reports it":        {both, inSpan, "a", "10.0.0.1", contested("b", 2)},
		"in a CIDR, and a row lists it for another":     {both, rows{a, spans}, "b", "10.0.0.1", ownerA},
		"below a suffix, and it is the name of a Node":  {below, inSpan, "a", "x.example.com", named("x.example.com", 2)},
		"below a suffix, and not at all":                {world{"a": {"example.com"}}, inSpan, "a", "example.com", notOwned},
		"listed for all, and all report it":             {behind, forAll, "a", "192.0.2.1", free},
		"listed for all, and it does not report it":     {behind, forAll, "c", "192.0.2.1", notReported},
		"listed for all, and another row for one":       {behind, rows{{Name: "a", Addresses: []string{"192.0.2.1"}}, nat}, "b", "192.0.2.1", ownerA},
		"by a template, and a liar reports it":          {behind, forAll, "a", "a.example.com", free},
		"its own name by a template, not reported":      {behind, forAll, "c", "c", free},
		"no row knows the node, and another reports it": {both, rows{{Name: "z", Addresses: []string{"10.0.0.9"}}}, "a", "10.0.0.1", contested("b", 2)},
	} {
		expect.Equal(t, name, test.claim(t, rowsOf(t, test.rows...), test.node, test.value), test.want)
	}
}

// TestOwnerAsksOnlyStrongerSources checks which sources are asked for the owner of a value. A source that can't answer
// matters only if it could know a better owner.
func TestOwnerAsksOnlyStrongerSources(t *testing.T) {
	down := errors.New("down")
	value := san.Parse("10.0.0.1")
	alone := inventory.Entry{SANs: []san.SAN{value}}
	shared := inventory.Entry{SANs: []san.SAN{value}, Shared: true}
	span := inventory.Entry{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	own := inventory.Entry{SelfReported: true}
	asked := 0
	owning := func(who string, err error) owner { return owner{source: source{asked: &asked}, who: who, err: err} }
	for name, test := range map[string]struct {
		entry   inventory.Entry
		rank    int
		sources inventory.Sources
		want    string
		err     error
	}{
		"a stronger source has an owner":              {alone, 1, inventory.Sources{owning("Machine b", nil), owning("", nil)}, "Machine b", nil},
		"the same source lists it for several":        {shared, 0, inventory.Sources{owning("Machine b", nil)}, "Machine b", nil},
		"the same source has it in a CIDR":            {span, 0, inventory.Sources{owning("Machine b", nil)}, "Machine b", nil},
		"a stronger source is no Owner":               {own, 1, inventory.Sources{source{asked: &asked}, source{asked: &asked}}, "", nil},
		"the strongest that knows an owner":           {own, 2, inventory.Sources{owning("", nil), owning("Machine b", nil), source{asked: &asked}}, "Machine b", nil},
		"a stronger source is down":                   {own, 1, inventory.Sources{owning("", down), source{asked: &asked}}, "", down},
		"the same source is down, and has it in CIDR": {span, 0, inventory.Sources{owning("", down)}, "", down},
		"a weaker source is down":                     {alone, 0, inventory.Sources{owning("", nil), owning("", down)}, "", nil},
	} {
		got, err := test.sources.Owner(inventory.Found{Entry: &test.entry, Rank: test.rank}, value)
		expect.True(t, got == test.want && errors.Is(err, test.err), "%s: %+v, error %v", name, got, err)
	}
	expect.Equal(t, "lookups of nodes", asked, 0)
}

// TestNodesTakeNothingFromEachOther has Nodes that report any values of each other. Exactly the Node that alone reports
// a value gets it. Each Node gets its own name, and no other Node gets that name. So what a Node reports beside a value
// never decides about it.
func TestNodesTakeNothingFromEachOther(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 13))
	rows, got := rowsOf(t), 0
	for round := range 300 {
		w := world{}
		nodes := 2 + r.IntN(6)
		for i := range nodes {
			name := fmt.Sprintf("n-%d", i)
			w[name] = nil
			for range r.IntN(6) {
				w[name] = append(w[name], []string{
					fmt.Sprintf("10.0.0.%d", r.IntN(nodes)), fmt.Sprintf("n-%d", r.IntN(nodes)), fmt.Sprintf("n-%d.example.com", r.IntN(nodes)),
				}[r.IntN(3)])
			}
		}
		for node := range w {
			for reported := range maps.Values(w) {
				for _, text := range reported {
					holders := w.holders(san.Parse(text))
					want := text == node || len(holders) == 1 && holders[0] == node
					if owned := w.claim(t, rows, node, text) == free; owned != want {
						t.Fatalf("round %d: node %s has %s: %t, want %t: %v", round, node, text, owned, want, w)
					} else if owned {
						got++
					}
				}
			}
		}
	}
	expect.True(t, got >= 300, "only %d values belong to a Node: the reports show too little", got)
}
