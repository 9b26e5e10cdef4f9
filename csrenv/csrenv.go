// Package csrenv adds to an envtest suite the controllers that approve, sign and clean CertificateSigningRequests.
// They run in process. docs/how-to/use-in-envtest.md shows it in fifteen lines.
package csrenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

// cleanEvery is the pause between two passes of the cleaner over its cache, which is small in a test suite.
const cleanEvery = 100 * time.Millisecond

// Options configures Start. The zero value works.
type Options struct {
	// CA is the signing CA; nil means a new one. If the API server must accept the certificates, use the CA that Prepare
	// returned.
	CA *CA
	// Signers adds custom signers by name, or changes the CA and the durations of one of Kubernetes' signers.
	Signers map[string]Signer
	// Profile bounds the certificates; the zero value is kube-controller-manager's behaviour.
	Profile ca.ProfileConfig
	// Rules are the approval rules. A requester needs the permission to use a rule: see rules.Rule.
	Rules []rules.Rule
	// Conditions compiles the conditions of Rules: cel.New of pkg/rules/cel. Nil permits no conditions.
	Conditions func(csr.Limits) (rules.Conditions, error)
	// Retention says when requests are deleted; the zero value is csr.DefaultRetention.
	Retention csr.Retention
	// Clock sets the time for validity, retention and retries; nil is the real clock. When a test steps a fake clock, the
	// cleaner deletes the requests that have become due.
	Clock clock.WithTicker
	// SkipRBAC omits the ClusterRoleBindings that kubelets need.
	SkipRBAC bool
	// Customize may change the controllers before they start. It can remove a controller, set an Authorizer or a Client
	// that fails, or change what the fields above do not cover.
	Customize func(*controllers.Options)
	// Logger receives the manager's log; the zero value discards it.
	Logger logr.Logger
}

// Signer configures a signer. The zero value works.
type Signer struct {
	// CA signs. Nil means a new CA for a custom signer, which Env.CAOf returns, and Options.CA for one of Kubernetes' signers.
	// A custom signer on a CA that the API server trusts issues server certificates only for AllowedNames.
	CA *CA
	// Usages are those that a request for a custom signer may have. Nil means digital signature, key encipherment, client auth
	// and server auth.
	Usages []certificatesv1.KeyUsage
	// Duration is the lifetime if the request asks for none; zero means that of Options.Profile.
	Duration time.Duration
	// MinDuration is what a request for less gets, and MaxDuration what a request for more gets; zero means those of
	// Options.Profile.
	MinDuration, MaxDuration time.Duration
	// AllowedNames are the names that a custom signer on a CA that the API server trusts may issue to servers.
	AllowedNames []string
}

// Env is a running approve-sign-clean loop.
type Env struct {
	// CA is the signing CA.
	CA *CA

	signers map[string]Signer
	config  *rest.Config
	client  kubernetes.Interface
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
	if opts.Logger.GetSink() == nil { // logr.Discard has no sink, and the manager would use the logger of the process
		opts.Logger = logr.FromSlogHandler(slog.DiscardHandler)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	var err error
	if opts.Signers, err = allSigners(opts); err != nil {
		return nil, err
	}
	mgr, err := newManager(cfg, opts)
	if err != nil {
		return nil, err
	}
	admin, err := kubernetes.NewForConfigAndClient(cfg, mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if err := prepareCluster(ctx, admin, opts.SkipRBAC); err != nil {
		return nil, err
	}
	env := &Env{CA: opts.CA, signers: opts.Signers, config: cfg, client: admin, stopped: make(chan error, 1)}
	if err := env.run(ctx, mgr.Start, func(ctx context.Context) bool { return synced(ctx, mgr) }); err != nil {
		return nil, err
	}
	return env, nil
}

// synced waits until the cache of mgr holds the requests. It reports whether that was before the end of ctx.
func synced(ctx context.Context, mgr manager.Manager) bool {
	select { // an informer that mgr does not know before it starts its cache cannot block its end (controller-runtime v0.25)
	case <-mgr.Elected():
	case <-ctx.Done():
		return false
	}
	requests, err := mgr.GetCache().GetInformer(ctx, &certificatesv1.CertificateSigningRequest{}, cache.BlockUntilSynced(false))
	return err == nil && wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) {
		return requests.HasSynced(), nil
	}) == nil
}

// run calls start, which must end when its context ends. It returns nil once synced has returned true. If ctx or start ends
// before, run returns why.
func (e *Env) run(ctx context.Context, start func(context.Context) error, synced func(context.Context) bool) error {
	ctx, e.stop = context.WithCancel(ctx)
	go func() {
		e.stopped <- start(ctx)
		e.stop()
	}()
	if !synced(ctx) {
		return errors.Join(fmt.Errorf("the cache did not sync: %w", context.Cause(ctx)), e.Stop())
	}
	return nil
}

