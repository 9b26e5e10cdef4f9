package rotation

import (
	"cmp"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crcluster "sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager fills in nil fields, and registers two controllers: for authorities, and for issued certificates. It also adds
// what stores the nodes that have moved.
func (r *Reconciler) SetupWithManager(mgr manager.Manager) error {
	if err := r.setDefaults(mgr); err != nil {
		return err
	}
	options := fairqueue.Options(1, r.Clock)
	options.ReconciliationTimeout = -1 // each call has its own, and a reconcile makes many
	authorities := func(each handler.EventHandler, changed predicate.Predicate) source.Source {
		return source.Kind[client.Object](r.Home.GetCache(), &v1alpha1.SigningAuthority{}, each, changed)
	}
	err := builder.ControllerManagedBy(mgr).
		Named(ledgerName).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(issuedLater)).
		// This records a certificate that was issued before its CA was known.
		WatchesRawSource(authorities(handler.EnqueueRequestsFromMapFunc(r.learnCAs), casChanged)).
		WithOptions(options).
		Complete(reconcile.Func(r.recordIssued))
	if err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(r.storeMoved)); err != nil {
		return err
	}
	options.MaxConcurrentReconciles = maxConcurrent
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		WatchesRawSource(authorities(&handler.EnqueueRequestForObject{}, changed)).
		WithOptions(options).
		Complete(r)
}

// setDefaults fills in nil fields, and creates the clients that the manager does not provide.
func (r *Reconciler) setDefaults(mgr manager.Manager) error {
	r.apart = r.Home != nil
	r.Home = cmp.Or[crcluster.Cluster](r.Home, mgr)
	// If the scheme has the version already, it is not changed: other goroutines may read it.
	if scheme := r.Home.GetScheme(); !scheme.IsVersionRegistered(v1alpha1.GroupVersion) {
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			return fmt.Errorf("register %s: %w", v1alpha1.GroupVersion, err)
		}
	}
	r.Client, r.Live, r.config = r.Home.GetClient(), r.Home.GetAPIReader(), mgr.GetConfig()
	r.Clock = cmp.Or[clock.PassiveClock](r.Clock, clock.RealClock{})
	r.ServerTime = cmp.Or(r.ServerTime, servertime.Of(r.Clock))
	r.Recorder = cmp.Or[events.EventRecorder](r.Recorder, r.Home.GetEventRecorder(Name))
	r.reporter = report.New(r.Recorder, r.Clock)
	r.OldLifetimeCap = cmp.Or(r.OldLifetimeCap, v1alpha1.DefaultOldLifetimeCap)
	r.SettleFor = cmp.Or(r.SettleFor, v1alpha1.DefaultSettleFor)
	discovered, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	r.served = &publish.Publisher{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Discovery: discovered}
	if r.publisher = r.served; r.apart {
		r.publisher = &publish.Publisher{Client: r.Client, Live: r.Live}
	}
	r.loadPair, r.prober = keypair.Pair.Load, &probe.Prober{Audit: r.Audit, Now: r.ServerTime.Latest}
	return nil
}
