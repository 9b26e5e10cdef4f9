package rules

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// contents are the values of Rule.Allow.
var contents = []string{"names", "addresses", "emails", "uris", "commonName", "organizations"}

// objectf returns a formatted objection.
func objectf(format string, args ...any) csr.Objection {
	return csr.Objection(fmt.Sprintf(format, args...))
}

// checkValues returns an objection to content that no rule accepts: what has no place in a rule, nothing at all, and a value that
// is not of its kind or has another spelling. Conditions can then compare texts, because programs read no value in another way.
func checkValues(s *Subject) csr.Objection {
	cert, subject := s.Cert, subjectOf(s)
	if found := slices.Concat(s.OtherSubject(), s.Dropped); len(found) > 0 {
		return objectf("no rule permits %+q", csr.ShortenAll(found))
	}
	if strings.Join(subject, "") == "" && len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.EmailAddresses)+len(cert.URIs) == 0 {
		return "the request asks for no name, no address and no subject"
	}
	for _, kind := range []struct {
		name   string
		values []string
		check  func(value string) csr.Objection
	}{
		{"subject", subject, checkText}, {"DNS name", cert.DNSNames, checkDNSName},
		{"e-mail address", cert.EmailAddresses, checkEmail}, {"URI", ca.Texts(cert.URIs), checkURI},
	} {
		for _, value := range kind.values {
			if objection := kind.check(value); objection != csr.NoObjection {
				return objectf("%s %+q %s", kind.name, csr.Shorten(value), objection)
			}
		}
	}
	return csr.NoObjection
}

// subjectOf returns the common name and the organizations.
func subjectOf(s *Subject) []string {
	return append([]string{s.Cert.Subject.CommonName}, s.Cert.Subject.Organization...)
}

// checkPrintable refuses control characters, line breaks, marks of direction, invisible characters, and what is not UTF-8.
func checkPrintable(text string) csr.Objection {
	invisible := func(char rune) bool {
		return !unicode.IsPrint(char) || unicode.In(char, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, invisible) {
		return "has characters that cannot be printed"
	}
	return csr.NoObjection
}

// checkText refuses what checkPrintable does, and spaces that comparisons of names ignore (RFC 4518 section 2.6.1).
func checkText(text string) csr.Objection {
	if objection := checkPrintable(text); objection != csr.NoObjection {
		return objection
	}
	if text != strings.Join(strings.Fields(text), " ") {
		return "begins or ends with a space, or has two together"
	}
	return csr.NoObjection
}

func checkDNSName(name string) csr.Objection {
	if _, err := netip.ParseAddr(name); err == nil || san.IsNumeric(name) {
		return "is an address"
	}
	if err := san.CheckDNSName(name, true); err != nil {
		return csr.Objection(err.Error())
	}
	if name != san.CanonicalName(name) {
		return "has upper-case letters or a dot at the end"
	}
	return csr.NoObjection
}

// mailbox is the part of an e-mail address before the @ (RFC 5321 sections 4.1.2, Dot-string, and 4.5.3.1.1). In quotes, one
// mailbox would have several spellings.
var mailbox = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}$")

func checkEmail(email string) csr.Objection {
	local, domain, _ := strings.Cut(email, "@")
	dots := strings.Contains("."+local+".", "..")
	if !mailbox.MatchString(local) || dots || strings.HasPrefix(domain, "*") || checkDNSName(domain) != csr.NoObjection {
		return "is not MAILBOX@DOMAIN, without quotes and with the domain in lower case"
	}
	return csr.NoObjection
}

// otherPath matches paths that a verifier may shorten, also after it removed parameters (RFC 3986 section 3.3).
var otherPath = regexp.MustCompile(`//|/\.\.?(/|;|$)`)

// otherHost reports whether verifiers may read the host of uri in another way than a condition does.
func otherHost(uri *url.URL) bool {
	return uri.Host == "" && strings.Contains(uri.String(), "://") || strings.Contains(uri.Host, "*") ||
		uri.Hostname() != san.CanonicalName(uri.Hostname())
}

