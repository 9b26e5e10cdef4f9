package approver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// RenewalsName is the name of the controller for renewals, which share nothing with what waits for slow sources.
const RenewalsName = Name + "-renewals"

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
	r.limiter = newLimiter(r.Limit, r.Clock)
	renewals, others := r.controller(mgr, RenewalsName, options), r.controller(mgr, Name, options)
	if r.Inventory != nil {
		woken := newWaker()
		if err := r.Inventory.setup(mgr, r.Clock, woken.wake); err != nil {
			return err
		}
		others.WatchesRawSource(r.wakeSource(woken))
	}
	return errors.Join(renewals.Complete(pool{r, isRenewal}), others.Complete(pool{r, isNoRenewal}))
}

// pool works on its share of the requests: a source that stalls can hold up all workers of the one, and none of the
// other.
type pool struct {
	*Reconciler
	mine func(*certificatesv1.CertificateSigningRequest) bool
}

// Reconcile decides about a request, if it belongs to this pool.
func (p pool) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	return p.reconcileIf(ctx, key, p.mine)
}

func (r *Reconciler) controller(mgr manager.Manager, name string, options controller.Options) *builder.Builder {
	ctrl := builder.ControllerManagedBy(mgr).
		Named(name).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
			request, ok := obj.(*certificatesv1.CertificateSigningRequest)
			return ok && (r.rule(request) != nil || r.DryRun && r.ours(request))
		}))).
		WithOptions(options)
	if r.BlockList != nil {
		ctrl.WatchesRawSource(r.BlockList.Wakes(r.enqueueUndecided))
	}
	return ctrl
}

// isRenewal says whether a node asks for its own client certificate, for which nobody is asked but the API server.
func isRenewal(obj *certificatesv1.CertificateSigningRequest) bool {
	if obj.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName || !strings.HasPrefix(obj.Spec.Username, csr.NodeUserPrefix) {
		return false
	}
	req, err := csr.Parse(obj)
	return err == nil && req.Cert.Subject.CommonName == obj.Spec.Username
}

func isNoRenewal(obj *certificatesv1.CertificateSigningRequest) bool { return !isRenewal(obj) }

// Schedule is the order in which a work queue of this controller gives requests out.
func (r *Reconciler) Schedule() workqueue.Queue[reconcile.Request] {
	return newSchedule(func(key reconcile.Request) place {
		obj := &certificatesv1.CertificateSigningRequest{}
		//nolint:forbidigo // a queue has no context
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.Client.Get(ctx, key.NamespacedName, obj, client.UnsafeDisableDeepCopy); err != nil {
			return place{} // it is gone, or looked for again when it is its turn
		}
		at := place{requester: obj.Spec.Username, created: obj.CreationTimestamp.Time}
		if req, err := csr.Parse(obj); err == nil {
			at.node = req.NodeName()
		}
		return at
	})
}

// check returns all that is wrong with what cannot be filled in.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is neither %s nor %s", r.Denial, DenialNever, DenialPermanent))
	}
	for _, rule := range r.Rules {
		if rule.Shape == nil && rule.Judge == nil {
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
