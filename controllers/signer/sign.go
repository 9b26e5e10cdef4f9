package signer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// sign issues a certificate and stores it. Before that it writes an audit record, so every certificate has a record. If
// a ledger is kept, sign first records the certificate there.
func (r *Reconciler) sign(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement,
) (reconcile.Result, error) {
	signer := r.Signers[obj.Spec.SignerName]
	profile := signer.Profile.Within(judged.LifetimeCap)
	now := r.Clock.Now().Truncate(time.Second) // certificates have whole seconds
	keyID, notAfter := judged.Authority.KeyID(), judged.Authority.NotAfterOf(profile, judged.Request.Cert, now)
	if err := signer.KeyPair.Cover(ctx, keyID, obj.Spec.SignerName, notAfter); err != nil {
		r.notCovered(ctx, obj, judged, err)
		return reconcile.Result{}, err
	}
	issued, err := judged.Authority.Issue(profile, judged.Request.Cert, now)
	if differs := (*ca.LintError)(nil); errors.As(err, &differs) {
		r.mismatch(ctx, obj, judged, differs)
		return r.again(obj), nil
	} else if err != nil {
		return reconcile.Result{}, fmt.Errorf("issue certificate: %w", err)
	}
	record := audit.Of(obj, judged.Request)
	record.IssuerKeyID, record.Serial = keyID, issued.Serial.Text(16)
	record.CertificateSHA256 = hex.EncodeToString(issued.SHA256[:])
	record.NotBefore, record.NotAfter = &issued.NotBefore, &issued.NotAfter
	r.Audit.Write(ctx, r.Clock.Now(), audit.Signed, record)

	signed := obj.DeepCopy()
	signed.Status.Certificate = issued.PEM
	if err := r.update(ctx, signed); err != nil {
		return r.settle(ctx, obj, judged, issued, record, err)
	}
	r.issued(obj, issued)
	return reconcile.Result{}, nil
}

// settle finds out what became of a certificate whose write failed with err, and records it. Even a refusal does not
// prove that the certificate is not stored: client-go repeats a call, and an earlier attempt may have been stored. So
// settle reads the request from the API server. If that does not decide it, the outcome is Uncertain, and the digest in
// the record tells whether the request has this certificate. The next attempt issues a new certificate.
func (r *Reconciler) settle(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement,
	issued *ca.Issued, record audit.Record, err error,
) (reconcile.Result, error) {
	outcome := audit.Uncertain
	stored, readErr := r.read(ctx, obj)
	switch {
	case readErr != nil || stored.UID != obj.UID: // the certificate may have been stored before the request was deleted
	case bytes.Equal(stored.Status.Certificate, issued.PEM):
		outcome = audit.Stored
	case report.Refused(err) || stored.ResourceVersion != obj.ResourceVersion: // a write that comes later will conflict
		outcome = audit.Discarded
		discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
		r.reportForeign(ctx, stored, judged.Authority)
	}
	record.Message = err.Error()
	r.Audit.Write(ctx, r.Clock.Now(), outcome, record)
	switch {
	case outcome == audit.Stored:
		r.issued(obj, issued)
		return reconcile.Result{}, nil
	case report.TooLarge(err):
		return r.fail(ctx, obj, Judgement{Request: judged.Request, Result: verdict.Deny.Because(csr.ReasonTooLarge,
			"the request does not fit into an object with its certificate: the API server refused it as too large; "+
				"make a request with fewer names, labels or annotations")})
	case report.Refused(err):
		return r.notStored(ctx, obj, judged.Request, "the certificate", err), nil
	case apierrors.IsConflict(err) && outcome == audit.Discarded, apierrors.IsNotFound(readErr):
		return reconcile.Result{}, nil // the watch brings the change to the queue
	default:
		return reconcile.Result{}, fmt.Errorf("update status: %w", err)
	}
}

