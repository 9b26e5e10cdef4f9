// Package csrenv gives an envtest suite what envtest lacks: the loop that approves, signs and cleans
// CertificateSigningRequests, in process. docs/how-to/use-in-envtest.md shows it in fifteen lines.
package csrenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// Options change what Start does. The zero value is a loop that works.
type Options struct {
	// CA signs; nil is a new one. Use the one that Prepare returned for certificates that the API server accepts.
	CA *CA
	// Profile bounds what is issued; the zero value is kube-controller-manager's behaviour.
	Profile ca.ProfileConfig
	// Retention is when requests are deleted; the zero value is csr.DefaultRetention.
	Retention csr.Retention
	// Clock drives validity, retention and retries; nil is the real one. With a fake clock, stepping it is enough: what
	// has become due is deleted then.
	Clock clock.WithTicker
	// SkipRBAC leaves out the ClusterRoleBindings that kubelets need.
	SkipRBAC bool
	// Customize may change the controllers before they start: leave one out, bring an Authorizer or a Client that
	// fails, add a Rule or a Signer.
	Customize func(*controllers.Options)
	// Logger receives the manager's log; the zero value discards it.
	Logger logr.Logger
}

// Env is a running loop.
type Env struct {
	// CA is the one that signs.
	CA *CA

	config  *rest.Config
	client  client.Client
	stop    context.CancelFunc
	stopped chan error
}

// Start runs the approver, the signer and the cleaner against the API server of cfg, whose user must be an
// administrator, until ctx ends or Stop is called. It returns once they work.
func Start(ctx context.Context, cfg *rest.Config, opts Options) (*Env, error) {
	if opts.CA == nil {
		made, err := NewCA()
		if err != nil {
			return nil, err
		}
		opts.CA = made
	}
	if opts.Logger.GetSink() == nil {
		opts.Logger = logr.Discard()
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	apicall.Bound(cfg)
	admin, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	mgr, err := newManager(cfg, opts)
	if err != nil {
		return nil, err
	}
	// A manager would try for minutes what the API server does not permit.
	if err := admin.List(ctx, &certificatesv1.CertificateSigningRequestList{}, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("list requests, as the administrator that csrenv needs: %w", err)
	}
	if !opts.SkipRBAC {
		if err := grantKubelets(ctx, admin); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	env := &Env{CA: opts.CA, config: cfg, client: admin, stop: cancel, stopped: make(chan error, 1)}
	go func() { env.stopped <- mgr.Start(ctx) }()
	if err := env.await(ctx, mgr.GetCache().WaitForCacheSync); err != nil {
		return nil, err
	}
	return env, nil
}

// await returns once synced does, or with what went wrong when that or the manager ends first; all has ended then.
func (e *Env) await(ctx context.Context, synced func(context.Context) bool) error {
	done := make(chan bool, 1)
	go func() { done <- synced(ctx) }()
	select {
	case ok := <-done:
		if ok {
			return nil
		}
		return errors.Join(fmt.Errorf("the cache did not sync: %w", context.Cause(ctx)), e.Stop())
	case err := <-e.stopped:
		e.stopped <- err
		e.stop()
		<-done
		return errors.Join(errors.New("the manager ended before it worked"), err)
	}
}

// Stop ends the loop and waits for it.
func (e *Env) Stop() error {
	e.stop()
	err := <-e.stopped
	e.stopped <- err // for whoever asks again
	return err
}

func newManager(cfg *rest.Config, opts Options) (manager.Manager, error) {
	unnamed, grace := true, 10*time.Second
	mgr, err := manager.New(cfg, manager.Options{
		Scheme:                  clientgoscheme.Scheme,
		Logger:                  opts.Logger,
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		Controller:              config.Controller{SkipNameValidation: &unnamed}, // several Envs in one process
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	options, err := controllerOptions(opts)
	if opts.Customize != nil {
		opts.Customize(options)
	}
	return mgr, errors.Join(err, options.SetupWithManager(mgr))
}

// controllerOptions returns the whole loop, and all that is wrong with opts.
func controllerOptions(opts Options) (*controllers.Options, error) {
	profile, err := ca.NewProfile(opts.Profile)
	if err != nil {
		err = fmt.Errorf("profile: %w", err)
	}
	if caErr := opts.CA.check(opts.Clock); caErr != nil {
		err = errors.Join(err, fmt.Errorf("CA: %w", caErr))
	}
	pair := keypair.New(keypair.Static{Cert: opts.CA.CertPEM, Key: opts.CA.KeyPEM})
	signers := map[string]signer.Signer{}
	for _, name := range signer.KubernetesSignerNames() {
		signers[name] = signer.Signer{Profile: profile, KeyPair: pair}
	}
	retention := csr.RetentionPolicy{Default: opts.Retention}
	options := &controllers.Options{
		Approver: &approver.Reconciler{Rules: []approver.Rule{approver.NodeClient()}},
		Signer:   &signer.Reconciler{Signers: signers, Retention: retention},
		Cleaner:  &cleaner.Reconciler{Retention: retention},
		Clock:    opts.Clock,
	}
	if opts.Clock != nil {
		options.WrapQueue = func(queue controllers.Queue) controllers.Queue { return newSteppedQueue(queue, opts.Clock) }
	}
	return options, err
}

// steppedQueue counts a delay from when its item was taken out, not from when the delay was asked for. If a test steps
// the clock while a reconciler works, the item would otherwise be delayed by the whole step.
type steppedQueue struct {
	controllers.Queue
	clock clock.PassiveClock

	mu    sync.Mutex
	taken map[reconcile.Request]time.Time
}

func newSteppedQueue(queue controllers.Queue, steps clock.PassiveClock) *steppedQueue {
	return &steppedQueue{Queue: queue, clock: steps, taken: map[reconcile.Request]time.Time{}}
}

// Get blocks until there is an item.
func (q *steppedQueue) Get() (item reconcile.Request, shutdown bool) {
	item, shutdown = q.Queue.Get()
	q.mu.Lock()
	defer q.mu.Unlock()
	if !shutdown {
		q.taken[item] = q.clock.Now()
	}
	return item, shutdown
}

// AddAfter adds item once delay has passed.
func (q *steppedQueue) AddAfter(item reconcile.Request, delay time.Duration) {
	q.mu.Lock()
	since, working := q.taken[item]
	q.mu.Unlock()
	if working {
		delay -= q.clock.Since(since)
	}
	q.Queue.AddAfter(item, delay)
}

// Done marks item as done.
func (q *steppedQueue) Done(item reconcile.Request) {
	q.mu.Lock()
	delete(q.taken, item)
	q.mu.Unlock()
	q.Queue.Done(item)
}
