package kit

import (
	"context"
	"maps"
	"net"
	"net/http"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

// StartLoop runs the named controllers in process, or approver, signer and cleaner. Each has a manager of its own, with only the
// roles that are shipped for it. They run until stop is called or the test ends.
func StartLoop(t testing.TB, opts csrenv.Options, names ...string) (stop func()) {
	t.Helper()
	if len(names) == 0 {
		names = []string{"approver", "signer", "cleaner"}
	}
	customize := opts.Customize
	var whole *controllers.Options
	var stops []func()
	for _, name := range names {
		opts.Customize = func(o *controllers.Options) {
			if whole == nil { // once: it may open files
				if customize != nil {
					customize(o)
				}
				whole = &controllers.Options{}
				*whole = *o
			}
			*o = PartOf(*whole, name)
		}
		stops = append(stops, StartLoopAs(t, RoleConfig(t, name), opts))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// PartOf returns the options of one controller.
func PartOf(o controllers.Options, name string) controllers.Options {
	part := controllers.Options{
		Audit: o.Audit, Concurrency: o.Concurrency, Clock: o.Clock, RequestLimits: o.RequestLimits,
	}
	switch name {
	case "approver":
		part.Approver = o.Approver
	case "signer":
		part.Signer = o.Signer
	case "cleaner":
		part.Cleaner = o.Cleaner
	}
	return part
}

// StartLoopAs runs the controllers of opts in one manager, as cfg's user.
func StartLoopAs(t testing.TB, cfg *rest.Config, opts csrenv.Options) (stop func()) {
	t.Helper()
	forbidAdministrator(t, cfg)
	if opts.CA == nil {
		opts.CA = ControlPlane(t).CA
	}
	opts.SkipRBAC = true
	env, err := csrenv.Start(t.Context(), cfg, opts)
	NoError(t, err)
	stop = func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// Counted returns the sum of a counter of the loops in this process over all series with labels.
func Counted(t testing.TB, counter string, labels map[string]string) int {
	t.Helper()
	families, err := metrics.Registry.Gather()
	NoError(t, err)
	sum := 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			found := map[string]string{}
			for _, label := range metric.GetLabel() {
				if _, wanted := labels[label.GetName()]; wanted {
					found[label.GetName()] = label.GetValue()
				}
			}
			if family.GetName() == counter && maps.Equal(found, labels) {
				sum += int(metric.GetCounter().GetValue())
			}
		}
	}
	return sum
}

// ServingApprover returns an approver of serving certificates by the reports of Nodes, and of renewals.
func ServingApprover() *approver.Reconciler {
	known := &approver.Inventory{Sources: []approver.SourceBuilder{approver.NodeSource}}
	return &approver.Reconciler{
		Rules:     []approver.Rule{approver.NodeClient(), approver.KubeletServing(approver.Serving{Inventory: known})},
		Inventory: known,
	}
}

// StaleClient returns an older version of an object, like a cache that lags behind.
type StaleClient struct {
	client.Client
	Obj *Request
}

// Get returns the older version.
func (c StaleClient) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	c.Obj.DeepCopyInto(obj.(*Request))
	return nil
}

// Wire is the connection of a loop to the API server. It can be cut.
type Wire struct {
	mu   sync.Mutex
	open []net.Conn
}

// Dial is a rest.Config's Dial.
func (w *Wire) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.open = append(w.open, conn)
	}
	return conn, err
}

// Cut closes all connections, and so all watches.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.open {
		_ = conn.Close()
	}
	w.open = nil
}

// RoundTrip is a http.RoundTripper.
type RoundTrip func(*http.Request) (*http.Response, error)

// RoundTrip calls r.
func (r RoundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }
