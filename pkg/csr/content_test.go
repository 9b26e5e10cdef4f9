package csr_test

import (
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestIsNode checks the rule of the node authorizer: a user name with a node's name, and the group of nodes.
func TestIsNode(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		requester csr.Requester
		want      bool
	}{
		"smallest":         {csr.Requester{Username: "system:node:a", Groups: []string{"system:nodes"}}, true},
		"another group":    {csr.Requester{Username: "system:node:a", Groups: []string{"b", "system:nodes"}}, true},
		"not in the group": {csr.Requester{Username: "system:node:a", Groups: []string{"system:node"}}, false},
		"no name":          {csr.Requester{Username: "system:node:", Groups: []string{"system:nodes"}}, false},
		"another prefix":   {csr.Requester{Username: "system:nodea", Groups: []string{"system:nodes"}}, false},
		"no user":          {csr.Requester{Groups: []string{"system:nodes"}}, false},
	} {
		if got := test.requester.IsNode(); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestHasServingUsages(t *testing.T) {
	t.Parallel()
	for usages, want := range map[string]bool{
		"digital signature,server auth": true, "server auth,key encipherment,digital signature": true, "server auth": false,
		"digital signature": false, "digital signature,client auth": false, "digital signature,server auth,client auth": false,
	} {
		req := &csr.Request{}
		for usage := range strings.SplitSeq(usages, ",") {
			req.Usages = append(req.Usages, certificatesv1.KeyUsage(usage))
		}
		if got := req.HasServingUsages(); got != want {
			t.Errorf("%s: %t, want %t", usages, got, want)
		}
	}
}

// TestOtherSubject sets one attribute after another.
func TestOtherSubject(t *testing.T) {
	t.Parallel()
	value := []string{"x"}
	for want, subject := range map[string]pkix.Name{
		"": {CommonName: "a", Organization: value}, "C=x": {Country: value}, "OU=x": {OrganizationalUnit: value},
		"L=x": {Locality: value}, "ST=x": {Province: value}, "STREET=x": {StreetAddress: value}, "POSTALCODE=x": {PostalCode: value},
		"SERIALNUMBER=x": {SerialNumber: "x"}, "C=x SERIALNUMBER=x": {SerialNumber: "x", Country: value},
	} {
		got := (&csr.Request{Cert: ca.Request{Subject: subject}}).OtherSubject()
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestShortenAll checks that a message holds at most eight texts of at most 256 bytes, and the number of the others.
func TestShortenAll(t *testing.T) {
	t.Parallel()
	var all []string
	for i := range 11 {
		all = append(all, fmt.Sprintf("text %d", i))
	}
	for count, more := range map[int][]string{0: nil, 1: nil, 8: nil, 9: {"and 1 more"}, 11: {"and 3 more"}} {
		if got, want := csr.ShortenAll(all[:count]), slices.Concat(all[:min(count, 8)], more); !slices.Equal(got, want) {
			t.Errorf("%d texts: %q, want %q", count, got, want)
		}
	}
	if got := csr.ShortenAll([]string{strings.Repeat("a", 257)}); len(got) != 1 || len(got[0]) > 256 || !strings.HasSuffix(got[0], "...") {
		t.Errorf("a text of 257 bytes is shortened to %q", got)
	}
}