// checkURI refuses what verifiers may read in another way than a condition does (RFC 3986 section 7): one decodes %00, another
// resolves /../, or takes the text before an @ for the host.
func checkURI(text string) csr.Objection {
	uri, err := url.Parse(text)
	decoded, badEscape := url.PathUnescape(text)
	switch {
	case len(text) > csr.MaxURI:
		return objectf("is longer than %d bytes", csr.MaxURI)
	case err != nil || !uri.IsAbs() || uri.Opaque+uri.Host+uri.Path == "":
		return "is not absolute"
	case badEscape != nil || checkPrintable(decoded) != csr.NoObjection:
		return "has characters that cannot be printed"
	case uri.User != nil || strings.Contains(uri.Opaque, "@") || otherHost(uri):
		return "has a user, or a host that is empty, a wildcard, or has upper-case letters or a dot at the end"
	case otherPath.MatchString("/"+strings.TrimPrefix(uri.Opaque+uri.Path, "/")) || strings.Contains(decoded, `\`) ||
		strings.Count(uri.Path, "/") != strings.Count(uri.EscapedPath(), "/"):
		return "has a path with . or .., an empty segment, or an escaped slash"
	}
	return csr.NoObjection
}

// checkContent returns an objection if the request contains what this rule does not allow.
func (r Rule) checkContent(s *Subject) csr.Objection {
	cert, subject := s.Cert, subjectOf(s)
	for i, count := range []int{
		len(cert.DNSNames), len(cert.IPAddresses), len(cert.EmailAddresses), len(cert.URIs), len(subject[0]), len(subject) - 1,
	} {
		if count > 0 && !slices.Contains(r.Allow, contents[i]) {
			return objectf("the rule does not allow %s", contents[i])
		}
	}
	for _, text := range subject {
		if len(text) > r.MaxCommonName {
			return objectf("subject %+q is longer than %d bytes (maxCommonName)", csr.Shorten(text), r.MaxCommonName)
		}
	}
	for _, name := range slices.Concat(subject[:1], cert.DNSNames) {
		if strings.Contains(name, "*") && !r.AllowWildcards {
			return objectf("name %+q is a wildcard, which is not permitted", csr.Shorten(name))
		}
	}
	return csr.NoObjection
}

// checkUsages returns an objection if the usages of the request are not those of the rule. A preset needs a signature and an
// extended usage.
func (r Rule) checkUsages(s *Subject) csr.Objection {
	other := func(usage certificatesv1.KeyUsage) bool { return !slices.Contains(r.Usages, usage) }
	if i := slices.IndexFunc(s.Usages, other); i >= 0 {
		return objectf("usage %+q is not one of %q", csr.Shorten(string(s.Usages[i])), r.Usages)
	}
	signs, wrong := slices.Contains(s.Usages, certificatesv1.UsageDigitalSignature), s.CheckMLDSAUsages()
	switch {
	case len(s.Usages) == 0:
		return objectf("the request has none of the usages %q", r.Usages)
	case r.Preset != "" && (!signs || len(s.Cert.ExtKeyUsage) == 0):
		return objectf("usages %q are too few: a digital signature and a purpose are needed, of %q", s.Usages, r.Usages)
	case wrong != nil: // the signer never signs it
		return csr.Objection(wrong.Error())
	}
	return csr.NoObjection
}

// checkTrust returns an objection if the certificate could be that of a user of the cluster. Certificates of the preset
// ownIdentity are those of users.
func (r Rule) checkTrust(s *Subject) csr.Objection {
	if s.Trust.Untrusted || !s.ForClients() || r.Preset == OwnIdentity {
		return csr.NoObjection
	}
	return objectf("usages %q are valid for clients, but %s", s.Usages,
		cmp.Or(s.Trust.Why, "it is unknown whether API servers trust the CA of the signer"))
}

// checkLifetime returns an objection if the certificate would live too long.
func (r Rule) checkLifetime(s *Subject) csr.Objection {
	switch {
	case s.Lifetime == 0:
		return "the request has no duration (spec.expirationSeconds), and this manager does not sign it"
	case s.Lifetime > r.MaxDuration.Duration:
		return objectf("the certificate would be valid for %s, longer than %s: request less (spec.expirationSeconds)",
			s.Lifetime, r.MaxDuration.Duration)
	}
	return csr.NoObjection
}

// Preset names a rule that is written in Go.
type Preset string

// The presets.
const (
	// ServiceNames approves server certificates for Services. The requester is a ServiceAccount. There are 1 to 20 DNS
	// names, each `SERVICE.NAMESPACE.svc`, or that with `clusterDomain` behind it, of a Service that exists in the
	// namespace of the requester, is not of the type ExternalName, and not called `kubernetes`. The common name is
	// empty or one of the names. The usages are `digital signature` and `server auth`, with or without `key
	// encipherment`. The certificate is valid for at most 7 days.
	ServiceNames Preset = "serviceNames"
	// SPIFFE approves certificates of workloads. The requester is a ServiceAccount. The subject is empty, and the only name is
	// the URI `spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/NAME` of the requester. The usages are `digital signature` and `client
	// auth` or `server auth` or both, with or without `key encipherment`. The certificate is valid for at most 24 hours. `client
	// auth` is refused while API servers trust the CA of the signer, and while that is unknown.
	SPIFFE Preset = "spiffe"
	// OwnIdentity approves client certificates of people and programs, for `kubernetes.io/kube-apiserver-client`. The
	// common name is the user name of the requester, and the organizations are groups of the requester. None of them
	// begins with `system:` or `kubeadm:`, and there is no other name. The usages are `digital signature` and `client
	// auth`, with or without `key encipherment`. The request is at most 10 minutes old. The certificate is valid for at
	// most 1 hour, and not beyond the time in `expiryExtra`. The extra `authentication.kubernetes.io/credential-id` of
	// the requester is exactly one `JTI=ID`: it authenticated with a token, not with a certificate.
	OwnIdentity Preset = "ownIdentity"
)

// preset is a rule whose fields are fixed, with a check in Go in the place of conditions. The check runs after the fields
// accept the request.
type preset struct {
	fixed Rule
	check func(rule Rule, s *Subject) (csr.Objection, error)
}

var presets = map[Preset]preset{
	ServiceNames: {Rule{
		Usages:      []certificatesv1.KeyUsage{"digital signature", "key encipherment", "server auth"},
		MaxDuration: metav1.Duration{Duration: 7 * 24 * time.Hour}, Allow: []string{"names", "commonName"}, MaxCommonName: csr.MaxName,
	}, serviceNames},
	SPIFFE: {Rule{
		Usages:      []certificatesv1.KeyUsage{"digital signature", "key encipherment", "client auth", "server auth"},
		MaxDuration: metav1.Duration{Duration: 24 * time.Hour}, Allow: []string{"uris"},
	}, spiffe},
	OwnIdentity: {Rule{
		Usages:      []certificatesv1.KeyUsage{"digital signature", "key encipherment", "client auth"},
		MaxDuration: metav1.Duration{Duration: time.Hour}, Allow: []string{"commonName", "organizations"},
		AllowWildcards: true, MaxCommonName: csr.MaxName, // a user name is compared, and is no DNS name
	}, ownIdentity},
}

const (
	// oldestIdentity bounds the age of a request, whose requester may have lost the name or a group since.
	oldestIdentity = 10 * time.Minute
	// mostServiceNames bounds the Services that are read for a request.
	mostServiceNames = 20
)

// serviceNames accepts a server certificate for Services in the namespace of the requester. The caller reads the Services.
func serviceNames(rule Rule, s *Subject) (csr.Objection, error) {
	account, objection, err := s.account()
	names, common := s.Cert.DNSNames, s.Cert.Subject.CommonName
	switch {
	case err != nil || objection != csr.NoObjection:
		return objection, err
	case len(names) == 0:
		return "the request has no DNS name", nil
	case len(names) > mostServiceNames:
		return objectf("the request has more than %d DNS names", mostServiceNames), nil
	case common != "" && !slices.Contains(names, common):
		return objectf("common name %+q is not one of the DNS names", csr.Shorten(common)), nil
	}
	for _, name := range names {
		service, found := strings.CutSuffix(strings.TrimSuffix(name, "."+rule.ClusterDomain), "."+account.Namespace+".svc")
		if !found || strings.Contains(service, ".") {
			return objectf("DNS name %+q is not SERVICE.%s.svc or SERVICE.%s.svc.%s: a ServiceAccount gets only names of "+
				"Services in its own namespace", csr.Shorten(name), account.Namespace, account.Namespace, rule.ClusterDomain), nil
		}
		if service == "kubernetes" {
			return objectf("DNS name %+q is a name of the API server", csr.Shorten(name)), nil
		}
		if key := (types.NamespacedName{Namespace: account.Namespace, Name: service}); !slices.Contains(s.Services, key) {
			s.Services = append(s.Services, key)
		}
	}
	return csr.NoObjection, nil
}

// spiffe accepts a certificate whose only identity is the SPIFFE ID of the requester.
func spiffe(rule Rule, s *Subject) (csr.Objection, error) {
	account, objection, err := s.account()
	id := fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", rule.TrustDomain, account.Namespace, account.Name)
	switch {
	case err != nil || objection != csr.NoObjection:
		return objection, err
	case len(s.Cert.URIs) != 1 || s.Cert.URIs[0].String() != id:
		return objectf("the only URI must be %s", id), nil
	}
	return csr.NoObjection, nil
}

// credentialIDPrefix begins the ID of a token (k8s.io/apiserver/pkg/authentication/serviceaccount, and
// plugin/pkg/authenticator/token/oidc).
const credentialIDPrefix = "JTI="

// ownIdentity accepts a client certificate for the requester itself. A certificate does not renew itself.
func ownIdentity(rule Rule, s *Subject) (csr.Objection, error) {
	by, subject := s.Requester, s.Cert.Subject
	ids := by.Extra[csr.CredentialIDKey]
	other := func(group string) bool { return !slices.Contains(by.Groups, group) }
	reserved := func(pattern string) bool { return ca.MatchesSubject(pattern, subject) }
	switch {
	case subject.CommonName == "" || subject.CommonName != by.Username:
		return objectf("common name %+q is not the requester's user name", csr.Shorten(subject.CommonName)), nil
	case slices.ContainsFunc(subject.Organization, other):
		return objectf("the requester is not in all of the groups %+q", csr.ShortenAll(subject.Organization)), nil
	case slices.ContainsFunc(csr.ComponentSubjects(), reserved):
		return "no user name and no group may begin with system: or kubeadm:", nil
	case len(ids) != 1 || !strings.HasPrefix(ids[0], credentialIDPrefix) || ids[0] == credentialIDPrefix:
		return "the requester did not authenticate with a token that has an ID: a certificate cannot renew itself", nil
	}
	return checkTimes(rule, s)
}

// checkTimes returns an objection if the request is too old, or if the certificate would outlive the credential of the
// requester.
func checkTimes(rule Rule, s *Subject) (csr.Objection, error) {
	now, err := s.Now()
	switch {
	case err != nil:
		return csr.NoObjection, err
	case !s.Created.IsZero() && now.Sub(s.Created) > oldestIdentity: // only a request in a file has no time of creation
		return objectf("the request is older than %s: make a new one", oldestIdentity), nil
	case rule.ExpiryExtra != "" && now.Add(s.Lifetime).After(timeIn(s.Requester.Extra[rule.ExpiryExtra])):
		return objectf("the certificate would outlive the credential of the requester, by %+q of its extra: "+
			"request less (spec.expirationSeconds)", rule.ExpiryExtra), nil
	}
	return csr.NoObjection, nil
}

// timeIn returns the time in the only one of values, a NumericDate (RFC 7519 section 2). It is zero for anything else.
func timeIn(values []string) time.Time {
	if len(values) != 1 {
		return time.Time{}
	}
	const most = 1 << 40 // in the year 36812; neither NaN nor an infinity is between zero and this
	if seconds, err := strconv.ParseFloat(values[0], 64); err == nil && seconds >= 0 && seconds < most {
		return time.Unix(int64(seconds), 0)
	}
	return time.Time{}
}
