package san_test

import (
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// reserved is the cluster of TestReserved and FuzzParse.
var reserved = san.Reserved{
	ClusterDomain: "cluster.local", Endpoints: []san.SAN{san.Parse("api.example.com"), san.Parse("192.0.2.10")},
	Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
}

// TestOf checks that each name or address is there once, in order.
func TestOf(t *testing.T) {
	got := san.Of(
		[]string{"B", "a", "b.", "10.0.0.1"},
		[]net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.1").To4(), net.ParseIP("fd00::1"), {1, 2, 3}},
	)
	expect.Equal(t, "names and addresses", got, []san.SAN{san.Parse("b"), san.Parse("a"), san.Parse("10.0.0.1"), san.Parse("fd00::1"), {}})
}

// TestUnmapPrefix checks which prefixes are IPv4 prefixes.
func TestUnmapPrefix(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.96.0.0/108": "10.96.0.0/12", "10.96.0.0/12": "10.96.0.0/12", "fd00::/64": "fd00::/64",
		"::/0": "::/0", "::ffff:0:0/96": "0.0.0.0/0", "::ffff:0:0/95": "::ffff:0.0.0.0/95",
	} {
		expect.Equal(t, text, san.UnmapPrefix(netip.MustParsePrefix(text)).String(), want)
	}
}

// TestCheckDNSName checks which names a certificate may have.
func TestCheckDNSName(t *testing.T) {
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
			expect.Equal(t, name+" is permitted", san.CheckDNSName(name, true) == nil, ok)
		}
	}
	expect.True(t, san.CheckDNSName("*.a", false) != nil, "a wildcard is permitted where none is")
}

// TestReserved checks which names and addresses no node can have, and which names not even the Node of that name can have.
// Names of Pods have the address in their first label.
func TestReserved(t *testing.T) {
	for want, texts := range map[string][]string{ // the values that are reserved: fixed or configured, and if it is the node's name
		"fixed own": {
			"kubernetes", "Kubernetes.Default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local.",
			"a.b.svc", "a.b.svc.", "payments.shop.svc", "x.payments.shop.svc", "svc.cluster.local", "a.b.svc.clusterset.local",
			"a.b.pod.cluster.local", "pod.cluster.local", "10-244-1-5.shop.pod", "fd00--1.shop.pod",
			"localhost", "x.localhost", "LOCALHOST.", "localhost.localdomain", "localhost6", "localhost6.localdomain6", "localhost4",
			"LocalHost4.LocalDomain4", "ip6-localhost", "ip6-loopback.", "*.localhost",
			"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1",
			"224.0.0.1", "ff02::1", "255.255.255.255",
		},
		"configured own": {"API.example.com", "192.0.2.10", "::ffff:192.0.2.10", "10.96.0.1", "10.111.255.255"},
		"fixed":          {"*", "*.example.com", "a.*.example.com", "a.b.svc.other.domain", "kubernetes.default.svc.other.domain"},
		"configured":     {"x.cluster.local", "cluster.local"},
		"": {
			"node-1", "node-1.example.com", "kubernetes-1", "kubernetes.example.com", "localhost.example.com", "mysvc", "svc.example.com",
			"notcluster.local", "localhost7", "10.0.0.1", "10.112.0.0", "fd00::1", "192.0.2.11", "2001:db8::1",
			"666", "10", "rack.42", "w1.pod", "rack-7.hall.pod", "w1.hall.pod.example.com", "w1.svc", "w1.svc.example.com", "svc", "pod",
			"kubernetes.default.example.com",
		},
	} {
		for _, text := range texts {
			for _, own := range []bool{false, true} {
				why, configured := reserved.Why(san.Parse(text), own)
				is := strings.HasPrefix(want, "fixed") && !configured || strings.HasPrefix(want, "configured") && configured
				is = is && (!own || strings.HasSuffix(want, "own"))
				expect.True(t, (why != "") == is, "%s, own %t: %q, configured %t", text, own, why, configured)
			}
		}
	}
	for _, domain := range []string{"", "cluster.local.", "Cluster.Local"} {
		if why, _ := (san.Reserved{ClusterDomain: domain}).Why(san.Parse("db.shop.svc.cluster.local"), true); why != "a name of a Service" {
			t.Errorf("domain %q: a Service's name is reserved because of %q", domain, why)
		}
	}
	if why, _ := reserved.Why(san.SAN{}, false); why == "" {
		t.Error("no address at all is not reserved")
	}
}

