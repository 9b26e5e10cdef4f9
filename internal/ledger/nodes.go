package ledger

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// shards is the number of ConfigMaps over which the nodes are spread, by name.
	shards = 16
	// maxPerShard keeps a shard below the 1 MiB of an object, whatever the names of nodes. Nodes whose certificates
	// expire first are dropped.
	maxPerShard = 1500
)

// newest holds the newest certificates of a node, by signer name.
type newest map[string]Certificate

// merge takes the newer certificates of other, and reports whether there were any.
func (n newest) merge(other newest) bool {
	changed := false
	for signerName, one := range other {
		known, found := n[signerName]
		newer := cmp.Or(one.NotBefore.Compare(known.NotBefore), one.NotAfter.Compare(known.NotAfter)) > 0
		if !found || newer {
			n[signerName], changed = one, true
		}
	}
	return changed
}

// NodesNames returns the names of the ConfigMaps with the newest certificate of each node and signer.
func NodesNames(secret string) []string {
	names := make([]string, shards)
	for i := range names {
		names[i] = fmt.Sprintf("%s-nodes-%02x", secret, i)
	}
	return names
}

// prune removes expired certificates. If there are too many nodes, it removes those whose certificates expire first.
func prune(all map[string]newest, now time.Time) {
	ends := map[string]time.Time{}
	for node, certificates := range all {
		maps.DeleteFunc(certificates, func(_ string, one Certificate) bool { return !one.NotAfter.After(now) })
		for _, one := range certificates {
			ends[node] = slices.MaxFunc([]time.Time{ends[node], one.NotAfter}, time.Time.Compare)
		}
	}
	maps.DeleteFunc(all, func(_ string, certificates newest) bool { return len(certificates) == 0 })
	byEnd := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(ends[a].Compare(ends[b]), cmp.Compare(a, b))
	})
	for _, node := range byEnd[:max(len(all)-maxPerShard, 0)] {
		delete(all, node)
	}
}

// Certificate is the record of an issued certificate. It is stored by node and signer.
type Certificate struct {
	// Node is the node that the subject names. It is empty for other subjects.
	Node string `json:"-"`
	// Signer is the signer name.
	Signer string `json:"-"`
	// KeyID is the key that signed, see ca.KeyID.
	KeyID string `json:"keyID"`
	// NotBefore and NotAfter are those of the certificate.
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// Recognize returns the certificate that obj holds, and reports whether one of authorities issued it. obj may be trimmed.
// It does not matter which controller stored the certificate. The signature decides, not the issuer's name, which two
// generations of a CA may share.
func Recognize(obj *certificatesv1.CertificateSigningRequest, authorities []*x509.Certificate) (Certificate, bool) {
	record, readable := csr.Certificate(obj)
	if !readable {
		return Certificate{}, false
	}
	for _, authority := range authorities {
		if !record.SignedBy(authority) {
			continue
		}
		found := Certificate{
			Signer: obj.Spec.SignerName, KeyID: ca.KeyID(authority.RawSubjectPublicKeyInfo),
			NotBefore: record.NotBefore, NotAfter: record.NotAfter,
		}
		if len(validation.IsDNS1123Subdomain(record.Node)) == 0 {
			found.Node = record.Node
		}
		return found, true
	}
	return Certificate{}, false
}

// Recorder notes certificates that were issued by any signer, and stores them in batches: their ends in the Book, and the
// newest certificate of each node and signer in 16 ConfigMaps, which show people the nodes that have not moved to a new
// CA. Recorder is safe for concurrent use. Create it with NewRecorder.
type Recorder struct {
	*Book
	secret types.NamespacedName

	mu    sync.Mutex
	ends  map[entryKey]time.Time
	nodes [shards]map[string]newest // by node
	next  int                       // the shard that FlushNodes stores first
}

// NewRecorder returns the Recorder of the Secret secret. The arguments are those of NewBook.
func NewRecorder(
	writer client.Client, reader client.Reader, secret types.NamespacedName, clock clock.PassiveClock,
) *Recorder {
	return &Recorder{
		Book: NewBook(writer, reader, secret, clock), secret: secret, ends: map[entryKey]time.Time{},
	}
}

// Note keeps certificate until it is stored.
func (r *Recorder) Note(certificate Certificate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := entryKey{certificate.KeyID, certificate.Signer}
	if certificate.NotAfter.After(r.ends[key]) {
		r.ends[key] = certificate.NotAfter
	}
	if certificate.Node == "" {
		return
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(certificate.Node))
	shard := sum.Sum32() % shards
	if r.nodes[shard] == nil {
		r.nodes[shard] = map[string]newest{}
	}
	if r.nodes[shard][certificate.Node] == nil {
		r.nodes[shard][certificate.Node] = newest{}
	}
	r.nodes[shard][certificate.Node].merge(newest{certificate.Signer: certificate})
}

// Flush stores the noted ends, and keeps those that it can't store for the next Flush. After a Flush without an
// error, Read includes all earlier notes. A key without an account is no error: its notes wait for an account, and Read
// does not include them.
func (r *Recorder) Flush(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for key, notAfter := range r.ends {
		if err := r.Raise(ctx, key.keyID, key.signerName, notAfter); err == nil {
			delete(r.ends, key)
		} else if !errors.Is(err, ErrNoAccount) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// FlushNodes stores the noted certificates of nodes, with one write for each ConfigMap that changes. It keeps those that
// it can't store for the next call. A ConfigMap that can't be written does not block the others. It removes certificates
// that have expired at now. No decision depends on them, so FlushNodes begins nothing after call.Timeout, and the next call
// continues.
func (r *Recorder) FlushNodes(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, call.Timeout)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	names := NodesNames(r.secret.Name)
	for tried := 0; tried < shards && ctx.Err() == nil; tried++ {
		shard := r.next
		r.next = (r.next + 1) % shards
		if len(r.nodes[shard]) == 0 {
			continue
		}
		store := store{r.store.writer, r.store.reader, types.NamespacedName{Namespace: r.secret.Namespace, Name: names[shard]}}
		err := store.update(ctx, func(data map[string]string) (bool, error) {
			return mergeNodes(data, r.nodes[shard], now)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("store the certificates of nodes: %w", err))
		} else {
			r.nodes[shard] = nil
		}
	}
	return errors.Join(errs...)
}

// mergeNodes merges noted into the stored data, and reports whether it was changed.
func mergeNodes(data map[string]string, noted map[string]newest, now time.Time) (changed bool, err error) {
	all := map[string]newest{}
	for node, text := range data {
		certificates := newest{}
		if err := strictly(text, &certificates); err != nil {
			return false, fmt.Errorf("read the certificates of node %s: %w", node, err)
		}
		all[node] = certificates
	}
	for node, certificates := range noted {
		if all[node] == nil {
			all[node] = newest{}
		}
		changed = all[node].merge(certificates) || changed
	}
	if !changed {
		return false, nil
	}
	prune(all, now)
	clear(data)
	for node, certificates := range all {
		if err := encode(data, node, certificates); err != nil {
			return false, err
		}
	}
	return true, nil
}
