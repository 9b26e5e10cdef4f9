package ledger

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// maxMoved bounds the bytes of nodes that have moved, below the 1 MiB of an object. Nodes above it count as not moved.
const maxMoved = 900_000

// These stand beside the names of nodes, and no node can have them: the key of the CA that signs, and whether more nodes have moved
// than are listed.
const movedKeyID, movedFull = "keyID", "isFull"

// MovedName returns the name of the ConfigMap with the nodes that have moved to the CA that signs.
func MovedName(secret string) string { return secret + "-moved" }

// Certificate is the record of an issued certificate: the node that its subject names, if any, the signer name, and the key that
// signed, see ca.KeyID.
type Certificate struct {
	Node, Signer, KeyID string
	NotAfter            time.Time
}

// Recognize returns the certificate that obj holds, and reports whether one of authorities issued it. obj may be trimmed.
// It does not matter which controller stored the certificate. The signature decides, not the issuer's name, which two
// generations of a CA may share.
func Recognize(obj *certificatesv1.CertificateSigningRequest, authorities []*x509.Certificate) (Certificate, bool) {
	record, readable := csr.Certificate(obj)
	keyID := record.SignedBy(authorities)
	if !readable || keyID == "" {
		return Certificate{}, false
	}
	if len(validation.IsDNS1123Subdomain(record.Node)) > 0 {
		record.Node = ""
	}
	return Certificate{record.Node, obj.Spec.SignerName, keyID, record.NotAfter}, true
}

// Recorder notes certificates that were issued by any signer, and stores them in batches: their ends in the Book, and in a
// ConfigMap the nodes that have moved to the CA that signs. Recorder is safe for concurrent use. Create it with NewRecorder.
type Recorder struct {
	*Book
	list store // of the nodes that have moved

	mu    sync.Mutex
	ends  map[string]map[string]time.Time // by key ID and signer name
	moved sets.Set[movedNode]
}

// movedNode is a node to which a key has issued a certificate, by a signer's short name.
type movedNode struct{ keyID, node, signer string }

// NewRecorder returns the Recorder of the Secret secret. The arguments are those of NewBook.
func NewRecorder(
	writer client.Client, reader client.Reader, secret types.NamespacedName, clock clock.PassiveClock,
) *Recorder {
	return &Recorder{
		Book: NewBook(writer, reader, secret, clock), ends: map[string]map[string]time.Time{}, moved: sets.New[movedNode](),
		list: store{writer, reader, types.NamespacedName{Namespace: secret.Namespace, Name: MovedName(secret.Name)}},
	}
}

// Note keeps certificate until it is stored.
func (r *Recorder) Note(certificate Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ends[certificate.KeyID] == nil {
		r.ends[certificate.KeyID] = map[string]time.Time{}
	}
	if ends := r.ends[certificate.KeyID]; certificate.NotAfter.After(ends[certificate.Signer]) {
		ends[certificate.Signer] = certificate.NotAfter
	}
	if builtin, _ := csr.BuiltinSigner(certificate.Signer); certificate.Node != "" && builtin.OfKubelets {
		signer := strings.TrimPrefix(certificate.Signer, "kubernetes.io/")
		r.moved.Insert(movedNode{certificate.KeyID, certificate.Node, signer})
	}
}

// Flush stores the noted ends, and keeps those that it can't store for the next Flush. After a Flush without an
// error, Read includes all earlier notes. A key without an account is no error: its notes wait for an account, and Read
// does not include them.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for keyID, ends := range r.ends {
		if err := r.Raise(ctx, keyID, ends); err == nil {
			delete(r.ends, keyID)
		} else if !errors.Is(err, ErrNoAccount) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// FlushMoved stores which of the noted nodes have moved to the CA keyID, which signs now, and removes those of another CA. If it
// can't, the next call does. No decision of the manager depends on it, so it begins nothing after call.Timeout.
func (r *Recorder) FlushMoved(ctx context.Context, keyID string) error {
	ctx, cancel := context.WithTimeout(ctx, call.Timeout)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.moved) == 0 {
		return nil
	}
	err := r.list.update(ctx, func(data map[string]string) (bool, error) { return addMoved(data, r.moved, keyID), nil })
	if err == nil {
		r.moved = sets.New[movedNode]()
	}
	return err
}

// addMoved adds the nodes that have moved to the CA keyID to the stored data, and reports whether it was changed.
func addMoved(data map[string]string, noted sets.Set[movedNode], keyID string) (changed bool) {
	if data[movedKeyID] != keyID {
		clear(data)
		data[movedKeyID], changed = keyID, true
	}
	size := 0
	for node, signers := range data {
		size += len(node) + len(signers)
	}
	for one := range noted {
		known := sets.New(strings.FieldsFunc(data[one.node], func(r rune) bool { return r == ',' })...)
		switch {
		case one.keyID != keyID, known.Has(one.signer), data[movedFull] != "":
		case size > maxMoved:
			data[movedFull], changed = "true", true
		default:
			data[one.node], changed = strings.Join(sets.List(known.Insert(one.signer)), ","), true
			size += len(one.node) + len(one.signer) + 1
		}
	}
	return changed
}
