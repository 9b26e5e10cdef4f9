package rotation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// take takes action, and records that once. Who led before may come to it late: the intent that is noted just before says that
// nobody has gone on since what was seen; where it was noted before, that is asked.
func (r *Reconciler) execute(ctx context.Context, obj *v1alpha1.SigningAuthority, action Action, seen *observation, again bool) error {
	if !again {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Rotation, auditRecord(obj, action))
	} else if err := r.current(ctx, obj); err != nil {
		return err
	}
	if err := r.act(ctx, obj, action, seen); err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	log.FromContext(ctx).Info("Took a step of a rotation", "action", action, "phase", obj.Status.Phase, "generation", obj.Status.Generation)
	return nil
}

// act takes one action. All of them may be taken again.
func (r *Reconciler) act(ctx context.Context, obj *v1alpha1.SigningAuthority, action Action, s *observation) error {
	switch action {
	case Publish:
		return r.publish(ctx, obj)
	case Open:
		return r.openAccounts(ctx, obj, s)
	case Seal:
		return r.seal(ctx, obj)
	case Unseal:
		return r.unseal(ctx, obj, s)
	case Prune:
		return r.prune(ctx, obj)
	case MakeCandidate:
		return r.makeCandidate(ctx, obj, s)
	case CopyFrom:
		return r.copyFrom(ctx, obj, s)
	case TakeCandidate:
		return r.takeCandidate(ctx, obj, s)
	default:
		return r.writeSecret(ctx, obj, s.keys, action, keypair.Pair{})
	}
}

// current returns a Conflict if obj has changed since it was read or written. Annotations do not count: they ask for what the
// next look decides on, and who changes them all the time would hold everything up.
func (r *Reconciler) current(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	latest := &v1alpha1.SigningAuthority{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), latest); err != nil {
		return err
	}
	if latest.UID == obj.UID && latest.Generation == obj.Generation && equality.Semantic.DeepEqual(latest.Status, obj.Status) {
		return nil
	}
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("signingauthorities").GroupResource(), obj.Name, errors.New("it has changed since it was looked at"))
}

// writeSecret takes an action that changes the Secret, in one write that fails if somebody else has changed it since.
func (r *Reconciler) writeSecret(ctx context.Context, obj *v1alpha1.SigningAuthority, k *caSecret, action Action, made keypair.Pair) error {
	ring, err := editSecret(k.pairs, action, made, r.permit(obj, action))
	if err != nil {
		return err
	}
	changed := k.object.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string][]byte{}
	}
	if err := ring.WriteTo(changed.Data); err != nil {
		return err
	}
	if !made.Empty() && changed.DeletionTimestamp == nil {
		controllerutil.AddFinalizer(changed, keypair.Finalizer)
	}
	if changed.UID == "" {
		if err := r.Client.Create(ctx, changed); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Secret: %w", err)
		}
		return nil // what else is there by now is looked at next
	}
	if maps.EqualFunc(changed.Data, k.object.Data, bytes.Equal) {
		return nil
	}
	if err := r.Client.Update(ctx, changed); err != nil {
		return fmt.Errorf("update Secret: %w", err)
	}
	return nil
}

// permit is what the signer is told with action.
func (r *Reconciler) permit(obj *v1alpha1.SigningAuthority, action Action) keypair.Permit {
	lifetime := r.OldLifetimeCap
	if own := obj.Spec.Lifetimes.OldCap; own != nil {
		lifetime = own.Duration
	}
	return keypair.Permit{Authority: obj.Name, Signers: permittedSigners(&obj.Spec, &obj.Status, action), LifetimeCap: max(lifetime, shortestCap)}
}

// shortestCap keeps certificates from being due for renewal the moment that they are issued.
const shortestCap = 2 * ca.ShortestLifetime

// makeCandidate makes a CA, and before it is anywhere an account that says that it has issued nothing.
func (r *Reconciler) makeCandidate(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	made, err := r.newCA(obj)
	if err != nil {
		return err
	}
	if err := r.ledger(obj).Open(ctx, made.keyID); err != nil {
		return err
	}
	return r.writeSecret(ctx, obj, s.keys, MakeCandidate, made.Pair)
}

// newCA is a CA that was made just now.
type newCA struct {
	keypair.Pair
	keyID string
}

