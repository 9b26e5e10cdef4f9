package rotation

import (
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager fills in what is nil and registers the controllers: one for authorities, one that notes what was issued.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if err := r.fill(mgr); err != nil {
		return err
	}
	if err := mgr.Add(&r.group); err != nil {
		return fmt.Errorf("keep ledgers and watch Secrets: %w", err)
	}
	err := builder.ControllerManagedBy(mgr).
		Named(recordsName).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(holdsCertificate))).
		// One that a CA has issued before its authority was known is looked at then.
		Watches(&v1alpha1.SigningAuthority{}, handler.EnqueueRequestsFromMapFunc(r.allIssued), builder.WithPredicates(otherCAs)).
		WithOptions(options).
		Complete(reconcile.Func(r.record))
	if err != nil {
		return err
	}
	options.MaxConcurrentReconciles = atOnce
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.SigningAuthority{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesRawSource(source.Channel(r.secrets.changed, wakes)).
		WithOptions(options).
		Complete(r)
}

// fill fills in what is nil.
func (r *Reconciler) fill(mgr manager.Manager) error {
	if scheme := mgr.GetScheme(); !scheme.IsVersionRegistered(v1alpha1.GroupVersion) { // else others may be reading it by now
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			return fmt.Errorf("register %s: %w", v1alpha1.GroupVersion, err)
		}
	}
	if r.Client == nil {
		r.Client = mgr.GetClient()
	}
	if r.Live == nil {
		r.Live = mgr.GetAPIReader()
	}
	if r.Clock == nil {
		r.Clock = clock.RealClock{}
	}
	if r.Reporter == nil {
		r.Reporter = report.New(mgr.GetEventRecorder(Name), r.Clock)
	}
	if r.Cluster == nil {
		r.Cluster = mgr.GetConfig()
	}
	if r.OldLifetimeCap == 0 {
		r.OldLifetimeCap = DefaultOldLifetimeCap
	}
	if r.SettleFor == 0 {
		r.SettleFor = DefaultSettleFor
	}
	return r.connect(mgr)
}

// connect makes the clients that are not the manager's.
func (r *Reconciler) connect(mgr manager.Manager) error {
	secrets, err := metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("watch Secrets: %w", err)
	}
	r.secrets.metadata, r.secrets.group, r.secrets.changed = secrets, &r.group, make(chan event.GenericEvent)
	publisher, err := trust.NewPublisher(rest.CopyConfig(mgr.GetConfig()))
	if err != nil {
		return fmt.Errorf("publish bundles: %w", err)
	}
	r.publisher, r.prober = publisher, &probe.Prober{Audit: r.Audit, Clock: r.Clock}
	return nil
}
