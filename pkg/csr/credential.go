package csr

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// CredentialIDKey is the key in Requester.Extra under which the API server records the credential of the requester,
	// from Kubernetes 1.32 on (k8s.io/apiserver/pkg/authentication/user, CredentialIDKey). No requester can set it: only
	// users who may impersonate it, and authenticating front proxies, can.
	CredentialIDKey = "authentication.kubernetes.io/credential-id"
	// CertificateIDPrefix begins the ID of a client certificate. The SHA-256 of its DER follows, in lower-case hex
	// (k8s.io/apiserver/pkg/authentication/request/x509, CommonNameUserConversion).
	CertificateIDPrefix = "X509SHA256="
)

// maxCredentialIDs bounds the IDs that are read of one requester. An API server records one.
const maxCredentialIDs = 8

// Certificates returns the SHA-256 of the client certificates with which w authenticated, in lower-case hex. There is
// at most one, unless a front proxy or an impersonating user has set more: only the first eight IDs count. An ID in
// another form than the API server's, such as upper case, stands for no certificate.
func (w Requester) Certificates() []string {
	var certificates []string
	ids := w.Extra[CredentialIDKey]
	for _, id := range ids[:min(len(ids), maxCredentialIDs)] {
		if text, found := strings.CutPrefix(id, CertificateIDPrefix); found && isSHA256(text) {
			certificates = append(certificates, text)
		}
	}
	return certificates
}

// isSHA256 reports whether text is a SHA-256 in lower-case hex.
func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && strings.ToLower(text) == text
}
