package san_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// reserved is the cluster of TestReserved and FuzzParse.
var reserved = san.Reserved{
	ClusterDomain: "cluster.local", Endpoints: []san.SAN{san.Parse("api.example.com"), san.Parse("192.0.2.10")},
	Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
}

// TestOf checks that each name or address is there once, in order.
func TestOf(t *testing.T) {
	t.Parallel()
	got := san.Of(
		[]string{"B", "a", "b.", "10.0.0.1"},
		[]net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.1").To4(), net.ParseIP("fd00::1"), {1, 2, 3}},
	)
	want := []san.SAN{san.Parse("b"), san.Parse("a"), san.Parse("10.0.0.1"), san.Parse("fd00::1"), {}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestUnmapPrefix checks which prefixes are IPv4 prefixes.
func TestUnmapPrefix(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"::ffff:10.96.0.0/108": "10.96.0.0/12", "10.96.0.0/12": "10.96.0.0/12", "fd00::/64": "fd00::/64",
		"::/0": "::/0", "::ffff:0:0/96": "0.0.0.0/0", "::ffff:0:0/95": "::ffff:0.0.0.0/95",
	} {
		if got := san.UnmapPrefix(netip.MustParsePrefix(text)); got.String() != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

// TestCheckDNSName checks which names a certificate may have.
func TestCheckDNSName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a234567890.", 22) + "a2345678901"
	for ok, names := range map[bool][]string{
		true: {
			"a", "A.Example.COM", "a.", "node_1.example.com", "_a", "a-", "1.2.3", "azAZ09", long, long + ".", "*.a", "*.a.",
			"10.0.0.1", "fd00::1", "::1", "10.0.0.1.", "010.0.0.1",
		},
		false: {
			"", ".", "a..", ".a", "a..b", "-a", "a.-b", "*", "*.", "a.*", "*a.b", "*.*.a", "**.a",
			"a b", "a,b", "a\x00", "a\n", "a:443", "a/b", "a%b", "[::1]", "xn--\u00fc", "\u212aubernetes", "a\u3002b",
			long + "2", long + "2.", "::ffff:10.0.0.1", "FD00::1", "fd00:0::1", "fd00::1.", "fd00::1%eth0",
			"::ffff:10.9.0.1%, DNS:kubernetes.default.svc",
		},
	} {
		for _, name := range names {
			if err := san.CheckDNSName(name, true); (err == nil) != ok {
				t.Errorf("%q: error %v", name, err)
			}
		}
	}
	if err := san.CheckDNSName("*.a", false); err == nil {
		t.Error("a wildcard is permitted where none is")
	}
}

// TestReserved checks which names and addresses no node can have.
func TestReserved(t *testing.T) {
	t.Parallel()
	for want, texts := range map[bool][]string{
		true: {
			"kubernetes", "Kubernetes.Default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local.",
			"a.b.svc", "a.b.svc.", "a.b.svc.other.domain", "svc", "x.cluster.local", "cluster.local", "a.b.pod.cluster.local",
			"*", "*.example.com", "a.*.example.com", "localhost", "x.localhost", "*.localhost", "LOCALHOST.",
			"localhost.localdomain", "localhost6", "localhost6.localdomain6", "localhost4", "LocalHost4.LocalDomain4",
			"ip6-localhost", "ip6-loopback.",
			"API.example.com", "192.0.2.10", "::ffff:192.0.2.10", "10.96.0.1", "10.111.255.255",
			"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1",
			"224.0.0.1", "ff02::1", "255.255.255.255",
		},
		false: {
			"node-1", "node-1.example.com", "kubernetes-1", "kubernetes.example.com", "localhost.example.com", "mysvc", "svc.example.com",
			"notcluster.local", "localhost7", "10.0.0.1", "10.112.0.0", "fd00::1", "192.0.2.11", "2001:db8::1",
		},
	} {
		for _, text := range texts {
			if why := reserved.Why(san.Parse(text)); (why != "") != want {
				t.Errorf("%s is reserved as %q", text, why)
			}
		}
	}
	if reserved.Why(san.SAN{}) == "" {
		t.Error("no address at all is not reserved")
	}
}
