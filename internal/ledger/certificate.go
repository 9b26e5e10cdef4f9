package ledger

import (
	"crypto/x509"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Certificate is what is noted of an issued one.
type Certificate struct {
	// Node that its subject names; empty for anybody else's.
	Node string
	// Signer is the signer name, and KeyID the key that has signed, see ca.KeyID.
	Signer, KeyID string
	// NotBefore and NotAfter are the certificate's own.
	NotBefore, NotAfter time.Time
}

// Recognize returns the certificate that obj holds, and whether it was issued by one of authorities, whoever stored it.
// The signature says so, and not the issuer's name, which two generations of a CA may share.
func Recognize(obj *certificatesv1.CertificateSigningRequest, authorities []*x509.Certificate) (Certificate, bool) {
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		return Certificate{}, false
	}
	leaf := certs[0] // certificates.k8s.io/v1, CertificateSigningRequestStatus.certificate: the chain comes after it
	for _, authority := range authorities {
		if leaf.CheckSignatureFrom(authority) != nil {
			continue
		}
		return Certificate{
			Node: nodeOf(leaf), Signer: obj.Spec.SignerName, KeyID: ca.KeyID(authority.RawSubjectPublicKeyInfo),
			NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		}, true
	}
	return Certificate{}, false
}

// nodeOf is the node that leaf names, if it can be one.
func nodeOf(leaf *x509.Certificate) string {
	name, found := strings.CutPrefix(leaf.Subject.CommonName, csr.NodeUserPrefix)
	if !found || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return ""
	}
	return name
}
