package approver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// managerOf returns a manager that is not started.
func managerOf(t testing.TB, api *rest.Config) manager.Manager {
	t.Helper()
	unnamed := true
	return must(manager.New(api, manager.Options{
		Scheme: scheme.Scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &unnamed},
	}))
}

// recorded is a manager of an API server that does not answer. It records the types of what it runs, and what it logs.
type recorded struct {
	manager.Manager
	runs, logs []string
}

func (r *recorded) Add(runnable manager.Runnable) error {
	r.runs = append(r.runs, fmt.Sprintf("%T", runnable))
	return r.Manager.Add(runnable)
}

func (r *recorded) GetLogger() logr.Logger {
	return funcr.New(func(_, args string) { r.logs = append(r.logs, args) }, funcr.Options{})
}

// builds returns a SourceBuilder of source.
func builds(source inventory.Source, err error) SourceBuilder {
	return func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) { return source, err }
}

// TestSetupFollowsFromTheRules checks which watches are added to the manager, which mistakes are reported, and that the
// approver warns if serving certificates depend only on what nodes report about themselves.
func TestSetupFollowsFromTheRules(t *testing.T) {
	t.Parallel()
	serving := func(i *Inventory) Rule { return KubeletServing(Serving{Inventory: i}) }
	client := func(*Inventory) Rule { return NodeClient() }
	first := func(i *Inventory) Rule {
		return BoundNodeClient(Bootstrap{Inventory: i, Policy: BootstrapPolicy{Expected: true}})
	}
	incomplete := func(*Inventory) Rule { return Rule{SignerName: "x", Recognisers: []Recogniser{{Name: "all"}}} }
	all := func(sources ...SourceBuilder) []SourceBuilder { return sources }
	other := builds(&askedOf{}, nil)
	const watched = "*node.APIServers *node.Source"
	for name, test := range map[string]struct {
		rule    func(*Inventory) Rule
		sources []SourceBuilder
		denial  Denial
		want    string // what the manager runs beside the controller itself, with "warns" before; or a part of the error
	}{
		"client certificates":                   {client, nil, DenialPermanent, "*node.Source"},
		"first certificates by the inventory":   {first, all(other), "", "*node.Source *nodeidentity.Leases"},
		"serving, by what nodes report":         {serving, all(NodeSource), "", "warns " + watched},
		"serving, by another source before":     {serving, all(other, NodeSource), "", watched},
		"serving, by another source after":      {serving, all(NodeSource, other), "", watched},
		"a source that can't be built":          {serving, all(builds(nil, errors.New("no such kind"))), "", "no such kind"},
		"rules that are incomplete":             {incomplete, nil, "", "the rule for signer \"x\" has no Shape"},
		"a recogniser that is incomplete":       {incomplete, nil, "", "recogniser \"all\" of the rule for signer \"x\" has no Matches"},
		"a value of denial that does not exist": {client, nil, "Sometimes", `denial "Sometimes" is invalid: set it to Never or Permanent`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := &Inventory{Sources: test.sources}
			r := &Reconciler{Inventory: i, Rules: []Rule{test.rule(i)}, Denial: test.denial}
			mgr := &recorded{Manager: managerOf(t, &rest.Config{Host: "https://127.0.0.1:1"})}
			if err := r.SetupWithManager(mgr, controller.TypedOptions[fairqueue.Key]{}); err != nil {
				if !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
				return
			}
			slices.Sort(mgr.runs)
			got := strings.Join(slices.DeleteFunc(mgr.runs, func(name string) bool { return strings.HasPrefix(name, "*controller.") }), " ")
			if strings.Contains(strings.Join(mgr.logs, ""), "depend only on what nodes report about themselves") {
				got = "warns " + got
			}
			if got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// queueOf returns an empty work queue.
func queueOf(t *testing.T) workQueue {
	t.Helper()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	t.Cleanup(queue.ShutDown)
	return queue
}

// queued returns the names of the queued requests, in order of their names.
func queued(queue workQueue) string {
	var names []string
	for queue.Len() > 0 {
		key, _ := queue.Get()
		queue.Done(key)
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestEventsQueueWhatIsUndecided checks which events of requests queue them, and that decided requests leave the index.
func TestEventsQueueWhatIsUndecided(t *testing.T) {
	t.Parallel()
	r := newParts(nil).reconciler
	r.Rules = r.Rules[:1]
	events, queue, obj := fairqueue.Events(r.observe, r.forget), queueOf(t), object()
	expect := func(what, want string) {
		t.Helper()
		waiting := strings.Join(mapped(r.waiting.All(), func(key fairqueue.Key) string { return key.Name }), " ")
		if got := queued(queue); got != want || waiting != want {
			t.Errorf("%s: %q is queued, and %q waits", what, got, waiting)
		}
	}
	for name, changed := range map[string]*request{
		"approved": object(with("Approved")), "issued": object(issued), "another signer": object(signer("example.com/other")), "deleted": nil,
	} {
		events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		expect("before it is "+name, "csr-1")
		if changed == nil {
			events.Delete(t.Context(), event.TypedDeleteEvent[*request]{Object: obj}, queue)
		} else {
			events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: changed}, queue)
		}
		expect(name, "")
	}
}

// TestChangesWakeThoseThatWait checks which requests a change of the inventory wakes, that changes are gathered, and that
// of one lane only the newest requests are woken.
func TestChangesWakeThoseThatWait(t *testing.T) {
	t.Parallel()
	named := func(name, addresses string) *request { // the digit counts the seconds
		age := created(now.Add(time.Duration(name[1]-'0') * time.Second))
		return asks(name[:1], addresses, age, func(obj *request) { obj.Name, obj.UID = name, types.UID(name) })
	}
	synctest.Test(t, func(t *testing.T) {
		r := newParts(nil).reconciler
		queue, wake := queueOf(t), newWakeUps()
		events := fairqueue.Events(r.observe, r.forget)
		for _, obj := range []*request{
			named("a1", "10.0.0.1"), named("a2", "10.0.0.1"), named("a3", ""), named("a4", ""),
			named("b1", "10.0.0.1 10.0.0.2"), named("c1", "10.0.0.3"), object(),
		} {
			events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		}
		queued(queue)
		ctx, cancel := context.WithCancel(t.Context())
		woken := func() []fairqueue.Key { return r.waiting.Marked(mostWoken, wake.take()) }
		if err := fairqueue.Wake(wake.changed, nil, woken).Start(ctx, queue); err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			change func()
			want   string
		}{
			"a node":                    {func() { wake.inventory("b") }, "b1"},
			"two nodes":                 {func() { wake.inventory("b"); wake.inventory("c"); wake.inventory("b") }, "b1 c1"},
			"a node with many requests": {func() { wake.inventory("a") }, "a2 a3 a4"},
			"all nodes":                 {func() { wake.inventory("") }, "a2 a3 a4 b1 c1"},
			"an address":                {func() { wake.inventory("z", sans("10.0.0.1")...) }, "a1 a2 b1"},
			"an address that none asks": {func() { wake.inventory("z", sans("10.9.9.9")...) }, ""},
			"more than can be gathered": {func() { wake.inventory("z", append(many(mostMarks), sans("10.0.0.1")...)...) }, ""},
			"all nodes beside too many": {func() { wake.inventory("z", many(mostMarks+1)...); wake.inventory("") }, "a2 a3 a4 b1 c1"},
		} {
			test.change()
			synctest.Wait()
			if queue.Len() > 0 {
				t.Errorf("%s: woken before changes were gathered", name)
			}
			time.Sleep(3 * gatherFor)
			if got := queued(queue); got != test.want {
				t.Errorf("%s: woken %q, want %q", name, got, test.want)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// many returns n addresses.
func many(n int) []san.SAN {
	all := make([]san.SAN, n)
	for i := range all {
		all[i] = san.FromIP(net.IPv4(11, byte(i>>16), byte(i>>8), byte(i)))
	}
	return all
}
