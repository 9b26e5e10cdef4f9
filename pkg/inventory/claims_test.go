package inventory

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

func sans(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		all = append(all, san.Parse(text))
	}
	return all
}

// world holds the reports of all Nodes, and the entries of stronger sources for some of them.
type world struct {
	reports map[string][]string
	entries map[string]Found
	broken  string // the node about which a source can't answer
}

// ownWord returns a world in which Nodes are known only by their own reports.
func ownWord(reports map[string][]string) world { return world{reports: reports} }

func (w world) knows(node string, rank int, entry Entry) world {
	w.entries = maps.Clone(w.entries)
	if w.entries == nil {
		w.entries = map[string]Found{}
	}
	w.entries[node] = Found{Entry: &entry, Rank: rank}
	return w
}

// ownership returns an Ownership for w. shuffle decides the order in which it returns Nodes and values. Sources have
// the ranks 0 to 2, and the Nodes' own reports have rank 3.
func (w world) ownership(shuffle *rand.Rand) *Ownership {
	reported, holders := map[string][]san.SAN{}, map[san.SAN][]string{}
	for _, node := range slices.Sorted(maps.Keys(w.reports)) {
		for _, text := range w.reports[node] {
			value := san.Parse(text)
			reported[node] = append(reported[node], value)
			if !slices.Contains(holders[value], node) {
				holders[value] = append(holders[value], node)
			}
		}
		sans := reported[node]
		shuffle.Shuffle(len(sans), func(i, j int) { sans[i], sans[j] = sans[j], sans[i] })
	}
	return &Ownership{
		Holders: func(value san.SAN) ([]string, error) {
			names := slices.Clone(holders[value])
			shuffle.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			return names, nil
		},
		Reported: func(node string) ([]san.SAN, error) { return reported[node], nil },
		Claim: func(node string, value san.SAN) (Claim, error) {
			if node == w.broken {
				return Claim{}, errors.New("claimed by two machines")
			}
			if found, known := w.entries[node]; known {
				return found.Claim(value), nil
			}
			return Found{Entry: &Entry{OwnWord: true}, Rank: 3}.Claim(value), nil
		},
	}
}

// verdict returns a short text for c.
func verdict(c Contest, err error) string {
	switch {
	case err != nil:
		return "unknown"
	case c.LeftOut != nil:
		return "left out"
	case c.Better != "":
		return "better: " + c.Better
	case c.Twice != "":
		return "twice: " + c.Twice
	case len(c.Equal) > 0:
		return fmt.Sprintf("equal: %s of %d", strings.Join(c.Equal, ","), c.Reporters)
	}
	return "free"
}

func fixed() *rand.Rand { return rand.New(rand.NewPCG(1, 1)) }

