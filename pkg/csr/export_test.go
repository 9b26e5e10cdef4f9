package csr

import "crypto/x509"

// ReplaceParser makes Parse read PKCS#10 with parse, and returns the function that undoes it.
func ReplaceParser(parse func([]byte) (*x509.CertificateRequest, error)) (restore func()) {
	original := parsePKCS10
	parsePKCS10 = parse
	return func() { parsePKCS10 = original }
}
