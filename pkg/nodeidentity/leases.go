package nodeidentity

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

// checkEvery is the interval at which Leases checks for nodes that have died, because no event reports that.
const checkEvery = time.Second

// Leases watches the Leases of kubelets and reports which nodes are alive. Each process trusts only its own
// observations, so no node is dead in the first minute after a start. A failure of the watch discards earlier
// observations, so no node is dead because the API server is unreachable.
type Leases struct {
	// Changed is called with the name of a node that has died or whose Lease was deleted. It is called with an empty
	// name once all Leases are read.
	Changed func(node string)

	leases *informer.Informer[*coordinationv1.Lease]
	clock  clock.PassiveClock

	mu     sync.Mutex
	pulse  pulse
	synced bool
	dead   map[string]bool // nodes that Changed was called for
}

// NewLeases returns Leases that Start fills. passed must not jump. The real clock does not, because Go measures with the
// monotonic clock.
func NewLeases(
	config *rest.Config, httpClient *http.Client, passed clock.PassiveClock, log logr.Logger,
) (*Leases, error) {
	api, err := coordinationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	l := &Leases{Changed: func(string) {}, clock: passed, dead: map[string]bool{}}
	l.leases = &informer.Informer[*coordinationv1.Lease]{
		Resource:  informer.Of(coordinationv1.SchemeGroupVersion.WithResource("leases"), api.Leases(corev1.NamespaceNodeLease)),
		GrantedBy: "config/node-identity", Log: log.WithValues("resource", "leases"), Convert: stripLease,
		OnSync: l.sync, OnChange: l.observe, OnFailure: func(error) { l.reset() },
	}
	return l, nil
}

// stripLease keeps the fields of a Lease that are used.
func stripLease(obj runtime.Object) *coordinationv1.Lease {
	lease := obj.(*coordinationv1.Lease)
	lease.ObjectMeta = metav1.ObjectMeta{
		Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID, ResourceVersion: lease.ResourceVersion,
	}
	lease.Spec = coordinationv1.LeaseSpec{
		RenewTime: lease.Spec.RenewTime, LeaseDurationSeconds: lease.Spec.LeaseDurationSeconds,
	}
	return lease
}

// heartbeatOf returns the times in lease.
func heartbeatOf(lease *coordinationv1.Lease) heartbeat {
	var says heartbeat
	if lease.Spec.RenewTime != nil {
		says.Renewed = lease.Spec.RenewTime.Time
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		says.Lasts = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	return says
}

// NeedLeaderElection returns false: a standby must have watched for a minute before it takes over.
func (*Leases) NeedLeaderElection() bool { return false }

// Start watches until ctx ends, and calls Changed for nodes that have died.
func (l *Leases) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = l.leases.Start(ctx) }) // it returns no error
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for _, node := range l.died() {
			l.Changed(node)
		}
	}
}

// sync observes all Leases after they were read, at the start or after a failure.
func (l *Leases) sync() {
	l.mu.Lock() // first, so that no older state is observed after a newer one
	leases, err := l.leases.List()
	if err != nil {
		l.mu.Unlock()
		return // the informer reads them again
	}
	now, exists := l.clock.Now(), map[string]bool{}
	for _, lease := range leases {
		exists[lease.Name] = true
		l.pulse.see(lease.Name, heartbeatOf(lease), now)
	}
	for node := range l.pulse.leases {
		if !exists[node] {
			l.pulse.forget(node)
		}
	}
	l.synced = true
	l.mu.Unlock()
	l.Changed("")
}

// observe records a change of one Lease.
func (l *Leases) observe(before, after *coordinationv1.Lease) {
	l.mu.Lock()
	if after != nil {
		l.pulse.see(after.Name, heartbeatOf(after), l.clock.Now())
		l.mu.Unlock()
		return
	}
	l.pulse.forget(before.Name)
	l.mu.Unlock()
	l.Changed(before.Name)
}

// reset records a possible gap in the watch.
func (l *Leases) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pulse.reset()
}

// died returns the nodes that have died since the last call.
func (l *Leases) died() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var fresh []string
	now := l.clock.Now()
	dead := map[string]bool{}
	for node := range l.pulse.leases {
		if l.pulse.of(node, now) != Dead {
			continue
		}
		if dead[node] = true; !l.dead[node] {
			fresh = append(fresh, node)
		}
	}
	l.dead = dead
	return fresh
}

// Of reports whether node is alive, and returns when its Lease was last renewed, by the node's own clock. The time is
// zero if the Lease was never renewed or does not exist. An error means that Leases can't be read.
func (l *Leases) Of(node string) (Life, time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.leases.Err(); err != nil {
		return Unknown, time.Time{}, fmt.Errorf("leases: %w", err)
	}
	if !l.synced {
		return Unknown, time.Time{}, fmt.Errorf("leases: %w", informer.ErrNotRead)
	}
	return l.pulse.of(node, l.clock.Now()), l.pulse.leases[node].Renewed, nil
}
