package approver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// askedOf is a source that records which nodes it is asked about.
type askedOf struct {
	entries map[string]*inventory.Entry
	broken  string // the node for which the source fails
	asked   []string
}

func (*askedOf) Name() string { return "asked" }

func (c *askedOf) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	c.asked = append(c.asked, node)
	if node == c.broken {
		return nil, errors.New("claimed by two")
	}
	return c.entries[node], nil
}

// reporting is the source that trusts Nodes. The test never reads what they report.
type reporting struct{ askedOf }

func (*reporting) Reported(string) ([]san.SAN, error) { return nil, nil }

// contestOf returns the claims to names that all holders report. Node a requests them, and the source with that rank
// knows it. The source with rank 1 is what Nodes report.
func contestOf(source *askedOf, rank int, holders []string, names []san.SAN) (claims, []nameFacts, *int) {
	req, _ := serving()
	listed := new(int)
	c := claims{
		ctx: context.Background(), sources: inventory.Sources{source, &reporting{}}, req: req, others: map[string]inventory.Found{},
		found:    inventory.Found{Entry: &inventory.Entry{SANs: names, OwnWord: rank == 1}, Rank: rank},
		reported: func(string) ([]san.SAN, error) { return nil, nil },
		barred:   func(string, san.SAN) bool { return false },
		holders: func(san.SAN) ([]string, error) {
			*listed++
			return holders, nil
		},
	}
	var facts []nameFacts
	for _, name := range names {
		facts = append(facts, nameFacts{san: name})
	}
	return c, facts, listed
}

func manySANs(count int) []san.SAN {
	var all []san.SAN
	for i := range count {
		all = append(all, san.Parse(fmt.Sprintf("10.1.%d.%d", i/256, i%256)))
	}
	return all
}

// TestRivalsAreLookedUpOnce checks that a source is asked about each node once, however many names are shared. A
// source may be a remote server.
func TestRivalsAreLookedUpOnce(t *testing.T) {
	t.Parallel()
	source := &askedOf{}
	c, facts, _ := contestOf(source, 0, []string{"c", "a", "b"}, manySANs(500))
	if err := c.compare(facts); err != nil || !slices.Equal(source.asked, []string{"b", "c"}) {
		t.Errorf("%v, asked for %d nodes: %.10q", err, len(source.asked), source.asked)
	}
}

// TestWeighingEndsAtTheFirstContested checks that the comparison stops at the first contested name.
func TestWeighingEndsAtTheFirstContested(t *testing.T) {
	t.Parallel()
	names := manySANs(500)
	source := &askedOf{entries: map[string]*inventory.Entry{"b": {SANs: names}}}
	c, facts, listed := contestOf(source, 1, []string{"a", "b"}, names)
	if err := c.compare(facts); err != nil || facts[0].contest.Better != "b" || *listed > 3 {
		t.Errorf("%v, %+v, looked %d times for holders", err, facts[0], *listed)
	}
}

// TestWeakerSourcesAreNotAsked checks which broken source matters, because a node may report names of a node that no
// source can describe. A node that a stronger source knows waits neither for weaker sources, nor for a node that can
// have no claim.
func TestWeakerSourcesAreNotAsked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rank, broken int
		barred       bool
		unknown      bool
	}{
		"the same source is broken":                                 {rank: 0, broken: 0, unknown: true},
		"a weaker source is broken":                                 {rank: 0, broken: 1},
		"a stronger source is broken":                               {rank: 1, broken: 0, unknown: true},
		"a stronger source is broken, but the other node is barred": {rank: 1, broken: 0, barred: true},
	} {
		broken := &askedOf{broken: "b"}
		c, facts, _ := contestOf(&askedOf{}, test.rank, []string{"a", "b"}, manySANs(1))
		c.sources = inventory.Sources{&askedOf{}, &askedOf{}}
		c.sources[test.broken] = broken
		c.barred = func(string, san.SAN) bool { return test.barred }
		if err := c.compare(facts); (err != nil) != test.unknown || (len(broken.asked) > 0) != test.unknown {
			t.Errorf("%s: %v, asked for %q", name, err, broken.asked)
		}
	}
}