// TestOwnership has a row for each rule. It contests the first value that the node reports.
func TestOwnership(t *testing.T) {
	t.Parallel()
	pair := ownWord(map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2", "10.0.0.1"}})
	alone, several := Entry{SANs: sans("10.0.0.1")}, Entry{SANs: sans("10.0.0.1"), Shared: true}
	span, other := Entry{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}, Entry{SANs: sans("10.9.9.9")}
	greedy := map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}, "c": {"10.0.0.3"}, "n": {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}}
	nat := map[string][]string{"a": {"192.0.2.1", "10.0.0.1"}, "b": {"192.0.2.1", "10.0.0.2"}, "c": {"192.0.2.1", "10.0.0.3"}}
	many := map[string][]string{}
	for i := range MaxRivals + 2 {
		many[fmt.Sprintf("n-%02d", i)] = []string{"192.0.2.1"}
	}
	collector := map[string][]string{"n": nil, "v": {"10.9.0.1"}}
	for i := range MaxRivals + 1 {
		address := fmt.Sprintf("10.0.1.%d", i)
		collector[fmt.Sprintf("a-%02d", i)], collector["n"] = []string{address}, append(collector["n"], address)
	}
	collector["n"] = append([]string{"10.9.0.1"}, collector["n"]...)
	for name, test := range map[string]struct {
		world world
		node  string
		want  string
	}{
		"no other Node reports it":                     {ownWord(map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}), "a", "free"},
		"another Node reports it":                      {pair, "a", "equal: b of 2"},
		"its own other value is free":                  {pair, "b", "free"},
		"a machine has it alone":                       {pair.knows("a", 0, alone), "a", "free"},
		"the other's machine has it":                   {pair.knows("b", 0, alone), "a", "better: b"},
		"the other's machine has it not":               {pair.knows("b", 0, other), "a", "free"},
		"a source gives it to both alone":              {pair.knows("a", 1, alone).knows("b", 1, alone), "a", "twice: b"},
		"a stronger source than the other's":           {pair.knows("a", 0, alone).knows("b", 1, alone), "a", "free"},
		"a weaker source than the other's":             {pair.knows("a", 1, alone).knows("b", 0, alone), "a", "better: b"},
		"a row lists it for both":                      {pair.knows("a", 1, several).knows("b", 1, several), "a", "free"},
		"a row lists it for both, another for b alone": {pair.knows("a", 1, several).knows("b", 1, alone), "a", "better: b"},
		"alone, the other as one of several":           {pair.knows("a", 1, alone).knows("b", 1, several), "a", "free"},
		"a row lists it, a stronger range spans it":    {pair.knows("a", 1, several).knows("b", 0, span), "a", "free"},
		"a range, a row of the same source lists it":   {pair.knows("a", 1, span).knows("b", 1, several), "a", "better: b"},
		"the same range":                               {pair.knows("a", 1, span).knows("b", 1, span), "a", "equal: b of 2"},
		"a range, the other by its own report":         {pair.knows("a", 1, span), "a", "free"},
		"by its own report, the other by a range":      {pair.knows("b", 1, span), "a", "better: b"},
		"a source can't answer about the other":        {world{reports: pair.reports, broken: "b"}, "a", "unknown"},
		"three Nodes report it":                        {ownWord(nat), "a", "equal: b,c of 3"},
		"more than can be compared":                    {ownWord(many), "n-00", "equal: n-01 of 52"},
		"more, and a row lists it":                     {ownWord(many).knows("n-00", 0, Entry{SANs: sans("192.0.2.1"), Shared: true}), "n-00", "unknown"},
		"a Node that reports all others' addresses":    {ownWord(greedy), "a", "free"},
		"the Node that reports all others":             {ownWord(greedy), "n", "left out"},
		"that Node, for what its machine has":          {ownWord(greedy).knows("n", 0, alone), "n", "free"},
		"a Node that reports too many to compare":      {ownWord(collector), "v", "free"},
		"a source can't answer about a victim":         {world{reports: greedy, broken: "c"}, "a", "free"},
		"the name of a Node that is left out": {ownWord(map[string][]string{
			"n": {"n", "10.0.0.1"}, "a": {"10.0.0.1"}, "x": {"n"}}), "x", "equal: n of 2"},
		"another name of a Node that is left out": {ownWord(map[string][]string{
			"n": {"n.example.com", "10.0.0.1"}, "a": {"10.0.0.1"}, "x": {"n.example.com"}}), "x", "free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			value := san.Parse(test.world.reports[test.node][0])
			if got := verdict(test.world.ownership(fixed()).Contest(test.node, value)); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// TestLeftOut has evidence that a Node lies, and reports that are no evidence.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	star := map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}, "n": {"10.0.0.1", "10.0.0.2"}}
	for name, test := range map[string]struct {
		world world
		want  string // the Nodes that are left out
	}{
		"it collides with two that do not collide": {ownWord(star), "n"},
		"it collides with one":                     {ownWord(map[string][]string{"a": {"10.0.0.1", "10.0.0.2"}, "n": {"10.0.0.1", "10.0.0.2"}}), ""},
		"all three collide with each other": {ownWord(map[string][]string{
			"a": {"10.0.0.1", "10.0.0.3"}, "b": {"10.0.0.2", "10.0.0.3"}, "n": {"10.0.0.1", "10.0.0.2"}}), ""},
		"all share an address, and two collide beside that": {ownWord(map[string][]string{
			"a": {"192.0.2.1", "10.0.0.1"}, "b": {"192.0.2.1", "10.0.0.2"}, "c": {"192.0.2.1"}, "x": {"10.0.0.1"}}), ""},
		"all share an address, and one reports all the others": {ownWord(map[string][]string{
			"a": {"192.0.2.1", "10.0.0.1"}, "b": {"192.0.2.1", "10.0.0.2"}, "n": {"192.0.2.1", "10.0.0.1", "10.0.0.2"}}), "n"},
		"a row lets two share, and one of them is attacked": {ownWord(map[string][]string{
			"v": {"192.0.2.1", "10.0.0.1"}, "h": {"192.0.2.1", "10.0.0.2"}, "x": {"10.0.0.1"}}).
			knows("v", 1, Entry{SANs: sans("192.0.2.1"), Shared: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}).
			knows("h", 1, Entry{SANs: sans("192.0.2.1"), Shared: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}), ""},
		"both have machines that say otherwise": {ownWord(star).knows("a", 0, Entry{SANs: sans("10.9.9.1")}).knows("b", 0, Entry{SANs: sans("10.9.9.2")}), ""},
		"two of three collide, of which one has a machine": {ownWord(map[string][]string{
			"a": {"10.0.0.1", "10.0.0.3"}, "b": {"10.0.0.2", "10.0.0.3"}, "n": {"10.0.0.1", "10.0.0.2"}}).
			knows("a", 0, Entry{SANs: sans("10.0.0.1", "10.0.0.3")}), ""},
		"the first of three has no claim": {ownWord(map[string][]string{
			"a": {"10.0.0.1"}, "b": {"10.0.0.2"}, "c": {"10.0.0.3"}, "n": {"10.0.0.1", "10.0.0.2", "10.0.0.3"}}).
			knows("a", 0, Entry{SANs: sans("10.9.9.1")}), "n"},
		"both have machines": {ownWord(star).knows("a", 0, Entry{SANs: sans("10.0.0.1")}).knows("b", 0, Entry{SANs: sans("10.0.0.2")}), "n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ownership, out := test.world.ownership(fixed()), []string{}
			for _, node := range slices.Sorted(maps.Keys(test.world.reports)) {
				if why, err := ownership.LeftOut(node); err != nil {
					t.Fatal(err)
				} else if why != nil {
					out = append(out, node)
				}
			}
			if got := strings.Join(out, ","); got != test.want {
				t.Errorf("left out: %q, want %q", got, test.want)
			}
		})
	}
}

