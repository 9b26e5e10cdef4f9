package san_test

import (
	"crypto/x509"
	"net/netip"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

func TestCheckDNSName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a234567890.", 22) + "a2345678901"
	for name, ok := range map[string]bool{
		"a": true, "A.Example.COM": true, "a.": true, "node_1.example.com": true, "_a": true, "a-": true, "1.2.3": true,
		"azAZ09": true,
		long:     true, long + ".": true, "*.a": true, "*.a.": true,
		"10.0.0.1": true, "fd00::1": true, "::1": true, "10.0.0.1.": true, "010.0.0.1": true,

		"": false, ".": false, "a..": false, ".a": false, "a..b": false, "-a": false, "a.-b": false,
		"*": false, "*.": false, "a.*": false, "*a.b": false, "*.*.a": false, "**.a": false,
		"a b": false, "a,b": false, "a\x00": false, "a\n": false, "a:443": false, "a/b": false, "a%b": false, "[::1]": false,
		"xn--\u00fc": false, "\u212aubernetes": false, "a\u3002b": false,
		long + "2": false, long + "2.": false,
		"::ffff:10.0.0.1": false, "FD00::1": false, "fd00:0::1": false, "fd00::1.": false, "fd00::1%eth0": false,
		"::ffff:10.9.0.1%, DNS:kubernetes.default.svc": false,
	} {
		if err := san.CheckDNSName(name, true); (err == nil) != ok {
			t.Errorf("%q: error %v", name, err)
		}
	}
	if err := san.CheckDNSName("*.a", false); err == nil {
		t.Error("a wildcard is permitted where none is")
	}
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
