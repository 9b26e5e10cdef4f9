package csr

import "crypto/x509"

// ReplaceParser replaces the PKCS#10 parser of Parse with parse. It returns the function that restores it.
func ReplaceParser(parse func([]byte) (*x509.CertificateRequest, error)) (restore func()) {
	original := parsePKCS10
	parsePKCS10 = parse
	return func() { parsePKCS10 = original }
}
