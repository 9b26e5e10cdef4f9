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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
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

// recorded is a manager that records what it runs.
type recorded struct {
	manager.Manager
	log logr.Logger
	// runs are the types of what was added, and added are these themselves.
	runs  []string
	added []manager.Runnable
}

func (r *recorded) Add(runnable manager.Runnable) error {
	r.runs, r.added = append(r.runs, fmt.Sprintf("%T", runnable)), append(r.added, runnable)
	return r.Manager.Add(runnable)
}

func (r *recorded) GetLogger() logr.Logger { return r.log }

// recordedManager returns an unreachable manager that records what it runs.
func recordedManager(t *testing.T) *recorded {
	t.Helper()
	return &recorded{Manager: unreachable(t), log: logr.Discard()}
}

// builds returns a SourceBuilder of source.
func builds(source inventory.Source, err error) SourceBuilder {
	return func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) {
		return source, err
	}
}

// TestSetupFollowsFromTheRules checks which watches are added to the manager.
func TestSetupFollowsFromTheRules(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules   func(*Inventory) []Rule
		sources []SourceBuilder
		runs    []string // beside the controller itself
		fails   string
	}{
		"client certificates": {
			rules: func(*Inventory) []Rule { return []Rule{NodeClient()} }, runs: []string{"*node.Source"},
		},
		"serving certificates": {
			rules:   func(i *Inventory) []Rule { return []Rule{KubeletServing(Serving{Inventory: i})} },
			sources: []SourceBuilder{builds(&askedOf{}, nil), NodeSource},
			runs:    []string{"*node.APIServers", "*node.Source"},
		},
		"first certificates by the inventory": {
			rules: func(i *Inventory) []Rule {
				return []Rule{BoundNodeClient(Bootstrap{Inventory: i, Policy: BootstrapPolicy{Expected: true}})}
			},
			sources: []SourceBuilder{builds(&askedOf{}, nil)},
			runs:    []string{"*node.Source", "*nodeidentity.Leases"},
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
			mgr := recordedManager(t)
			err := r.SetupWithManager(mgr, controller.TypedOptions[fairqueue.Key]{})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %q", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			runs := slices.DeleteFunc(mgr.runs, func(name string) bool { return strings.HasPrefix(name, "*controller.") })
			slices.Sort(runs)
			if !slices.Equal(runs, test.runs) {
				t.Errorf("the manager runs %q, want %q", runs, test.runs)
			}
		})
	}
}

// TestWarningIfOnlyNodesAreTrusted checks that the approver warns if serving certificates depend only on what nodes
// report about themselves.
func TestWarningIfOnlyNodesAreTrusted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		sources []SourceBuilder
		want    bool
	}{
		"what nodes report": {[]SourceBuilder{NodeSource}, true},
		"another source":    {[]SourceBuilder{builds(&askedOf{}, nil)}, false},
		"another source, and then what nodes report": {[]SourceBuilder{builds(&askedOf{}, nil), NodeSource}, false},
		"what nodes report, and another source":      {[]SourceBuilder{NodeSource, builds(&askedOf{}, nil)}, false},
	} {
		var logged []string
		mgr := recordedManager(t)
		mgr.log = funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		i := &Inventory{Sources: test.sources}
		r := &Reconciler{Inventory: i, Rules: []Rule{KubeletServing(Serving{Inventory: i})}}
		if err := r.SetupWithManager(mgr, controller.TypedOptions[fairqueue.Key]{}); err != nil {
			t.Fatal(err)
		}
		warned := slices.ContainsFunc(logged, func(line string) bool {
			return strings.Contains(line, "depend only on what nodes report about themselves")
		})
		if warned != test.want {
			t.Errorf("%s: warned %t, want %t: %q", name, warned, test.want, logged)
		}
	}
}

// TestSetupKeepsWhatIsSet checks that SetupWithManager sets the fields that are nil, and no other.
func TestSetupKeepsWhatIsSet(t *testing.T) {
	t.Parallel()
	mgr := unreachable(t)
	unset := &Reconciler{}
	unset.fill(mgr)
	if unset.Client == nil || unset.Live == nil || unset.Clock == nil || unset.ServerTime == nil || unset.Authorizer == nil ||
		unset.Reporter == nil || unset.Denial != DenialNever {
		t.Errorf("not every field is set: %+v", unset)
	}
	clock := clocktesting.NewFakePassiveClock(now)
	set := &Reconciler{
		Client: fake.NewClientBuilder().Build(), Live: liveFunc(nil), Clock: clock, ServerTime: servertime.Of(clock),
		Authorizer: &authorizer{}, Reporter: report.New(events.NewFakeRecorder(1), clock), Denial: DenialPermanent,
	}
	filled := &Reconciler{
		Client: set.Client, Live: set.Live, Clock: set.Clock, ServerTime: set.ServerTime, Authorizer: set.Authorizer,
		Reporter: set.Reporter, Denial: set.Denial,
	}
	filled.fill(mgr)
	if _, live := filled.Live.(liveFunc); !live || filled.Client != set.Client || filled.Clock != set.Clock ||
		filled.ServerTime != set.ServerTime || filled.Authorizer != set.Authorizer || filled.Reporter != set.Reporter ||
		filled.Denial != set.Denial {
		t.Errorf("a field is replaced: %+v, want %+v", filled, set)
	}
}

