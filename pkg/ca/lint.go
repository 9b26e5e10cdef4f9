package ca

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// Contents limits what the certificates of one profile may contain, whatever the judged Request contains.
type Contents struct {
	// CommonNamePrefix is the start of each common name.
	CommonNamePrefix string
	// Organizations are the exact values of the organization. Nil permits any.
	Organizations []string
	// OtherAttributes permits subject attributes other than common name and organization.
	OtherAttributes bool
	// DNSNames, EmailAddresses, IPAddresses and URIs permit subjectAltNames of that kind.
	DNSNames, EmailAddresses, IPAddresses, URIs bool
	// KeyUsage has a bit for each permitted key usage.
	KeyUsage x509.KeyUsage
	// ExtKeyUsage lists the permitted extended key usages.
	ExtKeyUsage []x509.ExtKeyUsage
}

// extensions lists the extensions that a leaf certificate may have, and whether they are critical. A subjectAltName
// is critical if the subject is empty (RFC 5280 section 4.2.1.6).
var extensions = []extension{
	{"keyUsage", asn1.ObjectIdentifier{2, 5, 29, 15}, func(*x509.Certificate) bool { return true }},
	{"subjectAltName", asn1.ObjectIdentifier{2, 5, 29, 17}, func(cert *x509.Certificate) bool {
		return len(cert.Subject.Names) == 0
	}},
	{"basicConstraints", asn1.ObjectIdentifier{2, 5, 29, 19}, func(*x509.Certificate) bool { return true }},
	{"authorityKeyIdentifier", asn1.ObjectIdentifier{2, 5, 29, 35}, func(*x509.Certificate) bool { return false }},
	{"extKeyUsage", asn1.ObjectIdentifier{2, 5, 29, 37}, func(*x509.Certificate) bool { return false }},
}

type extension struct {
	name     string
	id       asn1.ObjectIdentifier
	critical func(*x509.Certificate) bool
}

// LintError reports that Issue made a certificate that differs from the judged Request. Issue does not return this
// certificate.
type LintError struct {
	Serial      *big.Int
	Differences []string
}

func (e *LintError) Error() string {
	return "the issued certificate differs from the judged request: " + strings.Join(e.Differences, "; ")
}

// lint parses the finished certificate and compares each field with req, with issued and with the Contents of p. It
// returns all differences.
func (a *Authority) lint(der []byte, issued *Issued, p Profile, req Request) []string {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return []string{fmt.Sprintf("it can't be parsed: %v", err)}
	}
	found := slices.Concat(differInNames(cert, req), foreignExtensions(cert))
	differ := func(same bool, field string, got, want any) {
		if !same {
			found = append(found, fmt.Sprintf("%s is %v, want %v", field, got, want))
		}
	}
	differ(cert.Version == 3, "version", cert.Version, 3)
	differ(cert.SerialNumber.Cmp(issued.Serial) == 0, "serial", cert.SerialNumber.Text(16), issued.Serial.Text(16))
	differ(bytes.Equal(cert.RawIssuer, a.cert.RawSubject), "issuer", cert.Issuer, a.cert.Subject)
	differ(len(cert.AuthorityKeyId) == 0 || bytes.Equal(cert.AuthorityKeyId, a.cert.SubjectKeyId),
		"authority key identifier", cert.AuthorityKeyId, a.cert.SubjectKeyId)
	key, err := x509.MarshalPKIXPublicKey(req.PublicKey)
	differ(err == nil && bytes.Equal(key, cert.RawSubjectPublicKeyInfo),
		"key", KeyID(cert.RawSubjectPublicKeyInfo), KeyID(key))
	differ(cert.KeyUsage == req.KeyUsage, "key usage", cert.KeyUsage, req.KeyUsage)
	differ(slices.Equal(cert.ExtKeyUsage, req.ExtKeyUsage) && len(cert.UnknownExtKeyUsage) == 0, "extended key usage",
		fmt.Sprint(cert.ExtKeyUsage, cert.UnknownExtKeyUsage), req.ExtKeyUsage)
	differ(cert.BasicConstraintsValid && !cert.IsCA, "CA", cert.IsCA, false)
	differ(cert.NotBefore.Equal(issued.NotBefore.Truncate(time.Second)), "begin", cert.NotBefore, issued.NotBefore)
	differ(cert.NotAfter.Equal(issued.NotAfter.Truncate(time.Second)), "end", cert.NotAfter, issued.NotAfter)
	differ(!cert.NotAfter.After(a.ends.NotAfter), "end", cert.NotAfter, "not after the end of the CA")
	longest := p.config.MaxLifetime + Backdate
	differ(cert.NotAfter.Sub(cert.NotBefore) <= longest,
		"lifetime", cert.NotAfter.Sub(cert.NotBefore), fmt.Sprintf("at most %s", longest))
	if p.config.Contents != nil {
		found = append(found, p.config.Contents.exceeded(cert)...)
	}
	return found
}

