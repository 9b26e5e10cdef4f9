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
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// FieldManager is the name under which the API server notes what the signer writes, whatever the program is called.
const FieldManager = "csr-controller-manager"

const (
	// handover is how long after an election a certificate with our own FieldManager may still be the former leader's.
	handover = time.Minute
	// secondSignerEvery is the time between two Events about one manager that signs for one signer.
	secondSignerEvery = 10 * time.Minute
	// secondSigners bounds the pairs of signer and manager whose last Event is remembered.
	secondSigners = 100
)

// certificates tells our own certificates from those of others. The zero value is ready. It is safe for concurrent use.
type certificates struct {
	mu      sync.Mutex
	began   time.Time                                 // when this process was elected
	own     map[string]map[[sha256.Size]byte]struct{} // name of a request → digests of the certificates that were made for it
	foreign map[string]types.UID                      // name of a request that has a certificate of others, not reported yet
	told    *lru.Cache                                // signer and manager → time of the last Event
}

// begin notes when this process was elected.
func (c *certificates) begin(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began = now
}

// writes notes a certificate before it is written into the request of that name.
func (c *certificates) writes(name string, pem []byte) {
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

// discards forgets a certificate that is not stored, and never will be.
func (c *certificates) discards(name string, pem []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own[name], sha256.Sum256(pem))
	if len(c.own[name]) == 0 {
		delete(c.own, name)
	}
}

// arrives notes that obj has got a certificate, and reports whether it is somebody else's.
func (c *certificates) arrives(obj *certificatesv1.CertificateSigningRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ours := c.own[obj.Name][sha256.Sum256(obj.Status.Certificate)]
	delete(c.own, obj.Name)
	if ours {
		return false
	}
	if c.foreign == nil {
		c.foreign = map[string]types.UID{}
	}
	c.foreign[obj.Name] = obj.UID
	return true
}

// waits reports whether obj has a certificate of others that has not been reported.
func (c *certificates) waits(obj *certificatesv1.CertificateSigningRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	uid, found := c.foreign[obj.Name]
	return found && uid == obj.UID
}

// reported ends what arrives began.
func (c *certificates) reported(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.foreign, name)
}

// drop forgets the request of that name, which is gone.
func (c *certificates) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.own, name)
	delete(c.foreign, name)
}

// mayBeFormer reports whether the leader before this one may have written what is seen now.
func (c *certificates) mayBeFormer(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.began.IsZero() || now.Sub(c.began) < handover
}

// due reports whether an Event about manager as signerName's second signer is due, and notes it.
func (c *certificates) due(signerName, manager string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told == nil {
		c.told = lru.New(secondSigners)
	}
	key := [2]string{signerName, manager}
	if last, known := c.told.Get(key); known && now.Sub(last.(time.Time)) < secondSignerEvery {
		return false
	}
	c.told.Add(key, now)
	return true
}

// gotForeign reports whether an update of a request brought a certificate that this process has not made. A certificate that
// is there when this process is elected is no news.
func (r *Reconciler) gotForeign(before, after client.Object) bool {
	old, ok := before.(*certificatesv1.CertificateSigningRequest)
	obj, okay := after.(*certificatesv1.CertificateSigningRequest)
	if !ok || !okay || len(obj.Status.Certificate) == 0 || len(old.Status.Certificate) > 0 && old.UID == obj.UID {
		return false
	}
	_, signed := r.Signers[obj.Spec.SignerName]
	return signed && !r.DryRun && r.certificates.arrives(obj)
}

// reportForeign reports a certificate that another signer has stored for one of Signers. Two signers of one name race for
// each request, and may sign with different CAs.
func (r *Reconciler) reportForeign(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	if !r.certificates.waits(obj) {
		return nil
	}
	// The cache holds no managedFields.
	stored, err := r.read(ctx, obj)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read who has stored the certificate: %w", err)
	}
	r.certificates.reported(obj.Name)
	now, manager := r.Clock.Now(), ""
	if err == nil && stored.UID == obj.UID {
		manager = certificateManager(stored)
	}
	if (manager == FieldManager || manager == "") && r.certificates.mayBeFormer(now) {
		return nil
	}
	foreignTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	log.FromContext(ctx).Info("Another signer has stored a certificate", "uid", obj.UID, "signer", obj.Spec.SignerName, "manager", fmt.Sprintf("%+q", manager))
	if r.certificates.due(obj.Spec.SignerName, manager, now) {
		r.Reporter.Object(obj, corev1.EventTypeWarning, "Sign", "SecondSigner", secondSignerSentence(obj.Spec.SignerName, manager))
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
	return fmt.Sprintf("%s has stored the certificate of this request, and this manager signs for %s too: only one of them may; "+
		"switch that signer off in one, and check the issuer of this certificate", by, signerName)
}

// certificateManager returns the field manager that has set status.certificate, FieldManager if it is one of several, or
// nothing if the API server has not noted it.
func certificateManager(obj *certificatesv1.CertificateSigningRequest) string {
	var managers []string
	for _, entry := range obj.ManagedFields {
		if entry.FieldsV1 != nil && setsCertificate(entry.FieldsV1.GetRawBytes()) {
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

// setsCertificate reports whether fields, of managedFields, hold status.certificate.
func setsCertificate(fields []byte) bool {
	var set struct {
		Status struct {
			Certificate *struct{} `json:"f:certificate"`
		} `json:"f:status"`
	}
	return json.Unmarshal(fields, &set) == nil && set.Status.Certificate != nil
}

// atElection notes the election, at which the sources of the controller start.
func (r *Reconciler) atElection() source.Source {
	return source.Func(func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		r.certificates.begin(r.Clock.Now())
		return nil
	})
}
