package csr

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// MinSupersededAfter is how long a kubelet waits for its request before it makes another request (client-go
// util/certificate, certificateWaitTimeout). No request is deleted earlier.
const MinSupersededAfter = 15 * time.Minute

// Supersedable parses obj within l and reports whether a newer request of the same requester, for the same node and signer,
// can supersede it. Only pending requests for Kubernetes' two signers of node certificates can be superseded, because users
// of other signers may have reasons to ask twice.
func (l Limits) Supersedable(obj *certificatesv1.CertificateSigningRequest) (req *Request, ok bool) {
	switch obj.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
	default:
		return nil, false
	}
	if StateOf(obj) != Pending {
		return nil, false
	}
	req, err := l.Parse(obj)
	if err != nil || req.NodeName() == "" {
		return nil, false
	}
	return req, true
}
