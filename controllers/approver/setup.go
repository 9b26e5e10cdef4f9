package approver

import (
	"cmp"
	"errors"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests/approval,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kube-apiserver-client-kubelet,verbs=approve
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager sets nil fields and registers the controller.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.TypedOptions[fairqueue.Key]) error {
	r.fill(mgr)
	if err := r.check(); err != nil {
		return err
	}
	for _, rule := range r.Rules { // a histogram needs to exist before its first event, for its rate
		createdToApproved.WithLabelValues(rule.SignerName)
	}
	options.Reconciler = r
	options.LogConstructor = fairqueue.LogConstructor(mgr.GetLogger(), Name)
	approving, err := controller.NewTyped(Name, mgr, options)
	if err != nil {
		return fmt.Errorf("make controller: %w", err)
	}
	wake := newWakeUps()
	errs := []error{
		approving.Watch(source.TypedKind(mgr.GetCache(), &certificatesv1.CertificateSigningRequest{}, fairqueue.Events(r.observe, r.forget))),
		approving.Watch(fairqueue.Wake(wake.changed, nil, func() []fairqueue.Key { return wake.woken(&r.waiting) })),
	}
	if r.BlockList != nil {
		// The block list changes rarely, so all undecided requests are judged again.
		errs = append(errs, approving.Watch(fairqueue.Wake(r.BlockList.Subscribe(), r.BlockList.WaitForFirst, r.waiting.All)))
	}
	if r.Inventory != nil {
		errs = append(errs, r.Inventory.setup(mgr, r.Rules, r.Workers, r.Clock, r.ServerTime, r.BlockList.BlocksNode, wake.inventory))
	}
	return errors.Join(errs...)
}

// fill sets nil fields.
func (r *Reconciler) fill(mgr manager.Manager) {
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Live == nil {
		r.Live = mgr.GetAPIReader()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.ServerTime == nil {
		r.ServerTime = servertime.Of(r.Clock)
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
	r.Workers = cmp.Or(r.Workers, DefaultWorkers)
	r.limiter = newLimiter(r.Limit, r.Clock)
}

type workQueue = workqueue.TypedRateLimitingInterface[fairqueue.Key]

// observe enqueues obj if Reconcile has something to do.
func (r *Reconciler) observe(obj *certificatesv1.CertificateSigningRequest, queue workQueue) {
	rule := r.rule(r.judged(obj))
	if rule == nil {
		r.waiting.Remove(obj.Name)
		return
	}
	node, marks := "", []uint64(nil)
	if req, err := r.RequestLimits.Parse(obj); err == nil {
		node, marks = req.NodeName(), rule.marksOf(req)
	}
	key := fairqueue.KeyOf(obj, node)
	r.waiting.Put(key, marks...)
	queue.Add(key)
}

// forget forgets obj, which was deleted.
func (r *Reconciler) forget(obj *certificatesv1.CertificateSigningRequest) {
	r.waiting.Remove(obj.Name)
	r.Reporter.Forget(obj)
}

// check returns all errors in fields without a default.
func (r *Reconciler) check() error {
	var errs []error
	if r.Denial != DenialNever && r.Denial != DenialPermanent {
		errs = append(errs, fmt.Errorf("denial %q is invalid: set it to %s or %s", r.Denial, DenialNever, DenialPermanent))
	}
	for _, rule := range r.Rules {
		if rule.Shape == nil && rule.Judge == nil && rule.Policy == nil {
			errs = append(errs, fmt.Errorf("the rule for signer %q has no Shape: set Shape, Judge or Policy", rule.SignerName))
		}
		for _, recogniser := range rule.Recognisers {
			if recogniser.Matches == nil {
				errs = append(errs, fmt.Errorf("recogniser %q of the rule for signer %q has no Matches: set it",
					recogniser.Name, rule.SignerName))
			}
		}
	}
	return errors.Join(errs...)
}
