package inventory

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informers"
)

// look is how often Leases looks for nodes that have died: no event tells of that.
const look = time.Second

// Leases watches the leases of kubelets and says which nodes are alive. Every process trusts only what it has seen
// itself, so after a start nobody is dead for a minute.
type Leases struct {
	// Changed, if set, is called with the name of a node that has died or whose lease is gone, and with an empty name once
	// leases are read.
	Changed func(node string)

	cache cache.Cache
	clock clock.PassiveClock

	mu     sync.Mutex
	pulse  pulse
	synced bool
	dead   map[string]bool // of which Changed has been told
}

// NewLeases returns Leases with a cache of its own; Start fills it. httpClient may be nil. The real clock does not jump:
// Go measures by the monotonic one.
func NewLeases(config *rest.Config, httpClient *http.Client, passed clock.PassiveClock) (*Leases, error) {
	l := &Leases{clock: passed, dead: map[string]bool{}}
	var err error
	l.cache, err = cache.New(config, cache.Options{
		HTTPClient: httpClient,
		Mapper:     informers.Mapper(coordinationv1.SchemeGroupVersion.WithKind("Lease")),
		ByObject: map[client.Object]cache.ByObject{&coordinationv1.Lease{}: {
			Namespaces: map[string]cache.Config{corev1.NamespaceNodeLease: {}},
			Transform:  stripLease,
		}},
		DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
			l.mu.Lock()
			l.pulse.lost()
			l.mu.Unlock()
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	return l, nil
}

// stripLease keeps what is looked at.
func stripLease(obj any) (any, error) {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		lease.ObjectMeta = metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID, ResourceVersion: lease.ResourceVersion}
		lease.Spec = coordinationv1.LeaseSpec{RenewTime: lease.Spec.RenewTime, LeaseDurationSeconds: lease.Spec.LeaseDurationSeconds}
	}
	return obj, nil
}

// NeedLeaderElection says no: a standby must have watched for a minute when it takes over.
func (*Leases) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (l *Leases) Start(ctx context.Context) error {
	informer, err := informers.Get(ctx, l.cache, &coordinationv1.Lease{}, log.FromContext(ctx), func(error) {})
	if err != nil {
		return nil // ctx has ended
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    l.see,
		UpdateFunc: func(_, obj any) { l.see(obj) },
		DeleteFunc: l.forget,
	}); err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	go l.tell(ctx)
	return l.cache.Start(ctx)
}

func (l *Leases) see(obj any) {
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.pulse.see(lease.Name, beat(lease), l.clock.Now())
	}
}

// beat is what lease says.
func beat(lease *coordinationv1.Lease) heartbeat {
	var says heartbeat
	if lease.Spec.RenewTime != nil {
		says.Renewed = lease.Spec.RenewTime.Time
	}
	if lease.Spec.LeaseDurationSeconds != nil {
		says.Lasts = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	return says
}

func (l *Leases) forget(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if lease, ok := obj.(*coordinationv1.Lease); ok {
		l.mu.Lock()
		l.pulse.forget(lease.Name)
		l.mu.Unlock()
		l.changed(lease.Name)
	}
}

// tell calls Changed for who has died.
func (l *Leases) tell(ctx context.Context) {
	if !l.cache.WaitForCacheSync(ctx) {
		return
	}
	l.mu.Lock()
	l.synced = true
	l.mu.Unlock()
	l.changed("")
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, node := range l.died() {
			l.changed(node)
		}
	}
}

func (l *Leases) changed(node string) {
	if l.Changed != nil {
		l.Changed(node)
	}
}

// died returns the nodes that are dead, and were not at the last call.
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

// Of says whether node is alive, and when its lease was last renewed, by the node's own clock; zero is never, or that it
// has none.
func (l *Leases) Of(node string) (Life, time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.synced {
		return Unknown, time.Time{}, fmt.Errorf("leases: %w", errNotRead)
	}
	return l.pulse.of(node, l.clock.Now()), l.pulse.leases[node].Renewed, nil
}
