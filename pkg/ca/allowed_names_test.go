package ca

import (
	"crypto/x509/pkix"
	"net"
	"net/url"
	"strings"
	"testing"
)

func TestAllowedNames(t *testing.T) {
	t.Parallel()
	entries := []string{"hook.default.svc", "*.Lab.example.", "192.0.2.7", "10.9.0.0/16", "2001:db8::/64", "spiffe://lab/ns/*", "ops@lab.example"}
	names, err := NewAllowedNames(entries)
	if err != nil || names.Empty() {
		t.Fatal(names, err)
	}
	uri := func(text string) []*url.URL {
		parsed, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return []*url.URL{parsed}
	}
	for name, test := range map[string]struct {
		req  Request
		want string
	}{
		"a listed name":                      {req: Request{DNSNames: []string{"hook.default.svc"}}},
		"in other case, with a dot":          {req: Request{DNSNames: []string{"HOOK.default.svc."}}},
		"below a suffix":                     {req: Request{DNSNames: []string{"a.lab.example", "a.b.lab.example", "*.lab.example"}}},
		"the suffix itself":                  {req: Request{DNSNames: []string{"lab.example"}}, want: "lab.example"},
		"nothing below the suffix":           {req: Request{DNSNames: []string{".lab.example"}}, want: ".lab.example"},
		"another name with that end":         {req: Request{DNSNames: []string{"evillab.example"}}, want: "evillab.example"},
		"one of several":                     {req: Request{DNSNames: []string{"hook.default.svc", "kubernetes"}}, want: "kubernetes"},
		"a listed address":                   {req: Request{DNSNames: []string{"hook.default.svc"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.7").To4(), net.ParseIP("10.9.3.4"), net.ParseIP("2001:db8::5")}}},
		"another address":                    {req: Request{IPAddresses: []net.IP{net.ParseIP("192.0.2.8")}}, want: "192.0.2.8"},
		"an address of wrong length":         {req: Request{IPAddresses: []net.IP{{1, 2}}}, want: "?0102"},
		"an address as a DNS name":           {req: Request{DNSNames: []string{"10.9.0.1"}}},
		"another address as a DNS name":      {req: Request{DNSNames: []string{"10.8.0.1"}}, want: "10.8.0.1"},
		"a zone in an address as a DNS name": {req: Request{DNSNames: []string{"2001:db8::1%eth0"}}, want: "2001:db8::1%eth0"},
		"a listed URI":                       {req: Request{URIs: uri("spiffe://lab/ns/a")}},
		"another URI":                        {req: Request{URIs: uri("spiffe://other/ns/a")}, want: "spiffe://other/ns/a"},
		"e-mail addresses":                   {req: Request{EmailAddresses: []string{"ops@lab.example", "me@lab.example"}}, want: "me@lab.example"},
		"a common name instead of a name":    {req: Request{Subject: pkix.Name{CommonName: "kubernetes.default.svc"}}, want: "kubernetes.default.svc"},
		"a common name beside a name":        {req: Request{Subject: pkix.Name{CommonName: "anything"}, DNSNames: []string{"hook.default.svc"}}},
	} {
		if got := names.Refused(test.req); got != test.want {
			t.Errorf("%s: %q is refused, want %q", name, got, test.want)
		}
	}
	if got := (AllowedNames{}).Refused(Request{DNSNames: []string{"a"}}); got != "a" {
		t.Errorf("without a list %q is refused, want all", got)
	}
	for _, bad := range []string{"", "*", "a..b", "*.*.b", "a b", "10.0.0.0/33", "fe80::1%eth0", "http://*/a", "a*b", "::ffff:10.0.0.0/112"} {
		if _, err := NewAllowedNames([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestAllowedNamesOfEachKind checks that a list with entries of two kinds is not empty, and the longest name and label.
func TestAllowedNamesOfEachKind(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("a", 63)
	longest := strings.Repeat(label+".", 3) + strings.Repeat("a", 61)
	for _, entries := range [][]string{{"a", "10.0.0.1"}, {"10.0.0.1", "a@b"}, {"a", "a@b"}, {label}, {longest}} {
		if names, err := NewAllowedNames(entries); err != nil || names.Empty() {
			t.Errorf("%q: empty %t, error %v", entries, names.Empty(), err)
		}
	}
	for _, bad := range []string{longest + "a"} {
		if _, err := NewAllowedNames([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if names, err := NewAllowedNames(nil); err != nil || !names.Empty() {
		t.Errorf("a list without entries: empty %t, error %v", names.Empty(), err)
	}
}
