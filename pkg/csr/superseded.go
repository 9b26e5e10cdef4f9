package csr

import (
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// MinSupersededAfter is how long a kubelet waits for its request before it makes another request (client-go
// util/certificate, certificateWaitTimeout). No request is deleted earlier.
const MinSupersededAfter = 15 * time.Minute

// Attempt is what tells whether one request of a node stands in for another one.
type Attempt struct{ Signer, Requester, Node string }

// AttemptOf returns the Attempt that obj, which is read within l, is; ok is false for what cannot be superseded: all but the pending requests for
// Kubernetes' two signers of node certificates, for others may have reasons to ask twice.
func (l Limits) AttemptOf(obj *certificatesv1.CertificateSigningRequest) (attempt Attempt, ok bool) {
	switch obj.Spec.SignerName {
	case certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
	default:
		return Attempt{}, false
	}
	if StateOf(obj) != Pending {
		return Attempt{}, false
	}
	req, err := l.Parse(obj)
	if err != nil || req.NodeName() == "" {
		return Attempt{}, false
	}
	return Attempt{Signer: obj.Spec.SignerName, Requester: obj.Spec.Username, Node: req.NodeName()}, true
}
