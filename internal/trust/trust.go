// Package trust has what the cluster publishes about the CAs that verifiers trust: names, bundles, and how to read them. It
// is pure.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"go/version"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// The ConfigMap in which API servers publish all CAs that they trust for client certificates, and which aggregated
// API servers use. API servers only add to it: a CA stays there until it expires. They write the certificates alone,
// without the text between them (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
const (
	ExtensionNamespace = "kube-system"
	ExtensionName      = "extension-apiserver-authentication"
	ExtensionKey       = "client-ca-file"
)

// Certificates returns the certificates in a key of obj, or none if obj has no such key.
func Certificates(obj *corev1.ConfigMap, key string) ([]*x509.Certificate, error) {
	if obj.Data[key] == "" {
		return nil, nil
	}
	certs, err := ca.ParseCertificates([]byte(obj.Data[key]))
	if err == nil && len(certs) == 0 {
		err = errors.New("it holds no certificate")
	}
	if err != nil {
		return nil, fmt.Errorf("%s of ConfigMap %s/%s: %w", key, obj.Namespace, obj.Name, err)
	}
	return certs, nil
}

// ReadsMLDSA reports whether a program that was built with that version of Go, as /version names it, verifies ML-DSA: Go 1.27 or later
// (crypto/mldsa). A version that is no release, as of a development build, counts as new.
func ReadsMLDSA(goVersion string) bool {
	built, _, _ := strings.Cut(goVersion, " ")
	return !version.IsValid(built) || version.Compare(built, "go1.27") >= 0
}

// Above returns those of trusted by which chain[0] is accepted at now, without the CA of chain[0] itself. A verifier that
// trusts one of them can't refuse certificates that chain[0] has signed. The rest of chain are the certificates that
// clients present with it.
func Above(trusted, chain []*x509.Certificate, now time.Time) (above []*x509.Certificate) {
	options := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, one := range chain[1:] {
		options.Intermediates.AddCert(one)
	}
	for _, one := range trusted {
		options.Roots = x509.NewCertPool()
		options.Roots.AddCert(one)
		if _, err := chain[0].Verify(options); err == nil && !SameCA(one, chain[0]) {
			above = append(above, one)
		}
	}
	return above
}

// BundleName returns the name of the ClusterTrustBundle of a signer. It must begin with the signer's name
// (k8s.io/kubernetes/pkg/apis/core/validation, ValidateClusterTrustBundleName).
func BundleName(signerName, suffix string) string {
	return strings.ReplaceAll(signerName, "/", ":") + ":" + suffix
}

// Bundle returns certs in PEM, in that order and without headers or text in between, as a ClusterTrustBundle requires
// (k8s.io/api/certificates/v1beta1). It skips certificates that have expired by now, and duplicates.
func Bundle(now time.Time, certs ...*x509.Certificate) []byte {
	var bundle bytes.Buffer
	for i, cert := range certs {
		if now.Before(cert.NotAfter) && !slices.ContainsFunc(certs[:i], cert.Equal) {
			_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer accepts everything
		}
	}
	return bundle.Bytes()
}

// SameCA reports whether one and other belong to the same CA, by name and key: each could have signed the other's
// certificates.
func SameCA(one, other *x509.Certificate) bool {
	return bytes.Equal(one.RawSubject, other.RawSubject) &&
		bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
}
