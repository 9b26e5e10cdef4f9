package rotation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// shortestCap is the least lifetime cap. With a shorter one, certificates would be due for renewal when they are
// issued.
const shortestCap = 2 * ca.ShortestLifetime

// execute takes the action of step, and writes it to the audit log once. A leader that was replaced meanwhile must not
// act on outdated observations. If the intent was stored just now, no other leader has acted since. If it was stored
// before, again is set, and execute reads the authority once more.
func (r *Reconciler) execute(
	ctx context.Context, obj *v1alpha1.SigningAuthority, step step, o *observation, again bool,
) error {
	if !again {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, auditRecord(obj, step.Action))
	} else if err := r.current(ctx, obj); err != nil {
		return err
	}
	if err := r.act(ctx, obj, step, o); err != nil {
		return fmt.Errorf("%s: %w", step.Action, err)
	}
	log.FromContext(ctx).Info("Took a step of a rotation",
		"action", step.Action, "phase", obj.Status.Phase, "generation", obj.Status.Generation)
	return nil
}

// current returns a Conflict if obj has changed since it was read or written. It ignores annotations: they request what
// the next reconcile decides, and a client that changes them all the time could otherwise stop every step.
func (r *Reconciler) current(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	latest := &v1alpha1.SigningAuthority{}
	if err := call.Get(ctx, r.Live, client.ObjectKeyFromObject(obj), latest); err != nil {
		return err
	}
	sameStatus := equality.Semantic.DeepEqual(latest.Status, obj.Status)
	if latest.UID == obj.UID && latest.Generation == obj.Generation && sameStatus {
		return nil
	}
	resource := v1alpha1.GroupVersion.WithResource("signingauthorities").GroupResource()
	return apierrors.NewConflict(resource, obj.Name, errors.New("it has changed since it was read"))
}

// act takes the action of step. Each action is idempotent.
func (r *Reconciler) act(ctx context.Context, obj *v1alpha1.SigningAuthority, step step, o *observation) error {
	book, made := r.recorder(obj).Book, keypair.Pair{}
	switch step.Action {
	case Publish:
		return r.publisher.Publish(ctx, o.changes)
	case Open:
		return book.Open(ctx, step.Account)
	case Unseal:
		return book.Unseal(ctx, step.Account)
	case Seal:
		return r.seal(ctx, obj, o.Now)
	case Prune:
		return r.prune(ctx, obj)
	case MakeRenewed:
		made = keypair.Pair{Cert: o.renewed.CertificatePEM(), Key: o.ring.Signing.Key}
	case MakeCandidate, TakeCandidate: // the ledger must know a CA before it is stored anywhere
		var keyID string
		if step.Action == TakeCandidate {
			keyID = obj.Status.Candidate.KeyID
		} else {
			authority, key, err := createCA(obj, o.Now)
			if err != nil {
				return fmt.Errorf("create CA: %w", err)
			}
			keyID, made = authority.KeyID(), keypair.Pair{Cert: authority.CertificatePEM(), Key: key}
		}
		if err := book.Open(ctx, keyID); err != nil {
			return err
		}
	}
	return r.changeSecret(ctx, obj, o, step.Action, made)
}

// seal closes the account of the retiring CA. If the account is lost, seal closes an empty one, but only if nothing
// depends on it: the administrator accepted outstanding certificates, or the CA has expired.
func (r *Reconciler) seal(ctx context.Context, obj *v1alpha1.SigningAuthority, now time.Time) error {
	book, retiring := r.recorder(obj).Book, obj.Status.Retiring
	if retiring.OutstandingAcceptedAt != nil || !retiring.NotAfter.After(now) {
		if err := book.Open(ctx, retiring.KeyID); err != nil { // it changes no account that exists
			return err
		}
	}
	return book.Seal(ctx, retiring.KeyID)
}

// createCA creates a CA as obj wants it.
func createCA(obj *v1alpha1.SigningAuthority, now time.Time) (*ca.Authority, []byte, error) {
	// Each CA has a name of its own, so no verifier confuses two of them. A name has at most 64 letters (X.520).
	suffix := fmt.Sprintf("-g%d-%d", obj.Status.Generation, now.Unix())
	return ca.New(ca.NewOptions{
		CommonName: obj.Name[:min(len(obj.Name), 64-len(suffix))] + suffix,
		Algorithm:  ca.Algorithm(obj.Spec.CA.KeyAlgorithm),
		Lifetime:   lifetimeOf(obj),
	}, now)
}

