package signer

import (
	"context"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// startedAt is when a dry run looked at its first request, in whole seconds as the API's times are.
type startedAt struct {
	once sync.Once
	at   time.Time
}

func (s *startedAt) or(now time.Time) time.Time {
	s.once.Do(func() { s.at = now.Truncate(time.Second) })
	return s.at
}

// rehearsable says whether obj is one of ours that has been approved, by whomever it has been signed or failed since.
func (r *Reconciler) rehearsable(obj *certificatesv1.CertificateSigningRequest) bool {
	_, ours := r.Signers[obj.Spec.SignerName]
	return ours && !csr.ApprovedAt(obj).IsZero()
}

// rehearse says what would become of obj, and signs nothing. What another signer has signed or failed is judged too, as it
// is usually faster, unless it was approved before this began.
func (r *Reconciler) rehearse(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) reconcile.Result {
	began := r.started.or(r.serverTime().Now())
	waiting := r.signable(obj)
	if !waiting && (!r.rehearsable(obj) || csr.StateOf(obj) == csr.Denied || csr.ApprovedAt(obj).Before(began)) {
		return reconcile.Result{}
	}
	judged := r.Judge(obj, now)
	r.tellWould(ctx, obj, judged)
	if !waiting || judged.Authority != nil || judged.Outcome != Wait {
		return reconcile.Result{}
	}
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.serverTime().Since(obj.CreationTimestamp.Time)), Priority: &low}
}

// wouldOutcomes are the reasons of a dry run by outcome.
var wouldOutcomes = map[string]string{"Issued": "WouldIssue", Failed: "WouldFail", Wait: "WouldWait", Ignore: "WouldIgnore"}

// tellWould says what would become of obj, once.
func (r *Reconciler) tellWould(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, judged Judgement) {
	outcome, tell := judged.Outcome, r.Reporter.Request
	message := fmt.Sprintf("%s: %s", judged.Reason, judged.Sentence(obj.Spec.SignerName))
	if judged.Authority != nil {
		outcome, tell, message = "Issued", r.Reporter.Would, fmt.Sprintf("key %s would sign it", judged.Authority.KeyID())
	}
	would := wouldOutcomes[outcome]
	if !tell(obj, obj.Spec.Username, "Sign", would, message) {
		return
	}
	dryRunTotal.WithLabelValues(obj.Spec.SignerName, outcome, judged.Reason).Inc()
	record := audit.Of(obj, judged.Request)
	record.Verdict, record.Reason, record.Message = would, judged.Reason, message
	r.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)
}
