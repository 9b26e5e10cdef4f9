package signer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// storeTimeout bounds the write of a certificate. The write continues when the manager stops. controller-runtime's
// grace period is longer.
const storeTimeout = 10 * time.Second

// maxStores bounds how often the same certificate is written while the API server can read the request. With the
// queue's pauses this takes a quarter of an hour. After that time a kubelet makes a new request.
const maxStores = 20

// issuance is an issued certificate whose write had no certain answer yet.
type issuance struct {
	*ca.Issued
	keyID           string
	resourceVersion string
	record          audit.Record // its Message is the last error
	stores          int
}

// goneRequest is what the watch said last of a deleted request.
type goneRequest struct {
	uid         types.UID
	certificate [sha256.Size]byte // its digest; zero if there was none
	last        bool              // it was the last version, and not one before deletions that the watch has missed
}

// sign issues a certificate and stores it. If a ledger is kept, sign first records the certificate there. If the
// earlier certificate of the request would still be issued now, sign writes that certificate instead of a new one.
func (r *Reconciler) sign(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, now time.Time,
) error {
	if ended, ok := r.ended.Of(obj); ok && ended == versionOf(obj, judged) {
		return nil // the outcome would be the same
	}
	signer := r.Signers[obj.Spec.SignerName]
	profile := signer.Profile.Within(judged.LifetimeCap)
	keyID, notAfter := judged.Authority.KeyID(), judged.Authority.NotAfterOf(profile, judged.Request.Cert, now)
	issued, kept := r.issued.Of(obj)
	if kept && (issued.keyID != keyID || issued.NotAfter.After(notAfter)) {
		r.giveUp(ctx, obj)
		kept = false
	}
	if kept {
		notAfter = issued.NotAfter
	}
	if err := signer.KeyPair.Cover(ctx, keyID, obj.Spec.SignerName, notAfter); err != nil {
		message := fmt.Sprintf("the certificate is not signed, because the CA's ledger cannot record it: %v", err)
		if errors.Is(err, ledger.ErrNoAccount) {
			message += "; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
				"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"
		}
		r.report(ctx, obj, Judgement{Request: judged.Request,
			Result: verdict.Wait.Because("LedgerUnavailable", "%s", message)})
		return err
	}
	if kept {
		return r.store(ctx, obj, judged, issued)
	}
	issued, err := r.issue(ctx, obj, judged, profile, now)
	if err != nil {
		return err
	}
	return r.store(ctx, obj, judged, issued)
}

// issue issues a new certificate. If the finished certificate differs from the judged one, it reports that and returns
// a terminal error. A retry is useless until the request or the configuration changes.
func (r *Reconciler) issue(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement,
	profile ca.Profile, now time.Time,
) (*issuance, error) {
	record := audit.Of(obj, judged.Request)
	record.IssuerKeyID = judged.Authority.KeyID()
	issued, err := judged.Authority.Issue(profile, judged.Request.Cert, now)
	if err == nil {
		record.Serial, record.CertificateSHA256 = issued.Serial.Text(16), hex.EncodeToString(issued.SHA256[:])
		record.NotBefore, record.NotAfter = &issued.NotBefore, &issued.NotAfter
		return &issuance{Issued: issued, keyID: record.IssuerKeyID, resourceVersion: obj.ResourceVersion, record: record}, nil
	}
	err = fmt.Errorf("issue certificate: %w", err)
	var differs *ca.LintError
	if !errors.As(err, &differs) {
		return nil, err
	}
	r.ended.Keep(obj, versionOf(obj, judged))
	name := obj.Spec.SignerName
	mismatchesTotal.WithLabelValues(name).Inc()
	discardedTotal.WithLabelValues(name).Inc()
	record.Serial, record.Reason, record.Message = differs.Serial.Text(16), "CertificateMismatch", differs.Error()
	r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, record)
	r.report(ctx, obj, Judgement{Request: judged.Request, Result: verdict.Ignore.Because("CertificateMismatch",
		"%v: the certificate was not stored; report this defect of the signer, with the request", differs)})
	return nil, reconcile.TerminalError(err)
}

// versionOf identifies the inputs of signing: the version of obj and the CA.
func versionOf(obj *certificatesv1.CertificateSigningRequest, judged Judgement) string {
	return obj.ResourceVersion + " " + judged.Authority.KeyID()
}

