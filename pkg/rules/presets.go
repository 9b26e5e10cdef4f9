package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Preset names a rule that is written in Go.
type Preset string

// The presets.
const (
	// ServiceNames approves server certificates for Services. The requester is a ServiceAccount. There are 1 to 20 DNS names,
	// each `SERVICE.NAMESPACE.svc`, or that with `clusterDomain` behind it, of a Service in the namespace of the requester. At
	// the time of the approval, the Service exists. It is not of the type ExternalName, and not called `kubernetes`. The common name is
	// empty or one of the names, and nothing else is permitted. The usages are `digital signature` and `server auth`, with or
	// without `key encipherment`. The certificate is valid for at most 7 days.
	ServiceNames Preset = "serviceNames"
	// SPIFFE approves certificates of workloads. The requester is a ServiceAccount. The subject is empty, and the only name is
	// the URI `spiffe://TRUSTDOMAIN/ns/NAMESPACE/sa/NAME` of the requester. The usages are `digital signature` and `client
	// auth` or `server auth` or both, with or without `key encipherment`. The certificate is valid for at most 24 hours. `client
	// auth` is refused while API servers trust the CA of the signer, and while that is unknown.
	SPIFFE Preset = "spiffe"
	// OwnIdentity approves client certificates of people and programs, for `kubernetes.io/kube-apiserver-client`. The common name
	// is the user name of the requester, and the organizations are groups of the requester. None of them begins with `system:`
	// or `kubeadm:`, and there is no other name. The usages are `digital signature` and `client auth`, with or without `key
	// encipherment`. The request is at most 10 minutes old. The certificate is valid for at most 1 hour, and not beyond the time in
	// `expiryExtra`, if that is set. The extra `authentication.kubernetes.io/credential-id` of the requester is exactly one `JTI=ID`: it authenticated with a
	// token. A certificate, or an impersonation without that extra, gets nothing.
	OwnIdentity Preset = "ownIdentity"
)

// preset returns why the preset does not accept a request, or an empty text, as Compiled.Judge does.
type preset func(rule Rule, s *Subject) (refusal string, err error)

var presets = map[Preset]preset{ServiceNames: serviceNames, SPIFFE: spiffe, OwnIdentity: ownIdentity}

// Presets returns the names of all presets.
func Presets() []Preset { return []Preset{ServiceNames, SPIFFE, OwnIdentity} }

const (
	longestServing, longestSPIFFE, longestIdentity = 7 * 24 * time.Hour, 24 * time.Hour, time.Hour
	// oldestIdentity bounds the age of a request, whose requester may have lost the name or a group since.
	oldestIdentity = 10 * time.Minute
	// mostServiceNames bounds the Services that are read for a request.
	mostServiceNames = 20
)

// first returns the first text that is not empty.
func first(texts ...string) string {
	if i := slices.IndexFunc(texts, func(text string) bool { return text != "" }); i >= 0 {
		return texts[i]
	}
	return ""
}

// account returns the ServiceAccount that the requester is. refusal is not empty if it is none.
func (s *Subject) account() (account Account, refusal string, err error) {
	account, err = s.Facts.Account()
	if no := NoAccount(""); errors.As(err, &no) {
		return Account{}, string(no), nil
	}
	return account, "", err
}

// serviceNames accepts a server certificate for Services in the namespace of the requester. The caller reads the Services.
func serviceNames(rule Rule, s *Subject) (string, error) {
	claimed, err := Claimed(s.Requester)
	if err != nil {
		return err.Error(), nil
	}
	names, name := s.Cert.DNSNames, s.Cert.Subject.CommonName
	refusal := first(checkContent(s, "names", "commonName"), checkNames(s, false))
	switch {
	case refusal != "":
	case !s.HasServingUsages():
		refusal = fmt.Sprintf("usages are %q, but must be digital signature and server auth, with or without key encipherment", s.Usages)
	case len(names) == 0:
		refusal = "the request has no DNS name"
	case len(names) > mostServiceNames:
		refusal = fmt.Sprintf("the request has more than %d DNS names", mostServiceNames)
	case name != "" && !slices.Contains(names, name):
		refusal = fmt.Sprintf("common name %+q is not one of the DNS names", csr.Shorten(name))
	default:
		refusal = first(checkServiceNames(rule, names, claimed.Namespace), checkLifetime(s, longestServing))
	}
	if refusal == "" {
		_, refusal, err = s.account()
	}
	return refusal, err
}

// checkServiceNames returns the first name that no Service in namespace can have, or an empty text.
func checkServiceNames(rule Rule, names []string, namespace string) string {
	for _, name := range names {
		switch service := serviceOf(rule, name, namespace); service {
		case "":
			return fmt.Sprintf("DNS name %+q is not SERVICE.%s.svc or SERVICE.%s.svc.%s: a ServiceAccount gets only names of "+
				"Services in its own namespace", csr.Shorten(name), namespace, namespace, rule.clusterDomain())
		case "kubernetes":
			return fmt.Sprintf("DNS name %+q is a name of the API server", csr.Shorten(name))
		}
	}
	return ""
}

// serviceOf returns the Service in namespace that has the DNS name, or an empty text.
func serviceOf(rule Rule, name, namespace string) string {
	service, found := strings.CutSuffix(strings.TrimSuffix(name, "."+rule.clusterDomain()), "."+namespace+".svc")
	if !found || strings.Contains(service, ".") {
		return ""
	}
	return service
}

