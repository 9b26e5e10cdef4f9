package csr

import (
	"crypto/mldsa"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// NodeGroup and NodeUserPrefix identify a kubelet (Kubernetes pkg/apis/core, user.NodesGroup; NodeAuthorizer). BootstrapGroup
// is the group of every bootstrap token (k8s.io/cluster-bootstrap, BootstrapDefaultGroup). Only an authenticator adds groups.
const (
	BootstrapGroup = "system:bootstrappers"
	NodeGroup      = "system:nodes"
	NodeUserPrefix = "system:node:"
)

// The shapes below are Kubernetes' (pkg/apis/certificates/helpers.go and
// pkg/controller/certificates/signer/signer.go). They make the same checks in the same order. Their texts are the
// same too, because they become the messages of Failed conditions.

// KubeletClientShape returns why req can't become a kubelet's client certificate, or nil.
func KubeletClientShape(req *Request) error {
	if err := checkNodeOrganization(req); err != nil {
		return err
	}
	switch {
	case len(req.Cert.DNSNames) > 0:
		return errors.New("DNS subjectAltNames are not allowed")
	case len(req.Cert.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // Kubernetes' text
	case len(req.Cert.IPAddresses) > 0:
		return errors.New("IP subjectAltNames are not allowed")
	case len(req.Cert.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	if err := checkNodeCommonName(req); err != nil {
		return err
	}
	if !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {
		return errors.New("usages did not match [client auth digital signature key encipherment]")
	}
	return req.CheckMLDSAUsages()
}

// KubeletServingShape returns why req can't become a kubelet's serving certificate, or nil.
func KubeletServingShape(req *Request) error {
	if err := checkNodeOrganization(req); err != nil {
		return err
	}
	switch {
	case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(req.Cert.EmailAddresses) > 0:
		return errors.New("Email subjectAltNames are not allowed") //nolint:staticcheck // Kubernetes' text
	case len(req.Cert.URIs) > 0:
		return errors.New("URI subjectAltNames are not allowed")
	}
	if !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {
		return errors.New("usages did not match [digital signature key encipherment server auth]")
	}
	if err := req.CheckMLDSAUsages(); err != nil {
		return err
	}
	return checkNodeCommonName(req)
}

// APIServerClientShape returns why req can't become a client certificate for the API server, or nil.
func APIServerClientShape(req *Request) error {
	for _, usage := range req.Usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", usage)
		}
	}
	if !slices.Contains(req.Usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return req.CheckMLDSAUsages()
}

// CheckMLDSAUsages returns why a certificate with the ML-DSA key of r must not have the requested usages (RFC 9881 section 5),
// or nil. An ML-DSA key only signs. From Kubernetes 1.38 on, the API server checks this for every signer.
func (r *Request) CheckMLDSAUsages() error {
	if _, is := r.Cert.PublicKey.(*mldsa.PublicKey); !is {
		return nil
	}
	var wrong []error
	signs := false
	for _, usage := range slices.Compact(slices.Sorted(slices.Values(r.Usages))) {
		switch usage {
		case certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
			certificatesv1.UsageEncipherOnly, certificatesv1.UsageDecipherOnly:
			wrong = append(wrong, fmt.Errorf("usage %s cannot be used with an ML-DSA signed certificate request", usage))
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment, certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign:
			signs = true
		}
	}
	if !signs {
		wrong = append(wrong, errors.New("usages must contain at least one of [cert sign content commitment crl sign digital signature]"))
	}
	if err := errors.Join(wrong...); err != nil {
		return fmt.Errorf("validating usages for ml-dsa key: %w", err)
	}
	return nil
}

func checkNodeOrganization(req *Request) error {
	if !slices.Equal(req.Cert.Subject.Organization, []string{NodeGroup}) {
		return errors.New("subject organization is not system:nodes")
	}
	return nil
}

func checkNodeCommonName(req *Request) error {
	if !strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix) {
		return errors.New("subject common name does not begin with system:node:") //nolint:staticcheck // Kubernetes' text
	}
	return nil
}

// isUsageSet reports whether usages, as a set, are digital signature and purpose, with or without key encipherment. A
// kubelet requests key encipherment only with an RSA key.
func isUsageSet(usages []certificatesv1.KeyUsage, purpose certificatesv1.KeyUsage) bool {
	for _, usage := range usages {
		switch usage {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:
		default:
			return false
		}
	}
	return slices.Contains(usages, certificatesv1.UsageDigitalSignature) && slices.Contains(usages, purpose)
}

// The X.509 form of each usage, from Kubernetes pkg/apis/certificates/v1/helpers.go and
// pkg/controller/certificates/authority/policies.go.
var (
	keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
		certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
		certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
		certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
		certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
		certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
		certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
		certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
		certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
		certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
		certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
	}
	extKeyUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
		certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
		certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
		certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
		certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
		certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
		certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
		certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
		certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
		certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
		certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
		certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
	}
)

// X509Usages returns the X.509 form of usages. Extended usages are sorted and without repetition. unknown holds the
// usages without an X.509 form.
func X509Usages(usages []certificatesv1.KeyUsage) (
	key x509.KeyUsage, ext []x509.ExtKeyUsage, unknown []certificatesv1.KeyUsage,
) {
	for _, usage := range usages {
		if bit, ok := keyUsages[usage]; ok {
			key |= bit
		} else if value, ok := extKeyUsages[usage]; ok {
			ext = append(ext, value)
		} else {
			unknown = append(unknown, usage)
		}
	}
	slices.Sort(ext)
	return key, slices.Compact(ext), unknown
}
