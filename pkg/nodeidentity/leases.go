package nodeidentity

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
)

// Leases watches the Leases of kubelets and reports which nodes are alive. Each process trusts only its own
// observations, so no node is dead in the first minute after a start. If the API server is unreachable, no other node is
// seen to renew its Lease, so no node is dead.
type Leases struct {
	leases *informer.Informer[*observed]
	clock  clock.PassiveClock
}

// NewLeases returns Leases that Start fills. It calls changed with the name of a node whose Lease was deleted, and with
// an empty name once all Leases are read. passed must not jump. The real clock does not, because Go measures with the
// monotonic clock.
func NewLeases(
	config *rest.Config, httpClient *http.Client, passed clock.PassiveClock, log logr.Logger, changed func(node string),
) (*Leases, error) {
	api, err := coordinationv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	l := &Leases{clock: passed}
	l.leases = &informer.Informer[*observed]{
		Resource: informer.Of(coordinationv1.SchemeGroupVersion.WithResource("leases"), api.Leases(corev1.NamespaceNodeLease)),
		Convert: func(obj runtime.Object) *observed {
			lease := obj.(*coordinationv1.Lease)
			before, _, _ := l.leases.Get(lease.Namespace, lease.Name) // nil if it is new, or if all were dropped
			return observationOf(before, lease, l.clock.Now())
		},
		OnSync: func() { changed("") },
		OnChange: func(before, after *observed) {
			if after == nil {
				changed(before.Name)
			}
		},
		GrantedBy: "config/node-identity", Log: log.WithValues("resource", "leases"),
	}
	return l, nil
}

// Start reads Leases until ctx ends.
func (l *Leases) Start(ctx context.Context) error { return l.leases.Start(ctx) }

// NeedLeaderElection returns false. A standby reads too, because it needs a minute of observations when it takes over.
func (*Leases) NeedLeaderElection() bool { return false }

// Of returns the state of the Lease of node, and when its Lease was last renewed, by the node's own clock. The time is
// zero if the Lease was never renewed or does not exist. An error means that Leases can't be read.
func (l *Leases) Of(node string) (bootstrap.LeaseState, time.Time, error) {
	lease, found, err := l.leases.Get(corev1.NamespaceNodeLease, node)
	if err != nil {
		return bootstrap.LeaseUnknown, time.Time{}, fmt.Errorf("leases: %w", err)
	}
	all, err := l.leases.List()
	if !found || err != nil {
		return bootstrap.LeaseUnknown, time.Time{}, err
	}
	return stateOf(lease, all, l.clock.Now()), lease.renewed, nil
}