// authorizer is an Authorizer that can be compared.
type authorizer struct{ authz.Authorizer }

func TestDenialIsChecked(t *testing.T) {
	t.Parallel()
	for denial, fails := range map[Denial]bool{DenialNever: false, DenialPermanent: false, "Sometimes": true} {
		err := (&Reconciler{Denial: denial}).check()
		if (err != nil) != fails || fails && err.Error() != `denial "Sometimes" is invalid: set it to Never or Permanent` {
			t.Errorf("%q: error %v", denial, err)
		}
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
	r := &Reconciler{Rules: []Rule{NodeClient()}}
	events, queue := fairqueue.Events(r.observe, r.forget), queueOf(t)
	obj := object(t)
	events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
	if got := queued(queue); got != "csr-1" || len(r.waiting.All()) != 1 {
		t.Errorf("new: queued %q, %d wait", got, len(r.waiting.All()))
	}
	for name, changed := range map[string]*request{
		"approved": object(t, with("Approved")), "denied": object(t, with("Denied")),
		"issued":         object(t, func(obj *request) { obj.Status.Certificate = []byte("x") }),
		"another signer": object(t, func(obj *request) { obj.Spec.SignerName = "example.com/other" }),
	} {
		events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: obj}, queue)
		if got := queued(queue); got != "csr-1" {
			t.Errorf("before it is %s: queued %q", name, got)
		}
		events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: changed}, queue)
		if got := queued(queue); got != "" || len(r.waiting.All()) > 0 {
			t.Errorf("%s: queued %q, %d wait", name, got, len(r.waiting.All()))
		}
	}
	events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: obj}, queue)
	events.Delete(t.Context(), event.TypedDeleteEvent[*request]{Object: obj}, queue)
	if len(r.waiting.All()) > 0 {
		t.Error("a deleted request still waits")
	}
}

// TestChangesWakeThoseThatWait checks which requests a change of the inventory wakes, that changes are gathered, and that
// of one lane only the newest requests are woken.
func TestChangesWakeThoseThatWait(t *testing.T) {
	t.Parallel()
	named := func(name, node string, created int, addresses ...string) *request {
		return object(t, user("system:node:"+node), says(t, nodeTemplate(node, addresses...)), func(obj *request) {
			obj.Name, obj.UID, obj.Spec.SignerName = name, types.UID(name), servingSigner
			obj.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(created) * time.Second))
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := &Reconciler{Rules: []Rule{NodeClient(), KubeletServing(Serving{})}}
		queue, wake := queueOf(t), newWakeUps()
		events := fairqueue.Events(r.observe, r.forget)
		for _, obj := range []*request{
			named("a1", "a", 1, "10.0.0.1"), named("a2", "a", 2, "10.0.0.1"), named("a3", "a", 3), named("a4", "a", 4),
			named("b1", "b", 1, "10.0.0.1", "10.0.0.2"), named("c1", "c", 1, "10.0.0.3"), object(t),
		} {
			events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		}
		queued(queue)
		ctx, cancel := context.WithCancel(t.Context())
		woken := func() []fairqueue.Key { return wake.woken(&r.waiting) }
		if err := fairqueue.Wake(wake.changed, nil, woken).Start(ctx, queue); err != nil {
			t.Fatal(err)
		}
		for name, test := range map[string]struct {
			change func()
			want   string
		}{
			"a node":                      {func() { wake.inventory("b") }, "b1"},
			"two nodes":                   {func() { wake.inventory("b"); wake.inventory("c"); wake.inventory("b") }, "b1 c1"},
			"a node with many requests":   {func() { wake.inventory("a") }, "a2 a3 a4"},
			"all nodes":                   {func() { wake.inventory("") }, "a2 a3 a4 b1 c1"},
			"an address":                  {func() { wake.inventory("z", sans("10.0.0.1")...) }, "a1 a2 b1"},
			"an address that none asks":   {func() { wake.inventory("z", sans("10.9.9.9")...) }, ""},
			"more than can be gathered":   {func() { wake.inventory("z", append(many(mostMarks), sans("10.0.0.1")...)...) }, ""},
			"a node beside too many":      {func() { wake.inventory("z", many(mostMarks+1)...); wake.inventory("b") }, "b1"},
			"all nodes beside too many":   {func() { wake.inventory("z", many(mostMarks+1)...); wake.inventory("") }, "a2 a3 a4 b1 c1"},
			"a node that nobody asks for": {func() { wake.inventory("z") }, ""},
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