// store writes the certificate to the audit log, and then to the request, so every certificate has a record. If the
// result is uncertain, it keeps the certificate, and the next attempt writes the same certificate.
func (r *Reconciler) store(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, issued *issuance,
) error {
	first := issued.record.Message == ""
	if first {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Signed, issued.record)
	}
	written := obj.DeepCopy()
	written.Status.Certificate = issued.PEM
	r.certificates.add(obj.Name, issued.PEM)
	// From here on, the deletion of the request finds the certificate. One before would not.
	if first && r.isGone(ctx, obj) {
		r.discarded(ctx, issued)
		return nil
	}
	// A cancelled write would have an unknown outcome.
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	err := r.Client.Status().Update(writing, written, client.FieldOwner(FieldManager))
	if err == nil {
		r.wrote(ctx, obj.ResourceVersion, written)
		r.stored(ctx, obj, issued)
		return nil
	}
	issued.record.Message = err.Error()
	outcome, counts := r.outcomeOf(ctx, obj, issued.PEM, err)
	switch outcome {
	case audit.Stored:
		r.wrote(ctx, obj.ResourceVersion, written)
		r.stored(ctx, obj, issued)
		return nil
	case audit.Discarded:
		r.discarded(ctx, issued)
		return r.afterDiscard(ctx, obj, judged, err)
	}
	if first {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Uncertain, issued.record)
	}
	if counts {
		issued.stores++
	}
	if issued.stores >= maxStores {
		r.issued.Drop(obj.Name)
		r.ended.Keep(obj, versionOf(obj, judged))
		r.report(ctx, obj, Judgement{Request: judged.Request, Result: verdict.Ignore.Because("NotStored",
			"the API server has refused %d times to store the certificate: %v; a new request is needed",
			issued.stores, err)})
		return nil
	}
	r.issued.Keep(obj, issued)
	return fmt.Errorf("update status: %w", err)
}

// afterDiscard decides about a request whose certificate the API server did not store.
func (r *Reconciler) afterDiscard(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, err error,
) error {
	switch {
	case tooLarge(err):
		return r.fail(ctx, obj.DeepCopy(), Judgement{Request: judged.Request, Result: verdict.Deny.Because(csr.ReasonTooLarge,
			"the request does not fit into an object with its certificate: the API server refused it as too large; "+
				"make a request with fewer names, labels or annotations")})
	case apierrors.IsInvalid(err):
		r.report(ctx, obj, Judgement{Request: judged.Request, Result: verdict.Ignore.Because("Malformed",
			"the API server rejects the certificate of this request as invalid: %v; a new request is needed", err)})
		return nil
	case apierrors.IsConflict(err):
		return nil // the watch brings the change to the queue
	default:
		return fmt.Errorf("update status: %w", err)
	}
}

// settle ends the writes to obj that had no answer, if obj shows what became of them. If obj has changed since its certificate was issued,
// the certificate is either stored now, or never will be.
func (r *Reconciler) settle(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	if judged, ok := r.failures.Of(obj); ok && hasFailedAs(obj, obj.UID, judged) {
		r.failed(ctx, obj, judged)
	}
	issued, ok := r.issued.Of(obj)
	switch {
	case !ok:
	case bytes.Equal(obj.Status.Certificate, issued.PEM):
		r.stored(ctx, obj, issued)
	case obj.ResourceVersion != issued.resourceVersion:
		r.discarded(ctx, issued)
	}
}

// forgetWrites forgets the unanswered writes to a request that the cache has no more. The last version of the request
// says what became of its certificate. If that is not known, the certificate may have been stored before the deletion.
func (r *Reconciler) forgetWrites(ctx context.Context, name string) {
	gone, _ := r.gone.Take(name)
	issued, unanswered := r.issued.Take(name)
	switch {
	case !unanswered || gone.uid != issued.record.UID:
	case gone.certificate == sha256.Sum256(issued.PEM):
		r.recordStored(ctx, issued)
	case gone.last:
		r.discarded(ctx, issued)
	}
	r.failures.Drop(name)
	r.ended.Drop(name)
	r.certificates.drop(name)
}

// giveUp ends the issuance of a certificate that would not be issued now.
func (r *Reconciler) giveUp(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) {
	issued, ok := r.issued.Of(obj)
	if !ok {
		return
	}
	r.issued.Drop(obj.Name)
	switch outcome, _ := r.outcomeOf(ctx, obj, issued.PEM, nil); outcome {
	case audit.Stored:
		r.stored(ctx, obj, issued)
	case audit.Discarded:
		r.discarded(ctx, issued)
	}
}