// TestIsNumeric checks which names C programs read as IPv4 addresses.
func TestIsNumeric(t *testing.T) {
	for want, names := range map[bool][]string{
		true:  {"666", "10", "127.1", "127.1.", "010.0.0.1", "10.0.0.256", "2130706433", "0x7f000001", "0X7F.1", "1.2.3.4.5", ""},
		false: {"rack.42", "w1", "0xg", "a.1", "1.a", "x7f", "7f", "0.0x7f.a", "*.1"},
	} {
		for _, name := range names {
			expect.Equal(t, name+" is numeric", san.IsNumeric(name), want)
		}
	}
}

// FuzzParse checks that two texts are compared as equal if and only if verifiers read the same name or address. The
// independent readers are net.ParseIP, and crypto/x509 as the verifier.
func FuzzParse(f *testing.F) {
	for _, pair := range [][2]string{
		{"node-1.example.com", "NODE-1.Example.COM."}, {"10.0.0.1", "::ffff:10.0.0.1"}, {"10.0.0.1.", "10.0.0.1"},
		{"fd00::1", "FD00:0:0:0:0:0:0:1"}, {"fd00::1%eth0", "fd00::1"}, {"010.0.0.1", "10.0.0.1"}, {"\u212aubernetes", "kubernetes"},
		{"kubernetes.default.svc", "KUBERNETES.DEFAULT.SVC."}, {"", "."}, {"a..", "a."}, {"*.a", "b.a"}, {"xn--a", "XN--A"},
		{"az", "AZ"}, {"a\xff", "A\xff."}, {"a\xff", "a\xfe"}, {"fd00:0000::0001", "::FFFF:0a00:0001"},
		{"::ffff:10.0.0.1%, DNS:kubernetes.default.svc", "fd00::1%."},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		first, second := san.Parse(a), san.Parse(b)
		checkAddress(t, a, first)
		checkAddress(t, b, second)
		expect.True(t, first != second || first.Name == "" || lower(a) == lower(b), "%q and %q are compared as equal", a, b)
		expect.True(t, first == second || lower(a) != lower(b), "%q is %v and %q is %v", a, first, b, second)
		expect.True(t, strings.Contains(a, "*") || (&x509.Certificate{DNSNames: []string{a}}).VerifyHostname(b) != nil || first == second,
			"a certificate for %q is accepted for %q, but they are compared as %v and %v", a, b, first, second)
		why, _ := reserved.Why(first, false)
		folded, _ := reserved.Why(san.Parse(fold(a, 'a')), false)
		expect.Equal(t, "why it is reserved, in any case", why, folded)
	})
}

// checkAddress compares the SAN of text with the readings of net.ParseIP.
func checkAddress(t *testing.T, text string, got san.SAN) {
	t.Helper()
	expect.True(t, got.Name == "" || !got.Address.IsValid(), "%q is a name and an address: %+v", text, got)
	ip := net.ParseIP(strings.TrimSuffix(text, "."))
	expect.True(t, (ip != nil) == got.Address.IsValid() && (ip == nil || got == san.FromIP(ip)),
		"%q is %v, and the address is %v", text, got, ip)
	if !strings.HasSuffix(text, "..") && got != san.Parse(got.String()) && got != (san.SAN{}) {
		t.Errorf("%q is %v, which is %v", text, got, san.Parse(got.String()))
	}
}

// lower returns name as RFC 4343 compares it, byte by byte.
func lower(name string) string { return fold(strings.TrimSuffix(name, "."), 'A') }

// fold changes the case of the 26 ASCII letters from first on, and no other byte.
func fold(name string, first byte) string {
	folded := []byte(name)
	for i, char := range folded {
		if char >= first && char < first+26 {
			folded[i] ^= 'a' - 'A'
		}
	}
	return string(folded)
}

// FuzzCheckDNSName checks that crypto/x509 matches every permitted name with a certificate that has it.
func FuzzCheckDNSName(f *testing.F) {
	for _, name := range []string{"a", "A.b.", "_a-", "1.2", "*.a", "a..b", "::1%a", "10.0.0.1."} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if san.CheckDNSName(name, false) != nil {
			return
		}
		if _, err := netip.ParseAddr(strings.TrimSuffix(name, ".")); err == nil {
			return // clients match addresses with other names
		}
		expect.Error(t, "it does not match itself", (&x509.Certificate{DNSNames: []string{name}}).VerifyHostname(name), "")
	})
}
