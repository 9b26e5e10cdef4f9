package approver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
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

// rehearse judges obj, writes nothing to it, and compares its decision with that of another approver. If the other
// approver was faster, rehearse judges the request as it was before that decision.
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
	case last.Verdict == verdict.Wait:
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
	if decision.Verdict == verdict.Approve {
		if limited, within := r.limiter.take(req); !within {
			decision = limited
		}
	}
	if decision.Verdict == verdict.Deny && r.Denial != DenialPermanent {
		decision.Verdict = verdict.Ignore
	}
	r.tellWould(ctx, obj, req, decision)
	return r.trial.note(obj, decision), nil
}

// tellWould says what would be decided about obj, once.
func (r *Reconciler) tellWould(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision) {
	tell := r.Reporter.Request
	if decision.Verdict == verdict.Approve {
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
	if approved != (last.Verdict == verdict.Approve) {
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

const (
	// opinions bounds how many requests' verdicts a dry run keeps. They are dropped with their request.
	opinions = 1 << 20
	// longestOpinion bounds the sentence of each, in bytes.
	longestOpinion = 512
)

// trial is what a dry run has thought of each request. The zero value is ready.
type trial struct {
	mu    sync.Mutex
	since time.Time  // whole seconds, as creation times are
	last  *lru.Cache // name → opinion
}

// opinion is the last verdict about one request.
type opinion struct {
	Decision
	uid    types.UID
	signer string
	// final is a verdict after which nothing else would have been thought of it.
	final bool
	// compared reports whether the comparison has been counted.
	compared bool
}

// known says whether there is an opinion at all.
func (o opinion) known() bool { return o.uid != "" }

// open says whether there is anything left to do for a request that another approver has decided or not.
func (o opinion) open(decided bool) bool { return !o.compared && (decided || !o.final) }

// of returns the opinion about obj; it is the zero one if there is none. Another request of the same name was deleted
// undecided if it has not been compared.
func (t *trial) of(obj *certificatesv1.CertificateSigningRequest, now time.Time) opinion {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.since, t.last = now.Truncate(time.Second), lru.New(opinions)
	}
	last, known := t.get(obj.Name)
	if known && last.uid != obj.UID {
		t.last.Remove(obj.Name)
		if !last.compared {
			last.countUndecided()
		}
		return opinion{}
	}
	return last
}

func (t *trial) get(name string) (opinion, bool) {
	if t.last == nil {
		return opinion{}, false
	}
	found, known := t.last.Get(name)
	if !known {
		return opinion{}, false
	}
	return found.(opinion), true
}

// before says whether obj is older than the trial: what was decided about it then was decided without us.
func (t *trial) before(obj *certificatesv1.CertificateSigningRequest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return obj.CreationTimestamp.Time.Before(t.since)
}

// note remembers decision: one that would have been written is final.
func (t *trial) note(obj *certificatesv1.CertificateSigningRequest, decision Decision) opinion {
	t.mu.Lock()
	defer t.mu.Unlock()
	decision.Message = strings.Clone(csr.ShortenTo(decision.Message, longestOpinion))
	last := opinion{
		Decision: decision, uid: obj.UID, signer: obj.Spec.SignerName,
		final: decision.Verdict == verdict.Approve || decision.Verdict == verdict.Deny,
	}
	t.last.Add(obj.Name, last)
	return last
}

// compared notes that obj has been, and says whether that is news.
func (t *trial) compared(obj *certificatesv1.CertificateSigningRequest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.get(obj.Name)
	if !known || last.uid != obj.UID || last.compared {
		return false
	}
	last.compared = true
	t.last.Add(obj.Name, last)
	return true
}

// gone forgets the request of that name, and says whether it was never decided.
func (t *trial) gone(name string) (opinion, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.get(name)
	if known {
		t.last.Remove(name)
	}
	return last, known && !last.compared
}