// discarded reports a certificate that is not stored and never will be.
func (r *Reconciler) discarded(ctx context.Context, issued *issuance) {
	r.issued.Drop(issued.record.Name)
	r.certificates.remove(issued.record.Name, issued.PEM)
	discardedTotal.WithLabelValues(issued.record.Signer).Inc()
	r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, issued.record)
}

// stored reports a stored certificate. If its write had no certain answer, stored writes an audit record.
func (r *Reconciler) stored(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, issued *issuance) {
	r.recordStored(ctx, issued)
	name := obj.Spec.SignerName
	createdToIssued.WithLabelValues(name).Observe(r.ServerTime.Since(obj.CreationTimestamp.Time).Seconds())
	if at := csr.ApprovedAt(obj); !at.IsZero() {
		approvedToIssued.WithLabelValues(name).Observe(r.ServerTime.Since(at).Seconds())
	}
	if obj.Spec.ExpirationSeconds == nil {
		issuedLifetimeSeconds.WithLabelValues(name).Set(issued.NotAfter.Sub(issued.NotBefore).Seconds())
	}
	if issued.Cut > 0 {
		lifetimeCutTotal.WithLabelValues(name).Inc()
		r.Reporter.Request(obj, obj.Spec.Username, "Sign", "LifetimeCut", CutShort(issued.Issued))
	}
}

func (r *Reconciler) recordStored(ctx context.Context, issued *issuance) {
	r.issued.Drop(issued.record.Name)
	if issued.record.Message != "" {
		r.Audit.Write(ctx, r.Clock.Now(), audit.Stored, issued.record)
	}
	outcomesTotal.WithLabelValues(issued.record.Signer, "Issued", "").Inc()
}

// CutShort returns the note of the Event about a certificate that ends early because its CA ends.
func CutShort(issued *ca.Issued) string {
	return fmt.Sprintf("the certificate expires %s early, at %s, because its CA expires then: replace the CA",
		issued.Cut.Round(time.Second), issued.NotAfter.Format(time.RFC3339))
}

// outcomeOf returns what became of a certificate whose write to obj failed with err. A conflict does not prove that
// nothing was stored: the client repeats a write after a 5xx, and the first write may have been stored. NotFound does
// not prove that the request is gone, because a proxy may have answered, nor that it had no certificate: only the watch
// does (forgetWrites). So outcomeOf reads the request from the API server.
// counts reports that the API server can read the request but does not store the certificate.
func (r *Reconciler) outcomeOf(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, certificate []byte, err error,
) (outcome audit.Event, counts bool) {
	switch {
	case final(err):
		return audit.Discarded, false
	case apicall.NotTried(err):
		return audit.Uncertain, false // the next attempt shows whether an earlier write was stored
	}
	stored, readErr := r.read(ctx, obj)
	switch {
	case readErr != nil || stored.UID != obj.UID: // the certificate may have been stored before the deletion
		return audit.Uncertain, false
	case bytes.Equal(stored.Status.Certificate, certificate):
		return audit.Stored, false
	case stored.ResourceVersion != obj.ResourceVersion:
		return audit.Discarded, false
	default:
		return audit.Uncertain, apierrors.ReasonForError(err) != "" && !apierrors.IsConflict(err)
	}
}

// isGone reports whether the watch has said that obj was deleted.
func (r *Reconciler) isGone(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) bool {
	cached := &certificatesv1.CertificateSigningRequest{}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(obj), cached, client.UnsafeDisableDeepCopy)
	return apierrors.IsNotFound(err) || err == nil && cached.UID != obj.UID
}

// read reads obj from the API server, past the cache.
func (r *Reconciler) read(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored)
	return stored, err
}

// final reports whether a retry is useless while the object stays the same.
func final(err error) bool { return apierrors.IsInvalid(err) || tooLarge(err) }

// tooLarge reports whether an object is too large for the API server or for etcd. The API server passes on etcd's
// error.
func tooLarge(err error) bool {
	return apierrors.IsRequestEntityTooLargeError(err) ||
		err != nil && (strings.Contains(err.Error(), "etcdserver: request is too large") ||
			strings.Contains(err.Error(), "trying to send message larger than max"))
}
