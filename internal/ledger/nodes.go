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

// Nodes holds the newest certificate of each node and signer, to show people which nodes have moved to a new CA. No
// decision depends on it: notes that were not flushed may be lost. Nodes is safe for concurrent use. Create it with
// NewNodes.
type Nodes struct {
	stores [shards]*store
	clock  clock.PassiveClock

	mu      sync.Mutex
	pending [shards]map[string]newest // by node
}

// newest holds certificates by signer name.
type newest map[string]issued

// issued is a Certificate in its stored form.
type issued struct {
	KeyID     string    `json:"keyID"`
	NotBefore time.Time `json:"notBefore"`
	NotAfter  time.Time `json:"notAfter"`
}

// NewNodes returns the Nodes of the Secret secret. writer and reader are as for NewBook.
func NewNodes(
	writer client.Client, reader client.Reader, secret types.NamespacedName, clock clock.PassiveClock,
) *Nodes {
	n := &Nodes{clock: clock}
	for i, name := range NodesNames(secret.Name) {
		at := types.NamespacedName{Namespace: secret.Namespace, Name: name}
		n.stores[i] = &store{writer: writer, reader: reader, name: at}
	}
	return n
}

// NodesNames returns the names of the ConfigMaps with the nodes of a Secret.
func NodesNames(secret string) []string {
	names := make([]string, shards)
	for i := range names {
		names[i] = fmt.Sprintf("%s-nodes-%02x", secret, i)
	}
	return names
}

// Note keeps certificate for the next Flush, if it belongs to a node.
func (n *Nodes) Note(certificate Certificate) {
	if certificate.Node == "" {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note(certificate.Node, newest{
		certificate.Signer: {certificate.KeyID, certificate.NotBefore.UTC(), certificate.NotAfter.UTC()},
	})
}

// note keeps the newer certificates. The caller holds mu.
func (n *Nodes) note(node string, certificates newest) {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(node))
	shard := sum.Sum32() % shards
	if n.pending[shard] == nil {
		n.pending[shard] = map[string]newest{}
	}
	if n.pending[shard][node] == nil {
		n.pending[shard][node] = newest{}
	}
	n.pending[shard][node].merge(certificates)
}

// merge takes the newer certificates of other, and reports whether there were any.
func (n newest) merge(other newest) bool {
	changed := false
	for signerName, one := range other {
		known, found := n[signerName]
		newer := cmp.Or(one.NotBefore.Compare(known.NotBefore), one.NotAfter.Compare(known.NotAfter)) > 0
		if found && !newer {
			continue
		}
		n[signerName] = one
		changed = true
	}
	return changed
}

// Flush stores the notes, with one write for each ConfigMap that changes. If a write fails, the next Flush retries
// it. A ConfigMap that can't be written does not block the others.
func (n *Nodes) Flush(ctx context.Context) error {
	var errs []error
	for shard := range shards {
		n.mu.Lock()
		noted := n.pending[shard]
		n.pending[shard] = nil
		n.mu.Unlock()
		if len(noted) == 0 {
			continue
		}
		if err := n.flush(ctx, shard, noted); err != nil {
			n.mu.Lock()
			for node, certificates := range noted {
				n.note(node, certificates)
			}
			n.mu.Unlock()
			errs = append(errs, fmt.Errorf("store the certificates of nodes: %w", err))
		}
	}
	return errors.Join(errs...)
}

func (n *Nodes) flush(ctx context.Context, shard int, noted map[string]newest) error {
	now := n.clock.Now()
	return n.stores[shard].update(ctx, func(data map[string]string) (bool, error) {
		all, err := nodesIn(data)
		if err != nil {
			return false, fmt.Errorf("ConfigMap %s: %w", n.stores[shard].name, err)
		}
		changed := false
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
	})
}

// prune removes expired certificates. If there are too many nodes, it removes those whose certificates expire first.
func prune(all map[string]newest, now time.Time) {
	for node, certificates := range all {
		maps.DeleteFunc(certificates, func(_ string, one issued) bool { return !one.NotAfter.After(now) })
		if len(certificates) == 0 {
			delete(all, node)
		}
	}
	if len(all) <= maxPerShard {
		return
	}
	latest := func(node string) (end time.Time) {
		for _, one := range all[node] {
			if one.NotAfter.After(end) {
				end = one.NotAfter
			}
		}
		return end
	}
	byEnd := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(latest(a).Compare(latest(b)), cmp.Compare(a, b))
	})
	for _, node := range byEnd[:len(all)-maxPerShard] {
		delete(all, node)
	}
}

