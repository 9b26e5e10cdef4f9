package rotation

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// defaultAdopted is the longest lifetime of certificates that kube-controller-manager and kubeadm issue by default.
const defaultAdopted = 365 * 24 * time.Hour

// planPrepared keeps both CAs trusted until the administrator completes the rotation or rolls it back:
//  1. A rollback that is done is recorded.
//  2. An edited Secret stops the rotation.
//  3. A recorded rollback continues.
//  4. A requested operation is answered.
//  5. A lost signing pair waits for the administrator.
//  6. The Secret gets its permit, the bundle is published, and the administrator decides.
func (p *planner) planPrepared() {
	s := p.status
	switch {
	case p.swappedBack():
		s.Signing, s.Retiring = s.Retiring, s.Signing
		s.Signing.SignsSince, s.Signing.OutstandingAcceptedAt = p.now(), nil
		s.Intent = ""
	case p.checkSecret():
	case p.continueRollback():
	case p.answerOperation():
	case p.signingMissing():
		p.waitForSigningKey("run " + p.command(v1alpha1.OperationRollback) + " to sign with the retiring CA")
	case !p.facts.Permitted:
		p.act(Permit)
	case p.publishFirst():
		s.Intent = ""
		p.waitForCompletion()
	}
}

// waitForCompletion waits until a completion is possible, and then for the administrator.
func (p *planner) waitForCompletion() {
	p.status.WaitingFor = slices.Concat(p.missingTrust(p.facts.Signing), p.leftOfRetiring())
	if len(p.status.WaitingFor) == 0 {
		p.wait("run %s, or %s to go back", p.command(v1alpha1.OperationComplete), p.command(v1alpha1.OperationRollback))
	}
	p.waitForNextCA()
	if p.facts.Secret.Retiring == nil {
		p.wait("the key of the retiring CA %s is missing from the Secret, so no probe can show that API servers refuse it",
			p.status.Retiring.KeyID)
	}
}

// swappedBack reports whether the retiring CA signs again. If the signing pair is lost, only the intent distinguishes a
// rollback from a restored Secret.
func (p *planner) swappedBack() bool {
	secret := p.facts.Secret
	return v1alpha1.SameCA(secret.Signing, p.status.Retiring) &&
		(v1alpha1.SameCA(secret.Retiring, p.status.Signing) || secret.Retiring == nil && p.status.Intent == string(SwapBack))
}

// continueRollback opens the ledger of the retiring CA after the CA is published, and finishes a recorded rollback. It
// reports whether it does either. Trust was proven before the rollback was recorded. After an interruption it is
// verified again.
func (p *planner) continueRollback() bool {
	noted := p.rollbackNoted() && p.facts.Operation == ""
	switch missing := p.missingTrust(p.facts.RetiringTrusted); {
	case p.facts.sealed(p.status.Retiring) && p.facts.Published:
		p.actOn(p.status.Retiring, Unseal)
	case !noted:
		return false
	case len(missing) > 0:
		p.status.WaitingFor = append(p.status.WaitingFor, missing...)
	default:
		p.act(SwapBack)
	}
	return true
}

// rollbackNoted reports whether a rollback was recorded and is still possible: its CA exists and has not expired.
func (p *planner) rollbackNoted() bool {
	return p.status.Intent == string(SwapBack) && v1alpha1.SameCA(p.facts.Secret.Retiring, p.status.Retiring) &&
		p.status.Retiring.NotAfter.After(p.facts.Now)
}

// cannotSign returns why authority would sign nothing now.
func (p *planner) cannotSign(authority *v1alpha1.CAStatus) error {
	unfit := p.facts.Secret.Unfit[authority.Fingerprint]
	switch {
	case !authority.NotAfter.After(p.facts.Now):
		return errors.New("has expired")
	case unfit != nil:
		return fmt.Errorf("cannot sign: %w", unfit)
	}
	return nil
}

// planRollback makes the retiring CA sign again if all API servers trust it now.
func (p *planner) planRollback() {
	retiring, signing, missing := p.status.Retiring, p.status.Signing, p.missingTrust(p.facts.RetiringTrusted)
	switch {
	case !p.signingMissing() && signing.Generation < retiring.Generation && signing.NotAfter.After(p.facts.Now):
		p.refuseOperation("the CA %s signs again already; %s removes the CA %s",
			signing.KeyID, p.command(v1alpha1.OperationComplete), retiring.KeyID)
	case !v1alpha1.SameCA(p.facts.Secret.Retiring, retiring):
		p.refuseOperation("the key of the CA %s is missing from the Secret", retiring.KeyID)
	case p.cannotSign(retiring) != nil:
		p.refuseOperation("the CA %s %v", retiring.KeyID, p.cannotSign(retiring))
	case p.waitForSettling(p.facts.RetiringTrusted):
	case len(missing) > 0:
		p.refuseOperation("not every API server trusts the CA %s now: %s; run it again when they do",
			retiring.KeyID, strings.Join(missing, "; "))
	case p.facts.sealed(retiring):
		p.refuseOperation("the CA %s is not published yet", retiring.KeyID)
	default:
		for _, name := range withoutTrust(p.spec.Signers, retiring) {
			if csr.VerifiedByAPIServers(name) { // which was proven above
				retiring.Signers = append(retiring.Signers, name)
			}
		}
		p.acceptOperation()
		p.act(SwapBack)
	}
}

