package approver

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// ours says whether there is a rule for obj, decided or not.
func (r *Reconciler) ours(obj *certificatesv1.CertificateSigningRequest) bool {
	for i := range r.Rules {
		if r.Rules[i].SignerName == obj.Spec.SignerName {
			return true
		}
	}
	return false
}

// rehearse judges obj and writes nothing to it, and compares with what another approver does. What that one has decided
// before it was seen here is judged as it was made, so that a faster one can be compared with too.
func (r *Reconciler) rehearse(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (reconcile.Result, error) {
	if !r.ours(obj) {
		return reconcile.Result{}, nil
	}
	if _, err := r.serverTime().Skew(); err != nil { // what was made before the dry run can't be told from what comes now
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	last, decided := r.trial.of(obj, r.serverTime().Now()), !csr.Undecided(obj)
	if !last.open(decided) || decided && !last.known() && r.trial.before(obj) {
		return reconcile.Result{}, nil
	}
	if !last.final {
		var err error
		if last, err = r.opine(ctx, obj, decided); err != nil {
			return reconcile.Result{}, err
		}
	}
	switch {
	case decided:
		r.compare(ctx, obj, last)
	case last.Verdict == Wait:
		return r.again(obj), nil
	}
	return reconcile.Result{}, nil
}

// opine judges obj, as it was made if it has been decided since, and tells and remembers the verdict.
func (r *Reconciler) opine(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, decided bool) (opinion, error) {
	asMade := obj
	if decided {
		asMade = obj.DeepCopy()
		asMade.Status = certificatesv1.CertificateSigningRequestStatus{}
	}
	req, decision, err := r.Decide(ctx, asMade)
	if err != nil {
		return opinion{}, err
	}
	if decision.Verdict == Approve {
		if limited, within := r.limiter.check(req); !within {
			decision = limited
		}
	}
	if decision.Verdict == Deny && r.Denial != DenialPermanent {
		decision.Verdict = Ignore
	}
	r.tellWould(ctx, obj, req, decision)
	return r.trial.note(obj, decision), nil
}

// tellWould says what would be decided about obj, once.
func (r *Reconciler) tellWould(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision) {
	tell := r.Reporter.Request
	if decision.Verdict == Approve {
		tell = r.Reporter.Would
	}
	would := "Would" + decision.Verdict.String()
	if !tell(obj, obj.Spec.Username, "Approve", would, fmt.Sprintf("%s: %s", decision.Reason, decision.Message)) {
		return
	}
	record := audit.Of(obj, req)
	record.Verdict, record.Rule, record.Reason, record.Message = would, decision.Rule, decision.Reason, decision.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
}

// compare counts whether another approver has decided obj as this one would: a certificate for it or none.
func (r *Reconciler) compare(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, last opinion) {
	state := csr.StateOf(obj)
	approved := state == csr.Approved || state == csr.Issued || !csr.ApprovedAt(obj).IsZero() // or failed since
	outcome, did := "agreed", "not approved"
	if approved {
		did = "approved"
	}
	if approved != (last.Verdict == Approve) {
		outcome = "disagreed"
	}
	if !r.trial.compared(obj) {
		return
	}
	dryRunTotal.WithLabelValues(obj.Spec.SignerName, last.Verdict.String(), last.Reason, outcome).Inc()
	if outcome == "agreed" {
		return
	}
	message := fmt.Sprintf("another approver has %s it, and here the verdict is %s: %s: %s", did, last.Verdict, last.Reason, last.Message)
	r.Reporter.Request(obj, obj.Spec.Username, "Approve", "WouldDiffer", message)
	record := audit.Of(obj, nil)
	record.Verdict, record.Rule, record.Reason, record.Message = "WouldDiffer", last.Rule, last.Reason, message
	r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
}

// gone counts a request that was deleted before anybody had decided it.
func (r *Reconciler) gone(name string) {
	if last, undecided := r.trial.gone(name); undecided {
		last.countUndecided()
	}
}

func (o opinion) countUndecided() {
	dryRunTotal.WithLabelValues(o.signer, o.Verdict.String(), o.Reason, "undecided").Inc()
}
