package csr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// NodeGroup and NodeUserPrefix identify a kubelet (Kubernetes pkg/apis/core, user.NodesGroup; NodeAuthorizer).
const (
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
	return nil
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
