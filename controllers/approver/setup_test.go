package approver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
		runs                           []string // beside the pools of reviews and the controller itself
		fails                          string
	}{
		"client certificates": {
			rules: func(*Inventory) []Rule { return []Rule{NodeClient()} }, reviews: 2, runs: []string{"*node.Source"},
		},
		"permissions of several rules": {
			rules: func(*Inventory) []Rule {
				again := NodeClient()
				more := again.Recognisers[0]
				more.Permission.Subresource = "other"
				again.SignerName, again.Recognisers = "example.com/again", append(again.Recognisers, more)
				return []Rule{NodeClient(), again}
			},
			reviews: 3, runs: []string{"*node.Source"},
		},
		"serving certificates": {
			rules:    func(i *Inventory) []Rule { return []Rule{KubeletServing(Serving{Inventory: i})} },
			sources:  []SourceBuilder{builds(&slowly{}, nil), builds(&askedOf{}, nil), NodeSource},
			services: true, background: 1, expecting: 2,
			runs: []string{"*approver.nodeComparison", "*inventory.Background", "*node.APIServers", "*node.Source"},
		},
		"first certificates by the inventory": {
			rules: func(i *Inventory) []Rule {
				return []Rule{BoundNodeClient(Bootstrap{Inventory: i, Policy: BootstrapPolicy{Expected: true}})}
			},
			sources: []SourceBuilder{builds(&askedOf{}, nil)}, reviews: 2, expecting: 1, leases: true,
			runs: []string{"*informer.Informer[*k8s.io/api/core/v1.ConfigMap]", "*node.Source", "*nodeidentity.Leases"},
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
			err := r.SetupWithManager(mgr, controller.Options{})
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
			runs := slices.DeleteFunc(mgr.runs, func(name string) bool {
				return strings.HasPrefix(name, "*pending.Calls") || strings.HasPrefix(name, "*controller.")
			})
			slices.Sort(runs)
			if !slices.Equal(runs, test.runs) {
				t.Errorf("the manager runs %q, want %q", runs, test.runs)
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
	hung := time.AfterFunc(time.Minute, func() { panic("the wait for the inventory does not end") })
	defer hung.Stop()
	for name, end := range map[string]func(cancel func()){
		"the controller ends": func(cancel func()) { cancel() },
		"ten seconds pass":    func(func()) { <-time.After(10 * time.Second) },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var enqueued atomic.Bool
			if err := i.firstRead(func(workQueue) { enqueued.Store(true) }).Start(ctx, nil); err != nil {
				t.Fatal(err)
			}
			<-time.After(10*time.Second - 1)
			synctest.Wait()
			if !i.reading.Load() || enqueued.Load() {
				t.Errorf("%s: the inventory is not read yet, and requests do not wait for it", name)
			}
			end(cancel)
			synctest.Wait()
			if i.reading.Load() || !enqueued.Load() {
				t.Errorf("%s: requests wait for an inventory that is not read any more", name)
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
		if err := r.SetupWithManager(mgr, controller.Options{}); err != nil {
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

// TestNodeComparisonEndsWithItsContext checks that the comparison of Nodes reports nothing while Nodes are unknown, and
// that it ends without an error.
func TestNodeComparisonEndsWithItsContext(t *testing.T) {
	t.Parallel()
	i := &Inventory{Sources: []SourceBuilder{NodeSource}}
	r := &Reconciler{Inventory: i, Rules: []Rule{KubeletServing(Serving{Inventory: i})}}
	if err := r.SetupWithManager(unreachable(t), controller.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	comparison := &nodeComparison{inventory: i}
	if err := comparison.Start(ctx); err != nil || comparison.reported != nil {
		t.Errorf("error %v, reported %v", err, comparison.reported)
	}
}

// TestBlockListChangesWakeRequests checks that a change of the block list enqueues all undecided requests.
func TestBlockListChangesWakeRequests(t *testing.T) {
	t.Parallel()
	list := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	queue := newTestQueue(t)
	r := &Reconciler{Rules: []Rule{NodeClient()}, BlockList: list}
	mgr := recordedManager(t)
	err := r.SetupWithManager(mgr, controller.Options{
		NewQueue: func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return queue
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Track(object(t))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = mgr.added[len(mgr.added)-1].Start(ctx) // the API server does not answer
	}()
	t.Cleanup(func() { cancel(); <-ended })
	for i := 0; queue.Len() == 0; i++ { // the controller starts its sources in the background
		if i == 1000 {
			t.Fatal("a change of the block list wakes no request")
		}
		obj := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"}, Data: map[string]string{"nodes": fmt.Sprintf("node-%d", i)},
		}
		if err := list.ReadOnce(t.Context(), fake.NewClientBuilder().WithObjects(obj).Build()); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
	}
	if got := woken(queue); got != "csr-1" {
		t.Errorf("woken are %q", got)
	}
}

// TestReplacedRequestIsForgotten checks that the answers for a request are dropped if an update shows another request of
// its name, and only then.
func TestReplacedRequestIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := object(t)
		replaced := object(t)
		replaced.UID = "another"
		p := newParts(t, old)
		answered := p.reviewedBeside(t)
		req := parse(t, old)
		review := func() bool {
			t.Helper()
			_, err := p.reconciler.allowed(t.Context(), req, createPermission("nodeclient"))
			if waiting := (*pending.Waiting)(nil); err != nil && !errors.As(err, &waiting) {
				t.Fatal(err)
			}
			answered()
			return err == nil
		}
		if review() || !review() {
			t.Fatal("the second review has no answer from the first")
		}
		events := p.reconciler.queued()
		for name, test := range map[string]struct {
			change event.UpdateEvent
			kept   bool
		}{
			"changed":                     {event.UpdateEvent{ObjectOld: old, ObjectNew: old.DeepCopy()}, true},
			"replaced":                    {event.UpdateEvent{ObjectOld: old, ObjectNew: replaced}, false},
			"without the earlier version": {event.UpdateEvent{ObjectNew: replaced}, true},
		} {
			if !events.Update(test.change) {
				t.Errorf("%s: it is not queued", name)
			}
			if kept := review(); kept != test.kept {
				t.Errorf("%s: the answer is kept: %t, want %t", name, kept, test.kept)
			}
			review()
		}
	})
}
