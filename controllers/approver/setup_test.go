package approver

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// unreachable returns a manager of an API server that does not answer. Nothing of it is started.
func unreachable(t *testing.T) manager.Manager {
	t.Helper()
	unnamed := true
	mgr, err := manager.New(&rest.Config{Host: "https://127.0.0.1:1"}, manager.Options{
		Scheme: scheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &unnamed},
	})
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// slowly is a source that is asked in the background.
type slowly struct{ askedOf }

func (*slowly) Concurrency() int { return 1 }

// builds returns a SourceBuilder of source.
func builds(source inventory.Source, err error) SourceBuilder {
	return func(manager.Manager, *node.Source, func(string), func([]san.SAN)) (inventory.Source, error) {
		return source, err
	}
}

// TestSetupFollowsFromTheRules checks which watches and pools are added to the manager. Until these have been read,
// requests must wait.
func TestSetupFollowsFromTheRules(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules   func(*Inventory) []Rule
		sources []SourceBuilder

		reviews, background, expecting int
		services, leases               bool
		fails                          string
	}{
		"client certificates": {
			rules: func(*Inventory) []Rule { return []Rule{NodeClient()} }, reviews: 2,
		},
		"serving certificates": {
			rules:    func(i *Inventory) []Rule { return []Rule{KubeletServing(Serving{Inventory: i})} },
			sources:  []SourceBuilder{builds(&slowly{}, nil), builds(&askedOf{}, nil), NodeSource},
			services: true, background: 1, expecting: 2,
		},
		"first certificates by the inventory": {
			rules: func(i *Inventory) []Rule {
				return []Rule{BoundNodeClient(Bootstrap{Inventory: i, Policy: BootstrapPolicy{Expected: true}})}
			},
			sources: []SourceBuilder{builds(&askedOf{}, nil)}, reviews: 2, expecting: 1, leases: true,
		},
		"a source that can't be built": {
			rules:   func(i *Inventory) []Rule { return []Rule{KubeletServing(Serving{Inventory: i})} },
			sources: []SourceBuilder{builds(nil, errors.New("no such kind"))}, fails: "no such kind",
		},
		"rules that are incomplete": {
			rules: func(*Inventory) []Rule {
				return []Rule{{SignerName: clientSigner, Recognisers: []Recogniser{{Name: "all"}}}}
			},
			fails: "has no Shape",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Inventory{Sources: test.sources}
			r := &Reconciler{Inventory: i, Rules: test.rules(i)}
			err := r.SetupWithManager(unreachable(t), controller.Options{})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %q", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(r.reviews) != test.reviews || len(i.background) != test.background || len(i.expecting) != test.expecting {
				t.Errorf("%d pools of reviews, %d sources in the background, %d that expect nodes; want %d, %d, %d",
					len(r.reviews), len(i.background), len(i.expecting), test.reviews, test.background, test.expecting)
			}
			if services, leases := i.apiServers != nil, i.leases != nil; services != test.services || leases != test.leases {
				t.Errorf("Services %t, want %t; Leases %t, want %t", services, test.services, leases, test.leases)
			}
			if i.Tried(t.Context()) {
				t.Error("the inventory counts as read before it runs")
			}
			if _, err := i.leftOut(t.Context()); !errors.Is(err, informer.ErrNotRead) {
				t.Errorf("the comparison of Nodes says %v before they are read", err)
			}
		})
	}
}

// TestInventoryWaitsUntilItIsRead checks that requests are not judged while the inventory starts, and that they are
// enqueued when that ends.
func TestInventoryWaitsUntilItIsRead(t *testing.T) {
	t.Parallel()
	i := &Inventory{Sources: []SourceBuilder{NodeSource}}
	if err := i.Unavailable(t.Context(), &csr.Request{}); !errors.Is(err, errNotRunning) {
		t.Errorf("without a manager: %v", err)
	}
	r := &Reconciler{Inventory: i, Rules: []Rule{KubeletServing(Serving{Inventory: i})}}
	if err := r.SetupWithManager(unreachable(t), controller.Options{}); err != nil {
		t.Fatal(err)
	}
	if err := i.Unavailable(t.Context(), &csr.Request{}); !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("before the Nodes are read: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	enqueued := make(chan struct{})
	if err := i.firstRead(func(workQueue) { close(enqueued) }).Start(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if !i.reading.Load() {
		t.Error("the inventory is not read yet, and requests do not wait for it")
	}
	cancel()
	<-enqueued
	if i.reading.Load() {
		t.Error("requests wait for an inventory that is not read any more")
	}
}
