package csr

import (
	"crypto/x509"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// X509Usages returns the X.509 form of usages, without those that have none.
func X509Usages(usages []certificatesv1.KeyUsage) (x509.KeyUsage, []x509.ExtKeyUsage) {
	key, ext, _ := x509Usages(usages)
	return key, ext
}
