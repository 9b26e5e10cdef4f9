package signer

import (
	"crypto/x509"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// Signer says how to sign requests for one signer name.
type Signer struct {
	// Profile bounds the certificates; the zero value is the default profile. If the cluster trusts its CA, a custom signer
	// does not issue the users and groups of Kubernetes and kubeadm either.
	Profile ca.Profile
	// Usages are the usages that a custom signer permits. It is nil for built-in signers, which have their own rules.
	Usages []certificatesv1.KeyUsage
	// AllowNoExtKeyUsage permits a custom signer to issue certificates without an extended key usage, which are valid for
	// every purpose. A CA that the cluster trusts never issues them.
	AllowNoExtKeyUsage bool
	// AllowedNames are the names that server certificates of a custom signer may have if the cluster trusts its CA.
	AllowedNames ca.AllowedNames
	// KeyPair is the signing CA.
	KeyPair *keypair.KeyPair
}

// refuse returns a Violation.
func refuse(reason, format string, args ...any) *ca.Violation {
	return &ca.Violation{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// check returns why req can never be signed, or nil.
func (s Signer) check(req *csr.Request) *ca.Violation {
	if _, builtin := csr.BuiltinSigner(req.SignerName); !builtin && len(req.UnknownUsages) == 0 {
		for _, usage := range req.Usages {
			if !slices.Contains(s.Usages, usage) {
				return refuse("UsagesNotPermitted", "usage %+q is not permitted: signer %s permits %q", usage, req.SignerName, s.Usages)
			}
		}
	}
	return req.Check(s.Profile)
}

// checkTrust returns why a custom signer must not issue req because of the trust in its CA, or nil. The rules of
// built-in signers do not depend on it.
func (s Signer) checkTrust(req *csr.Request, trust caTrust) *ca.Violation {
	if _, builtin := csr.BuiltinSigner(req.SignerName); builtin {
		return nil
	}
	named := len(trust.proxyNames) == 0 || slices.Contains(trust.proxyNames, req.Cert.Subject.CommonName)
	if trust.proxies != noCause && req.ForClients() && named {
		return refuse("SubjectNotPermitted", "subject %+q is not permitted: %s, so a client with this name could act as any user as a front "+
			"proxy (--requestheader-client-ca-file); give the signer a CA of its own", req.SubjectText(), trust.proxies.of(req.SignerName))
	}
	if trust.strict != noCause {
		return s.onTrustedCA(req, trust)
	}
	if len(req.Cert.ExtKeyUsage) == 0 && !s.AllowNoExtKeyUsage {
		return refuse("UsagesNotPermitted", "usages %+q include no extended key usage, so the certificate would be valid "+
			"for every purpose; add a usage that signer %s permits", req.Usages, req.SignerName)
	}
	return nil
}

// serverUsages are the extended key usages of server certificates.
var serverUsages = []x509.ExtKeyUsage{
	x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth,
	x509.ExtKeyUsageMicrosoftServerGatedCrypto, x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// onTrustedCA returns why a custom signer must not issue req from a CA that the cluster trusts, or nil.
func (s Signer) onTrustedCA(req *csr.Request, trust caTrust) *ca.Violation {
	because := trust.strict.of(req.SignerName)
	if len(req.Cert.ExtKeyUsage) == 0 {
		return refuse("UsagesNotPermitted", "usages %+q include no extended key usage, so the certificate would be valid "+
			"for clients, but %s; add a usage that this signer permits", req.Usages, because)
	}
	for _, pattern := range csr.ComponentSubjects() {
		if ca.MatchesSubject(pattern, req.Cert.Subject) {
			return refuse("SubjectNotPermitted", "subject %+q is not permitted: %s, so it never issues %s",
				req.SubjectText(), because, pattern)
		}
	}
	forServers := func(usage x509.ExtKeyUsage) bool { return slices.Contains(serverUsages, usage) }
	if !slices.ContainsFunc(req.Cert.ExtKeyUsage, forServers) {
		return nil
	}
	if s.AllowedNames.Empty() {
		return refuse("NameNotPermitted", "usages %+q are for servers, but %s: "+
			"list the permitted names in the signer's allowedNames", req.Usages, because)
	}
	if name := s.AllowedNames.Refused(req.Cert); name != "" {
		return refuse("NameNotPermitted", "name %+q is not in the allowedNames of signer %s", csr.Shorten(name), req.SignerName)
	}
	return nil
}
