package csr

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// CredentialIDKey is the key in Requester.Extra under which the API server records the credential of the requester,
	// from Kubernetes 1.32 on (k8s.io/apiserver/pkg/authentication/user, CredentialIDKey). No requester can set it: only
	// users who may impersonate it, authenticating front proxies and webhooks that authenticate tokens can.
	CredentialIDKey = "authentication.kubernetes.io/credential-id"
	// CertificateIDPrefix begins the ID of a client certificate. The SHA-256 of its DER follows, in lower-case hex
	// (k8s.io/apiserver/pkg/authentication/request/x509, CommonNameUserConversion).
	CertificateIDPrefix = "X509SHA256="
)

// Certificates returns the SHA-256 of the client certificates with which w authenticated, in lower-case hex. There is
// at most one, unless a front proxy, a webhook or an impersonating user has set more.
//
// The SHA-256 is that of the whole certificate, with its signature. Whoever has the certificate can write the signature
// in another way that verifies as well, so the value connects requests of honest clients only.
func (w Requester) Certificates() []string {
	var certificates []string
	for _, id := range w.Extra[CredentialIDKey] {
		text, found := strings.CutPrefix(id, CertificateIDPrefix)
		if sum, err := hex.DecodeString(text); found && err == nil && len(sum) == sha256.Size {
			certificates = append(certificates, strings.ToLower(text))
		}
	}
	return certificates
}
