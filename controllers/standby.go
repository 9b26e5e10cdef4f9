package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// Standby makes a replica that is not the leader work early: if the leader does not renew its Lease, the replica
// approves, signs and deletes before the Lease ends. All these writes are conditional on the resourceVersion that was
// judged, so two replicas may work at the same time. Rotation, the creation of a CA and the published configuration
// are not conditional, so they wait for the Lease. A dry run does not work early.
type Standby struct {
	// Lease is the Lease of the manager's leader election.
	Lease types.NamespacedName
	// RetryPeriod is the leader's pause between two renewals. A standby works early after four pauses without a
	// renewal, and after two seconds at least.
	RetryPeriod time.Duration
}

// StandbyOf returns the Standby of a manager with the configuration c. It returns nil for a manager without leader
// election.
func StandbyOf(c *config.Configuration) *Standby {
	if !c.LeaderElection.Enabled {
		return nil
	}
	lease := types.NamespacedName{Namespace: LeaseNamespace(c), Name: c.LeaderElection.ResourceName}
	return &Standby{Lease: lease, RetryPeriod: c.LeaderElection.RetryPeriod.Duration}
}

const (
	// earlyAge is how long a standby must have observed a request before it works on it. A leader that is only slow
	// handles most requests earlier.
	earlyAge = 2 * time.Second
	// earlyShare is the part of a controller's workers that work early.
	earlyShare = 4
	// earlyTick is the pause between two checks of the Lease. earlyRest is the pause after an attempt that has nothing
	// left to do: the next change of the request ends it.
	earlyTick, earlyRest = 100 * time.Millisecond, time.Minute
	// settleFor is how long after the early work a standby completes the records of writes that had no certain answer.
	settleFor = time.Minute
	// cleanShare bounds the time for which the cache is searched for due requests, as a part of all time.
	cleanShare, cleanPause = 10, time.Second
)

type csrObject = certificatesv1.CertificateSigningRequest

// earlyController is a controller as a standby runs it.
type earlyController interface {
	reconcile.Reconciler
	// Waits reports whether obj waits for the controller.
	Waits(obj *csrObject) bool
	// Track prepares the controller for a Reconcile of obj, and Drop ends that.
	Track(obj *csrObject)
	Drop(obj client.Object)
}

// earlyWorker runs a controller with a part of its workers.
type earlyWorker struct {
	earlyController
	name    string
	claims  *claims
	retries *retries
	ready   func(context.Context) bool // nil means always
	free    int                        // workers
}

// waitingRequest is a request that waits for a controller.
type waitingRequest struct {
	obj    *csrObject     // the cache's own object, must not be changed
	worker *earlyWorker   // of the controller that obj waits for; nil if there is none
	failed *earlyWorker   // of the last attempt, if its result is uncertain
	seen   time.Time      // when obj was first observed while it waited
	next   time.Time      // earliest next attempt
	busy   bool           // an attempt is in progress
	again  bool           // something has changed during the attempt
	used   []*earlyWorker // that Track was called for
}

// standby is a Runnable that works early. It ends when the replica is elected, because the controllers run then.
type standby struct {
	lease   *leaderLease
	cache   cache.Cache
	elected <-chan struct{}
	fresh   func() bool // whether the watch of requests is open
	clock   clock.PassiveClock
	log     logr.Logger

	workers     []*earlyWorker
	cleaner     *cleaner.Reconciler // nil unless it works early
	cleanClaims *claims

	woken   chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	requests map[string]*waitingRequest
	active   bool
	ended    time.Time // when the early work ended
}

// newStandby returns the standby of o, without controllers. It returns nil if o.Standby is not set.
func (o Options) newStandby(mgr manager.Manager) (*standby, error) {
	if o.Standby == nil {
		return nil, nil
	}
	lease, err := newLeaderLease(mgr, *o.Standby)
	if err != nil {
		return nil, err
	}
	s := &standby{
		lease: lease, cache: mgr.GetCache(), elected: mgr.Elected(), clock: clock.RealClock{},
		log: mgr.GetLogger().WithName("standby"), woken: make(chan struct{}, 1),
		requests: map[string]*waitingRequest{}, fresh: func() bool { return true },
	}
	if o.Observer != nil {
		s.fresh = func() bool { return o.Observer.Watches(requestsPath) }
	}
	return s, nil
}

