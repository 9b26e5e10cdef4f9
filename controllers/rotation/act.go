package rotation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// act takes one action. All of them may be taken again.
func (r *Reconciler) act(ctx context.Context, obj *v1alpha1.SigningAuthority, action Action, s *seen) error {
	switch action {
	case Publish:
		return r.publish(ctx, obj)
	case Open:
		return r.open(ctx, obj, s)
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
		return r.writeKeys(ctx, obj, s.keys, action, keyring.Pair{})
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

// makeCandidate makes a CA, and before it is anywhere an account that says that it has issued nothing.
func (r *Reconciler) makeCandidate(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	made, err := r.newPair(obj)
	if err != nil {
		return err
	}
	if err := r.ledger(obj).Open(ctx, made.keyID); err != nil {
		return err
	}
	return r.writeKeys(ctx, obj, s.keys, MakeCandidate, made.Pair)
}

// takeCandidate takes what its owner has brought, or what was copied from another authority with its account.
func (r *Reconciler) takeCandidate(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	if candidate := obj.Status.Candidate; candidate.AdoptedAt != nil {
		if err := r.ledger(obj).Open(ctx, candidate.KeyID); err != nil {
			return err
		}
	}
	return r.writeKeys(ctx, obj, s.keys, TakeCandidate, keyring.Pair{})
}

// open makes the accounts that are not there.
func (r *Reconciler) open(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	var errs []error
	if s.Unaccounted {
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
	if !errors.Is(err, ledger.ErrNoAccount) || !sealsLost(obj.Status.Retiring, r.Clock.Now()) {
		return err
	}
	if err := book.Open(ctx, key); err != nil {
		return err
	}
	return book.Seal(ctx, key)
}

// unseal opens the accounts of what signs and of what retires, those of them that are closed.
func (r *Reconciler) unseal(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	var errs []error
	if s.SigningSealed && s.Ring.Signing.is(obj.Status.Signing) {
		errs = append(errs, r.ledger(obj).Unseal(ctx, obj.Status.Signing.KeyID))
	}
	if s.Sealed {
		errs = append(errs, r.ledger(obj).Unseal(ctx, obj.Status.Retiring.KeyID))
	}
	return errors.Join(errs...)
}

// sealsLost says whether an account of what retires that is lost may be closed empty: its owner has accepted that, or nothing
// lives on the CA, as it has ended.
func sealsLost(retiring *v1alpha1.CAStatus, now time.Time) bool {
	return retiring.OutstandingAcceptedAt != nil || !retiring.NotAfter.After(now)
}

func (r *Reconciler) publish(ctx context.Context, obj *v1alpha1.SigningAuthority) error {
	wanted, err := wanted(obj, r.Clock.Now())
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
func (r *Reconciler) copyFrom(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	other, facts, err := r.readKeys(ctx, s.from)
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
	return r.writeKeys(ctx, obj, s.keys, CopyFrom, other.ring.Signing)
}