// Services returns the Services that must exist for an approval, each once, and their namespace. There are none unless
// ReadsServices is set.
func (c *Compiled) Services(s *Subject) (namespace string, names []string) {
	claimed, err := Claimed(s.Requester)
	if !c.ReadsServices || err != nil {
		return "", nil
	}
	for _, name := range s.Cert.DNSNames {
		if service := serviceOf(c.rule, name, claimed.Namespace); !slices.Contains(names, service) {
			names = append(names, service)
		}
	}
	return claimed.Namespace, names
}

// spiffe accepts a certificate whose only identity is the SPIFFE ID of the requester.
func spiffe(rule Rule, s *Subject) (string, error) {
	claimed, err := Claimed(s.Requester)
	if err != nil {
		return err.Error(), nil
	}
	id := fmt.Sprintf("spiffe://%s/ns/%s/sa/%s", rule.TrustDomain, claimed.Namespace, claimed.Name)
	refusal := checkContent(s, "uris")
	permitted := []certificatesv1.KeyUsage{
		certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment,
		certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth,
	}
	other := func(usage certificatesv1.KeyUsage) bool { return !slices.Contains(permitted, usage) }
	switch {
	case refusal != "":
	case slices.ContainsFunc(s.Usages, other) || !slices.Contains(s.Usages, certificatesv1.UsageDigitalSignature) ||
		len(s.Cert.ExtKeyUsage) == 0:
		refusal = fmt.Sprintf("usages are %q, but must be digital signature and client auth or server auth or both, with or "+
			"without key encipherment", s.Usages)
	case len(s.Cert.URIs) != 1 || s.Cert.URIs[0].String() != id:
		refusal = fmt.Sprintf("the only URI must be %s", id)
	default:
		refusal = first(checkTrust(s), checkLifetime(s, longestSPIFFE))
	}
	if refusal == "" {
		_, refusal, err = s.account()
	}
	return refusal, err
}

// credentialIDPrefix begins the ID of a token (k8s.io/apiserver/pkg/authentication/serviceaccount, and
// plugin/pkg/authenticator/token/oidc).
const credentialIDPrefix = "JTI="

// reserved reports whether a user or a group of that name is one of Kubernetes or kubeadm.
func reserved(name string) bool {
	return strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "kubeadm:")
}

// ownIdentity accepts a client certificate for the requester itself.
func ownIdentity(rule Rule, s *Subject) (string, error) {
	by, subject := s.Requester, s.Cert.Subject
	refusal := checkContent(s, "commonName", "organizations")
	other := func(group string) bool { return !slices.Contains(by.Groups, group) }
	switch {
	case refusal != "":
	case !s.HasClientUsages():
		refusal = fmt.Sprintf("usages are %q, but must be digital signature and client auth, with or without key encipherment", s.Usages)
	case subject.CommonName == "" || subject.CommonName != by.Username:
		refusal = fmt.Sprintf("common name %+q is not the requester's user name", csr.Shorten(subject.CommonName))
	case slices.ContainsFunc(subject.Organization, other):
		refusal = fmt.Sprintf("the requester is not in all of the groups %+q", csr.ShortenAll(subject.Organization))
	case reserved(subject.CommonName) || slices.ContainsFunc(subject.Organization, reserved):
		refusal = "no user name and no group may begin with system: or kubeadm:"
	default:
		refusal = first(checkCredential(by), checkLifetime(s, longestIdentity))
	}
	if refusal != "" {
		return refusal, nil
	}
	return checkTimes(rule, s)
}

// checkCredential returns why the credential of the requester is not a token, or an empty text. A certificate does not renew
// itself.
func checkCredential(by csr.Requester) string {
	ids := by.Extra[csr.CredentialIDKey]
	if len(ids) == 1 && strings.HasPrefix(ids[0], credentialIDPrefix) && len(ids[0]) > len(credentialIDPrefix) {
		return ""
	}
	return "the requester did not authenticate with a token that has an ID: a certificate cannot renew itself"
}

// checkTimes returns why the request is too old, or why the certificate would outlive the credential of the requester, or an
// empty text.
func checkTimes(rule Rule, s *Subject) (string, error) {
	now, err := s.Facts.Now()
	switch {
	case err != nil:
		return "", err
	case !s.Created.IsZero() && now.Sub(s.Created) > oldestIdentity: // only a request in a file has no time of creation
		return fmt.Sprintf("the request is older than %s: make a new one", oldestIdentity), nil
	case rule.ExpiryExtra == "":
		return "", nil
	}
	end, found := expiryOf(s.Requester, rule.ExpiryExtra)
	if !found || now.Add(s.Facts.Lifetime).After(end) {
		return fmt.Sprintf("the certificate would outlive the credential of the requester, by %+q of its extra: "+
			"request less (spec.expirationSeconds)", rule.ExpiryExtra), nil
	}
	return "", nil
}

// expiryOf returns the time in the extra of that key. It is a NumericDate (RFC 7519 section 2).
func expiryOf(by csr.Requester, key string) (time.Time, bool) {
	values := by.Extra[key]
	if len(values) != 1 {
		return time.Time{}, false
	}
	seconds, err := strconv.ParseFloat(values[0], 64)
	if err != nil || math.IsNaN(seconds) || seconds < 0 || seconds > math.MaxInt32<<8 {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}