// setup adds s to mgr, unless it has no controller to run. A nil s does nothing.
func (s *standby) setup(mgr manager.Manager) error {
	if s == nil || len(s.workers) == 0 && s.cleaner == nil {
		return nil
	}
	return errors.Join(s.lease.setup(mgr), mgr.Add(s))
}

// add makes s run a controller with a share of its workers. It returns the claims to share with the controller.
func (s *standby) add(name string, controller earlyController, workers int, ready func(context.Context) bool) *claims {
	worker := &earlyWorker{
		earlyController: controller, name: name, claims: newClaims(), ready: ready,
		retries: newRetries(firstRetry, lastRetry, retryGrowth), free: max(1, workers/earlyShare),
	}
	s.workers = append(s.workers, worker)
	return worker.claims
}

// approver makes s run r. A nil s does nothing.
func (s *standby) approver(r *approver.Reconciler, workers int) *claims {
	if s == nil || r.DryRun {
		return nil
	}
	r.Answered = s.answered
	return s.add(approver.Name, r, workers, func(ctx context.Context) bool {
		return r.Inventory == nil || r.Inventory.Tried(ctx)
	})
}

// signer makes s run r. A nil s does nothing.
func (s *standby) signer(r *signer.Reconciler, workers int) *claims {
	if s == nil || r.DryRun {
		return nil
	}
	r.OthersActive = s.lease.othersActive
	return s.add(signer.Name, r, workers, nil)
}

// clean makes s run r. A nil s does nothing.
func (s *standby) clean(r *cleaner.Reconciler) *claims {
	if s == nil || r.DryRun {
		return nil
	}
	s.cleaner, s.cleanClaims = r, newClaims()
	return s.cleanClaims
}

// NeedLeaderElection returns false, because it works while another replica holds the Lease.
func (*standby) NeedLeaderElection() bool { return false }

// Start works early until ctx ends or the replica is elected.
func (s *standby) Start(ctx context.Context) error {
	requests, err := informer.FromCache(ctx, s.cache, &csrObject{}, s.log, nil)
	if err != nil {
		return nil // ctx has ended
	}
	events, err := requests.AddEventHandler(s.events())
	if err != nil {
		return nil // the informer has stopped because ctx has ended
	}
	defer s.running.Wait()
	defer func() { _ = requests.RemoveEventHandler(events) }()
	until, stop := context.WithCancel(ctx)
	defer stop()
	s.running.Go(func() { s.cleanDue(ctx, until, requests) })
	ticker := time.NewTicker(earlyTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.woken:
		case <-ticker.C:
		}
		if events.HasSynced() && s.step(ctx) {
			return nil
		}
	}
}

// step begins or ends the early work, and works. It reports whether the replica leads and has nothing left to settle.
func (s *standby) step(ctx context.Context) (done bool) {
	state := led
	if !s.leads() && s.fresh() {
		state = s.lease.vacant(ctx, s.log)
	}
	s.switchTo(state != led)
	s.work(ctx, state)
	return s.leads() && s.settled()
}

// leads reports whether the replica was elected.
func (s *standby) leads() bool {
	select {
	case <-s.elected:
		return true
	default:
		return false
	}
}

// settled reports whether no write of the early work has an uncertain result, or whether there was enough time to
// find out.
func (s *standby) settled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock.Since(s.ended) > settleFor {
		return true
	}
	for _, one := range s.requests {
		if one.busy || one.failed != nil {
			return false
		}
	}
	return true
}

// switchTo begins or ends the early work.
func (s *standby) switchTo(active bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if active == s.active {
		return
	}
	s.active = active
	if active {
		s.log.Info("No leader renews the Lease: approving, signing and cleaning early", "lease", s.lease.name.String())
		return
	}
	s.ended = s.clock.Now()
	s.log.Info("The early work has ended", "lease", s.lease.name.String(), "elected", s.leads())
}

func (s *standby) isActive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active
}

