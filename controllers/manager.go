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

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// Options configures all controllers. A nil controller does not run. SetupWithManager sets nil fields of the
// controllers from the manager, so a caller may provide a client, a clock or an authorizer.
type Options struct {
	Approver *approver.Reconciler
	Signer   *signer.Reconciler
	Cleaner  *cleaner.Reconciler
	Rotation *rotation.Reconciler

	// Home, if set, is the cluster of the signing Secrets, of the SigningAuthorities and of all that belongs to them, if it is
	// not the manager's cluster. Then the manager's cluster serves requests without holding a key. The caller adds Home to the manager.
	Home cluster.Cluster

	// Audit, if set, is the audit log of the approver and the signer, unless they have their own.
	Audit *audit.Log

	// BlockList, if set, runs with the controllers. The approver and the signer use it, unless they have their own.
	BlockList *blocklist.List

	// SelfCheck, if set, checks the manager's own rights and the kubelets' rights.
	SelfCheck *SelfCheck

	// Clock, if set, is the clock of the queues and of every controller without a clock of its own. With a fake clock,
	// retention, expiry and retries follow its steps.
	Clock clock.WithTicker

	// ServerTime is the clock by which ages count. Nil means Clock, or the API servers' time if Clock is nil too. Set it
	// if the transport of the manager's clients notes that time (servertime.Clock.Wrap), which saves calls.
	ServerTime *servertime.Clock
}

// CacheOptions returns the options for the cache of the manager. The cache holds little of a request that is finished, that
// has a signer without a controller in o, or that is above the limits. In a dry run it holds finished requests whole, because
// the controllers judge them too. The controllers also work with another cache, which needs more memory. If it trims with csr.Trim
// and o.Rotation is set, csr.Trim.Authorities must be o.Rotation.Authorities.
func (o Options) CacheOptions() cache.Options {
	signers := o.signerNames()
	trim := csr.Trim{Ours: func(signerName string) bool { return signers[signerName] }}
	if o.Approver != nil {
		trim.Limits, trim.KeepFinished = o.Approver.RequestLimits, o.Approver.DryRun
	}
	if o.Signer != nil {
		trim.Limits = o.Signer.RequestLimits // the approver approves only what the signer can sign
		trim.KeepFinished = trim.KeepFinished || o.Signer.DryRun
	}
	if o.Rotation != nil {
		trim.Authorities = o.Rotation.Authorities
	}
	return cache.Options{DefaultTransform: trim.Transform}
}

// SetupWithManager registers the controllers of Options with mgr, and returns all errors together. The caller
// configures leader election, metrics and probes on mgr.
func (o Options) SetupWithManager(mgr manager.Manager) error {
	if o.Approver == nil && o.Signer == nil && o.Cleaner == nil && o.Rotation == nil {
		return errors.New("no controller is set in Options: set at least one")
	}
	if err := o.setServerTime(mgr); err != nil {
		return err
	}
	if err := o.setupControllers(mgr); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("clock", o.ServerTime.Ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	if err := o.setupSelfCheck(mgr); err != nil {
		return err
	}
	return o.setupCaches(mgr)
}

// setServerTime sets o.ServerTime if it is nil.
func (o *Options) setServerTime(mgr manager.Manager) (err error) {
	switch {
	case o.ServerTime != nil:
	case o.Clock != nil:
		o.ServerTime = servertime.Of(o.Clock)
	default:
		o.ServerTime, err = servertime.New(mgr.GetConfig())
	}
	return err
}

// setupControllers sets up the block list and the controllers, and returns all errors together.
func (o Options) setupControllers(mgr manager.Manager) error {
	var errs []error
	setup := func(name string, controller interface{ SetupWithManager(manager.Manager) error }) {
		if err := controller.SetupWithManager(mgr); err != nil {
			errs = append(errs, fmt.Errorf("set up %s: %w", name, err))
		}
	}
	if o.BlockList != nil {
		setup("block list", o.BlockList)
	}
	if r := o.Approver; r != nil {
		r.BlockList, r.Audit = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.Audit, o.Audit)
		r.ServerTime, r.Clock = o.clocks(r.ServerTime, r.Clock)
		setup(approver.Name, r)
	}
	if r := o.Signer; r != nil {
		r.BlockList, r.Audit = cmp.Or(r.BlockList, o.BlockList), cmp.Or(r.Audit, o.Audit)
		r.ServerTime, r.Clock = o.clocks(r.ServerTime, r.Clock)
		r.Home = o.Home
		setup(signer.Name, r)
	}
	if r := o.Cleaner; r != nil {
		r.ServerTime, r.Clock = o.clocks(r.ServerTime, r.Clock)
		setup(cleaner.Name, r)
	}
	if r := o.Rotation; r != nil {
		r.Audit = cmp.Or(r.Audit, o.Audit)
		r.ServerTime, r.Clock = o.clocks(r.ServerTime, r.Clock)
		r.Home = o.Home
		setup(rotation.Name, r)
	}
	return errors.Join(errs...)
}

