package signer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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

// storeTimeout bounds the one write that goes on when the manager is told to stop. It is well within the time that
// controller-runtime leaves to what is under way.
const storeTimeout = 10 * time.Second

// mostTries bounds how often the same certificate is written while the API server can read the request. With the pauses of
// the queue that is for a quarter of an hour, after which a kubelet makes a new request.
const mostTries = 20

// attempt is a certificate that was made, and that is not known to be stored.
type attempt struct {
	issued          *ca.Issued
	keyID           string
	resourceVersion string
	record          audit.Record
	tries           int
}

// attemptOf returns the first attempt to store issued.
func attemptOf(obj *certificatesv1.CertificateSigningRequest, judged Judgement, issued *ca.Issued) *attempt {
	record := audit.Of(obj, judged.Request)
	record.Serial, record.IssuerKeyID, record.CertificateSHA256 = issued.Serial.Text(16), judged.Authority.KeyID(), hex.EncodeToString(issued.SHA256[:])
	record.NotBefore, record.NotAfter = &issued.NotBefore, &issued.NotAfter
	return &attempt{issued: issued, keyID: judged.Authority.KeyID(), resourceVersion: obj.ResourceVersion, record: record}
}

// store writes the certificate. It is recorded before, so that none exists that no record names. A certificate that may
// still be stored is kept: the next try writes the same one.
func (r *Reconciler) store(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, made *attempt) error {
	first := made.record.Message == ""
	if first {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Signed, made.record)
	}
	before := obj.DeepCopy()
	obj.Status.Certificate = made.issued.PEM
	r.certificates.writes(obj.Name, made.issued.PEM)
	// Given up half-way, nobody would know whether it was stored.
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := r.Client.Status().Update(writing, obj, client.FieldOwner(FieldManager))
	if err == nil {
		r.stored(ctx, obj, made)
		return nil
	}
	made.record.Message = err.Error()
	end, counts := r.end(ctx, obj, made.issued.PEM, err)
	if counts {
		made.tries++
	}
	switch {
	case end == audit.Stored:
		r.stored(ctx, obj, made)
		return nil
	case end == audit.Discarded:
		r.discarded(ctx, obj, made)
		return r.afterDiscard(ctx, before, judged, err)
	case first:
		r.Audit.Write(ctx, r.Clock.Now(), audit.Uncertain, made.record)
	}
	if made.tries >= mostTries {
		r.attempts.Drop(obj.Name)
		r.ended.Keep(obj, versionOf(before, judged))
		r.tell(ctx, obj, Judgement{Request: judged.Request, Outcome: Ignore, Reason: "NotStored",
			Message: fmt.Sprintf("the API server has refused %d times to store the certificate: %v; a new request is needed", made.tries, err)})
		return nil
	}
	r.attempts.Keep(obj, made)
	return fmt.Errorf("update status: %w", err)
}

// afterDiscard says what becomes of a request whose certificate the API server did not take.
func (r *Reconciler) afterDiscard(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, err error) error {
	switch {
	case tooLarge(err):
		return r.fail(ctx, obj, Judgement{Request: judged.Request, Outcome: Failed, Reason: csr.ReasonTooLarge,
			Message: "with its certificate this request does not fit into an object: the API server refused it as too large"})
	case apierrors.IsInvalid(err):
		r.tell(ctx, obj, Judgement{Request: judged.Request, Outcome: Ignore, Reason: "Malformed",
			Message: fmt.Sprintf("the API server takes no certificate for this request: %v; a new request is needed", err)})
		return nil
	default:
		return newsOrError(err)
	}
}

// settle ends the attempt to store a certificate for obj if obj has changed since. It is stored then, or never will be.
func (r *Reconciler) settle(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	made, ok := r.attempts.Of(obj)
	switch {
	case !ok:
	case bytes.Equal(obj.Status.Certificate, made.issued.PEM):
		r.stored(ctx, obj, made)
	case obj.ResourceVersion != made.resourceVersion:
		r.discarded(ctx, obj, made)
	}
}

// giveUp ends the attempt to store a certificate that would not be issued now.
func (r *Reconciler) giveUp(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	made, ok := r.attempts.Of(obj)
	if !ok {
		return
	}
	r.attempts.Drop(obj.Name)
	switch end, _ := r.end(ctx, obj, made.issued.PEM, nil); end {
	case audit.Stored:
		r.stored(ctx, obj, made)
	case audit.Discarded:
		r.discarded(ctx, obj, made)
	}
}

func (r *Reconciler) discarded(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, made *attempt) {
	r.attempts.Drop(obj.Name)
	r.certificates.discards(obj.Name, made.issued.PEM)
	discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, made.record)
}

// stored tells of a certificate that is stored. It is recorded if there was a doubt.
func (r *Reconciler) stored(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, made *attempt) {
	r.attempts.Drop(obj.Name)
	if made.record.Message != "" {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Stored, made.record)
	}
	r.measure(obj)
	if obj.Spec.ExpirationSeconds == nil {
		issuedLifetimeSeconds.WithLabelValues(obj.Spec.SignerName).Set(made.issued.NotAfter.Sub(made.issued.NotBefore).Seconds())
	}
	if made.issued.Cut > 0 {
		lifetimeCutTotal.WithLabelValues(obj.Spec.SignerName).Inc()
		r.Reporter.Request(obj, obj.Spec.Username, "Sign", "LifetimeCut", CutShort(made.issued))
	}
}

// end returns what became of a certificate whose write into obj failed with err. A conflict does not mean that nothing was
// stored: the client repeats a write after a 5xx, and the first one may have been stored. So the API server is asked for
// what it holds. counts reports that the API server can read the request, but does not store the certificate.
func (r *Reconciler) end(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, certificate []byte, err error) (end audit.Event, counts bool) {
	switch {
	case final(err) || apierrors.IsNotFound(err):
		return audit.Discarded, false
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsTooManyRequests(err):
		return audit.Uncertain, false // the next try shows whether an earlier one was stored
	}
	stored, readErr := r.read(ctx, obj)
	switch {
	case readErr != nil || stored.UID != obj.UID: // it may have been stored before it was deleted
		return audit.Uncertain, false
	case bytes.Equal(stored.Status.Certificate, certificate):
		return audit.Stored, false
	case stored.ResourceVersion != obj.ResourceVersion:
		return audit.Discarded, false
	default:
		return audit.Uncertain, apierrors.ReasonForError(err) != "" && !apierrors.IsConflict(err)
	}
}

// read returns what the API server holds of obj.
func (r *Reconciler) read(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored)
	return stored, err
}

// final reports whether trying again is no use as long as the object stays as it is.
func final(err error) bool { return apierrors.IsInvalid(err) || tooLarge(err) }

// tooLarge reports whether an object is too large for the API server or for etcd, whose answers it passes on.
func tooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		err != nil && (strings.Contains(err.Error(), "etcdserver: request is too large") || strings.Contains(err.Error(), "trying to send message larger than max"))
}
