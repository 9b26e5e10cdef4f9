// Package csrenv adds to an envtest suite the controllers that approve, sign and clean CertificateSigningRequests.
// They run in process. docs/how-to/use-in-envtest.md shows it in fifteen lines.
package csrenv

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// cleanEvery is the pause between two passes of the cleaner over its cache, which is small in a test suite.
const cleanEvery = 100 * time.Millisecond

// Options configures Start. The zero value works.
type Options struct {
	// CA is the signing CA; nil means a new one. If the API server must accept the certificates, use the CA that Prepare
	// returned.
	CA *CA
	// Profile bounds the certificates; the zero value is kube-controller-manager's behaviour.
	Profile ca.ProfileConfig
	// Retention says when requests are deleted; the zero value is csr.DefaultRetention.
	Retention csr.Retention
	// Clock sets the time for validity, retention and retries; nil is the real clock. When a test steps a fake clock, the
	// cleaner deletes the requests that have become due.
	Clock clock.WithTicker
	// SkipRBAC omits the ClusterRoleBindings that kubelets need.
	SkipRBAC bool
	// Customize may change the controllers before they start. It can remove a controller, set an Authorizer or a Client
	// that fails, or add a Rule or a Signer.
	Customize func(*controllers.Options)
	// Logger receives the manager's log; the zero value discards it.
	Logger logr.Logger
}

// Env is a running approve-sign-clean loop.
type Env struct {
	// CA is the signing CA.
	CA *CA

	config  *rest.Config
	client  client.Client
	stop    context.CancelFunc
	stopped chan error
}

// Start runs the approver, the signer and the cleaner against the API server of cfg until ctx ends or Stop is called.
// The user of cfg must be an administrator. Start returns when the controllers' cache is synced.
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
	admin, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	mgr, err := newManager(cfg, opts)
	if err != nil {
		return nil, err
	}
	// If the user of cfg lacks this right, a manager would retry for minutes. This read fails at once.
	if err := admin.List(ctx, &certificatesv1.CertificateSigningRequestList{}, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("list requests: %w; csrenv needs the rest.Config of an administrator", err)
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

// await returns nil when synced returns true. If synced fails or the manager ends first, await stops the manager and
// returns an error.
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
		return errors.Join(errors.New("the manager stopped before its cache was synced"), err)
	}
}

// Stop stops the loop and waits until it has ended.
func (e *Env) Stop() error {
	e.stop()
	err := <-e.stopped
	e.stopped <- err // for the next call
	return err
}

func newManager(cfg *rest.Config, opts Options) (manager.Manager, error) {
	options, optionsErr := controllerOptions(opts)
	if opts.Customize != nil {
		opts.Customize(options)
	}
	mgr, err := manager.New(cfg, manager.Options{
		Scheme:                  clientgoscheme.Scheme,
		Logger:                  opts.Logger,
		Cache:                   options.CacheOptions(),
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		Controller:              config.Controller{SkipNameValidation: new(true)}, // several Envs may run in one process
		GracefulShutdownTimeout: new(call.Grace),
	})
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	return mgr, errors.Join(optionsErr, options.SetupWithManager(mgr))
}

// controllerOptions returns the options of all three controllers, and an error that joins all defects of opts.
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
	for _, name := range csr.BuiltinSigners() {
		signers[name] = signer.Signer{Profile: profile, KeyPair: pair}
	}
	retention := csr.RetentionPolicy{Default: opts.Retention}
	options := &controllers.Options{
		Approver: &approver.Reconciler{Judges: map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.NodeClient{}}},
		Signer:   &signer.Reconciler{Signers: signers, Retention: retention},
		Cleaner:  &cleaner.Reconciler{Retention: retention, Every: cleanEvery},
		Clock:    opts.Clock,
	}
	return options, err
}