func nodesIn(data map[string]string) (map[string]newest, error) {
	all := map[string]newest{}
	for node, text := range data {
		certificates := newest{}
		if err := strictly(text, &certificates); err != nil {
			return nil, fmt.Errorf("read the certificates of node %s: %w", node, err)
		}
		all[node] = certificates
	}
	return all, nil
}

// Read returns the stored certificates that are still valid, sorted by node and signer name. The error names the
// ConfigMaps that can't be read. The certificates of the other ConfigMaps are returned with the error.
func (n *Nodes) Read(ctx context.Context) ([]Certificate, error) {
	now := n.clock.Now()
	var read []Certificate
	var errs []error
	for _, store := range n.stores {
		obj, err := store.get(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all, err := nodesIn(obj.Data)
		if err != nil {
			errs = append(errs, fmt.Errorf("ConfigMap %s: %w", store.name, err))
			continue
		}
		prune(all, now)
		for node, certificates := range all {
			for signerName, one := range certificates {
				read = append(read, Certificate{
					Node: node, Signer: signerName, KeyID: one.KeyID, NotBefore: one.NotBefore, NotAfter: one.NotAfter,
				})
			}
		}
	}
	slices.SortFunc(read, func(a, b Certificate) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Signer, b.Signer))
	})
	return read, errors.Join(errs...)
}

// Certificate is the record of an issued certificate.
type Certificate struct {
	// Node is the node that the subject names. It is empty for other subjects.
	Node string
	// Signer is the signer name, and KeyID the key that signed, see ca.KeyID.
	Signer, KeyID string
	// NotBefore and NotAfter are those of the certificate.
	NotBefore, NotAfter time.Time
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

// flushEvery is the interval at which notes are stored.
const flushEvery = 5 * time.Second

// Recorder notes certificates that were issued by any signer, and stores them in batches.
type Recorder struct {
	Book  *Book
	Nodes *Nodes

	flushing sync.Mutex // a Flush also waits for a concurrent Flush
	mu       sync.Mutex
	pending  map[entryKey]time.Time // the latest end
}

// Note keeps certificate for the next Flush, and for the Nodes.
func (r *Recorder) Note(certificate Certificate) {
	r.Nodes.Note(certificate)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteEnd(entryKey{certificate.KeyID, certificate.Signer}, certificate.NotAfter)
}

// noteEnd keeps the later end. The caller holds mu.
func (r *Recorder) noteEnd(key entryKey, notAfter time.Time) {
	if r.pending == nil {
		r.pending = map[entryKey]time.Time{}
	}
	if notAfter.After(r.pending[key]) {
		r.pending[key] = notAfter
	}
}

// Flush stores the noted ends, and keeps those that it can't store for the next Flush. After a Flush without an
// error, Book.Read includes all earlier notes. A key without an account is no error: its notes wait for an account,
// and Read does not include them. Flush does not store the Nodes, on which no decision depends. Run stores them.
func (r *Recorder) Flush(ctx context.Context) error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.mu.Lock()
	noted := r.pending
	r.pending = nil
	r.mu.Unlock()
	var errs []error
	for key, notAfter := range noted {
		if err := r.Book.Raise(ctx, key.keyID, key.signerName, notAfter); err != nil {
			if !errors.Is(err, ErrNoAccount) {
				errs = append(errs, err)
			}
			r.mu.Lock()
			r.noteEnd(key, notAfter)
			r.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// store stores all notes.
func (r *Recorder) store(ctx context.Context) error {
	return errors.Join(r.Flush(ctx), r.Nodes.Flush(ctx))
}

// Run stores the notes every few seconds until ctx ends, and then once more. It calls tell with each error.
func (r *Recorder) Run(ctx context.Context, tell func(error)) {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
			if err := r.store(last); err != nil {
				tell(err)
			}
			return
		case <-ticker.C:
			if err := r.store(ctx); err != nil && ctx.Err() == nil {
				tell(err)
			}
		}
	}
}
