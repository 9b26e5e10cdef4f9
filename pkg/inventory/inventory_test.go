package inventory_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

func TestParseSANComparesByValue(t *testing.T) {
	t.Parallel()
	for name, same := range map[string][]string{
		"case and dot":      {"node-1.example.com", "NODE-1.Example.COM", "node-1.example.com."},
		"IPv4":              {"10.0.0.1", "::ffff:10.0.0.1", "::FFFF:0a00:0001"},
		"IPv6":              {"fd00::1", "FD00:0:0:0:0:0:0:1", "fd00:0000::0001"},
		"like an address":   {"10.0.0.1", "10.0.0.1."},
		"letters, not bits": {"10.0.0.1.example.com"},
	} {
		for _, text := range same {
			if got, want := inventory.ParseSAN(text), inventory.ParseSAN(same[0]); got != want {
				t.Errorf("%s: %q is %v, want %v", name, text, got, want)
			}
		}
	}
	for _, text := range []string{"fd00::1%eth0", "::ffff:10.0.0.1%, DNS:kubernetes.default.svc", "fd00::1%."} {
		if got := inventory.ParseSAN(text); got.Address.IsValid() || got.Name != strings.ToLower(strings.TrimSuffix(text, ".")) {
			t.Errorf("%q is compared as %v: what follows the percent sign is left out", text, got)
		}
	}
	if got := inventory.ParseSAN("\u212Aubernetes"); got == inventory.ParseSAN("kubernetes") {
		t.Error("a letter that is not ASCII is compared as one that is")
	}
	if inventory.ParseSAN("010.0.0.1").Address.IsValid() {
		t.Error("a number with a leading zero, which some read as octal, is an address")
	}
}

func TestSANs(t *testing.T) {
	t.Parallel()
	got := inventory.SANs(ca.Request{
		DNSNames:    []string{"B", "a", "b.", "10.0.0.1"},
		IPAddresses: []net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.1").To4(), net.ParseIP("fd00::1"), {1, 2, 3}},
	})
	want := []inventory.SAN{
		inventory.ParseSAN("b"), inventory.ParseSAN("a"), inventory.ParseSAN("10.0.0.1"), inventory.ParseSAN("fd00::1"), {},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b inventory.SAN) bool { return a == b })); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestEntryOwns(t *testing.T) {
	t.Parallel()
	entry := inventory.Entry{
		SANs:     []inventory.SAN{inventory.ParseSAN("node-1.example.com"), inventory.ParseSAN("10.0.0.1")},
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
		san := inventory.ParseSAN(text)
		if entry.Owns(san) != want.entry || short.Owns(san) != want.short {
			t.Errorf("%s: %t, with short names %t", text, entry.Owns(san), short.Owns(san))
		}
	}
	shared := inventory.Entry{SANs: entry.SANs, Shared: true}
	for text, want := range map[string]struct{ entry, short, shared bool }{
		"10.0.0.1": {false, false, true}, "node-1.example.com": {false, false, true}, "node-1": {true, false, true},
		"10.1.0.1": {true, true, true}, "x.nodes.example.org": {true, true, true},
	} {
		san := inventory.ParseSAN(text)
		if entry.Shares(san) != want.entry || short.Shares(san) != want.short || shared.Shares(san) != want.shared {
			t.Errorf("%s: shared %t, with short names %t, of a pattern %t", text, entry.Shares(san), short.Shares(san), shared.Shares(san))
		}
	}
	if entry.Owns(inventory.SAN{}) || (&inventory.Entry{Prefixes: []netip.Prefix{{}}}).Owns(inventory.SAN{}) {
		t.Error("somebody owns nothing")
	}
}

func TestReserved(t *testing.T) {
	t.Parallel()
	reserved := inventory.Reserved{
		ClusterDomain: "cluster.local",
		Endpoints:     []inventory.SAN{inventory.ParseSAN("api.example.com"), inventory.ParseSAN("192.0.2.10")},
		Prefixes:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	for _, text := range []string{
		"kubernetes", "Kubernetes.Default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local.", "a.b.svc", "a.b.svc.", "a.b.svc.other.domain", "svc",
		"x.cluster.local", "cluster.local", "a.b.pod.cluster.local", "*", "*.example.com", "a.*.example.com", "localhost", "x.localhost", "*.localhost", "LOCALHOST.",
		"localhost.localdomain", "localhost6", "localhost6.localdomain6", "localhost4", "LocalHost4.LocalDomain4", "ip6-localhost", "ip6-loopback.",
		"API.example.com", "192.0.2.10", "::ffff:192.0.2.10", "10.96.0.1", "10.111.255.255",
		"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "255.255.255.255",
	} {
		if reserved.Why(inventory.ParseSAN(text)) == "" {
			t.Errorf("%s is not reserved", text)
		}
	}
	if reserved.Why(inventory.SAN{}) == "" {
		t.Error("no address at all is not reserved")
	}
	for _, text := range []string{
		"node-1", "node-1.example.com", "kubernetes-1", "kubernetes.example.com", "localhost.example.com", "mysvc", "svc.example.com",
		"notcluster.local", "localhost7", "10.0.0.1", "10.112.0.0", "fd00::1", "192.0.2.11", "2001:db8::1",
	} {
		if why := reserved.Why(inventory.ParseSAN(text)); why != "" {
			t.Errorf("%s is reserved as %s", text, why)
		}
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
		"both know":                      {source{entry: strong}, source{entry: weak}, strong, 0, 1, nil},
		"only the weak one knows":        {source{}, source{entry: weak}, weak, 1, 2, nil},
		"nobody knows":                   {source{}, source{}, nil, 0, 2, nil},
		"the strong one is down":         {source{err: down}, source{entry: weak}, nil, 0, 1, down},
		"the weak one is down":           {source{entry: strong}, source{err: down}, strong, 0, 1, nil},
		"the weak one is down, unasked?": {source{}, source{err: down}, nil, 0, 2, down},
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

// owner is a source that knows whose a name is.
type owner struct {
	source
	who string
	err error
}

func (o owner) Owner(inventory.SAN) (string, error) { return o.who, o.err }

func TestOwnerByAStrongerSource(t *testing.T) {
	t.Parallel()
	down := errors.New("down")
	for name, test := range map[string]struct {
		sources  inventory.Sources
		stronger int
		want     string
		err      error
	}{
		"none is stronger":                 {inventory.Sources{owner{who: "a"}}, 0, "", nil},
		"the strongest that knows":         {inventory.Sources{owner{}, owner{who: "a"}, owner{who: "b"}}, 3, "a", nil},
		"only a weaker one knows":          {inventory.Sources{owner{}, owner{who: "a"}}, 1, "", nil},
		"one that can't be asked for that": {inventory.Sources{source{}, owner{who: "a"}}, 2, "a", nil},
		"one is down":                      {inventory.Sources{owner{err: down}, owner{who: "a"}}, 2, "", down},
	} {
		got, err := test.sources.Owner(inventory.ParseSAN("10.0.0.1"), test.stronger)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestPlainPrefix(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"::ffff:10.96.0.0/108": "10.96.0.0/12", "10.96.0.0/12": "10.96.0.0/12", "fd00::/64": "fd00::/64", "::/0": "::/0", "::ffff:0:0/96": "0.0.0.0/0",
	} {
		if got := inventory.PlainPrefix(netip.MustParsePrefix(text)); got.String() != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}