// randomWorld returns up to seven Nodes that report a few of a few values.
func randomWorld(r *rand.Rand) world {
	w := ownWord(map[string][]string{})
	for i := range 2 + r.IntN(6) {
		name := string(rune('a' + i))
		w.reports[name] = nil
		for range r.IntN(5) {
			w.reports[name] = append(w.reports[name], fmt.Sprintf("10.0.0.%d", r.IntN(8)))
		}
		if r.IntN(4) == 0 {
			entry := Entry{Shared: r.IntN(2) == 0}
			if entry.SANs = sans(fmt.Sprintf("10.0.0.%d", r.IntN(8))); r.IntN(2) == 0 {
				entry.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
			}
			w = w.knows(name, r.IntN(3), entry)
		}
	}
	return w
}

// The order and the ages of Nodes, the order of their reports and the order of the questions change no answer. So
// replicas agree, and a restart changes nothing.
func TestOwnershipDependsOnStoredStateOnly(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	for round := range 2000 {
		w := randomWorld(r)
		answers := func() map[string]string {
			ownership, got := w.ownership(r), map[string]string{}
			nodes := slices.Collect(maps.Keys(w.reports)) // in any order
			for _, node := range nodes {
				for _, text := range w.reports[node] {
					got[node+" "+text] = verdict(ownership.Contest(node, san.Parse(text)))
				}
			}
			return got
		}
		first := answers()
		for range 3 {
			if again := answers(); !maps.Equal(first, again) {
				t.Fatalf("round %d: %v\nfirst %v\nagain %v", round, w.reports, first, again)
			}
		}
	}
}

