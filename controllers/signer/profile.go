package signer

import (
	"crypto/x509"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// shapes are what Kubernetes' own signers demand; a nil one demands nothing.
var shapes = map[string]func(*csr.Request) error{
	certificatesv1.KubeAPIServerClientSignerName:        csr.APIServerClientShape,
	certificatesv1.KubeAPIServerClientKubeletSignerName: csr.KubeletClientShape,
	certificatesv1.KubeletServingSignerName:             csr.KubeletServingShape,
}

// KubernetesSignerNames are the signers of kube-controller-manager, in order, less kubernetes.io/legacy-unknown, which
// no request in certificates/v1 can name.
func KubernetesSignerNames() []string {
	return []string{
		certificatesv1.KubeAPIServerClientSignerName,
		certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.KubeletServingSignerName,
	}
}

// forbiddenByDefault are the subjects that a signer never issues unless it is configured otherwise. Whoever is in
// system:masters bypasses every authorizer, and admission (CertificateSubjectRestriction) guards one signer only.
var forbiddenByDefault = []string{"O=system:masters"}

// Signer says how requests for one signer name are signed.
type Signer struct {
	// Profile bounds what is issued; the zero value is the default one. Where its ForbiddenSubjects are nil, they are
	// O=system:masters.
	Profile ca.Profile
	// Usages are those that a custom signer permits. Kubernetes' own signers have rules of their own and leave it nil.
	Usages []certificatesv1.KeyUsage
	// AllowNoExtKeyUsage has a custom signer issue certificates without an extended key usage, which are good for everything.
	// From a CA that API servers trust for clients it never issues them.
	AllowNoExtKeyUsage bool
	// ForbiddenOnClientCA are the subjects that a custom signer does not issue, beside those of Profile, from a CA that API
	// servers trust for clients: patterns as those of Profile. Nil is ForbiddenOnClientCA(); empty forbids no more.
	ForbiddenOnClientCA []string
	// AllowedNames are those that a custom signer's server certificates may hold if API servers trust its CA for clients.
	AllowedNames ca.AllowedNames
	// KeyPair is the CA.
	KeyPair *keypair.KeyPair
}

// check returns why req can never be signed, as the reason and message of a Failed condition, or nil. The rules of
// kube-controller-manager come first and keep its reason and its texts.
func (s Signer) check(req *csr.Request) *ca.Violation {
	shape, kubernetes := shapes[req.SignerName]
	if shape != nil {
		if err := shape(req); err != nil {
			return &ca.Violation{Reason: "SignerValidationFailure", Message: err.Error()}
		}
	}
	if len(req.UnknownUsages) > 0 {
		return &ca.Violation{Reason: "UsagesNotPermitted", Message: fmt.Sprintf("unrecognized usage values: %+q", req.UnknownUsages)}
	}
	if !kubernetes {
		for _, usage := range req.Usages {
			if !slices.Contains(s.Usages, usage) {
				return &ca.Violation{
					Reason:  "UsagesNotPermitted",
					Message: fmt.Sprintf("usage %+q is not permitted: signer %s permits %q", usage, req.SignerName, s.Usages),
				}
			}
		}
	}
	if violations := s.Profile.Check(req.Cert); len(violations) > 0 {
		return &violations[0]
	}
	if err := req.CheckSignature(); err != nil {
		return &ca.Violation{Reason: "Malformed", Message: err.Error()}
	}
	return nil
}

const tlsKeyUsages = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment

// contents is all that a finished certificate of each of Kubernetes' signers may contain. The rules for requests (shapes)
// come before it. It catches what gets past them, and bounds each certificate even if a rule is wrong.
var contents = map[string]ca.Contents{
	certificatesv1.KubeAPIServerClientSignerName: {
		OtherAttributes: true, DNSNames: true, EmailAddresses: true, IPAddresses: true, URIs: true,
		KeyUsage: tlsKeyUsages, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	},
	certificatesv1.KubeAPIServerClientKubeletSignerName: {
		CommonNamePrefix: csr.NodeUserPrefix, Organizations: []string{csr.NodeGroup}, OtherAttributes: true,
		KeyUsage: tlsKeyUsages, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	},
	certificatesv1.KubeletServingSignerName: {
		CommonNamePrefix: csr.NodeUserPrefix, Organizations: []string{csr.NodeGroup}, OtherAttributes: true, DNSNames: true, IPAddresses: true,
		KeyUsage: tlsKeyUsages, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	},
}

// contentsOf returns what a certificate of signerName may contain. A custom signer has the usages that it permits, and any
// names.
func contentsOf(signerName string, usages []certificatesv1.KeyUsage) *ca.Contents {
	of, kubernetes := contents[signerName]
	if !kubernetes {
		of = ca.Contents{OtherAttributes: true, DNSNames: true, EmailAddresses: true, IPAddresses: true, URIs: true}
		of.KeyUsage, of.ExtKeyUsage = csr.X509Usages(usages)
	}
	return &of
}

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
