// Package controllers sets up the approver, the signer, the cleaner and the rotation controller on a manager. It is
// the library's public API: importing it registers metrics and does nothing else.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/apiuse"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/requestcache"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Options configures all controllers. A nil controller does not run. SetupWithManager sets nil fields of the
// controllers from the manager, so a caller may provide a client, a clock or an authorizer.
type Options struct {
	Approver *approver.Reconciler
	Signer   *signer.Reconciler
	Cleaner  *cleaner.Reconciler
	Rotation *rotation.Reconciler

	// RequestLimits bounds what the controllers read of a request, unless a controller has limits of its own.
	RequestLimits csr.Limits

	// Requests, if set, holds whole requests for the controllers. The manager's cache must then have its settings
	// (requestcache.Cache.CacheOptions).
	Requests *requestcache.Cache

	// Audit, if set, is the audit log of the approver and the signer, unless they have their own.
	Audit *audit.Log

	// BlockList, if set, runs with the controllers. The approver and the signer use it, unless they have their own.
	BlockList *blocklist.List

	// Observer, if set, observes the calls of the manager's clients. While calls fail, the replica is not ready. When an
	// API server refuses a call, the self-check asks for the manager's own rights again.
	Observer *apiuse.Observer

	// SelfCheck, if set, checks the manager's own rights, the kubelets' rights and the trust in the CA.
	SelfCheck *SelfCheck

	// Standby, if set, makes a replica work early when the leader does not renew its Lease.
	Standby *Standby

	// Publish, if set, makes the leader publish the manager's configuration in a ConfigMap.
	Publish *Publish

	// Concurrency is the number of requests that each controller works on at a time; zero means DefaultConcurrency.
	Concurrency Concurrency

	// Clock, if set, is the clock of the queues and of every controller without a clock of its own. With a fake clock,
	// retention, expiry and retries follow its steps.
	Clock clock.WithTicker

	// WrapQueue, if set, wraps the work queue of each controller. csrenv uses it for its fake clock.
	WrapQueue func(Queue) Queue
}

// Queue is the work queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Concurrency is the number of workers of each controller.
type Concurrency struct{ Approver, Signer, Cleaner int }

// DefaultConcurrency has more workers than kube-controller-manager. Its 5 workers mostly wait for the API server while
// many nodes join (cmd/kube-controller-manager/app/certificates.go); `make bench-quick` measures it. One cleaner is
// kube-controller-manager's number too.
var DefaultConcurrency = Concurrency{Approver: 20, Signer: 20, Cleaner: 1}

// cacheSyncTimeout is a century, because controller-runtime ends the process after it. The manager waits for a missing
// CRD, a missing right or an unreachable API server.
const cacheSyncTimeout = 100 * 365 * 24 * time.Hour

// Errors are retried after 100 ms. Each pause is a third longer than the last, up to a minute. kube-controller-manager
// starts with 200 ms and doubles. After eight faults in a row its request has waited for 50 s, here for 3 s.
const (
	firstRetry, lastRetry = 100 * time.Millisecond, time.Minute
	retryGrowth           = 4.0 / 3
)

// SetupWithManager registers the controllers of Options with mgr, and returns all errors together. The caller
// configures leader election, metrics and probes on mgr.
func (o Options) SetupWithManager(mgr manager.Manager) error {
	if o.Approver == nil && o.Signer == nil && o.Cleaner == nil && o.Rotation == nil {
		return errors.New("no controller is set in Options: set at least one")
	}
	serverTime, err := o.serverTime(mgr)
	if err != nil {
		return err
	}
	early, err := o.newStandby(mgr)
	if err != nil {
		return err
	}
	if err := errors.Join(o.setupControllers(mgr, serverTime, early), early.setup(mgr)); err != nil {
		return err
	}
	for _, setup := range []func(manager.Manager) error{o.setupSelfCheck, o.setupCaches, o.setupPublish, o.setupObserver} {
		if err := setup(mgr); err != nil {
			return err
		}
	}
	return mgr.Add(&requestsSource{
		cache: mgr.GetCache(), clock: serverTime, signers: o.signerNames(), log: mgr.GetLogger().WithName("metrics"),
	})
}

// requestsPath is the path of all requests at an API server.
var requestsPath = "/apis/" + certificatesv1.SchemeGroupVersion.String() + "/" + requestsResource

