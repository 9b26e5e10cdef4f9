package rotation

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// readLedger reads what was issued, and what of it lives on the retiring CA.
func (r *Reconciler) readLedger(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen) error {
	recorder := r.recorder(obj)
	flushed := recorder.Flush(ctx)
	accounts, err := recorder.Book.Read(ctx)
	if err != nil {
		return fmt.Errorf("read what was issued: %w", err)
	}
	s.remembers(accounts, &obj.Status)
	retiring := obj.Status.Retiring
	if retiring == nil {
		s.Sealed = s.Ring.Retiring != nil && accounts[s.Ring.Retiring.KeyID].Sealed
		return nil
	}
	if flushed != nil && !s.Unaccounted { // which is why
		return fmt.Errorf("note what was issued: %w", flushed)
	}
	account, found := accounts[retiring.KeyID]
	if !found { // it had one since it began to sign
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: "any signer, as the ledger of it is gone", Until: retiring.NotAfter})
	}
	if found {
		if err := r.fromCosigners(ctx, obj, s, account); err != nil {
			return err
		}
	}
	s.Sealed, s.RetiringOpen, s.RetiringSigners = account.Sealed, found && !account.Sealed, account.SignerNames()
	for _, signer := range s.RetiringSigners {
		issued := account.Signers[signer]
		s.Outstanding = append(s.Outstanding, v1alpha1.Outstanding{Signer: signer, Count: int64(issued.Count), Until: metav1.NewTime(issued.NotAfter)})
	}
	return nil
}

// remembers is what the ledger knows of the CAs in the Secret.
func (s *seen) remembers(accounts map[string]ledger.Account, noted *v1alpha1.SigningAuthorityStatus) {
	if s.Ring.TLS != nil {
		s.TLSRetired = accounts[s.Ring.TLS.KeyID].Sealed && !s.Ring.TLS.same(s.Ring.Signing) && !s.Ring.TLS.same(s.Ring.Retiring)
	}
	if s.Ring.Candidate != nil {
		account, found := accounts[s.Ring.Candidate.KeyID]
		s.CandidateUnaccounted, s.CandidateRetired = !found && s.Ring.Candidate.is(noted.Candidate), account.Sealed
	}
	if s.Ring.Signing != nil {
		account, found := accounts[s.Ring.Signing.KeyID]
		s.Unaccounted, s.SigningSealed = !found && s.Ring.Signing.is(noted.Signing), account.Sealed
	}
}

// fromCosigners adds to account what was issued elsewhere for signers that are served here by now: who verifies that goes by the
// bundle of this authority.
func (r *Reconciler) fromCosigners(ctx context.Context, obj *v1alpha1.SigningAuthority, s *seen, account ledger.Account) error {
	for _, other := range s.cosigners {
		accounts, err := r.ledger(other).Read(ctx)
		if err != nil {
			return fmt.Errorf("read what SigningAuthority %s has issued: %w", other.Name, err)
		}
		theirs := accounts[obj.Status.Retiring.KeyID]
		for _, signer := range obj.Spec.Signers {
			if issued, found := theirs.Signers[signer]; found && issued.NotAfter.After(account.Signers[signer].NotAfter) {
				account.Signers[signer] = issued
			}
		}
	}
	return nil
}
