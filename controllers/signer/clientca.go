package signer

import (
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// ForbiddenOnClientCA returns the subjects that a custom signer never issues from a CA that API servers trust for clients,
// unless its owner lists others: they are Kubernetes' own users and groups, and those of kubeadm.
func ForbiddenOnClientCA() []string { return []string{"O=system:*", "O=kubeadm:*", "CN=system:*"} }

// serverUsages are the extended key usages with which a certificate is good for a server.
var serverUsages = []x509.ExtKeyUsage{
	x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageMicrosoftServerGatedCrypto, x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// checkTrust judges req by the rules of a custom signer that depend on whether API servers trust its CA for clients. While
// that is unknown, a request that a trusted CA must not sign waits; all others are judged alike either way. Kubernetes' own
// signers have kube-controller-manager's rules, which do not depend on it. A CA for front proxies counts as trusted.
func (s Signer) checkTrust(req *csr.Request, trust probe.Trust, front frontProxy) (violation *ca.Violation, wait bool) {
	if _, kubernetes := shapes[req.SignerName]; kubernetes {
		return nil, false
	}
	if violation := front.forbids(req); violation != nil {
		return violation, front.unread != ""
	}
	if front.trusted {
		trust = probe.Recognised
	}
	violation = s.onClientCA(req)
	switch {
	case violation == nil || trust == probe.Recognised:
		return violation, false
	case trust == probe.Unknown:
		return violation, true
	case len(req.Cert.ExtKeyUsage) == 0 && !s.AllowNoExtKeyUsage:
		return &ca.Violation{Reason: "UsagesNotPermitted",
			Message: fmt.Sprintf("usages %+q hold no extended key usage: without one a certificate is good for everything; "+
				"ask for one of those that signer %s permits", req.Usages, req.SignerName)}, false
	default:
		return nil, false
	}
}

// onClientCA returns why a custom signer must not issue req from a CA that API servers trust for clients, or nil.
func (s Signer) onClientCA(req *csr.Request) *ca.Violation {
	if len(req.Cert.ExtKeyUsage) == 0 {
		return &ca.Violation{Reason: "UsagesNotPermitted",
			Message: fmt.Sprintf("usages %+q hold no extended key usage: API servers trust this CA for clients, and would take the "+
				"certificate for a client's; ask for one of those that signer %s permits", req.Usages, req.SignerName)}
	}
	forbidden := s.ForbiddenOnClientCA
	if forbidden == nil {
		forbidden = ForbiddenOnClientCA()
	}
	for _, pattern := range forbidden {
		if ca.MatchesSubject(pattern, req.Cert.Subject) {
			return &ca.Violation{Reason: "SubjectNotPermitted",
				Message: fmt.Sprintf("subject %+q is not permitted: API servers trust the CA of signer %s for clients, so it never issues %s",
					req.SubjectText(), req.SignerName, pattern)}
		}
	}
	if !slices.ContainsFunc(req.Cert.ExtKeyUsage, func(usage x509.ExtKeyUsage) bool { return slices.Contains(serverUsages, usage) }) {
		return nil
	}
	if s.AllowedNames.Empty() {
		return &ca.Violation{Reason: "NameNotPermitted",
			Message: fmt.Sprintf("usages %+q are a server's, and API servers trust the CA of signer %s for clients: it serves no server "+
				"unless its allowedNames list the names", req.Usages, req.SignerName)}
	}
	if name := s.AllowedNames.Refused(req.Cert); name != "" {
		return &ca.Violation{Reason: "NameNotPermitted",
			Message: fmt.Sprintf("name %+q is not among the allowedNames of signer %s", csr.Shorten(name), req.SignerName)}
	}
	return nil
}