// setupObserver adds a readiness check that fails while calls to the API server fail.
func (o Options) setupObserver(mgr manager.Manager) error {
	if o.Observer == nil {
		return nil
	}
	collections := []string{requestsPath}
	if o.Rotation != nil {
		collections = append(collections, "/apis/"+v1alpha1.GroupVersion.String()+"/signingauthorities")
	}
	if err := mgr.AddReadyzCheck("api-server", o.Observer.Ready(collections...)); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return nil
}

// setupControllers sets up the block list and the controllers, and returns all errors together.
func (o Options) setupControllers(mgr manager.Manager, serverTime *servertime.Clock, early *standby) error {
	var errs []error
	if o.BlockList != nil {
		errs = append(errs, named("block list", o.BlockList.SetupWithManager(mgr)))
	}
	if o.Requests != nil {
		o.Requests.Limits = o.RequestLimits
		errs = append(errs, mgr.Add(o.Requests.Deletions(mgr.GetCache(), mgr.GetLogger())))
	}
	if r := o.Approver; r != nil {
		r.Requests = cmp.Or(r.Requests, o.Requests)
		r.BlockList, r.RequestLimits = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.RequestLimits, o.RequestLimits)
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		workers := cmp.Or(o.Concurrency.Approver, DefaultConcurrency.Approver)
		r.ReviewsAtOnce = cmp.Or(r.ReviewsAtOnce, max(1, workers/2))
		options := o.controller(workers, workers, r.NewQueue, early.approver(r, workers))
		errs = append(errs, named(approver.Name, r.SetupWithManager(mgr, options)))
	}
	if r := o.Signer; r != nil {
		r.Requests = cmp.Or(r.Requests, o.Requests)
		r.BlockList, r.RequestLimits = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.RequestLimits, o.RequestLimits)
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		workers := cmp.Or(o.Concurrency.Signer, DefaultConcurrency.Signer)
		options := o.controller(workers, workers, r.NewQueue, early.signer(r, workers))
		errs = append(errs, named(signer.Name, r.SetupWithManager(mgr, options)))
	}
	if o.Approver != nil && o.Signer != nil && o.Approver.Approved == nil {
		o.Approver.Approved = o.Signer.Handover
	}
	if r := o.Cleaner; r != nil {
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.RequestLimits = firstClock(r.Clock, o.Clock), cmp.Or(r.RequestLimits, o.RequestLimits)
		errs = append(errs, named(cleaner.Name, r.SetupWithManager(mgr,
			o.controller(o.Concurrency.Cleaner, DefaultConcurrency.Cleaner, nil, early.clean(r)))))
	}
	if r := o.Rotation; r != nil {
		r.Requests = cmp.Or(r.Requests, o.Requests)
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		options := o.controller(1, 1, nil, nil)
		options.MaxConcurrentReconciles = 1 // a slow item must not start a second worker
		errs = append(errs, named(rotation.Name, r.SetupWithManager(mgr, options)))
	}
	return errors.Join(errs...)
}

// ReadBlockList reads the block list once and gives it to the approver and the signer. It is for a caller without a
// manager. The block list itself reports a failed read.
func (o Options) ReadBlockList(ctx context.Context, reader client.Reader) {
	if o.BlockList == nil {
		return
	}
	_ = o.BlockList.ReadOnce(ctx, reader)
	if o.Approver != nil {
		o.Approver.BlockList = o.BlockList
	}
	if o.Signer != nil {
		o.Signer.BlockList = o.BlockList
	}
}

// signerNames returns the signers that the approver or the signer is configured for.
func (o Options) signerNames() map[string]bool {
	names := map[string]bool{}
	if o.Approver != nil {
		for _, rule := range o.Approver.Rules {
			names[rule.SignerName] = true
		}
	}
	if o.Signer != nil {
		for name := range o.Signer.Signers {
			names[name] = true
		}
	}
	return names
}

// serverTime returns the clock by which ages count. Without a Clock in o, a Runnable of mgr measures the API server's
// time.
func (o Options) serverTime(mgr manager.Manager) (*servertime.Clock, error) {
	if o.Clock != nil {
		return servertime.Of(o.Clock), nil
	}
	measured, err := servertime.New(mgr.GetConfig(), mgr.GetLogger().WithName("clock"))
	if err != nil {
		return nil, err
	}
	if err := mgr.AddReadyzCheck("clock", measured.Ready); err != nil {
		return nil, fmt.Errorf("add readiness check: %w", err)
	}
	return measured, mgr.Add(measured)
}

