// Package trust publishes the CAs that verifiers must trust, and takes those away that they must not. It decides
// nothing about which those are, and never reads from a cache.
//
// It needs get, create and update on the ConfigMaps that it is told to write (create can't be limited to names), get
// and update on extension-apiserver-authentication, and, where the API server serves ClusterTrustBundles, all of the
// verbs below on them and attest on every signer (or on its domain, as example.com/*) that has one.
//
// +kubebuilder:rbac:groups="",resources=configmaps,namespace=kube-system,resourceNames=extension-apiserver-authentication,verbs=get;update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=clustertrustbundles,verbs=get;list;create;update;delete
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client;kubernetes.io/kube-apiserver-client-kubelet;kubernetes.io/kubelet-serving,verbs=attest
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"time"
)

// Bundle is certs in PEM, in that order and without headers or text between, which is how a ClusterTrustBundle wants it
// (k8s.io/api/certificates/v1beta1). What has ended by now, and what is there already, is left out.
func Bundle(now time.Time, certs ...*x509.Certificate) []byte {
	var bundle bytes.Buffer
	for i, cert := range certs {
		if now.Before(cert.NotAfter) && !slices.ContainsFunc(certs[:i], cert.Equal) {
			_ = pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer takes everything
		}
	}
	return bundle.Bytes()
}

// SameCA says whether what one has signed the other could have signed: same name, same key.
func SameCA(one, other *x509.Certificate) bool {
	return bytes.Equal(one.RawSubject, other.RawSubject) &&
		bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
}
