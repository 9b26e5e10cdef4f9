package approver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// ours reports whether a rule exists for obj's signer, even if obj is decided.
func (r *Reconciler) ours(obj *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(r.Rules, func(rule Rule) bool { return rule.SignerName == obj.Spec.SignerName })
}

// reconcileDryRun judges obj without writing to it, and compares its decision with another approver's. If the other
// approver has already decided, it judges the request as it was before that decision.
func (r *Reconciler) reconcileDryRun(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest,
) (reconcile.Result, error) {
	if _, err := r.serverTime().Skew(); err != nil { // older requests cannot be told from newer ones
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	last, decided := r.opinions.of(obj, r.serverTime().Now()), !csr.Undecided(obj)
	if last.compared || decided && last.uid == "" && r.opinions.before(obj) {
		return reconcile.Result{}, nil
	}
	if !last.final {
		var err error
		if last, err = r.judgeDryRun(ctx, obj, decided); err != nil {
			return reconcile.Result{}, err
		}
	}
	if decided && !last.Pending {
		r.compare(ctx, obj, last)
		return reconcile.Result{}, nil
	}
	if last.Verdict == verdict.Wait {
		return r.again(obj), nil
	}
	return reconcile.Result{}, nil
}

// judgeDryRun judges obj. If obj is decided, it judges obj without its status. It reports the verdict and keeps it.
func (r *Reconciler) judgeDryRun(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, decided bool,
) (opinion, error) {
	asMade, err := r.Requests.Whole(ctx, r.Live, obj)
	if err != nil {
		return opinion{}, err
	}
	if decided {
		asMade = asMade.DeepCopy()
		asMade.Status = certificatesv1.CertificateSigningRequestStatus{}
	}
	req, decision, err := r.judge(ctx, asMade)
	if err != nil || decision.Pending && decision.Reason == "" {
		return opinion{Decision: decision}, err
	}
	if decision.Verdict == verdict.Deny && r.Denial != DenialPermanent {
		decision.Verdict = verdict.Ignore
	}
	would, write := "Would"+decision.Verdict.String(), r.Reporter.Request
	if decision.Verdict == verdict.Approve {
		write = r.Reporter.Would
	}
	if write(obj, asMade.Spec.Username, "Approve", would, fmt.Sprintf("%s: %s", decision.Reason, decision.Message)) {
		r.audit(ctx, asMade, req, would, decision)
	}
	return r.opinions.note(obj, decision), nil
}

// compare counts whether another approver has decided obj as this dry run would: approved or not.
func (r *Reconciler) compare(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, last opinion) {
	if !r.opinions.markCompared(obj) {
		return
	}
	state := csr.StateOf(obj)
	approved := state == csr.Approved || state == csr.Issued || !csr.ApprovedAt(obj).IsZero() // or failed later
	outcome := "agreed"
	if approved != (last.Verdict == verdict.Approve) {
		outcome = "disagreed"
	}
	dryRunTotal.WithLabelValues(obj.Spec.SignerName, last.Verdict.String(), last.Reason, outcome).Inc()
	if outcome == "agreed" {
		return
	}
	did := "not approved"
	if approved {
		did = "approved"
	}
	last.Message = fmt.Sprintf("another approver has %s this request, but the verdict of this dry run is %s: %s: %s",
		did, last.Verdict, last.Reason, last.Message)
	r.Reporter.Request(obj, obj.Spec.Username, "Approve", "WouldDiffer", last.Message)
	r.audit(ctx, obj, nil, "WouldDiffer", last.Decision)
}

const (
	// maxOpinions bounds the verdicts that a dry run keeps. A verdict is dropped when its request is deleted.
	maxOpinions = 1 << 20
	// longestOpinion bounds the message of each verdict, in bytes.
	longestOpinion = 512
)

// opinions holds the last verdict of a dry run about each request. The zero value is empty.
type opinions struct {
	mu    sync.Mutex
	since time.Time  // of the first verdict, in whole seconds like creation times
	last  *lru.Cache // request name → opinion
}

// opinion is the last verdict about a request. The zero value is no verdict.
type opinion struct {
	Decision
	uid    types.UID
	signer string
	// final reports that the verdict would have been written, so it cannot change.
	final bool
	// compared reports that the comparison has been counted.
	compared bool
}

// of returns the opinion about obj. If the kept opinion is about a deleted request of the same name, of drops it.
func (o *opinions) of(obj *certificatesv1.CertificateSigningRequest, now time.Time) opinion {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last == nil {
		o.since, o.last = now.Truncate(time.Second), lru.New(maxOpinions)
	}
	last := o.get(obj.Name)
	if last.uid != "" && last.uid != obj.UID {
		o.drop(obj.Name)
		return opinion{}
	}
	return last
}

// get returns the opinion about the named request. The caller holds mu.
func (o *opinions) get(name string) opinion {
	if o.last == nil {
		return opinion{}
	}
	found, _ := o.last.Get(name)
	last, _ := found.(opinion)
	return last
}

// drop drops the opinion about a deleted request. If the request was never compared, it counts as undecided. The
// caller holds mu.
func (o *opinions) drop(name string) {
	last := o.get(name)
	if last.uid == "" {
		return
	}
	o.last.Remove(name)
	if !last.compared {
		dryRunTotal.WithLabelValues(last.signer, last.Verdict.String(), last.Reason, "undecided").Inc()
	}
}

// countDeleted drops the opinion about the named request, which was deleted.
func (o *opinions) countDeleted(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drop(name)
}

// before reports whether obj is older than the dry run. The dry run does not compare such a request.
func (o *opinions) before(obj *certificatesv1.CertificateSigningRequest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return obj.CreationTimestamp.Time.Before(o.since)
}

// note keeps decision, and returns it as an opinion. An Approve or a Deny is final.
func (o *opinions) note(obj *certificatesv1.CertificateSigningRequest, decision Decision) opinion {
	o.mu.Lock()
	defer o.mu.Unlock()
	decision.Message = strings.Clone(csr.ShortenTo(decision.Message, longestOpinion))
	last := opinion{
		Decision: decision, uid: obj.UID, signer: obj.Spec.SignerName,
		final: decision.Verdict == verdict.Approve || decision.Verdict == verdict.Deny,
	}
	o.last.Add(obj.Name, last)
	return last
}

// markCompared marks obj as compared, and reports whether it was not marked before.
func (o *opinions) markCompared(obj *certificatesv1.CertificateSigningRequest) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.get(obj.Name)
	if last.uid != obj.UID || last.compared {
		return false
	}
	last.compared = true
	o.last.Add(obj.Name, last)
	return true
}
