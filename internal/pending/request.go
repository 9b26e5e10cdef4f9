// Package pending keeps the requests that a controller still has to handle: their order of creation for each
// requester and node, and a work queue in which no requester delays the others. It does no I/O.
package pending

import (
	"hash/maphash"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Digest stands for a text that a requester chose. It is short, whatever the length of the text.
type Digest uint64

var seed = maphash.MakeSeed()

// DigestOf returns the Digest of text in this process. The empty text has the zero Digest.
func DigestOf(text string) Digest {
	if text == "" {
		return 0
	}
	return Digest(maphash.String(seed, text))
}

// Key identifies the requests that replace each other: those of one requester for one node and one signer.
type Key struct {
	Signer          string
	Requester, Node Digest
}

// KeyOf returns the Key of req.
func KeyOf(req *csr.Request) Key {
	return Key{Signer: req.SignerName, Requester: DigestOf(req.Requester.Username), Node: DigestOf(req.NodeName())}
}

// Request is a request as Index and Queue keep it. It holds no text that a requester chose.
type Request struct {
	Name string
	UID  types.UID
	Key
	Created time.Time
}

// Of returns the Request of obj, which req was parsed from. Without req it has no Node.
func Of(obj *certificatesv1.CertificateSigningRequest, req *csr.Request) Request {
	key := Key{Signer: obj.Spec.SignerName, Requester: DigestOf(obj.Spec.Username)}
	if req != nil {
		key = KeyOf(req)
	}
	return Request{Name: obj.Name, UID: obj.UID, Key: key, Created: obj.CreationTimestamp.Time}
}
