// Package controllers puts the approver, the signer and the cleaner on a manager. It is the library surface: importing
// it registers metrics and does nothing else.
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Options is the whole configuration surface. A nil controller is left out. Fields of the controllers that are nil are
// filled in from the manager, so a caller may bring a client, a clock or an authorizer of its own.
type Options struct {
	Approver *approver.Reconciler
	Signer   *signer.Reconciler
	Cleaner  *cleaner.Reconciler
	Rotation *rotation.Reconciler

	// RequestLimits bound what the controllers read of a request, unless they have their own.
	RequestLimits csr.Limits

	// Audit, if set, is the audit log of the approver and the signer, unless they have their own.
	Audit *audit.Log

	// BlockList, if set, is that of the approver and the signer, and runs with them.
	BlockList *blocklist.List

	// Observer, if set, sees the calls of the manager's clients. The replica is then not ready while they do not get
	// through, and asks for its own rights again as soon as one is refused.
	Observer *apiuse.Observer

	// SelfCheck, if set, has the manager look after its own rights, the kubelets' and the trust in its CA.
	SelfCheck *SelfCheck

	// Concurrency is how many requests each controller works on at a time; zero is DefaultConcurrency's number.
	Concurrency Concurrency

	// Clock, if set, is the clock of every controller that has none and of their queues: with a fake one retention,
	// expiry and retries follow its steps. A controller with a Clock of its own keeps it.
	Clock clock.WithTicker

	// WrapQueue, if set, replaces the work queue of each controller by a queue around it. csrenv uses it for its fake
	// clock.
	WrapQueue func(Queue) Queue
}

// Queue is the work queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Concurrency is the number of workers of each controller.
type Concurrency struct{ Approver, Signer, Cleaner int }

// DefaultConcurrency has more workers than kube-controller-manager, whose 5 spend a mass join on waiting for the API
// server (cmd/kube-controller-manager/app/certificates.go); `make bench-quick` shows it. One cleaner is as there.
var DefaultConcurrency = Concurrency{Approver: 20, Signer: 20, Cleaner: 1}

// cacheSyncTimeout is a century: controller-runtime ends the process when it has passed. A missing CRD, a missing right
// or an API server that is away is waited for.
const cacheSyncTimeout = 100 * 365 * 24 * time.Hour

// Errors are retried after 100 ms, then after a third longer each time, up to a minute. kube-controller-manager begins
// with 200 ms and doubles: a request that meets eight faults in a row then waits for 50 s, here for 3 s.
const (
	firstRetry, lastRetry = 100 * time.Millisecond, time.Minute
	retryGrowth           = 4.0 / 3
)

// SetupWithManager registers what Options holds on mgr, and returns all that is wrong at once. Leader election, metrics
// and probes are the manager's owner's.
func (o Options) SetupWithManager(mgr manager.Manager) error {
	if o.Approver == nil && o.Signer == nil && o.Cleaner == nil && o.Rotation == nil {
		return errors.New("no controller to run")
	}
	serverTime, err := o.serverTime(mgr)
	if err != nil {
		return err
	}
	if err := o.setupControllers(mgr, serverTime); err != nil {
		return err
	}
	if err := o.setupSelfCheck(mgr); err != nil {
		return err
	}
	if err := o.setupCaches(mgr); err != nil {
		return err
	}
	if err := o.setupObserver(mgr); err != nil {
		return err
	}
	return mgr.Add(&requestsSource{reader: mgr.GetClient(), clock: serverTime, signers: o.signerNames()})
}

// setupObserver adds a readiness check that fails while calls to the API server do not get through.
func (o Options) setupObserver(mgr manager.Manager) error {
	if o.Observer == nil {
		return nil
	}
	collections := []string{"/apis/" + certificatesv1.SchemeGroupVersion.String() + "/" + requestsResource}
	if o.Rotation != nil {
		collections = append(collections, "/apis/"+v1alpha1.GroupVersion.String()+"/signingauthorities")
	}
	if err := mgr.AddReadyzCheck("api-server", o.Observer.Ready(collections...)); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return nil
}

// setupControllers sets up the block list and the controllers, and returns all that is wrong with any of them.
func (o Options) setupControllers(mgr manager.Manager, serverTime *servertime.Clock) error {
	var errs []error
	if o.BlockList != nil {
		errs = append(errs, named("block list", o.BlockList.SetupWithManager(mgr)))
	}
	if r := o.Approver; r != nil {
		r.BlockList, r.RequestLimits = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.RequestLimits, o.RequestLimits)
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		workers := cmp.Or(o.Concurrency.Approver, DefaultConcurrency.Approver)
		r.ReviewsAtOnce = cmp.Or(r.ReviewsAtOnce, max(1, workers/2))
		errs = append(errs, named(approver.Name, r.SetupWithManager(mgr, o.controller(workers, workers, r.NewQueue))))
	}
	if r := o.Signer; r != nil {
		r.BlockList, r.RequestLimits = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.RequestLimits, o.RequestLimits)
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		errs = append(errs, named(signer.Name, r.SetupWithManager(mgr,
			o.controller(o.Concurrency.Signer, DefaultConcurrency.Signer, r.NewQueue))))
	}
	if r := o.Cleaner; r != nil {
		r.ServerTime = timeOf(r.Clock, r.ServerTime, serverTime)
		r.Clock, r.RequestLimits = firstClock(r.Clock, o.Clock), cmp.Or(r.RequestLimits, o.RequestLimits)
		errs = append(errs, named(cleaner.Name, r.SetupWithManager(mgr,
			o.controller(o.Concurrency.Cleaner, DefaultConcurrency.Cleaner, nil))))
	}
	if r := o.Rotation; r != nil {
		r.Clock, r.Audit = firstClock(r.Clock, o.Clock), cmp.Or(r.Audit, o.Audit)
		options := o.controller(1, 1, nil)
		options.MaxConcurrentReconciles = 1 // however long an item takes
		errs = append(errs, named(rotation.Name, r.SetupWithManager(mgr, options)))
	}
	return errors.Join(errs...)
}

// ReadBlockList reads the block list once and gives it to the approver and the signer, which SetupWithManager does for
// a manager. The block list itself reports that it can't be read.
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

// signerNames returns the signers that a controller is configured for.
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

// serverTime returns the time by which ages count. It is measured by a Runnable of mgr, unless there is a Clock.
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

// timeOf returns the time by which a controller with a clock of its own, if any, counts ages.
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

// controller returns the options of a controller with some workers. Its queue gives items out in order, first in first
// out when that is nil.
func (o Options) controller(
	workers, otherwise int, order func() workqueue.Queue[reconcile.Request],
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
		// The queue of a standby would grow by every request ever seen. It is filled from the cache at the election.
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
			return newSlotQueue(queue, workers)
		},
	}
}

// caches keeps the caches of the controllers filled on every replica: a controller that starts when its replica is
// elected fills its queue from there. It waits for what is missing, such as a CRD, and a replica is not ready before
// all is read.
type caches struct {
	cache cache.Cache
	kinds []client.Object
	log   logr.Logger

	mu    sync.Mutex
	state map[string]error // by kind: why it is not read; no entry when it is
}

// setupCaches adds the caches of what o runs to mgr, with a readiness check.
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

// NeedLeaderElection returns false: a standby is warm.
func (*caches) NeedLeaderElection() bool { return false }

// Start makes the informers, and waits for each until ctx ends.
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

// ready returns an error that names a kind that has not been read, and why.
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
