package signer

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// sign issues the certificate and stores it. Where a ledger is kept, what is to be issued is noted there before. A
// certificate that was made for the same request before, and that would be issued now, is stored instead of a new one.
func (r *Reconciler) sign(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, now time.Time) error {
	signer := r.Signers[obj.Spec.SignerName]
	profile := signer.Profile.Within(judged.LifetimeCap)
	notAfter := judged.Authority.NotAfterOf(profile, judged.Request.Cert, now)
	if ended, ok := r.ended.Of(obj); ok && ended == versionOf(obj, judged) {
		return nil // the outcome would be the same
	}
	made, kept := r.attempts.Of(obj)
	if kept && (made.keyID != judged.Authority.KeyID() || made.issued.NotAfter.After(notAfter)) {
		r.giveUp(ctx, obj)
		kept = false
	}
	if kept {
		notAfter = made.issued.NotAfter
	}
	if err := signer.KeyPair.Cover(ctx, judged.Authority.KeyID(), obj.Spec.SignerName, notAfter); err != nil {
		r.tell(ctx, obj, Judgement{Request: judged.Request, Outcome: Wait, Reason: "LedgerUnavailable", Message: notCovered(err)})
		return err
	}
	if kept {
		return r.store(ctx, obj.DeepCopy(), judged, made)
	}
	issued, err := judged.Authority.Issue(profile, judged.Request.Cert, now)
	var differs *ca.LintError
	switch {
	case errors.As(err, &differs):
		return r.mismatch(ctx, obj, judged, differs)
	case err != nil:
		return fmt.Errorf("issue certificate: %w", err)
	}
	return r.store(ctx, obj.DeepCopy(), judged, attemptOf(obj, judged, issued))
}

// mismatch reports that the finished certificate is not the judged one. It is not stored. Signing again is no use as long as
// the request and the configuration stay as they are.
func (r *Reconciler) mismatch(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, differs *ca.LintError) error {
	r.ended.Keep(obj, versionOf(obj, judged))
	name := obj.Spec.SignerName
	mismatchesTotal.WithLabelValues(name).Inc()
	discardedTotal.WithLabelValues(name).Inc()
	record := audit.Of(obj, judged.Request)
	record.Serial, record.IssuerKeyID = differs.Serial.Text(16), judged.Authority.KeyID()
	record.Reason, record.Message = "CertificateMismatch", differs.Error()
	r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, record)
	r.tell(ctx, obj, Judgement{Request: judged.Request, Outcome: Ignore, Reason: "CertificateMismatch",
		Message: fmt.Sprintf("%v: it was not stored; report this as a defect of the signer, with the request", differs)})
	return reconcile.TerminalError(fmt.Errorf("issue certificate: %w", differs))
}

// versionOf returns what the outcome of signing depends on: the version of obj, and the CA.
func versionOf(obj *certificatesv1.CertificateSigningRequest, judged Judgement) string {
	return obj.ResourceVersion + " " + judged.Authority.KeyID()
}

// notCovered says why nothing is signed, and what to do if it is not what err says already.
func notCovered(err error) string {
	message := fmt.Sprintf("nothing is signed that the ledger of the CA does not know of: %v", err)
	if errors.Is(err, ledger.ErrNoAccount) {
		message += "; it was deleted, or is not yet made: the rotation controller makes it, and then takes what was issued before for outstanding, " +
			"so only see that this controller runs (kubectl get signingauthorities -o wide)"
	}
	return message
}
