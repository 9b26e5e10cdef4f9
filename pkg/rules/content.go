package rules

import (
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// contents are the values of Rule.Allow.
var contents = []string{"names", "addresses", "emails", "uris", "commonName", "organizations"}

// checkContent returns why the request contains what allowed does not list, or nothing at all, or an empty text.
func checkContent(s *Subject, allowed ...string) string {
	cert, present := s.Cert, false
	for i, count := range []int{
		len(cert.DNSNames), len(cert.IPAddresses), len(cert.EmailAddresses), len(cert.URIs),
		len(cert.Subject.CommonName), len(cert.Subject.Organization),
	} {
		if count > 0 && !slices.Contains(allowed, contents[i]) {
			return "the rule does not allow " + contents[i]
		}
		present = present || count > 0
	}
	if found := slices.Concat(s.OtherSubject(), s.Dropped); len(found) > 0 {
		return fmt.Sprintf("no rule permits %+q", csr.ShortenAll(found))
	}
	if !present {
		return "the request asks for no name, no address and no subject"
	}
	return ""
}

// checkUsages returns why the usages of the request are not among permitted, or an empty text.
func checkUsages(s *Subject, permitted []string) string {
	other := func(usage certificatesv1.KeyUsage) bool { return !slices.Contains(permitted, string(usage)) }
	if i := slices.IndexFunc(s.Usages, other); i >= 0 {
		return fmt.Sprintf("usage %+q is not one of %q", csr.Shorten(string(s.Usages[i])), permitted)
	}
	if len(s.Usages) == 0 {
		return fmt.Sprintf("the request has none of the usages %q", permitted)
	}
	return ""
}

// checkTrust returns why the certificate could be that of a user of the cluster, or an empty text.
func checkTrust(s *Subject) string {
	usages := s.Cert.ExtKeyUsage
	forClients := len(usages) == 0 || slices.Contains(usages, x509.ExtKeyUsageAny) ||
		slices.Contains(usages, x509.ExtKeyUsageClientAuth)
	if s.Facts.Trusted == "" || !forClients {
		return ""
	}
	return fmt.Sprintf("usages %q are valid for clients, but %s", s.Usages, s.Facts.Trusted)
}

// checkNames returns why a DNS name is not permitted, or an empty text. A condition can then compare texts: programs read no
// name in another way.
func checkNames(s *Subject, wildcards bool) string {
	if name := s.Cert.Subject.CommonName; strings.Contains(name, "*") && !wildcards {
		return fmt.Sprintf("common name %+q is a wildcard", csr.Shorten(name))
	}
	for _, name := range s.Cert.DNSNames {
		shown := csr.Shorten(name)
		if _, err := netip.ParseAddr(name); err == nil {
			return fmt.Sprintf("DNS name %+q is an address", shown)
		}
		if strings.Contains(name, "*") && !wildcards {
			return fmt.Sprintf("DNS name %+q is a wildcard", shown)
		}
		if err := san.CheckDNSName(name, wildcards); err != nil {
			return fmt.Sprintf("DNS name %+q %v", shown, err)
		}
		if name != san.CanonicalName(name) {
			return fmt.Sprintf("DNS name %+q has upper-case letters or a dot at the end", shown)
		}
	}
	return ""
}

// checkLifetime returns why the certificate would live too long, or an empty text.
func checkLifetime(s *Subject, longest time.Duration) string {
	switch {
	case s.Facts.Lifetime == 0:
		return "the request has no duration (spec.expirationSeconds), and this manager does not sign it"
	case s.Facts.Lifetime > longest:
		return fmt.Sprintf("the certificate would be valid for %s, longer than %s: request less (spec.expirationSeconds)",
			s.Facts.Lifetime, longest)
	}
	return ""
}

// Claimed returns the ServiceAccount that the requester's name and groups are those of, or a NoAccount. A user whose
// authenticator permits such names is not told apart: the caller must compare the UID with that of the object.
func Claimed(by csr.Requester) (Account, error) {
	namespace, name, err := serviceaccount.SplitUsername(by.Username)
	if err != nil {
		return Account{}, NoAccount("the requester is not a ServiceAccount")
	}
	for _, group := range serviceaccount.MakeGroupNames(namespace) {
		if !slices.Contains(by.Groups, group) {
			return Account{}, NoAccount("the requester has the name of a ServiceAccount, but is not in the group " + group)
		}
	}
	if by.UID == "" {
		return Account{}, NoAccount("the requester has the name of a ServiceAccount, but no UID")
	}
	return Account{namespace, name}, nil
}
