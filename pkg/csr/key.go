package csr

import (
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
)

// Key returns the key of obj in the queues of approver and signer. A request that names a node shares its lane with the
// other requests of its requester for that node. Any other request, and one that can't be parsed or is trimmed, has a
// lane of its own.
func (l Limits) Key(obj *certificatesv1.CertificateSigningRequest) fairqueue.Key {
	key := fairqueue.Key{
		Name: obj.Name, UID: obj.UID, Created: obj.CreationTimestamp.Unix(),
		Requester: fairqueue.Digest(obj.Spec.Username),
	}
	req, err := l.Parse(obj)
	if err == nil && req.NodeName() != "" {
		key.Lane = fairqueue.Digest("node", obj.Spec.Username, req.NodeName())
	} else {
		key.Lane = fairqueue.Digest("request", obj.Name, string(obj.UID))
	}
	return key
}
