package rotation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=csr-controller-manager.io,resources=signingauthorities/status,verbs=update
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=certificatesigningrequests,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,namespace=default,verbs=create;patch

// SetupWithManager fills in what is nil and registers the controllers: one for authorities, one that notes what was issued.
func (r *Reconciler) SetupWithManager(mgr manager.Manager, options controller.Options) error {
	if err := r.setDefaults(mgr); err != nil {
		return err
	}
	if err := mgr.Add(&r.group); err != nil {
		return fmt.Errorf("keep ledgers and watch Secrets: %w", err)
	}
	err := builder.ControllerManagedBy(mgr).
		Named(ledgerName).
		For(&certificatesv1.CertificateSigningRequest{}, builder.WithPredicates(predicate.NewPredicateFuncs(holdsCertificate))).
		// One that a CA has issued before its authority was known is looked at then.
		Watches(&v1alpha1.SigningAuthority{}, handler.EnqueueRequestsFromMapFunc(r.issuedRequests), builder.WithPredicates(casChanged)).
		WithOptions(options).
		Complete(reconcile.Func(r.recordIssued))
	if err != nil {
		return err
	}
	options.MaxConcurrentReconciles = maxConcurrent
	return builder.ControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.SigningAuthority{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		WatchesRawSource(source.Channel(r.secretWatches.changed, enqueueChanged)).
		WithOptions(options).
		Complete(r)
}

// setDefaults fills in what is nil.
func (r *Reconciler) setDefaults(mgr manager.Manager) error {
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
	r.secretWatches.metadata, r.secretWatches.group, r.secretWatches.changed = secrets, &r.group, make(chan event.GenericEvent)
	publisher, err := trust.NewPublisher(rest.CopyConfig(mgr.GetConfig()))
	if err != nil {
		return fmt.Errorf("publish bundles: %w", err)
	}
	r.publisher, r.prober = publisher, &probe.Prober{Audit: r.Audit, Clock: r.Clock}
	return nil
}

// secretWatches wake the authorities whose Secrets change. Each is watched by its name, which is all that the role has, and without
// its data. Where it can't be watched, it is looked at every half minute all the same.
type secretWatches struct {
	metadata metadata.Interface
	group    *group
	changed  chan event.GenericEvent

	mu          sync.Mutex
	byAuthority map[string]secretWatch // by authority
}

// enqueueAfter bounds how often somebody who changes a Secret again and again has it looked at.
const enqueueAfter = 5 * time.Second

// enqueueChanged has an authority looked at whose Secret has changed.
var enqueueChanged = handler.Funcs{GenericFunc: func(_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}, enqueueAfter)
}}

type secretWatch struct {
	secret types.NamespacedName
	stop   context.CancelFunc
}

// watch has obj woken when its Secret changes.
func (s *secretWatches) watch(ctx context.Context, obj *v1alpha1.SigningAuthority) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := secretName(obj)
	if one, found := s.byAuthority[obj.Name]; found && one.secret == name {
		return
	} else if found {
		one.stop()
	}
	if s.byAuthority == nil {
		s.byAuthority = map[string]secretWatch{}
	}
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx)) // it goes on when this look has ended
	s.byAuthority[obj.Name] = secretWatch{name, stop}
	authority := obj.Name
	s.group.Go(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopped, cancel)()
		s.run(ctx, authority, name)
	})
}

// forget stops watching for authority.
func (s *secretWatches) forget(authority string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, found := s.byAuthority[authority]; found {
		one.stop()
		delete(s.byAuthority, authority)
	}
}

// run wakes authority whenever its Secret changes, until ctx ends.
func (s *secretWatches) run(ctx context.Context, authority string, secret types.NamespacedName) {
	informer := metadatainformer.NewFilteredMetadataInformer(s.metadata, corev1.SchemeGroupVersion.WithResource("secrets"), secret.Namespace,
		0, toolscache.Indexers{}, func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, secret.Name).String()
		}).Informer()
	wake := func(any) {
		obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: authority}}
		select {
		case s.changed <- event.GenericEvent{Object: obj}:
		case <-ctx.Done():
		}
	}
	told := false
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if !apierrors.IsForbidden(err) {
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		} else if !told {
			told = true
			log.FromContext(ctx).Info("A Secret can't be watched: what changes in it is seen within half a minute", "secret", secret, "why", err.Error())
		}
	})
	_, handlerErr := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, changed any) { wake(changed) }, DeleteFunc: wake,
	})
	if err := errors.Join(err, handlerErr); err != nil { // only once it has been started
		log.FromContext(ctx).Error(err, "Watch a Secret", "secret", secret)
		return
	}
	informer.RunWithContext(ctx)
}

// group runs what goes on as long as the manager does.
type group struct {
	mu      sync.Mutex
	running context.Context // nil until the manager runs, and when it has ended
	waiting []func(context.Context)
	stopped sync.WaitGroup
}

// Go runs one until the manager ends. Before it runs one waits; after it has ended nobody would wait for one.
func (g *group) Go(one func(context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running == nil {
		g.waiting = append(g.waiting, one)
		return
	}
	ctx := g.running
	g.stopped.Go(func() { one(ctx) })
}

// Start runs them until ctx ends, and returns when they all have ended.
func (g *group) Start(ctx context.Context) error {
	g.mu.Lock()
	g.running = ctx
	for _, one := range g.waiting {
		g.stopped.Go(func() { one(ctx) })
	}
	g.waiting = nil
	g.mu.Unlock()
	<-ctx.Done()
	g.mu.Lock()
	g.running = nil
	g.mu.Unlock()
	g.stopped.Wait()
	return nil
}
