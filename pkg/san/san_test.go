package san_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

func TestParseComparesByValue(t *testing.T) {
	t.Parallel()
	for name, same := range map[string][]string{
		"case and dot":      {"node-1.example.com", "NODE-1.Example.COM", "node-1.example.com."},
		"first and last":    {"az", "AZ", "Az."},
		"IPv4":              {"10.0.0.1", "::ffff:10.0.0.1", "::FFFF:0a00:0001"},
		"IPv6":              {"fd00::1", "FD00:0:0:0:0:0:0:1", "fd00:0000::0001"},
		"like an address":   {"10.0.0.1", "10.0.0.1."},
		"letters, not bits": {"10.0.0.1.example.com"},
	} {
		for _, text := range same {
			if got, want := san.Parse(text), san.Parse(same[0]); got != want {
				t.Errorf("%s: %q is %v, want %v", name, text, got, want)
			}
		}
	}
	for _, text := range []string{"fd00::1%eth0", "::ffff:10.0.0.1%, DNS:kubernetes.default.svc", "fd00::1%."} {
		if got := san.Parse(text); got.Address.IsValid() || got.Name != strings.ToLower(strings.TrimSuffix(text, ".")) {
			t.Errorf("%q is compared as %v: what follows the percent sign is left out", text, got)
		}
	}
	if got := san.Parse("\u212Aubernetes"); got == san.Parse("kubernetes") {
		t.Error("a letter that is not ASCII is compared as one that is")
	}
	if san.Parse("a\xff") == san.Parse("a\xfe") || san.Parse("A\xff.") != san.Parse("a\xff") {
		t.Error("bytes that are not UTF-8 are not compared as they are")
	}
	if san.Parse("010.0.0.1").Address.IsValid() {
		t.Error("a number with a leading zero, which some read as octal, is an address")
	}
}

func TestOf(t *testing.T) {
	t.Parallel()
	got := san.Of(
		[]string{"B", "a", "b.", "10.0.0.1"},
		[]net.IP{net.ParseIP("10.0.0.1"), net.ParseIP("10.0.0.1").To4(), net.ParseIP("fd00::1"), {1, 2, 3}},
	)
	want := []san.SAN{
		san.Parse("b"), san.Parse("a"), san.Parse("10.0.0.1"), san.Parse("fd00::1"), {},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

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