// timeOf returns the clock by which a controller counts ages: its ServerTime if it is set, else its own clock, else
// shared.
func timeOf(own clock.PassiveClock, set, shared *servertime.Clock) *servertime.Clock {
	if own != nil && set == nil {
		return servertime.Of(own)
	}
	return cmp.Or(set, shared)
}

func firstClock(own clock.PassiveClock, shared clock.WithTicker) clock.PassiveClock {
	if own == nil && shared != nil {
		return shared
	}
	return own
}

func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("set up %s: %w", name, err)
}

// controller returns the options of a controller with that many workers. Its queue returns items in order, or first
// in, first out if order is nil. Items that the standby has claimed are postponed.
func (o Options) controller(
	workers, otherwise int, order func() workqueue.Queue[reconcile.Request], early *claims,
) controller.Options {
	if workers == 0 {
		workers = otherwise
	}
	if order == nil {
		order = workqueue.DefaultQueue[reconcile.Request]
	}
	warmUp := false
	return controller.Options{
		MaxConcurrentReconciles: workers * goroutinesPerWorker,
		RateLimiter:             newRetries(firstRetry, lastRetry, retryGrowth),
		CacheSyncTimeout:        cacheSyncTimeout,
		// A standby's queue would grow with every new request. The cache fills it after the election.
		EnableWarmup: &warmUp,
		NewQueue: func(name string, limiter workqueue.TypedRateLimiter[reconcile.Request]) Queue {
			var ticks clock.WithTicker = clock.RealClock{}
			if o.Clock != nil {
				ticks = o.Clock
			}
			queue := newQueue(name, limiter, ticks, order())
			if o.WrapQueue != nil {
				queue = o.WrapQueue(queue)
			}
			early.lead() // the controller starts
			slots := newSlotQueue(queue, workers)
			slots.claims = early
			return slots
		},
	}
}

// caches fills the controllers' caches on every replica. An elected replica fills its queues from them. caches waits
// for what is missing, such as a CRD. A replica is not ready until all caches are filled.
type caches struct {
	cache cache.Cache
	kinds []client.Object
	log   logr.Logger

	mu    sync.Mutex
	state map[string]error // by kind: why its cache is not filled; filled caches have no entry
}

// setupCaches adds the caches of the controllers in o to mgr, with a readiness check.
func (o Options) setupCaches(mgr manager.Manager) error {
	c := &caches{cache: mgr.GetCache(), log: mgr.GetLogger().WithName("caches"), state: map[string]error{}}
	c.kinds = append(c.kinds, &certificatesv1.CertificateSigningRequest{})
	if o.Rotation != nil {
		c.kinds = append(c.kinds, &v1alpha1.SigningAuthority{})
	}
	for _, kind := range c.kinds {
		c.state[kindName(kind)] = errNotReadYet
	}
	if err := mgr.AddReadyzCheck("caches", c.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(c)
}

var errNotReadYet = fmt.Errorf("not read yet")

func kindName(obj client.Object) string { return fmt.Sprintf("%T", obj) }

// NeedLeaderElection returns false, because a standby fills its caches too.
func (*caches) NeedLeaderElection() bool { return false }

// Start creates the informers, and waits for each until ctx ends.
func (c *caches) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, kind := range c.kinds {
		running.Go(func() { c.fill(ctx, kind) })
	}
	running.Wait()
	return nil
}

func (c *caches) fill(ctx context.Context, kind client.Object) {
	name := kindName(kind)
	objects, err := informer.FromCache(ctx, c.cache, kind, c.log.WithValues("kind", name), func(err error) {
		c.set(name, err)
	})
	if err != nil {
		return // ctx has ended
	}
	c.set(name, errNotReadYet)
	select {
	case <-ctx.Done():
	case <-objects.HasSyncedChecker().Done():
		c.set(name, nil)
	}
}

func (c *caches) set(kind string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.state, kind)
		return
	}
	c.state[kind] = err
}

// ready returns an error that names the first cache that is not filled, and the cause.
func (c *caches) ready(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range c.kinds {
		if err, unread := c.state[kindName(kind)]; unread {
			return fmt.Errorf("the cache of %s is not filled: %w", kindName(kind), err)
		}
	}
	return nil
}