// newCA makes a CA for the generation that obj is at. Its name is its own, so that a verifier never tries one CA for
// another.
func (r *Reconciler) newCA(obj *v1alpha1.SigningAuthority) (newCA, error) {
	lifetime := ca.DefaultAuthorityLifetime
	if own := obj.Spec.CA.Duration; own != nil {
		lifetime = own.Duration
	}
	now := r.Clock.Now()
	authority, key, err := ca.New(ca.NewOptions{
		CommonName: commonName(obj.Name, obj.Status.Generation, now.Unix()),
		Algorithm:  ca.Algorithm(obj.Spec.CA.KeyAlgorithm),
		Lifetime:   lifetime,
	}, now)
	if err != nil {
		return newCA{}, fmt.Errorf("make a CA: %w", err)
	}
	return newCA{keypair.Pair{Cert: authority.CertificatePEM(), Key: key}, authority.KeyID()}, nil
}

// commonName fits into X.520's 64 letters.
func commonName(authority string, generation, at int64) string {
	suffix := fmt.Sprintf("-g%d-%d", generation, at)
	return authority[:min(len(authority), 64-len(suffix))] + suffix
}

// takeCandidate takes what its owner has brought, or what was copied from another authority with its account.
func (r *Reconciler) takeCandidate(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	if candidate := obj.Status.Candidate; candidate.AdoptedAt != nil {
		if err := r.ledger(obj).Open(ctx, candidate.KeyID); err != nil {
			return err
		}
	}
	return r.writeSecret(ctx, obj, s.keys, TakeCandidate, keypair.Pair{})
}

// openAccounts makes the accounts that are not there.
func (r *Reconciler) openAccounts(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	var errs []error
	if s.SigningUnaccounted {
		errs = append(errs, r.ledger(obj).Open(ctx, obj.Status.Signing.KeyID))
	}
	if s.CandidateUnaccounted {
		errs = append(errs, r.ledger(obj).Open(ctx, obj.Status.Candidate.KeyID))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) prune(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	cert, err := certificateOf(obj.Status.Retiring)
	if err != nil {
		return err
	}
	return r.publisher.Prune(ctx, cert)
}

// seal closes the account of what retires; one that is lost is closed empty, if it may be.
func (r *Reconciler) seal(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	book, key := r.ledger(obj), obj.Status.Retiring.KeyID
	err := book.Seal(ctx, key)
	if !errors.Is(err, ledger.ErrNoAccount) || !mayCloseEmpty(obj.Status.Retiring, r.Clock.Now()) {
		return err
	}
	if err := book.Open(ctx, key); err != nil {
		return err
	}
	return book.Seal(ctx, key)
}

// unseal opens the accounts of what signs and of what retires, those of them that are closed.
func (r *Reconciler) unseal(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	var errs []error
	if s.SigningSealed && s.Secret.Signing.is(obj.Status.Signing) {
		errs = append(errs, r.ledger(obj).Unseal(ctx, obj.Status.Signing.KeyID))
	}
	if s.Sealed {
		errs = append(errs, r.ledger(obj).Unseal(ctx, obj.Status.Retiring.KeyID))
	}
	return errors.Join(errs...)
}

// mayCloseEmpty says whether an account of what retires that is lost may be closed empty: its owner has accepted that, or nothing
// lives on the CA, as it has ended.
func mayCloseEmpty(retiring *v1alpha1.CAStatus, now time.Time) bool {
	return retiring.OutstandingAcceptedAt != nil || !retiring.NotAfter.After(now)
}

func (r *Reconciler) publish(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	wanted, err := bundleOf(obj, r.Clock.Now())
	if err != nil {
		return err
	}
	wanted.Current = func(ctx context.Context) error { return r.current(ctx, obj) }
	var errs []error
	for _, problem := range r.publisher.Publish(ctx, wanted).Problems {
		errs = append(errs, problem)
	}
	return errors.Join(errs...)
}

// copyFrom takes over the signing pair of another authority, and before it what was issued by it.
func (r *Reconciler) copyFrom(ctx context.Context, obj *v1alpha1.SigningAuthority, s *observation) error {
	other, facts, err := r.readSecret(ctx, s.from)
	if err != nil {
		return err
	}
	if !facts.Signing.is(s.From) {
		return fmt.Errorf("SigningAuthority %s is changing its CA", s.from.Name)
	}
	account, err := r.ledger(s.from).Read(ctx)
	if err != nil {
		return err
	}
	issued, found := account[s.From.KeyID]
	if !found {
		return fmt.Errorf("the ledger of SigningAuthority %s has no account of its CA", s.from.Name)
	}
	if err := r.ledger(obj).Import(ctx, s.From.KeyID, issued, obj.Spec.Signers); err != nil {
		return err
	}
	return r.writeSecret(ctx, obj, s.keys, CopyFrom, other.pairs.Signing)
}
