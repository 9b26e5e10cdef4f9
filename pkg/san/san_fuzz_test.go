package san_test

import (
	"bytes"
	"crypto/x509"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

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
		if first == second && first.Name != "" && !bytes.Equal(lower(a), lower(b)) {
			t.Errorf("%q and %q are compared as equal", a, b)
		}
		if first != second && bytes.Equal(lower(a), lower(b)) {
			t.Errorf("%q is %v and %q is %v", a, first, b, second)
		}
		if !strings.Contains(a, "*") && (&x509.Certificate{DNSNames: []string{a}}).VerifyHostname(b) == nil && first != second {
			t.Errorf("a certificate for %q is accepted for %q, but they are compared as %v and %v", a, b, first, second)
		}
		if why := reserved.Why(first); why != reserved.Why(san.Parse(shout(a))) {
			t.Errorf("%q is reserved as %q, but not in upper case", a, why)
		}
	})
}

// checkAddress compares the SAN of text with the readings of net.ParseIP.
func checkAddress(t *testing.T, text string, got san.SAN) {
	t.Helper()
	if got.Name != "" && got.Address.IsValid() {
		t.Errorf("%q is a name and an address: %+v", text, got)
	}
	ip := net.ParseIP(strings.TrimSuffix(text, "."))
	if (ip != nil) != got.Address.IsValid() || ip != nil && got != san.FromIP(ip) {
		t.Errorf("%q is %v, and the address is %v", text, got, ip)
	}
	if !strings.HasSuffix(text, "..") && got != san.Parse(got.String()) && got != (san.SAN{}) {
		t.Errorf("%q is %v, which is %v", text, got, san.Parse(got.String()))
	}
}

// lower returns name as RFC 4343 compares it, byte by byte.
func lower(name string) []byte {
	name = strings.TrimSuffix(name, ".")
	folded := []byte(name)
	for i, char := range folded {
		if char >= 'A' && char <= 'Z' {
			folded[i] += 'a' - 'A'
		}
	}
	return folded
}

// shout returns name with ASCII letters in upper case.
func shout(name string) string {
	loud := []byte(name)
	for i, char := range loud {
		if char >= 'a' && char <= 'z' {
			loud[i] -= 'a' - 'A'
		}
	}
	return string(loud)
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
		if err := (&x509.Certificate{DNSNames: []string{name}}).VerifyHostname(name); err != nil {
			t.Errorf("%q is permitted and does not match itself: %v", name, err)
		}
	})
}