// TestRivalsAreBounded checks that a request looks up a bounded number of nodes in a source that may be slow.
func TestRivalsAreBounded(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1} {
		holders := []string{"a"}
		for i := range inventory.MaxRivals + more {
			holders = append(holders, fmt.Sprintf("b-%03d", i))
		}
		source := &askedOf{}
		c, facts, _ := contestOf(source, 0, holders, manySANs(3))
		err := c.compare(facts)
		if (err != nil) != (more > 0) || err != nil && !strings.Contains(err.Error(), "more than 50 other Nodes") || len(source.asked) != inventory.MaxRivals*(1-more) {
			t.Errorf("with %d more: %v, asked for %d nodes", more, err, len(source.asked))
		}
	}
}

// owning is a source that knows owners.
type owning struct {
	askedOf
	owners map[string]string
	fails  error
}

func (o *owning) Owner(name san.SAN) (string, error) { return o.owners[name.String()], o.fails }

// TestOwnersAreAskedBeforeNodes checks when the owner of a name comes before the claim of the requesting node: if its
// source is stronger, or if it is the same source and assigns the name to the node less firmly.
func TestOwnersAreAskedBeforeNodes(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	names := manySANs(2)
	first, second := names[0].String(), names[1].String()
	alone := &inventory.Entry{SANs: names}
	ranged := &inventory.Entry{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	listed := &inventory.Entry{SANs: names[:1], Shared: true, Prefixes: ranged.Prefixes}
	for name, test := range map[string]struct {
		entry  *inventory.Entry
		rank   int
		owners map[string]string
		fails  error
		want   []string // contested, for each name
	}{
		"nobody owns it":                            {entry: ranged, want: []string{"", ""}},
		"in a range of the same source":             {entry: ranged, owners: map[string]string{first: "Machine b"}, want: []string{"Machine b", ""}},
		"only the second":                           {entry: ranged, owners: map[string]string{second: "Machine b"}, want: []string{"", "Machine b"}},
		"the node has it alone by that source":      {entry: alone, owners: map[string]string{first: "Machine a"}, want: []string{"", ""}},
		"the node has it alone by a weaker source":  {entry: alone, rank: 1, owners: map[string]string{first: "Machine b"}, want: []string{"Machine b", ""}},
		"one for several nodes, and one in a range": {entry: listed, owners: map[string]string{second: "Machine b"}, want: []string{"", "Machine b"}},
		"the source fails":                          {entry: ranged, fails: down, want: []string{"", ""}},
	} {
		c, facts, _ := contestOf(&askedOf{}, test.rank, []string{"a"}, names)
		c.found.Entry = test.entry
		c.sources = inventory.Sources{&owning{owners: test.owners, fails: test.fails}, &reporting{}}
		err := c.compare(facts)
		got := []string{facts[0].contested, facts[1].contested}
		if !errors.Is(err, test.fails) || !slices.Equal(got, test.want) {
			t.Errorf("%s: contested by %q, error %v, want %q", name, got, err, test.want)
		}
	}
}

// TestSharedNamesMustBeReported checks that a name that several nodes may have must be in the Node's own report.
func TestSharedNamesMustBeReported(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shared  bool
		holders []string
		want    bool
	}{
		"its own, reported":      {false, []string{"a"}, false},
		"its own, not reported":  {false, nil, false},
		"shared, reported":       {true, []string{"b", "a"}, false},
		"shared, not reported":   {true, []string{"b"}, true},
		"shared, nobody reports": {true, nil, true},
	} {
		c, facts, _ := contestOf(&askedOf{}, 0, test.holders, manySANs(1))
		c.found.Shared = test.shared
		if err := c.compare(facts); err != nil || facts[0].unpublished != test.want {
			t.Errorf("%s: unpublished %t, error %v, want %t", name, facts[0].unpublished, err, test.want)
		}
	}
}

// TestLookupsOfARequestAreBounded checks the bound of all lookups of one request. Each name has fewer rivals than may be
// compared.
func TestLookupsOfARequestAreBounded(t *testing.T) {
	t.Parallel()
	for _, more := range []int{0, 1} {
		source := &askedOf{}
		c, facts, _ := contestOf(source, 0, nil, manySANs(5))
		at := map[san.SAN]int{}
		for i, each := range facts {
			at[each.san] = i
		}
		c.holders = func(name san.SAN) ([]string, error) {
			rivals := inventory.MaxRivals
			if at[name] == 4 {
				rivals = more
			}
			holders := []string{"a"}
			for i := range rivals {
				holders = append(holders, fmt.Sprintf("b-%d-%02d", at[name], i))
			}
			return holders, nil
		}
		err := c.compare(facts)
		if (err != nil) != (more > 0) || len(source.asked) != 200 {
			t.Errorf("with %d more: error %v, asked for %d nodes, want 200", more, err, len(source.asked))
		}
	}
}
