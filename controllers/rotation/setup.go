package rotation

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager fills in nil fields, and registers two controllers: for authorities, and for issued certificates.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if err := r.setDefaults(mgr); err != nil {
		return err
	}
	err := builder.ControllerManagedBy(mgr).
		Named(ledgerName).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(issuedLater)).
		// This records a certificate that was issued before its CA was known.
		Watches(&v1alpha1.SigningAuthority{}, handler.EnqueueRequestsFromMapFunc(
			func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{everyRequest} }),
			builder.WithPredicates(casChanged)).
		WithOptions(options).
		Complete(reconcile.Func(r.recordIssued))
	if err != nil {
		return err
	}
	options.MaxConcurrentReconciles = maxConcurrent
	changed := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{})
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.SigningAuthority{}, builder.WithPredicates(changed)).
		WatchesRawSource(r.secretWatches.source()).
		WithOptions(options).
		Complete(r)
}

// setDefaults fills in nil fields, and creates the clients that the manager does not provide.
func (r *Reconciler) setDefaults(mgr manager.Manager) error {
	// If the scheme has the version already, it is not changed: other goroutines may read it.
	if scheme := mgr.GetScheme(); !scheme.IsVersionRegistered(v1alpha1.GroupVersion) {
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
	r.OldLifetimeCap = cmp.Or(r.OldLifetimeCap, DefaultOldLifetimeCap)
	r.SettleFor = cmp.Or(r.SettleFor, DefaultSettleFor)

	secrets, err := metadata.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("watch Secrets: %w", err)
	}
	r.runUntilStopped = func(run func(context.Context)) {
		runnable := manager.RunnableFunc(func(ctx context.Context) error { run(ctx); return nil })
		if err := mgr.Add(runnable); err != nil { // the manager stops
			mgr.GetLogger().Info("Not started", "controller", Name, "why", err.Error())
		}
	}
	r.secretWatches.secrets = secrets.Resource(secretsResource)
	publisher, err := trust.NewPublisher(rest.CopyConfig(mgr.GetConfig()))
	if err != nil {
		return fmt.Errorf("publish bundles: %w", err)
	}
	r.loadPair = keypair.Pair.Load
	r.publisher, r.prober = publisher, &probe.Prober{Audit: r.Audit, Clock: r.Clock}
	return nil
}

var secretsResource = corev1.SchemeGroupVersion.WithResource("secrets")

// secretWatches enqueue authorities whose Secrets change. They watch each Secret by its name, which is all that the
// role permits, and without its data. A Secret that cannot be watched is still read every 30 seconds.
type secretWatches struct {
	secrets metadata.Getter

	mu          sync.Mutex
	queue       workqueue.TypedRateLimitingInterface[reconcile.Request] // nil until the controller starts
	byAuthority map[string]secretWatch
}

// secretWatch is one watch.
type secretWatch struct {
	secret types.NamespacedName
	stop   context.CancelFunc
}

// enqueueAfter limits how often a frequently changed Secret is read.
const enqueueAfter = 5 * time.Second

// source returns a source that stores the queue for enqueue.
func (w *secretWatches) source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.queue = queue
		return nil
	})
}

// enqueue enqueues authority.
func (w *secretWatches) enqueue(authority string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue != nil {
		w.queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: authority}}, enqueueAfter)
	}
}

// watchSecret starts to watch the Secret of obj unless it is watched already. The watch continues after ctx has ended.
func (r *Reconciler) watchSecret(ctx context.Context, obj *v1alpha1.SigningAuthority) {
	w := &r.secretWatches
	w.mu.Lock()
	defer w.mu.Unlock()
	authority, secret := obj.Name, secretName(obj)
	if known, found := w.byAuthority[authority]; found && known.secret == secret {
		return
	} else if found {
		known.stop()
	}
	if w.byAuthority == nil {
		w.byAuthority = map[string]secretWatch{}
	}
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.byAuthority[authority] = secretWatch{secret, stop}
	r.runUntilStopped(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopped, cancel)()
		w.run(ctx, authority, secret)
	})
}

// forget stops the watch for authority.
func (w *secretWatches) forget(authority string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, found := w.byAuthority[authority]; found {
		known.stop()
		delete(w.byAuthority, authority)
	}
}

// run enqueues authority whenever secret changes, until ctx ends.
func (w *secretWatches) run(ctx context.Context, authority string, secret types.NamespacedName) {
	logger := log.FromContext(ctx).WithValues("secret", secret)
	watch := &informer.Informer[*metav1.PartialObjectMetadata]{
		Resource: informer.Of(secretsResource, w.secrets.Namespace(secret.Namespace)), Name: secret.Name, Log: logger,
		OnSync:   func() { w.enqueue(authority) },
		OnChange: func(_, _ *metav1.PartialObjectMetadata) { w.enqueue(authority) },
		OnFailure: func(err error) {
			if apierrors.IsForbidden(err) {
				logger.Info("Cannot watch Secret: a change is noticed within 30 seconds", "why", err.Error())
			}
		},
	}
	_ = watch.Start(ctx) // it returns no error
}
