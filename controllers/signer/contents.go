package signer

import (
	"crypto/x509"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

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