// TestOneLiar has honest Nodes and one Node that may report anything. Either no honest Nodes share an address, or at
// least three do. The one Node gets no value that an honest Node reports, and blocks at most one honest Node.
func TestOneLiar(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(11, 11))
	for round := range 5000 {
		honest := 1 + r.IntN(6)
		w := ownWord(map[string][]string{"liar": {"10.9.9.9"}})
		owner := map[string]string{}
		for i := range honest {
			name := fmt.Sprintf("honest-%d", i)
			for _, text := range []string{fmt.Sprintf("10.0.0.%d", i), name + ".example.com"} {
				w.reports[name], owner[text] = append(w.reports[name], text), name
			}
			if honest > 2 && i < honest-(honest-3)*(round%2) { // three or more behind one address
				w.reports[name] = append(w.reports[name], "192.0.2.1")
			}
		}
		for range r.IntN(12) {
			w.reports["liar"] = append(w.reports["liar"], slices.Sorted(maps.Keys(owner))[r.IntN(len(owner))])
		}
		if r.IntN(2) == 0 {
			w.reports["liar"] = append(w.reports["liar"], "192.0.2.1")
		}
		ownership, heldUp := w.ownership(r), map[string]bool{}
		for text, name := range owner {
			if got := verdict(ownership.Contest(name, san.Parse(text))); got != "free" {
				heldUp[name] = true
			}
			if !slices.Contains(w.reports["liar"], text) {
				continue
			}
			if got := verdict(ownership.Contest("liar", san.Parse(text))); got == "free" {
				t.Fatalf("round %d: the liar gets %s of %s: %v", round, text, name, w.reports)
			}
		}
		if len(heldUp) > 1 {
			t.Fatalf("round %d: one liar holds up %v: %v", round, heldUp, w.reports)
		}
	}
}

// ownWordWorld returns up to seven Nodes. Each reports some of a few addresses, and often its own name or the name of
// another Node.
func ownWordWorld(r *rand.Rand) world {
	w := ownWord(map[string][]string{})
	nodes := 3 + r.IntN(5)
	for i := range nodes {
		name := string(rune('a' + i))
		w.reports[name] = []string{fmt.Sprintf("10.0.%d.1", i)}
		for range r.IntN(4) {
			w.reports[name] = append(w.reports[name], fmt.Sprintf("10.0.%d.1", r.IntN(2*nodes)))
		}
		if r.IntN(2) == 0 {
			w.reports[name] = append(w.reports[name], string(rune('a'+r.IntN(nodes))))
		}
	}
	return w
}

// judged returns the Nodes that get all that they report, and the Nodes that are left out.
func (w world) judged(t *testing.T, r *rand.Rand) (served, out map[string]bool) {
	t.Helper()
	ownership := w.ownership(r)
	served, out = map[string]bool{}, map[string]bool{}
	for node, reported := range w.reports {
		served[node] = true
		for _, text := range reported {
			got := verdict(ownership.Contest(node, san.Parse(text)))
			served[node] = served[node] && got == "free"
		}
		why, err := ownership.LeftOut(node)
		if err != nil {
			t.Fatal(err)
		}
		out[node] = why != nil
	}
	return served, out
}

func (w world) without(node string) world {
	left := maps.Clone(w.reports)
	delete(left, node)
	return ownWord(left)
}

// TestOwnWordInAnyGraph has Nodes that report any values of each other. No Node gets a value that another Node reports,
// unless that Node is left out. Even a Node that is left out keeps its own name. If no other Node is left out, a single
// Node blocks at most one other Node. A Node gets a value of another Node only if that Node shares a value with exactly
// one third Node: kubelet-serving.md says so.
func TestOwnWordInAnyGraph(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(13, 13))
	taken, heldUp := 0, 0
	for round := range 1500 {
		w := ownWordWorld(r)
		ownership := w.ownership(r)
		served, out := w.judged(t, r)
		for node, reported := range w.reports {
			rest := w.without(node)
			before, outBefore := rest.judged(t, r)
			for _, text := range reported {
				value := san.Parse(text)
				if verdict(ownership.Contest(node, value)) != "free" {
					continue
				}
				holders, _ := ownership.Holders(value)
				for _, other := range others(holders, node) {
					taken++
					if !out[other] || text == other {
						t.Fatalf("round %d: %s gets %s of %s: %v", round, node, text, other, w.reports)
					}
					if shared, err := rest.ownership(r).sharedBy(other); err != nil || len(shared) == 0 {
						t.Fatalf("round %d: %s takes %s of %s, which shares nothing with just one other: %v", round, node, text, other, w.reports)
					}
				}
			}
			if slices.Contains(slices.Collect(maps.Values(outBefore)), true) {
				continue
			}
			var waiting []string
			for other := range rest.reports {
				if before[other] && !served[other] {
					waiting = append(waiting, other)
				}
			}
			if len(waiting) == 1 {
				heldUp++
			} else if len(waiting) > 1 {
				t.Fatalf("round %d: %s holds up %v: %v", round, node, waiting, w.reports)
			}
		}
	}
	if taken < 100 || heldUp < 100 {
		t.Errorf("%d values were taken, %d Nodes held up: the graphs show too little", taken, heldUp)
	}
}

