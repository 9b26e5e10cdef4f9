package inventory_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"

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
	shared := inventory.Entry{SANs: entry.SANs, Shared: true}
	for text, want := range map[string]struct{ entry, short, shared bool }{
		"10.0.0.1": {false, false, true}, "node-1.example.com": {false, false, true}, "node-1": {true, false, true},
		"10.1.0.1": {true, true, true}, "x.nodes.example.org": {true, true, true},
	} {
		value := san.Parse(text)
		if entry.Shares(value) != want.entry || short.Shares(value) != want.short || shared.Shares(value) != want.shared {
			t.Errorf("%s: shared %t, with short names %t, of a pattern %t", text, entry.Shares(value), short.Shares(value), shared.Shares(value))
		}
	}
	if entry.Owns(san.SAN{}) || (&inventory.Entry{Prefixes: []netip.Prefix{{}}}).Owns(san.SAN{}) {
		t.Error("somebody owns nothing")
	}
}

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			test.first.asked, test.second.asked = &asked, &asked
			found, err := inventory.Sources{test.first, test.second}.Lookup(t.Context(), "a", nil)
			if found.Entry != test.want || found.Rank != test.rank || !errors.Is(err, test.err) || asked != test.asked {
				t.Errorf("%+v, error %v, %d asked", found, err, asked)
			}
			var unavailable *inventory.Unavailable
			if err != nil && (!errors.As(err, &unavailable) || err.Error() != "ask test: down") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// owner is a source that knows the owner of a name.
type owner struct {
	source
	who string
	err error
}

func (o owner) Owner(san.SAN) (string, error) { return o.who, o.err }

func TestOwnerByAStrongerSource(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		sources  inventory.Sources
		stronger int
		want     string
		err      error
	}{
		"none is stronger":         {inventory.Sources{owner{who: "a"}}, 0, "", nil},
		"the strongest that knows": {inventory.Sources{owner{}, owner{who: "a"}, owner{who: "b"}}, 3, "a", nil},
		"only a weaker one knows":  {inventory.Sources{owner{}, owner{who: "a"}}, 1, "", nil},
		"one that is no Owner":     {inventory.Sources{source{}, owner{who: "a"}}, 2, "a", nil},
		"one is down":              {inventory.Sources{owner{err: down}, owner{who: "a"}}, 2, "", down},
	} {
		got, err := test.sources.Owner(san.Parse("10.0.0.1"), test.stronger)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
