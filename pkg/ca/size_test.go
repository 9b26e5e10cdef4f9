package ca

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"
)

func TestLongestPEMBoundsACertificate(t *testing.T) {
	t.Parallel()
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := NewProfile(ProfileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	many := judged(t)
	for i := range 300 {
		many.DNSNames = append(many.DNSNames, fmt.Sprintf("node-%d.example.com", i))
		many.EmailAddresses = append(many.EmailAddresses, fmt.Sprintf("%d@b", i))
		many.IPAddresses = append(many.IPAddresses, net.IPv4(10, 0, 0, byte(i)))
		many.URIs = append(many.URIs, &url.URL{Scheme: "x", Host: "y", Path: fmt.Sprintf("/ %d", i)})
		many.Subject.OrganizationalUnit = append(many.Subject.OrganizationalUnit, fmt.Sprint(i))
	}
	for _, req := range []Request{judged(t), many, {PublicKey: lintKey(t).Public()}} {
		issued, err := signing.Issue(profile, req, lintNow)
		if err != nil {
			t.Fatal(err)
		}
		bound := signing.LongestPEM(req)
		if got := len(issued.PEM); got > bound || bound > 2*got+4096 {
			t.Errorf("%d bytes, bound %d", got, bound)
		}
	}
}

// TestLongestPEMCountsEachPart checks the sum for a request with content of known length.
func TestLongestPEMCountsEachPart(t *testing.T) {
	t.Parallel()
	signing, _, err := New(NewOptions{CommonName: "CA", Lifetime: 24 * time.Hour}, lintNow)
	if err != nil {
		t.Fatal(err)
	}
	signing = signing.WithAllGiven()
	got := signing.LongestPEM(Request{
		PublicKey: lintKey(t).Public(), Subject: pkix.Name{CommonName: "leaf"}, DNSNames: []string{"a.example.com"}, EmailAddresses: []string{"a@example.com"},
		IPAddresses: []net.IP{{10, 0, 0, 1}, net.ParseIP("fd00::1")}, URIs: []*url.URL{{Scheme: "spiffe", Host: "example.com", Path: "/a"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	// Fixed parts 2048, issuer 15, key identifier 20, subject 17, key 91, and the names with 6 more each, and 12 for the usage.
	const der = 2048 + 15 + 20 + 17 + 91 + (13 + 6) + (13 + 6) + (4 + 6) + (16 + 6) + (22 + 6) + 12
	const base64, lines, labels = (der + 2) / 3 * 4, (der + 2) / 3 * 4 / 64, 55
	if want := base64 + lines + labels + len(signing.AppendedPEM()); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}