// notCovered reports that the ledger could not record a certificate, so that it is not issued.
func (r *Reconciler) notCovered(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, err error,
) {
	message := fmt.Sprintf("the certificate is not signed, because the CA's ledger cannot record it: %v", err)
	if errors.Is(err, ledger.ErrNoAccount) {
		message += "; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
			"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"
	}
	r.report(ctx, obj, Judgement{Request: judged.Request,
		Result: verdict.Wait.Because("LedgerUnavailable", "%s", message)})
}

// mismatch records and reports a finished certificate that differs from the judged request. It is not stored.
func (r *Reconciler) mismatch(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, differs *ca.LintError,
) {
	mismatchesTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	discardedTotal.WithLabelValues(obj.Spec.SignerName).Inc()
	record := audit.Of(obj, judged.Request)
	record.IssuerKeyID, record.Serial = judged.Authority.KeyID(), differs.Serial.Text(16)
	record.Reason, record.Message = "CertificateMismatch", differs.Error()
	r.Audit.Write(ctx, r.Clock.Now(), audit.Discarded, record)
	r.report(ctx, obj, Judgement{Request: judged.Request, Result: verdict.Ignore.Because("CertificateMismatch",
		"%v: the certificate was not stored; report this defect of the signer, with the request", differs)})
}

// issued reports a stored certificate.
func (r *Reconciler) issued(obj *certificatesv1.CertificateSigningRequest, issued *ca.Issued) {
	name, now := obj.Spec.SignerName, r.ServerTime.Latest()
	outcomesTotal.WithLabelValues(name, "Issued", "").Inc()
	createdToIssued.WithLabelValues(name).Observe(now.Sub(obj.CreationTimestamp.Time).Seconds())
	if at := csr.ApprovedAt(obj); !at.IsZero() {
		approvedToIssued.WithLabelValues(name).Observe(now.Sub(at).Seconds())
	}
	if obj.Spec.ExpirationSeconds == nil {
		issuedLifetimeSeconds.WithLabelValues(name).Set(issued.NotAfter.Sub(issued.NotBefore).Seconds())
	}
	if issued.Cut > 0 {
		lifetimeCutTotal.WithLabelValues(name).Inc()
		r.Reporter.Request(obj, obj.Spec.Username, "Sign", "LifetimeCut", fmt.Sprintf(
			"the certificate expires %s early, at %s, because its CA expires then: replace the CA",
			issued.Cut.Round(time.Second), issued.NotAfter.Format(time.RFC3339)))
	}
}

// reportForeign reports a certificate of stored that authority has not signed. Two signers with the same name race for
// each request, and may use different CAs. A certificate of authority itself is of this manager: its cache was stale, or
// another replica was the leader a moment ago.
func (r *Reconciler) reportForeign(
	ctx context.Context, stored *certificatesv1.CertificateSigningRequest, authority *ca.Authority,
) {
	if len(stored.Status.Certificate) == 0 {
		return
	}
	issuer := "an unknown CA"
	if certs, err := ca.ParseCertificates(stored.Status.Certificate); err == nil && len(certs) > 0 {
		if authority.Signed(certs[0]) {
			return
		}
		issuer = fmt.Sprintf("the CA %+q", csr.Shorten(certs[0].Issuer.String()))
	}
	name := stored.Spec.SignerName
	foreignTotal.WithLabelValues(name).Inc()
	log.FromContext(ctx).Info("Another signer has stored a certificate", "uid", stored.UID, "signer", name, "issuer", issuer)
	r.Reporter.Request(stored, stored.Spec.Username, "Sign", "SecondSigner", fmt.Sprintf(
		"another program has stored the certificate of this request, issued by %s, but this manager signs for %s too: "+
			"disable that signer in one of the two, and check the issuer of this certificate", issuer, name))
}

// update writes the status of obj. The manager's end does not cancel the write, because its outcome would be unknown.
func (r *Reconciler) update(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return r.Client.Status().Update(ctx, obj, client.FieldOwner(FieldManager))
}

// read reads obj from the API server, past the cache, after a failed write.
func (r *Reconciler) read(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (*certificatesv1.CertificateSigningRequest, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	stored := &certificatesv1.CertificateSigningRequest{}
	err := r.Live.Get(ctx, client.ObjectKeyFromObject(obj), stored)
	return stored, err
}
