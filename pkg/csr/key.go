package csr

import certificatesv1 "k8s.io/api/certificates/v1"

// NodeOf returns the name of the node that obj names in its subject. It is empty if there is none, and if obj is trimmed
// or cannot be parsed.
func (l Limits) NodeOf(obj *certificatesv1.CertificateSigningRequest) string {
	req, err := l.Parse(obj)
	if err != nil {
		return ""
	}
	return req.NodeName()
}
