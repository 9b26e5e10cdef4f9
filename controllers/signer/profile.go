package signer

import (
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

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
