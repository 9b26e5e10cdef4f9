package inventory_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

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
		own = &inventory.Entry{Source: "Node " + node, OwnWord: true}
	}
	sources := inventory.Sources{rows, reports{source{entry: own, asked: new(int)}}}
	found, err := sources.Lookup(t.Context(), node, nil)
	if err != nil || found.Entry == nil {
		t.Fatalf("node %s: found %+v, error %v", node, found, err)
	}
	value := san.Parse(text)
	holders := slices.Sorted(slices.Values(w.holders(value)))
	claim, err := sources.Claim(found, node, value, holders)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(holders)
	if again, err := sources.Claim(found, node, value, holders); again != claim || err != nil {
		t.Errorf("in another order %+v, error %v, want %+v", again, err, claim)
	}
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
	t.Parallel()
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
		"no other Node reports it":                      {world{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}, nil, "a", "10.0.0.1", free},
		"in another notation":                           {world{"a": {"::ffff:10.0.0.1"}}, nil, "a", "10.0.0.1", free},
		"it does not report it":                         {world{"a": {"10.0.0.1"}}, nil, "a", "10.0.0.2", notOwned},
		"only another Node reports it":                  {world{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}, nil, "a", "10.0.0.2", notOwned},
		"another Node reports it too":                   {both, nil, "a", "10.0.0.1", contested("b", 2)},
		"and the other one waits too":                   {both, nil, "b", "10.0.0.1", contested("a", 2)},
		"three Nodes report it":                         {three, nil, "b", "10.0.0.1", contested("a", 3)},
		"its own name":                                  {world{"a.example.com": {"a.example.com"}}, nil, "a.example.com", "A.Example.com.", free},
		"its own name, which it does not report":        {world{"a.example.com": {"10.0.0.1"}}, nil, "a.example.com", "a.example.com", free},
		"its own name, which a liar reports":            {world{"a": {"a"}, "liar": {"a"}}, nil, "a", "a", free},
		"the liar does not get that name":               {world{"a": {"a"}, "liar": {"a"}}, nil, "liar", "a", named("a", 2)},
		"the name of a Node that reports nothing":       {world{"a": nil, "liar": {"a"}}, nil, "liar", "a", named("a", 2)},
		"the name of a Node, and another liar":          {world{"b": nil, "a-liar": {"b"}, "liar": {"b"}}, nil, "liar", "b", named("b", 3)},
		"a name that begins with its name":              {world{"a": {"a.example.com"}}, nil, "a", "a.example.com", free},
		"a longer name that a liar reports":             {liar, nil, "a", "a.example.com", contested("liar", 2)},
		"a longer name that is the name of a Node":      {longer, nil, "a", "a.example.com", named("a.example.com", 2)},
		"that Node gets its name":                       {longer, nil, "a.example.com", "a.example.com", free},
		"dual stack, the first address with a stale":    {dualStack, nil, "v", "10.0.0.1", contested("stale", 2)},
		"dual stack, the second address with a third":   {dualStack, nil, "v", "fd00::1", contested("third", 2)},
		"the third Node does not get the second":        {dualStack, nil, "third", "fd00::1", contested("v", 2)},
		"the stale Node does not get the first":         {dualStack, nil, "stale", "10.0.0.1", contested("v", 2)},
		"a Node that is named by its address":           {world{"10.0.0.5": {"10.0.0.5"}}, nil, "10.0.0.5", "10.0.0.5", free},
		"its address, which another Node reports too":   {byAddress, nil, "10.0.0.5", "10.0.0.5", contested("other", 2)},
		"and that Node does not get it either":          {byAddress, nil, "other", "10.0.0.5", contested("10.0.0.5", 2)},
		"a Node is named by the address of another":     {world{"a": {"10.0.0.1"}, "10.0.0.1": nil}, nil, "a", "10.0.0.1", free},
		"it does not get an address by its name":        {world{"a": {"10.0.0.1"}, "10.0.0.1": nil}, nil, "10.0.0.1", "10.0.0.1", notOwned},
		"nor one that no Node reports":                  {world{"10.0.0.1": nil}, nil, "10.0.0.1", "10.0.0.1", notOwned},
		"one honest address beside one that is claimed": {world{"a": {"10.0.0.1", "10.0.0.2"}, "liar": {"10.0.0.1"}}, nil, "a", "10.0.0.2", free},

		"a row lists it, and others report it":          {both, lists, "a", "10.0.0.1", free},
		"a row lists it for another node":               {both, lists, "b", "10.0.0.1", ownerA},
		"of which there is no Node yet":                 {world{"b": {"10.0.0.1"}}, lists, "b", "10.0.0.1", ownerA},
		"a row lists it, and there is no Node":          {world{}, lists, "a", "10.0.0.1", free},
		"a row lists its short name":                    {world{"b": {"a"}}, lists, "a", "a", free},
		"a row lists that short name for another":       {world{"b": {"a"}}, lists, "b", "a", ownerA},
		"a row lists its own name for another":          {world{"a.example.com": {"a.example.com"}}, lists, "a.example.com", "a.example.com", ownerA},
		"the row of the node lacks what it reports":     {world{"a": {"10.0.0.2"}}, lists, "a", "10.0.0.2", notOwned},
		"the row of the node lacks its own name":        {world{"a": {"a"}}, rows{{Name: "a", Addresses: []string{"10.0.0.1"}}}, "a", "a", notOwned},
		"in a CIDR, and only it reports it":             {world{"a": {"10.0.0.1"}, "b": nil}, inSpan, "a", "10.0.0.1", free},
		"in a CIDR, and it does not report it":          {world{"a": nil, "b": {"10.0.0.1"}}, inSpan, "a", "10.0.0.1", notReported},
		"in a CIDR, and there is no Node":               {world{}, inSpan, "a", "10.0.0.1", notReported},
		"in a CIDR, and another Node reports it":        {both, inSpan, "a", "10.0.0.1", contested("b", 2)},
		"in a CIDR, and a row lists it for another":     {both, rows{a, spans}, "b", "10.0.0.1", ownerA},
		"below a suffix, and only it reports it":        {world{"a": {"x.example.com"}}, inSpan, "a", "x.example.com", free},
		"below a suffix, and it is the name of a Node":  {below, inSpan, "a", "x.example.com", named("x.example.com", 2)},
		"below a suffix, and not at all":                {world{"a": {"example.com"}}, inSpan, "a", "example.com", notOwned},
		"listed for all, and all report it":             {behind, forAll, "a", "192.0.2.1", free},
		"listed for all, and it does not report it":     {behind, forAll, "c", "192.0.2.1", notReported},
		"listed for all, and another row for one":       {behind, rows{{Name: "a", Addresses: []string{"192.0.2.1"}}, nat}, "b", "192.0.2.1", ownerA},
		"by a template, and a liar reports it":          {behind, forAll, "a", "a.example.com", free},
		"by a template of another node":                 {behind, forAll, "b", "a.example.com", notOwned},
		"its own name by a template, not reported":      {behind, forAll, "c", "c", free},
		"no row knows the node, and another reports it": {both, rows{{Name: "z", Addresses: []string{"10.0.0.9"}}}, "a", "10.0.0.1", contested("b", 2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := test.claim(t, rowsOf(t, test.rows...), test.node, test.value); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// TestClaimAsksOnlyStrongerSources checks which sources are asked for the owner of a value. A source that can't answer
// matters only if it could know a better owner.
func TestClaimAsksOnlyStrongerSources(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	value := san.Parse("10.0.0.1")
	alone := inventory.Entry{SANs: []san.SAN{value}}
	shared := inventory.Entry{SANs: []san.SAN{value}, Shared: true}
	span := inventory.Entry{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}
	own := inventory.Entry{OwnWord: true}
	asked := 0
	owning := func(who string, err error) owner { return owner{source: source{asked: &asked}, who: who, err: err} }
	for name, test := range map[string]struct {
		entry   inventory.Entry
		rank    int
		sources inventory.Sources
		want    inventory.Claim
		err     error
	}{
		"the same source lists it":                    {alone, 0, inventory.Sources{owning("Machine b", nil)}, free, nil},
		"a stronger source has an owner":              {alone, 1, inventory.Sources{owning("Machine b", nil), owning("", nil)}, inventory.Claim{Owner: "Machine b"}, nil},
		"a weaker source has an owner":                {alone, 0, inventory.Sources{owning("", nil), owning("Machine b", nil)}, free, nil},
		"the same source lists it for several":        {shared, 0, inventory.Sources{owning("Machine b", nil)}, inventory.Claim{Owner: "Machine b"}, nil},
		"the same source has it in a CIDR":            {span, 0, inventory.Sources{owning("Machine b", nil)}, inventory.Claim{Owner: "Machine b"}, nil},
		"a stronger source is no Owner":               {own, 1, inventory.Sources{source{asked: &asked}, source{asked: &asked}}, free, nil},
		"the strongest that knows an owner":           {own, 2, inventory.Sources{owning("", nil), owning("Machine b", nil), source{asked: &asked}}, inventory.Claim{Owner: "Machine b"}, nil},
		"a stronger source is down":                   {own, 1, inventory.Sources{owning("", down), source{asked: &asked}}, free, down},
		"the same source is down, and has it in CIDR": {span, 0, inventory.Sources{owning("", down)}, free, down},
		"a weaker source is down":                     {alone, 0, inventory.Sources{owning("", nil), owning("", down)}, free, nil},
	} {
		got, err := test.sources.Claim(inventory.Found{Entry: &test.entry, Rank: test.rank}, "a", value, []string{"a"})
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %+v, error %v", name, got, err)
		}
	}
	if asked != 0 {
		t.Errorf("%d lookups of nodes", asked)
	}
}

// TestNodesTakeNothingFromEachOther has Nodes that report any values of each other. Exactly the Node that alone reports
// a value gets it. Each Node gets its own name, and no other Node gets that name. So what a Node reports beside a value
// never decides about it.
func TestNodesTakeNothingFromEachOther(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(13, 13))
	rows, got := rowsOf(t), 0
	for round := range 500 {
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
	if got < 500 {
		t.Errorf("only %d values belong to a Node: the reports show too little", got)
	}
}
