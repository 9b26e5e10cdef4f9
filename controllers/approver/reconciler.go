// Package approver approves CertificateSigningRequests: it decides by rules that are pure and by one question to the
// API server for each, and writes one condition. It signs and deletes nothing.
package approver

import (
	"context"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// Name is the controller's name in logs and in the metrics of its queue.
const Name = "csr-approver"

// Denial says whether the approver may deny.
type Denial string

const (
	// DenialNever leaves what can never become valid alone, for other approvers, people and the cleaner. It is the
	// default: a denied kubelet asks again every half minute, one that waits only every quarter of an hour.
	DenialNever Denial = "Never"
	// DenialPermanent denies what can never become valid.
	DenialPermanent Denial = "Permanent"
)

// Reconciler approves requests. Fields left nil are filled in from the manager by SetupWithManager.
type Reconciler struct {
	// Rules judge, each for its signer. Requests of other signers are not touched and cost no call.
	Rules []Rule
	// Denial is DenialNever when empty.
	Denial Denial

	Client     client.Client
	Authorizer authz.Authorizer
	Reporter   *report.Reporter
	Clock      clock.PassiveClock
	// Audit, if set, gets a record of each decision, beside the log.
	Audit *audit.Log
}

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client-kubelet,verbs=approve
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager fills in what is nil and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Authorizer == nil {
		r.Authorizer = &authz.Shared{Authorizer: measured{authz.SubjectAccess{Client: r.Client}}}
	}
	if r.Reporter == nil {
		r.Reporter = report.New(mgr.GetEventRecorder(Name), r.Clock)
	}
	if r.Denial == "" {
		r.Denial = DenialNever
	}
	if err := r.check(); err != nil {
		return err
	}
	for _, rule := range r.Rules { // there before its first event, so that the rate has it
		createdToApproved.WithLabelValues(rule.SignerName)
	}
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
			request, ok := obj.(*certificatesv1.CertificateSigningRequest)
			return ok && r.rule(request) != nil
		}))).
		WithOptions(options).
		Complete(r)
}

// check returns all that is wrong with what cannot be filled in.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is neither %s nor %s", r.Denial, DenialNever, DenialPermanent))
	}
	for _, rule := range r.Rules {
		if rule.Shape == nil {
			errs = append(errs, fmt.Errorf("the rule for signer %q has no Shape", rule.SignerName))
		}
		for _, recogniser := range rule.Recognisers {
			if recogniser.Matches == nil {
				errs = append(errs, fmt.Errorf("recogniser %q of the rule for signer %q has no Matches", recogniser.Name, rule.SignerName))
			}
		}
	}
	return errors.Join(errs...)
}

// rule returns the rule for obj, or nil when obj is not ours or already decided.
func (r *Reconciler) rule(obj *certificatesv1.CertificateSigningRequest) *Rule {
	for i := range r.Rules {
		if r.Rules[i].SignerName == obj.Spec.SignerName && csr.Undecided(obj) {
			return &r.Rules[i]
		}
	}
	return nil
}

// Reconcile decides about one request and writes at most one condition.
func (r *Reconciler) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	result, err := r.reconcile(ctx, key)
	if err != nil {
		errorsTotal.WithLabelValues(report.ErrorReason(err)).Inc()
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: judging only reads, and apply writes a copy.
	if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if r.rule(obj) == nil {
		return reconcile.Result{}, nil
	}
	req, decision, err := r.Decide(ctx, obj)
	if err != nil {
		return reconcile.Result{}, err
	}
	return r.apply(ctx, obj, req, decision)
}

// Decide says what Reconcile would decide about obj, and writes nothing. The request is nil when it can't be read. The
// Decision of what is not ours, or decided already, is the zero one.
func (r *Reconciler) Decide(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (*csr.Request, Decision, error) {
	rule := r.rule(obj)
	if rule == nil {
		return nil, Decision{}, nil
	}
	req, err := csr.Parse(obj)
	if err != nil {
		return nil, malformed(err), nil
	}
	decision, err := r.ask(ctx, rule, req)
	return req, decision, err
}

func (r *Reconciler) ask(ctx context.Context, rule *Rule, req *csr.Request) (Decision, error) {
	recognisers, decision := rule.review(req)
	if decision.Verdict != Ignore {
		return decision, nil
	}
	for _, recogniser := range recognisers {
		allowed, err := r.Authorizer.Allowed(ctx, req.Requester, recogniser.Permission)
		if err != nil {
			return Decision{}, fmt.Errorf("review whether the requester may %s: %w", recogniser.Name, err)
		}
		if allowed {
			return approved(recogniser), nil
		}
	}
	return notAuthorized(req, recognisers), nil
}

func (r *Reconciler) apply(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision) (reconcile.Result, error) {
	var kind certificatesv1.RequestConditionType
	switch {
	case decision.Verdict == Approve:
		kind = certificatesv1.CertificateApproved
	case decision.Verdict == Deny && r.Denial == DenialPermanent:
		kind = certificatesv1.CertificateDenied
	default:
		return r.refuse(ctx, obj, req, decision), nil
	}
	obj = obj.DeepCopy()
	csr.AddCondition(obj, kind, decision.Reason, decision.Message, time.Time{})
	if err := r.Client.SubResource("approval").Update(ctx, obj); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil // the watch brings what changed
		}
		if apierrors.IsInvalid(err) { // it stays so until the object changes
			return r.refuse(ctx, obj, req, malformed(fmt.Errorf("the API server takes no approval for this request: %w", err))), nil
		}
		return reconcile.Result{}, fmt.Errorf("update approval: %w", err)
	}
	if decision.Verdict == Deny {
		r.Reporter.Request(obj, obj.Spec.Username, "Approve", decision.Reason, decision.Message)
	} else {
		createdToApproved.WithLabelValues(obj.Spec.SignerName).Observe(r.Clock.Since(obj.CreationTimestamp.Time).Seconds())
	}
	r.record(ctx, obj, req, decision)
	return reconcile.Result{}, nil
}

// refuse says why obj stays as it is, and when to look at it again: a verdict of Wait after as long as the request is
// old, so that the pause doubles, from a second to a minute; any other never, as spec does not change. What is not denied
// counts as ignored.
func (r *Reconciler) refuse(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision) reconcile.Result {
	if decision.Verdict == Deny {
		decision.Verdict = Ignore
	}
	if r.Reporter.Request(obj, obj.Spec.Username, "Approve", decision.Reason, decision.Message) {
		r.record(ctx, obj, req, decision)
	}
	if decision.Verdict != Wait {
		return reconcile.Result{}
	}
	low := handler.LowPriority
	return reconcile.Result{RequeueAfter: csr.Pause(r.Clock.Since(obj.CreationTimestamp.Time)), Priority: &low}
}

// record counts and logs a decision.
func (r *Reconciler) record(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, req *csr.Request, decision Decision) {
	decisionsTotal.WithLabelValues(obj.Spec.SignerName, decision.Rule, decision.Verdict.String(), decision.Reason).Inc()
	record := audit.Of(obj, req)
	record.Verdict, record.Rule, record.Reason, record.Message = decision.Verdict.String(), decision.Rule, decision.Reason, decision.Message
	r.Audit.Write(ctx, r.Clock.Now(), audit.Decided, record)
}
