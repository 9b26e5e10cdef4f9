package signer

import (
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// contentsOf returns what a certificate of signerName may contain. A custom signer may issue the usages that it
// permits, and any names.
func contentsOf(signerName string, usages []certificatesv1.KeyUsage) *ca.Contents {
	builtin, found := csr.BuiltinSigner(signerName)
	if found {
		return &builtin.Contents
	}
	of := ca.Contents{OtherAttributes: true, DNSNames: true, EmailAddresses: true, IPAddresses: true, URIs: true}
	of.KeyUsage, of.ExtKeyUsage, _ = csr.X509Usages(usages)
	return &of
}

// forbiddenByDefault lists the subjects that a signer never issues unless it is configured otherwise. A member of
// system:masters bypasses every authorizer. Admission (CertificateSubjectRestriction) guards only one signer.
var forbiddenByDefault = []string{"O=system:masters"}

// Signer says how to sign requests for one signer name.
type Signer struct {
	// Profile bounds the certificates; the zero value is the default profile. Nil ForbiddenSubjects mean
	// O=system:masters.
	Profile ca.Profile
	// Usages are the usages that a custom signer permits. It is nil for built-in signers, which have their own rules.
	Usages []certificatesv1.KeyUsage
	// AllowNoExtKeyUsage permits a custom signer to issue certificates without an extended key usage, which are valid for
	// every purpose. A CA that API servers trust for clients never issues them.
	AllowNoExtKeyUsage bool
	// ForbiddenOnClientCA lists more subjects that a custom signer does not issue if API servers trust its CA for
	// clients. It has the same patterns as ForbiddenSubjects in Profile. Nil means ForbiddenOnClientCA(); an empty list
	// adds none.
	ForbiddenOnClientCA []string
	// AllowedNames are the names that server certificates of a custom signer may have if API servers trust its CA for
	// clients.
	AllowedNames ca.AllowedNames
	// KeyPair is the signing CA.
	KeyPair *keypair.KeyPair
}

// check returns why req can never be signed, or nil. The violation becomes the reason and message of a Failed
// condition. The rules of kube-controller-manager come first and keep its reason and texts.
func (s Signer) check(req *csr.Request) *ca.Violation {
	builtin, isBuiltin := csr.BuiltinSigner(req.SignerName)
	if isBuiltin {
		if err := builtin.Shape(req); err != nil {
			return &ca.Violation{Reason: "SignerValidationFailure", Message: err.Error()}
		}
	}
	if len(req.UnknownUsages) > 0 {
		return &ca.Violation{Reason: "UsagesNotPermitted",
			Message: fmt.Sprintf("unrecognized usage values: %+q", req.UnknownUsages)}
	}
	for _, usage := range req.Usages {
		if !isBuiltin && !slices.Contains(s.Usages, usage) {
			return &ca.Violation{Reason: "UsagesNotPermitted",
				Message: fmt.Sprintf("usage %+q is not permitted: signer %s permits %q", usage, req.SignerName, s.Usages)}
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

// caTrust is the last answer of the API servers about the certificates of a CA.
type caTrust struct {
	probe.Answer               // whether API servers accept its client certificates
	front        frontProxy    // whether API servers accept its certificates for front proxies
	authority    *ca.Authority // the CA
	at           time.Time     // when Answer was given
}

// trustKept is how long a CA counts as trusted while API servers do not answer.
const trustKept = 3 * askKnown

// with returns t after an answer. Without a new answer, a trusted CA counts as trusted for trustKept. Distrust permits
// more, so it ends with the first unanswered question.
func (t caTrust) with(answer probe.Answer, now time.Time) caTrust {
	if answer.Trust == probe.Unknown && t.Trust == probe.Recognised && now.Sub(t.at) < trustKept {
		return t
	}
	t.Answer, t.at = answer, now
	return t
}

// withFront returns t after the front-proxy configuration was read. If the read failed, a known state stays.
func (t caTrust) withFront(front frontProxy, err error) caTrust {
	switch {
	case err == nil:
		t.front = front
	case t.front.unread != "":
		t.front.unread = err.Error()
	}
	return t
}

// frontProxy says whether API servers accept a CA for front proxies. A client with such a certificate names any user
// in a header, and the API server believes it. The zero value is a CA that API servers do not accept.
type frontProxy struct {
	unread  string // why the state is not known
	trusted bool
	names   []string // the permitted common names of front proxies; empty means any
}

// checkTrust applies the rules of a custom signer that depend on whether API servers trust its CA for clients.
// The rules of built-in signers do not depend on it. While the trust is unknown,
// a request that would break such a rule waits; unknown then says what is missing. A CA for front proxies counts as
// trusted.
func (s Signer) checkTrust(req *csr.Request, trust caTrust) (violation *ca.Violation, unknown string) {
	if _, builtin := csr.BuiltinSigner(req.SignerName); builtin {
		return nil, ""
	}
	if violation := trust.front.forbids(req); violation != nil {
		if trust.front.unread != "" {
			unknown = "it is unknown whether API servers accept this CA for front proxies: " + trust.front.unread
		}
		return violation, unknown
	}
	violation = s.onClientCA(req)
	switch {
	case violation == nil || trust.Trust == probe.Recognised || trust.front.trusted:
		return violation, ""
	case trust.Trust == probe.Unknown:
		return violation, "it is unknown whether API servers accept client certificates of this CA: " + trust.Evidence
	case len(req.Cert.ExtKeyUsage) == 0 && !s.AllowNoExtKeyUsage:
		return &ca.Violation{Reason: "UsagesNotPermitted",
			Message: fmt.Sprintf("usages %+q include no extended key usage, so the certificate would be valid "+
				"for every purpose; add a usage that signer %s permits", req.Usages, req.SignerName)}, ""
	default:
		return nil, ""
	}
}

func (f frontProxy) equal(other frontProxy) bool {
	return f.unread == other.unread && f.trusted == other.trusted && slices.Equal(f.names, other.names)
}

// forbids returns why a custom signer must not issue req, or nil. While f is unknown, it forbids every certificate
// that is valid for clients.
func (f frontProxy) forbids(req *csr.Request) *ca.Violation {
	usages := req.Cert.ExtKeyUsage
	forClients := len(usages) == 0 || slices.Contains(usages, x509.ExtKeyUsageAny) ||
		slices.Contains(usages, x509.ExtKeyUsageClientAuth)
	named := len(f.names) == 0 || slices.Contains(f.names, req.Cert.Subject.CommonName)
	if !forClients || f.unread == "" && (!f.trusted || !named) {
		return nil
	}
	return &ca.Violation{Reason: "SubjectNotPermitted",
		Message: fmt.Sprintf("subject %+q is not permitted: API servers accept the CA of signer %s for front proxies "+
			"(--requestheader-client-ca-file), so a client with this name could act as any user; "+
			"give the signer a CA of its own",
			req.SubjectText(), req.SignerName)}
}

// ForbiddenOnClientCA returns the subjects that a custom signer never issues if API servers trust its CA for clients.
// The signer's configuration can replace the list. It holds the users and groups of Kubernetes and kubeadm.
func ForbiddenOnClientCA() []string { return []string{"O=system:*", "O=kubeadm:*", "CN=system:*"} }

// serverUsages are the extended key usages of server certificates.
var serverUsages = []x509.ExtKeyUsage{
	x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth,
	x509.ExtKeyUsageMicrosoftServerGatedCrypto, x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// onClientCA returns why a custom signer must not issue req if API servers trust its CA for clients, or nil.
func (s Signer) onClientCA(req *csr.Request) *ca.Violation {
	if len(req.Cert.ExtKeyUsage) == 0 {
		return &ca.Violation{Reason: "UsagesNotPermitted",
			Message: fmt.Sprintf("usages %+q include no extended key usage, so API servers, which trust this CA, "+
				"would accept the certificate for clients; add a usage that signer %s permits", req.Usages, req.SignerName)}
	}
	forbidden := s.ForbiddenOnClientCA
	if forbidden == nil {
		forbidden = ForbiddenOnClientCA()
	}
	for _, pattern := range forbidden {
		if ca.MatchesSubject(pattern, req.Cert.Subject) {
			return &ca.Violation{Reason: "SubjectNotPermitted",
				Message: fmt.Sprintf("subject %+q is not permitted: API servers trust the CA of signer %s for clients, "+
					"so it never issues %s", req.SubjectText(), req.SignerName, pattern)}
		}
	}
	forServers := func(usage x509.ExtKeyUsage) bool { return slices.Contains(serverUsages, usage) }
	if !slices.ContainsFunc(req.Cert.ExtKeyUsage, forServers) {
		return nil
	}
	if s.AllowedNames.Empty() {
		return &ca.Violation{Reason: "NameNotPermitted",
			Message: fmt.Sprintf("usages %+q are for servers, but API servers trust the CA of signer %s for clients: "+
				"list the permitted names in the signer's allowedNames", req.Usages, req.SignerName)}
	}
	if name := s.AllowedNames.Refused(req.Cert); name != "" {
		return &ca.Violation{Reason: "NameNotPermitted",
			Message: fmt.Sprintf("name %+q is not in the allowedNames of signer %s", csr.Shorten(name), req.SignerName)}
	}
	return nil
}
