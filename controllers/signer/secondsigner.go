package signer

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// FieldManager is the field manager of the signer's writes, whatever the program is called.
const FieldManager = "csr-controller-manager"

const (
	// handover is how long after an election the former leader, with the same FieldManager, may still store certificates.
	handover = time.Minute
	// secondSignerEvery is the minimum time between two Events about the same pair of signer and field manager.
	secondSignerEvery = 10 * time.Minute
	// secondSigners bounds the pairs of signer and field manager whose last Event is cached.
	secondSigners = 100
)

// certificates distinguishes the certificates of this process from certificates of others. The zero value is ready. It
// is safe for concurrent use.
type certificates struct {
	mu       sync.Mutex
	elected  time.Time                                 // when this process was elected
	own      map[string]map[[sha256.Size]byte]struct{} // request name → digests of the certificates issued for it
	foreign  map[string]types.UID                      // request name → UID, if its foreign certificate is unreported
	reported *lru.Cache                                // signer and field manager → time of the last Event
}

// add records a certificate before it is written to the named request.
func (c *certificates) add(name string, pem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.own == nil {
		c.own = map[string]map[[sha256.Size]byte]struct{}{}
	}
	if c.own[name] == nil {
		c.own[name] = map[[sha256.Size]byte]struct{}{}
	}
	c.own[name][sha256.Sum256(pem)] = struct{}{}
}

// underWay reports whether a certificate was issued for the named request that the watch has not shown yet.
func (c *certificates) underWay(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.own[name]) > 0
}

// remove forgets a certificate that is not stored and never will be.
func (c *certificates) remove(name string, pem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own[name], sha256.Sum256(pem))
	if len(c.own[name]) == 0 {
		delete(c.own, name)
	}
}

// observe records the certificate in obj, and reports whether another program has issued it.
func (c *certificates) observe(obj *certificatesv1.CertificateSigningRequest) (foreign bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, own := c.own[obj.Name][csr.CertificateDigest(obj)]
	delete(c.own, obj.Name)
	if own {
		return false
	}
	if c.foreign == nil {
		c.foreign = map[string]types.UID{}
	}
	c.foreign[obj.Name] = obj.UID
	return true
}

// unreported reports whether obj has a foreign certificate that is not reported yet.
func (c *certificates) unreported(obj *certificatesv1.CertificateSigningRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid, found := c.foreign[obj.Name]
	return found && uid == obj.UID
}

// drop forgets the certificates of the named request.
func (c *certificates) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own, name)
	delete(c.foreign, name)
}

// inHandover reports whether the former leader may have stored a certificate that is observed now.
func (c *certificates) inHandover(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elected.IsZero() || now.Sub(c.elected) < handover
}

// eventDue reports whether an Event about manager as a second signer for signerName is due, and records it.
func (c *certificates) eventDue(signerName, manager string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported == nil {
		c.reported = lru.New(secondSigners)
	}
	key := [2]string{signerName, manager}
	if last, known := c.reported.Get(key); known && now.Sub(last.(time.Time)) < secondSignerEvery {
		return false
	}
	c.reported.Add(key, now)
	return true
}

// atElection returns a source that records the time of the election. The controller starts its sources then.
func (r *Reconciler) atElection() source.Source {
	return source.Func(func(context.Context, requestQueue) error {
		r.certificates.mu.Lock()
		defer r.certificates.mu.Unlock()
		r.certificates.elected = r.Clock.Now()
		return nil
	})
}

// gotForeign reports whether an update added a certificate that this process has not issued. It ignores a certificate
// that the request had before the election.
func (r *Reconciler) gotForeign(before, after client.Object) bool {
	old, ok := before.(*certificatesv1.CertificateSigningRequest)
	obj, okay := after.(*certificatesv1.CertificateSigningRequest)
	if !ok || !okay || len(obj.Status.Certificate) == 0 || len(old.Status.Certificate) > 0 && old.UID == obj.UID {
		return false
	}
	_, signed := r.Signers[obj.Spec.SignerName]
	return signed && !r.DryRun && r.certificates.observe(obj)
}

// reportForeign reports a certificate that another signer has stored for one of Signers. Two signers with the same
// name race for each request, and may use different CAs.
func (r *Reconciler) reportForeign(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	if !r.certificates.unreported(obj) {
		return nil
	}
	// The cache omits managedFields.
	stored, err := r.read(ctx, obj)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read field manager of the certificate: %w", err)
	}
	r.certificates.drop(obj.Name)
	now, manager := r.Clock.Now(), ""
	if err == nil && stored.UID == obj.UID {
		manager = certificateManager(stored)
	}
	handover := r.certificates.inHandover(now) || r.OthersActive != nil && r.OthersActive()
	if handover && (manager == FieldManager || manager == "") {
		return nil
	}
	foreignTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	log.FromContext(ctx).Info("Another signer has stored a certificate",
		"uid", obj.UID, "signer", obj.Spec.SignerName, "manager", fmt.Sprintf("%+q", manager))
	if r.certificates.eventDue(obj.Spec.SignerName, manager, now) {
		message := secondSignerSentence(obj.Spec.SignerName, manager)
		r.Reporter.Object(obj, corev1.EventTypeWarning, "Sign", "SecondSigner", message)
	}
	return nil
}

// secondSignerSentence returns the note of the Event. It quotes manager, because the other signer chooses that name.
func secondSignerSentence(signerName, manager string) string {
	by := fmt.Sprintf("field manager %+q", manager)
	switch manager {
	case FieldManager:
		by = "another " + FieldManager
	case "":
		by = "an unknown field manager"
	}
	return fmt.Sprintf("%s has stored the certificate of this request, but this manager signs for %s too: "+
		"disable that signer in one of the two, and check the issuer of this certificate", by, signerName)
}

// certificateManager returns the field manager that has set status.certificate. If there are several, it prefers
// FieldManager. It returns an empty string if the API server recorded none, as for a request that was created with a
// name and nothing else in its metadata: of such an object no field has an owner, because only status can be updated.
func certificateManager(obj *certificatesv1.CertificateSigningRequest) string {
	var managers []string
	for _, entry := range obj.ManagedFields {
		var set struct {
			Status struct {
				Certificate *struct{} `json:"f:certificate"`
			} `json:"f:status"`
		}
		if entry.FieldsV1 == nil || json.Unmarshal(entry.FieldsV1.GetRawBytes(), &set) != nil {
			continue
		}
		if set.Status.Certificate != nil {
			managers = append(managers, entry.Manager)
		}
	}
	switch {
	case slices.Contains(managers, FieldManager):
		return FieldManager
	case len(managers) > 0:
		return managers[0]
	default:
		return ""
	}
}