// TestLeftOutNeedsEachClaim checks that a Node whose claim is unknown is neither proof for nor against another Node.
func TestLeftOutNeedsEachClaim(t *testing.T) {
	t.Parallel()
	w := ownWord(map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}, "n": {"10.0.0.1", "10.0.0.2"}})
	w.broken = "a"
	if out, err := w.ownership(fixed()).LeftOut("n"); err == nil || out != nil {
		t.Errorf("left out: %v, error %v, want an error", out, err)
	}
}

// TestBoundsAreExact contests a value that as many Nodes report as can be compared, and one more.
func TestBoundsAreExact(t *testing.T) {
	t.Parallel()
	shared := func(nodes int) world {
		w := ownWord(map[string][]string{})
		for i := range nodes {
			w.reports[fmt.Sprintf("n-%02d", i)] = []string{"192.0.2.1"}
		}
		return w
	}
	value := san.Parse("192.0.2.1")
	for nodes, want := range map[int]int{MaxRivals: MaxRivals - 1, MaxRivals + 1: 1} {
		if c, err := shared(nodes).ownership(fixed()).Contest("n-00", value); err != nil || len(c.Equal) != want || c.Reporters != nodes {
			t.Errorf("%d Nodes by their own word: %+v, error %v, want %d that are equal", nodes, c, err, want)
		}
	}
	for nodes, want := range map[int]string{MaxRivals + 1: "free", MaxRivals + 2: "unknown"} {
		w := shared(nodes).knows("n-00", 0, Entry{SANs: sans("192.0.2.1")})
		if got := verdict(w.ownership(fixed()).Contest("n-00", value)); got != want {
			t.Errorf("%d Nodes, of which one has a machine: %s, want %s", nodes, got, want)
		}
	}
	for pairs, more := range map[int]int{MaxRivals: 0, MaxRivals + 1: MaxRivals + 1} {
		w := ownWord(map[string][]string{})
		for i := range pairs {
			address := fmt.Sprintf("10.0.0.%d", i)
			w.reports["n"], w.reports[fmt.Sprintf("v-%02d", i)] = append(w.reports["n"], address), []string{address}
		}
		if out, err := w.ownership(fixed()).LeftOut("n"); err != nil || out == nil || out.More != more || (out.Nodes[0] == "") != (more > 0) {
			t.Errorf("one Node collides with %d: %+v, error %v", pairs, out, err)
		}
	}
}

// TestOwnershipIsBounded has one Node with 15,000 addresses among thousands, and contests its values from both sides.
func TestOwnershipIsBounded(t *testing.T) {
	t.Parallel()
	w, asked := ownWord(map[string][]string{"n": {"10.255.0.1"}}), 0
	for i := range 15_000 {
		w.reports["n"] = append(w.reports["n"], fmt.Sprintf("10.%d.%d.%d", 1+i/65536, i/256%256, i%256))
	}
	for i := range 3000 {
		w.reports[fmt.Sprintf("v-%04d", i)] = []string{fmt.Sprintf("10.1.%d.%d", i/256, i%256), "192.0.2.1"}
	}
	ownership := w.ownership(fixed())
	holders, claim := ownership.Holders, ownership.Claim
	ownership.Holders = func(value san.SAN) ([]string, error) { asked++; return holders(value) }
	claims := 0
	ownership.Claim = func(node string, value san.SAN) (Claim, error) { claims++; return claim(node, value) }
	if got := verdict(ownership.Contest("v-0001", san.Parse("10.1.0.1"))); got != "free" {
		t.Errorf("the victim's own address is %s", got)
	}
	if got := verdict(ownership.Contest("n", san.Parse("10.255.0.1"))); got != "left out" {
		t.Errorf("the liar's is %s", got)
	}
	if asked > 15_100 || claims > 10 {
		t.Errorf("%d lookups of holders, %d of claims", asked, claims)
	}
}