// Stop stops the loop and waits until it has ended.
func (e *Env) Stop() error {
	e.stop()
	err := <-e.stopped
	e.stopped <- err // for the next call
	return err
}

// CAOf returns the CA of a signer, or nil if Options has no such signer.
func (e *Env) CAOf(signerName string) *CA { return e.signers[signerName].CA }

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

// allSigners returns Kubernetes' signers and those of opts, each with a CA.
func allSigners(opts Options) (map[string]Signer, error) {
	all := map[string]Signer{}
	for _, name := range csr.BuiltinSigners() {
		all[name] = Signer{CA: opts.CA}
	}
	for name, signer := range opts.Signers {
		if signer.CA == nil {
			signer.CA = all[name].CA
		}
		if signer.CA == nil {
			made, err := NewCA()
			if err != nil {
				return nil, err
			}
			signer.CA = made
		}
		all[name] = signer
	}
	return all, nil
}

// controllerOptions returns the options of all three controllers, and an error that joins all defects of opts.
func controllerOptions(opts Options) (*controllers.Options, error) {
	signers, errs := map[string]signer.Signer{}, []error{}
	pairs := map[*CA]*keypair.KeyPair{} // signers with the same CA share a key pair
	for _, name := range slices.Sorted(maps.Keys(opts.Signers)) {
		one := opts.Signers[name]
		if pairs[one.CA] == nil {
			pairs[one.CA] = keypair.New(keypair.Static{Cert: one.CA.CertPEM, Key: one.CA.KeyPEM})
			errs = append(errs, labeled("CA of signer "+name, one.CA.check(opts.Clock)))
		}
		made, err := one.build(name, opts.Profile)
		made.KeyPair = pairs[one.CA]
		signers[name] = made
		errs = append(errs, labeled("signer "+name, err))
	}
	retention := csr.RetentionPolicy{Default: opts.Retention}
	signing := &signer.Reconciler{Signers: signers, Retention: retention}
	compiled, err := compile(opts)
	options := &controllers.Options{
		Approver: &approver.Reconciler{Judges: map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{}}},
		Signer:   signing,
		Cleaner:  &cleaner.Reconciler{Retention: retention, Every: cleanEvery},
		Clock:    opts.Clock,
	}
	controllers.AddApprovalRules(options.Approver.Judges, compiled, signers, signing)
	return options, errors.Join(append(errs, err)...)
}

// labeled returns err with a label, or nil.
func labeled(label string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", label, err)
}

// build returns the signer with that name, without a key pair. Its profile is profile with the durations of s.
func (s Signer) build(name string, profile ca.ProfileConfig) (signer.Signer, error) {
	profile.Lifetime = cmp.Or(s.Duration, profile.Lifetime)
	if s.Duration == 0 && s.MaxDuration > 0 {
		profile.Lifetime = min(cmp.Or(profile.Lifetime, ca.DefaultLifetime), s.MaxDuration)
	}
	profile.MinLifetime = cmp.Or(s.MinDuration, profile.MinLifetime)
	profile.MaxLifetime = cmp.Or(s.MaxDuration, profile.MaxLifetime)
	bounds, err := ca.NewProfile(profile)
	made := signer.Signer{Profile: bounds}
	if _, builtin := csr.BuiltinSigner(name); builtin {
		if s.Usages != nil || s.AllowedNames != nil {
			err = errors.Join(err, errors.New("one of Kubernetes' signers has fixed usages and names: remove Usages and AllowedNames"))
		}
		return made, err
	}
	if made.Usages = s.Usages; s.Usages == nil {
		made.Usages = []certificatesv1.KeyUsage{"digital signature", "key encipherment", "client auth", "server auth"}
	}
	names, namesErr := ca.NewAllowedNames(s.AllowedNames)
	made.AllowedNames = names
	return made, errors.Join(err, namesErr)
}

// compile returns the compiled rules of opts.
func compile(opts Options) (all []*rules.Compiled, err error) {
	var conditions rules.Conditions
	if opts.Conditions != nil {
		if conditions, err = opts.Conditions(csr.DefaultLimits); err != nil {
			return nil, err
		}
	}
	var mistakes field.ErrorList
	for _, rule := range opts.Rules {
		compiled, found := rules.Compile(rule, field.NewPath("rules").Key(rule.Name), conditions)
		all, mistakes = append(all, compiled), append(mistakes, found...)
	}
	return all, mistakes.ToAggregate()
}