// waitForSettling leaves the operation unanswered while all API servers give the wanted answer, but not for long enough
// yet. It reports whether they do.
func (p *planner) waitForSettling(proof probe.Proof) bool {
	if !proof.Settling || !asksAPIServers(p.spec.Signers) {
		return false
	}
	p.wait("%s starts when all API servers have given the same answer for %s: %s",
		p.facts.Operation.Command(), p.facts.SettleFor, strings.Join(proof.Missing, "; "))
	return true
}

// planCompletion starts the removal of the retiring CA if nothing depends on it. If the trust bundle is outdated, for
// example right after a rollback, it is published first. A recorded rollback comes first too: a replaced leader may
// still write it, and its CA must not be in removal then.
func (p *planner) planCompletion() {
	if p.rollbackNoted() {
		p.refuseOperation("a rollback to the CA %s is under way", p.status.Retiring.KeyID)
		return
	}
	if !p.facts.Published && p.status.Intent != string(Publish) {
		p.act(Publish)
		return
	}
	switch blockers := p.completionBlockers(); {
	case len(blockers) > 0:
		p.refuseOperation("%s", strings.Join(blockers, "; "))
	case p.waitForSettling(p.facts.Signing):
	default:
		p.enter(v1alpha1.Completing)
		p.acceptOperation()
	}
}

// completionBlockers returns the reasons against a completion. waitForSettling handles a mere lack of time.
func (p *planner) completionBlockers() (blockers []string) {
	signing, retiring := p.status.Signing, p.status.Retiring
	switch {
	case !retiring.NotAfter.After(p.facts.Now): // going back is impossible anyway
	case !p.signingMissing() && !p.facts.Signing.Settling:
		blockers = append(blockers, p.missingTrust(p.facts.Signing)...)
	case !p.signingMissing():
	case p.facts.Secret.Retiring != nil:
		blockers = append(blockers, fmt.Sprintf("the key of the CA %s is missing from the Secret: "+
			"put it back, or run %s to sign with the CA %s",
			signing.KeyID, p.command(v1alpha1.OperationRollback), retiring.KeyID))
	}
	if !p.facts.Published {
		blockers = append(append(blockers, "the trust bundle is not published"), p.facts.Unpublished...)
	}
	return append(blockers, p.leftOfRetiring()...)
}

// leftOfRetiring names the certificates of the retiring CA that the administrator has not accepted to break, and that of the
// manager, which could not finish the rotation without it. It also
// names CAs that API servers must stop trusting: they would never refuse the retiring CA below such a CA.
func (p *planner) leftOfRetiring() (left []string) {
	if len(p.facts.Above) > 0 && p.refusalProvable() {
		left = append(left, fmt.Sprintf("API servers trust a CA above the retiring CA %s, so they would never refuse it: "+
			"remove %s from their client CA files, then from ConfigMap kube-system/extension-apiserver-authentication",
			p.status.Retiring.KeyID, strings.Join(p.facts.Above, ", ")))
	}
	if p.facts.OwnCertificate {
		left = append(left, fmt.Sprintf("the client certificate in the manager's own kubeconfig is of the retiring CA %s: renew it, or use "+
			"a token instead; unless the kubeconfig names a file with the certificate, restart the manager", p.status.Retiring.KeyID))
	}
	if p.status.Retiring.OutstandingAcceptedAt == nil {
		left = append(left, p.outstandingTexts()...)
	}
	return left
}

// outstandingTexts returns a sentence for each group of valid certificates of the retiring CA.
func (p *planner) outstandingTexts() []string {
	var all []string
	for _, part := range stillValid(p.spec, p.status.Retiring, p.facts) {
		issuer := "of " + part.Signer
		if part.Signer == "" {
			issuer = "that others have issued"
		}
		all = append(all, fmt.Sprintf("certificates %s from the CA %s are valid until %s",
			issuer, p.status.Retiring.KeyID, part.Until.UTC().Format(time.RFC3339)))
	}
	return all
}

// stillValid returns the certificates of retiring that may be valid: those in the ledger, and those that others may
// have issued before the CA was adopted. No certificate outlives the CA.
func stillValid(spec *v1alpha1.SigningAuthoritySpec, retiring *v1alpha1.CAStatus, f facts) []v1alpha1.Outstanding {
	if retiring == nil {
		return nil
	}
	var candidates, alive []v1alpha1.Outstanding
	if f.lost(retiring) { // it had an account since it began to sign
		candidates = append(candidates, v1alpha1.Outstanding{Signer: "any signer (the ledger of this CA is lost)", Until: retiring.NotAfter})
	}
	account := f.Accounts[retiring.KeyID]
	for _, signer := range account.SignerNames() {
		candidates = append(candidates, v1alpha1.Outstanding{Signer: signer, Until: metav1.NewTime(account.Signers[signer])})
	}
	if retiring.AdoptedAt != nil && retiring.AttestedAt == nil {
		longest := defaultAdopted
		if spec.Lifetimes.Adopted != nil {
			longest = spec.Lifetimes.Adopted.Duration
		}
		candidates = append(candidates, v1alpha1.Outstanding{Until: metav1.NewTime(retiring.AdoptedAt.Add(longest))})
	}
	for _, part := range candidates {
		if part.Until.After(retiring.NotAfter.Time) {
			part.Until = retiring.NotAfter
		}
		if part.Until.After(f.Now) {
			alive = append(alive, part)
		}
	}
	return alive
}