// differInNames compares subject and subjectAltNames. A certificate holds the values of one attribute in sorted
// order.
func differInNames(cert *x509.Certificate, req Request) []string {
	var found []string
	attributes := 0
	compare := func(field string, got, want []string) {
		if !slices.Equal(got, want) {
			found = append(found, fmt.Sprintf("%s %q differs from the judged %q", field, few(got), few(want)))
		}
	}
	got, want := valuesOf(cert.Subject), valuesOf(req.Subject)
	for i, attribute := range subjectAttributes {
		compare(attribute, got[i], want[i])
		attributes += len(want[i])
	}
	if attributes != len(cert.Subject.Names) {
		found = append(found, fmt.Sprintf("the subject has %d attributes, want %d", len(cert.Subject.Names), attributes))
	}
	compare("DNS name", cert.DNSNames, req.DNSNames)
	compare("email address", cert.EmailAddresses, req.EmailAddresses)
	compare("IP address", texts(cert.IPAddresses), texts(req.IPAddresses))
	compare("URI", texts(cert.URIs), texts(req.URIs))
	return found
}

var subjectAttributes = []string{
	"country", "organization", "organizational unit", "locality", "province", "street address", "postal code",
	"common name", "serial number",
}

// valuesOf returns the values of each of subjectAttributes, sorted.
func valuesOf(name pkix.Name) [][]string {
	all := [][]string{
		name.Country, name.Organization, name.OrganizationalUnit, name.Locality, name.Province, name.StreetAddress,
		name.PostalCode, nil, nil,
	}
	for i := range all {
		all[i] = slices.Sorted(slices.Values(all[i]))
	}
	if name.CommonName != "" {
		all[7] = []string{name.CommonName}
	}
	if name.SerialNumber != "" {
		all[8] = []string{name.SerialNumber}
	}
	return all
}

// otherAttributes returns the attributes of name other than common name and organization.
func otherAttributes(name pkix.Name) []string {
	var found []string
	for i, values := range valuesOf(name) {
		if attribute := subjectAttributes[i]; len(values) > 0 && attribute != "common name" && attribute != "organization" {
			found = append(found, attribute)
		}
	}
	return found
}

// foreignExtensions lists each extension that is missing from extensions or has the wrong critical bit.
func foreignExtensions(cert *x509.Certificate) []string {
	var found []string
	for _, got := range cert.Extensions {
		at := slices.IndexFunc(extensions, func(known extension) bool { return known.id.Equal(got.Id) })
		switch {
		case at < 0:
			found = append(found, fmt.Sprintf("extension %s is not permitted", got.Id))
		case got.Critical != extensions[at].critical(cert):
			found = append(found, fmt.Sprintf("extension %s is critical: %t", extensions[at].name, got.Critical))
		}
	}
	return found
}

// exceeded lists the content of cert that c does not permit.
func (c *Contents) exceeded(cert *x509.Certificate) []string {
	var found []string
	permit := func(permitted bool, what string) {
		if !permitted {
			found = append(found, what+" is not permitted in this profile")
		}
	}
	permit(strings.HasPrefix(cert.Subject.CommonName, c.CommonNamePrefix),
		fmt.Sprintf("common name %.64q", cert.Subject.CommonName))
	permit(c.Organizations == nil || slices.Equal(cert.Subject.Organization, c.Organizations),
		fmt.Sprintf("organization %.64q", few(cert.Subject.Organization)))
	for _, name := range otherAttributes(cert.Subject) {
		permit(c.OtherAttributes, name)
	}
	permit(c.DNSNames || len(cert.DNSNames) == 0, "a DNS name")
	permit(c.EmailAddresses || len(cert.EmailAddresses) == 0, "an email address")
	permit(c.IPAddresses || len(cert.IPAddresses) == 0, "an IP address")
	permit(c.URIs || len(cert.URIs) == 0, "a URI")
	permit(cert.KeyUsage&^c.KeyUsage == 0, fmt.Sprintf("key usage %b", cert.KeyUsage&^c.KeyUsage))
	for _, usage := range cert.ExtKeyUsage {
		permit(slices.Contains(c.ExtKeyUsage, usage), fmt.Sprintf("extended key usage %d", usage))
	}
	return found
}

func texts[T fmt.Stringer](values []T) []string {
	var all []string
	for _, value := range values {
		all = append(all, value.String())
	}
	return all
}

// few returns the start of a list of names that a requester chose.
func few(all []string) []string {
	var kept []string
	for _, name := range all[:min(len(all), 3)] {
		kept = append(kept, name[:min(len(name), 64)])
	}
	return kept
}