// clocks returns the clocks of a controller: the clock by which ages count, and the clock for all else. A controller may
// have its own.
func (o Options) clocks(serverTime *servertime.Clock, own clock.PassiveClock) (*servertime.Clock, clock.PassiveClock) {
	switch {
	case own != nil && serverTime == nil:
		return servertime.Of(own), own
	case own == nil && o.Clock != nil:
		own = o.Clock
	}
	return cmp.Or(serverTime, o.ServerTime), own
}

// signerNames returns the signers that the approver or the signer is configured for.
func (o Options) signerNames() map[string]bool {
	names := map[string]bool{}
	if o.Approver != nil {
		for name := range o.Approver.Judges {
			names[name] = true
		}
	}
	if o.Signer != nil {
		for name := range o.Signer.Signers {
			names[name] = true
		}
	}
	return names
}

// caches fills the controllers' caches on every replica. An elected replica fills its queues from them. caches waits
// for what is missing, such as a CRD. A replica is not ready until all caches are filled. Then its requests are counted.
type caches struct {
	served, home cache.Informers
	log          logr.Logger
	requests     requestsCollector
	// problems maps each kind, a client.Object, to an error that says why its cache is not filled.
	problems sync.Map
}

// setupCaches adds the caches of the controllers in o to mgr, with a readiness check.
func (o Options) setupCaches(mgr manager.Manager) error {
	c := &caches{
		served: mgr.GetCache(), home: cmp.Or[cluster.Cluster](o.Home, mgr).GetCache(), log: mgr.GetLogger().WithName("caches"),
		requests: requestsCollector{now: o.ServerTime.Latest, signers: o.signerNames()},
	}
	c.problems.Store(&certificatesv1.CertificateSigningRequest{}, informer.ErrNotRead)
	if o.Rotation != nil {
		c.problems.Store(&v1alpha1.SigningAuthority{}, informer.ErrNotRead)
	}
	if err := mgr.AddReadyzCheck("caches", c.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(c)
}

// NeedLeaderElection returns false, because a standby fills its caches too, and counts their requests.
func (*caches) NeedLeaderElection() bool { return false }

// Start creates the informers, and waits for each until ctx ends.
func (c *caches) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for kind := range c.problems.Range {
		running.Go(func() { c.fill(ctx, kind.(client.Object)) })
	}
	running.Wait()
	return nil
}

func (c *caches) fill(ctx context.Context, kind client.Object) {
	log, from := c.log.WithValues("kind", fmt.Sprintf("%T", kind)), c.served
	if _, is := kind.(*v1alpha1.SigningAuthority); is {
		from = c.home
	}
	store, err := informer.FromCache(ctx, from, kind, log, func(err error) { c.problems.Store(kind, err) })
	if ctx.Err() != nil {
		return
	}
	c.problems.Delete(kind)
	if err != nil {
		log.Error(err, "Its objects are not counted")
	} else if _, counted := kind.(*certificatesv1.CertificateSigningRequest); counted {
		c.requests.store = store
		c.requests.run(ctx)
	}
}

// ready returns an error that names each cache that is not filled, and the cause.
func (c *caches) ready(*http.Request) error {
	var errs []error
	for kind, problem := range c.problems.Range {
		errs = append(errs, fmt.Errorf("the cache of %T is not filled: %w", kind, problem.(error)))
	}
	return errors.Join(errs...)
}
