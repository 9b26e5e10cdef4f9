package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

const (
	// shortestSilence is the least time without a renewal after which a standby begins to work.
	shortestSilence = 2 * time.Second
	// missedRenewals is the number of renewals that the leader has missed by then.
	missedRenewals = 4
	// confirmEvery is the pause between two reads that confirm that the leader is silent, and confirmTimeout bounds a
	// read.
	confirmEvery, confirmTimeout = 500 * time.Millisecond, time.Second
	// othersActiveFor is how long after a gap between renewals the leader may observe certificates of standbys.
	othersActiveFor = time.Minute
)

// leaderLease observes the renewals of the leader election's Lease. It compares only instants of the local clock,
// because the clocks of replicas may differ.
type leaderLease struct {
	name    types.NamespacedName
	live    client.Reader // reads past every cache
	clock   clock.PassiveClock
	silence time.Duration // without a renewal, after which no replica leads

	mu        sync.Mutex
	version   string    // resourceVersion of the last observed Lease; empty if there is none
	holder    string    // empty after the leader has released the Lease
	changed   time.Time // when version was observed
	confirmed time.Time // when a read last returned version
	failed    time.Time // when a read last failed
	gapEnded  time.Time // when the last gap between renewals ended
}

// newLeaderLease returns a leaderLease. It observes nothing until setup.
func newLeaderLease(mgr manager.Manager, standby Standby) (*leaderLease, error) {
	scheme := runtime.NewScheme() // a caller may have set a manager scheme without Leases
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("observe the Lease: %w", err)
	}
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.QPS = -1 // reading the Lease never waits behind work
	live, err := client.New(cfg, client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mgr.GetRESTMapper(),
	})
	if err != nil {
		return nil, fmt.Errorf("observe the Lease: %w", err)
	}
	return &leaderLease{
		name: standby.Lease, live: live, clock: clock.RealClock{},
		silence: max(shortestSilence, missedRenewals*standby.RetryPeriod),
	}, nil
}

// setup adds the watch of the Lease to mgr.
func (l *leaderLease) setup(mgr manager.Manager) error {
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	resource, err := informer.Typed(mgr.GetConfig(), mgr.GetHTTPClient(), leases,
		&coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	if err != nil {
		return fmt.Errorf("observe the Lease: %w", err)
	}
	watch := &informer.Informer[*coordinationv1.Lease]{
		Resource: resource, Namespace: l.name.Namespace, Name: l.name.Name, GrantedBy: "config/rbac",
		Log: mgr.GetLogger().WithName("standby").WithValues("lease", l.name.String()),
	}
	watch.OnSync = func() {
		if lease, found, err := watch.Get(l.name.Namespace, l.name.Name); err == nil && found {
			l.observe(lease)
		}
	}
	watch.OnChange = func(_, lease *coordinationv1.Lease) {
		if lease == nil {
			l.forget()
			return
		}
		l.observe(lease)
	}
	return mgr.Add(watch)
}

// observe records a version of the Lease.
func (l *leaderLease) observe(lease *coordinationv1.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease.ResourceVersion == l.version {
		return
	}
	now := l.clock.Now()
	if l.version != "" && now.Sub(l.changed) >= l.silence/2 {
		l.gapEnded = now
	}
	l.version, l.holder, l.changed = lease.ResourceVersion, ptr.Deref(lease.Spec.HolderIdentity, ""), now
}

// forget records that the Lease was deleted. A replica creates it again at once.
func (l *leaderLease) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version = ""
}

// vacancy is what is known about the leader.
type vacancy int

const (
	led      vacancy = iota // a replica leads, or nothing is known
	silent                  // the leader has not renewed the Lease for too long
	released                // the leader has released the Lease
)

// state returns the vacancy, and reports whether a read has confirmed it a moment ago.
func (l *leaderLease) state() (state vacancy, confirmed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	// A failed read says nothing about the leader: it may have been cut off from the API server too.
	quiet := min(now.Sub(l.changed), now.Sub(l.failed))
	confirmed = min(now.Sub(l.changed), now.Sub(l.confirmed)) < confirmEvery
	switch {
	case l.version == "":
		return led, false
	case l.holder == "":
		return released, confirmed
	case quiet >= l.silence:
		return silent, confirmed
	default:
		return led, false
	}
}

// vacant returns the vacancy. If the Lease seems unchanged for too long, it reads the Lease, because the watch may be
// the one that is silent.
func (l *leaderLease) vacant(ctx context.Context, log logr.Logger) vacancy {
	state, confirmed := l.state()
	if state == led || confirmed {
		return state
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	if err := l.live.Get(ctx, l.name, lease); err != nil {
		log.V(1).Info("The Lease seems unchanged, but can't be read", "error", err.Error())
		l.mu.Lock()
		l.failed = l.clock.Now()
		l.mu.Unlock()
		return led
	}
	l.observe(lease)
	l.mu.Lock()
	l.confirmed = l.clock.Now()
	l.mu.Unlock()
	state, _ = l.state()
	return state
}

// othersActive reports whether standbys may work now, or may have worked less than a minute ago.
func (l *leaderLease) othersActive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	return l.version != "" && now.Sub(l.changed) >= l.silence/2 ||
		!l.gapEnded.IsZero() && now.Sub(l.gapEnded) < othersActiveFor
}