// events returns the handler of the informer's events.
func (s *standby) events() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { s.observe(obj.(*csrObject)) },
		UpdateFunc: func(_, obj any) {
			s.observe(obj.(*csrObject))
		},
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.remove(name)
			}
		},
	}
}

// observe records obj if it waits for a controller.
func (s *standby) observe(obj *csrObject) {
	var worker *earlyWorker
	for _, each := range s.workers {
		if each.Waits(obj) {
			worker = each
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.requests[obj.Name]
	if one != nil && one.obj.UID != obj.UID {
		s.remove(obj.Name)
		one = nil
	}
	if one == nil {
		if worker == nil {
			return
		}
		one = &waitingRequest{obj: obj, seen: s.clock.Now()}
		s.requests[obj.Name] = one
	}
	one.soon()
	one.obj, one.worker = obj, worker
	if worker == nil && !one.busy && one.failed == nil {
		s.remove(obj.Name)
	}
	s.wake()
}

// answered wakes a request whose answer from a slow source has arrived.
func (s *standby) answered(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.requests[name]; one != nil {
		one.soon()
		s.wake()
	}
}

// wake makes Start look for work at once. The caller holds mu.
func (s *standby) wake() {
	if !s.active {
		return
	}
	select {
	case s.woken <- struct{}{}:
	default: // already notified
	}
}

// soon permits the next attempt at once.
func (w *waitingRequest) soon() { w.next, w.again = time.Time{}, true }

// drop makes the controllers forget the request, unless they run and track it themselves.
func (w *waitingRequest) drop() {
	for _, worker := range w.used {
		worker.claims.unlessLeading(func() { worker.Drop(w.obj) })
		worker.retries.Forget(keyOf(w.obj))
	}
	w.used = nil
}

// remove forgets the request of that name. If an attempt is in progress, finish makes the controllers forget it. The
// caller holds mu.
func (s *standby) remove(name string) {
	one := s.requests[name]
	if one == nil {
		return
	}
	delete(s.requests, name)
	if !one.busy {
		one.drop()
	}
}

func keyOf(obj client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: obj.GetName()}}
}

// work begins as many attempts as there are free workers.
func (s *standby) work(ctx context.Context, state vacancy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == led && s.clock.Since(s.ended) > settleFor {
		return
	}
	age := earlyAge
	if state == released {
		age = 0 // the leader leaves even the youngest request to its successor
	}
	for _, worker := range s.workers {
		if state != led && worker.ready != nil && !worker.ready(ctx) {
			continue
		}
		for worker.free > 0 {
			one := s.newest(worker, state != led, age)
			if one == nil || !worker.claims.begin(keyOf(one.obj), one.worker != worker) {
				break
			}
			s.begin(ctx, worker, one)
		}
	}
}

// newest returns the newest request for worker, or nil. If active is false, it returns only requests that no longer
// wait for worker, but whose last write by worker had no certain answer. The caller holds mu.
func (s *standby) newest(worker *earlyWorker, active bool, age time.Duration) *waitingRequest {
	now := s.clock.Now()
	var newest *waitingRequest
	for _, one := range s.requests {
		if one.busy || now.Before(one.next) || newest != nil && !one.newer(newest) {
			continue
		}
		settles := one.failed == worker && one.worker != worker
		if settles || active && one.waitsFor(worker) && now.Sub(one.seen) >= age {
			newest = one
		}
	}
	return newest
}

// waitsFor reports whether w waits for worker, and no other controller has to settle an earlier write first.
func (w *waitingRequest) waitsFor(worker *earlyWorker) bool {
	return w.worker == worker && (w.failed == nil || w.failed == worker)
}

// newer reports whether w was created after other. Creation times are in whole seconds.
func (w *waitingRequest) newer(other *waitingRequest) bool {
	if created, than := w.obj.CreationTimestamp.Time, other.obj.CreationTimestamp.Time; !created.Equal(than) {
		return created.After(than)
	}
	return w.seen.After(other.seen)
}

