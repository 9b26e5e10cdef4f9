package ca

import (
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