// lifetimeOf returns the lifetime of a CA of obj, or zero for the default.
func lifetimeOf(obj *v1alpha1.SigningAuthority) time.Duration {
	return ptr.Deref(obj.Spec.CA.Duration, metav1.Duration{}).Duration
}

// changeSecret is writeSecret, which it calls again if only the metadata of the Secret has changed since it was read. Other
// clients may change that all the time.
func (r *Reconciler) changeSecret(
	ctx context.Context, obj *v1alpha1.SigningAuthority, read *observation, action Action, made keypair.Pair,
) error {
	err := r.writeSecret(ctx, obj, read, action, made)
	if apierrors.IsConflict(err) && r.readMetadata(ctx, read) {
		err = r.writeSecret(ctx, obj, read, action, made)
	}
	return err
}

// writeSecret takes an action that changes the Secret, in one write. The write fails if the Secret has changed since it
// was read. made is the key pair of MakeCandidate or MakeRenewed.
func (r *Reconciler) writeSecret(
	ctx context.Context, obj *v1alpha1.SigningAuthority, read *observation, action Action, made keypair.Pair,
) error {
	ring, changed := editSecret(read, action, made, r.permit(obj, action)), read.object.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string][]byte{}
	}
	if err := ring.WriteTo(changed.Data); err != nil {
		return err
	}
	if action == MakeCandidate && changed.DeletionTimestamp == nil {
		controllerutil.AddFinalizer(changed, keypair.Finalizer)
	}
	if changed.UID == "" {
		if err := call.Write(ctx, r.Client.Create, changed); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Secret: %w", err)
		}
		return nil // the next reconcile reads the Secret that exists
	}
	if maps.EqualFunc(changed.Data, read.object.Data, bytes.Equal) {
		return nil
	}
	if err := call.Write(ctx, r.Client.Update, changed); err != nil {
		return fmt.Errorf("update Secret: %w", err)
	}
	return nil
}

// readMetadata reads the Secret of o again, and reports whether its data is the same.
func (r *Reconciler) readMetadata(ctx context.Context, o *observation) bool {
	latest := &corev1.Secret{}
	err := call.Get(ctx, r.Live, client.ObjectKeyFromObject(o.object), latest)
	same := err == nil && latest.UID == o.object.UID && maps.EqualFunc(latest.Data, o.object.Data, bytes.Equal)
	if same {
		o.object = latest
	}
	return same
}

// permit returns the signing CA, the lifetime cap and the signers that the signer must obey after action.
func (r *Reconciler) permit(obj *v1alpha1.SigningAuthority, action Action) keypair.Permit {
	lifetime := r.OldLifetimeCap
	if own := obj.Spec.Lifetimes.OldCap; own != nil {
		lifetime = own.Duration
	}
	permit := keypair.Permit{
		Authority: obj.Name, LifetimeCap: max(lifetime, shortestCap),
		Signers: permittedSigners(&obj.Spec, &obj.Status, action),
	}
	if signing := signingAfter(&obj.Status, action); signing != nil {
		permit.KeyID = signing.KeyID
	}
	return permit
}

// updateServed updates what programs of a served cluster read that is not the home. It decides and delays no step, so it runs in
// the background: administrators of that cluster may forbid and hold up writes. While an update is under way, none begins.
func (r *Reconciler) updateServed(ctx context.Context, obj *v1alpha1.SigningAuthority, now time.Time) {
	if _, underWay := r.updating.LoadOrStore(obj.Name, nil); underWay {
		return
	}
	go func() {
		defer r.updating.Delete(obj.Name)
		err := r.publishBundles(ctx, obj, now)
		if obj.Status.UnpublishedAt != nil {
			err = errors.Join(err, r.prune(ctx, obj))
		}
		if err != nil {
			r.reporter.Request(obj, string(Publish), "ServedClusterOutdated", fmt.Sprintf("in the served cluster, which does not stop the rotation: %v", err))
		}
	}()
}

// publishBundles publishes the trust bundle as ClusterTrustBundles in a served cluster that is not the home.
func (r *Reconciler) publishBundles(ctx context.Context, obj *v1alpha1.SigningAuthority, now time.Time) error {
	wanted, err := bundleOf(obj, now)
	if err != nil || len(wanted.Bundle) == 0 {
		return err
	}
	wanted.Entries = nil
	changes, problems := r.served.Check(ctx, wanted)
	if len(changes) > 0 {
		return r.served.Publish(ctx, changes)
	}
	return errors.Join(problems...)
}

// prune removes the retiring CA from what API servers publish.
func (r *Reconciler) prune(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	cert, err := certificateOf(obj.Status.Retiring)
	if err != nil {
		return err
	}
	return r.served.Prune(ctx, cert)
}