// begin makes one attempt in a goroutine. The caller holds mu, and has a claim.
func (s *standby) begin(ctx context.Context, worker *earlyWorker, one *waitingRequest) {
	obj := one.obj
	worker.free--
	one.busy, one.again = true, false
	if !slices.Contains(one.used, worker) {
		one.used = append(one.used, worker)
	}
	s.running.Go(func() {
		worker.Track(obj)
		result, err := s.reconcile(ctx, worker.name, worker, keyOf(obj))
		worker.claims.end(keyOf(obj))
		s.finish(worker, one, result, err)
	})
}

// reconcile makes one attempt, and returns a panic as an error.
func (s *standby) reconcile(
	ctx context.Context, name string, controller reconcile.Reconciler, key reconcile.Request,
) (result reconcile.Result, err error) {
	logger := s.log.WithValues("controller", name, "name", key.Name)
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
		if err != nil {
			logger.Error(err, "Early attempt failed")
		}
	}()
	return controller.Reconcile(log.IntoContext(ctx, logger), key)
}

// finish records the result of an attempt.
func (s *standby) finish(worker *earlyWorker, one *waitingRequest, result reconcile.Result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	worker.free++
	one.busy, one.failed = false, nil
	pause := earlyRest
	switch {
	case err != nil && !errors.Is(err, reconcile.TerminalError(nil)):
		one.failed, pause = worker, worker.retries.When(keyOf(one.obj))
	case result.RequeueAfter > 0:
		pause = result.RequeueAfter
	}
	if one.failed == nil {
		worker.retries.Forget(keyOf(one.obj))
	}
	if !one.again {
		one.next = s.clock.Now().Add(pause)
	}
	switch name := one.obj.Name; {
	case s.requests[name] != one: // it was deleted
		one.drop()
	case one.worker == nil && one.failed == nil:
		s.remove(name)
	}
	s.wake()
}

// cleanDue deletes due requests during the early work, until the context until ends. ctx ends the deletion in progress.
func (s *standby) cleanDue(ctx, until context.Context, requests cache.Informer) {
	stored, ok := requests.(interface{ GetStore() toolscache.Store })
	if s.cleaner == nil || !ok {
		return
	}
	for until.Err() == nil {
		began, due := s.clock.Now(), []*csrObject(nil)
		if s.isActive() {
			due = s.due(stored.GetStore())
		}
		pause := max(cleanPause, cleanShare*s.clock.Since(began))
		for _, obj := range due {
			if !s.isActive() || !s.cleanClaims.begin(keyOf(obj), false) {
				break
			}
			_, _ = s.reconcile(ctx, cleaner.Name, s.cleaner, keyOf(obj)) // the next search finds it again
			s.cleanClaims.end(keyOf(obj))
		}
		select {
		case <-until.Done():
		case <-time.After(pause):
		}
	}
}

// due returns the requests that have been due for longer than a leader needs to delete them.
func (s *standby) due(store toolscache.Store) []*csrObject {
	var due []*csrObject
	for _, each := range store.List() {
		if obj, ok := each.(*csrObject); ok && s.cleaner.Overdue(obj) >= earlyAge {
			due = append(due, obj)
		}
	}
	return due
}

// claims keeps a standby and its own controller from working on the same request at the same time. Once the
// controller runs, the standby begins nothing more.
type claims struct {
	mu      sync.Mutex
	leading bool
	items   map[reconcile.Request]struct{}
}

func newClaims() *claims { return &claims{items: map[reconcile.Request]struct{}{}} }

// begin claims item for the standby. If the controller runs, it returns false, unless the standby only settles an
// earlier write. The controller has nothing to do for such an item.
func (c *claims) begin(item reconcile.Request, settles bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leading && !settles {
		return false
	}
	c.items[item] = struct{}{}
	return true
}

// end ends a claim.
func (c *claims) end(item reconcile.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.items, item)
}

// lead records that the controller starts. It does nothing for nil claims.
func (c *claims) lead() {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leading = true
	}
}

// unlessLeading calls do unless the controller runs.
func (c *claims) unlessLeading(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leading {
		do()
	}
}

// claimed reports whether the standby works on item. For nil claims it returns false.
func (c *claims) claimed(item reconcile.Request) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, found := c.items[item]
	return found
}
