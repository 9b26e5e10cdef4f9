package signer

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// sign issues the certificate and stores it. Where a ledger is kept, what is to be issued is noted there before.
func (r *Reconciler) sign(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement, now time.Time) error {
	signer := r.Signers[obj.Spec.SignerName]
	profile := signer.Profile.Within(judged.LifetimeCap)
	notAfter := judged.Authority.NotAfterOf(profile, judged.Request.Cert, now)
	if err := signer.KeyPair.cover(ctx, judged.Authority.KeyID(), obj.Spec.SignerName, notAfter); err != nil {
		r.tell(ctx, obj, Judgement{Request: judged.Request, Outcome: Wait, Reason: "LedgerUnavailable",
			Message: fmt.Sprintf("nothing is signed that the ledger of the CA does not know of: %v", err)})
		return err
	}
	issued, err := judged.Authority.Issue(profile, judged.Request.Cert, now)
	if err != nil {
		return fmt.Errorf("issue certificate: %w", err)
	}
	return r.store(ctx, obj.DeepCopy(), judged, issued)
}
