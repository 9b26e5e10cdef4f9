package signer

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

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
