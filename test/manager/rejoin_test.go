package manager

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startRejoin runs only an approver, in this process and with a clock of the test. Dead nodes may join again.
func startRejoin(t *testing.T, steps *clocktesting.FakeClock) {
	t.Helper()
	mgr := kit.NewManager(t, kit.RoleConfig(t, "approver", "node-identity"), manager.Options{})
	listed := func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) {
		source, mistakes := static.New(nil, []static.Row{{NamePattern: "rejoin-.*"}})
		return source, mistakes.ToAggregate()
	}
	known := &approver.Inventory{Sources: []approver.SourceBuilder{listed}}
	policy := approver.BootstrapPolicy{Expected: true, Rejoin: true, MaxRequestAge: 15 * time.Minute}
	options := controllers.Options{
		Approver: &approver.Reconciler{
			Rules:     []approver.Rule{approver.BoundNodeClient(approver.Bootstrap{Inventory: known, Policy: policy})},
			Inventory: known,
		},
		Clock: steps,
	}
	kit.NoError(t, options.SetupWithManager(mgr))
	follow(t, mgr.Start)
}

// newLease creates the Lease of node, renewed now.
func newLease(t *testing.T, node string) *coordinationv1.Lease {
	t.Helper()
	kit.NewNamespace(t, corev1.NamespaceNodeLease)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}
	kit.Create(t, kit.Admin(t), lease)
	return lease
}

// TestRejoin reuses the name of a dead node, and of no other node. TestLife in pkg/nodeidentity has more of the nodes' lives.
func TestRejoin(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	token := newToken(t, "rejoin")
	for _, name := range []string{"rejoin-dead", "rejoin-alive", "rejoin-other", "rejoin-mute"} {
		kit.NewNode(t, name)
	}
	newLease(t, "rejoin-dead")
	alive, other, deleted := newLease(t, "rejoin-alive"), newLease(t, "rejoin-other"), newLease(t, "rejoin-deleted")
	steps := clocktesting.NewFakeClock(time.Now())
	startRejoin(t, steps)
	// pass steps the clock by ten seconds n times, at which living nodes renew their Leases. The pauses give the watch more time
	// than it needs. Without them less time would seem to pass, never more.
	pass := func(n int, living ...*coordinationv1.Lease) {
		for range n {
			steps.Step(10 * time.Second)
			for _, lease := range living {
				lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
				kit.Update(t, lease)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	notYet := func(node string) *kit.Request {
		t.Helper()
		fresh := token.asks(t, node) // it is judged now, and older requests after their pause
		isRefused(t, fresh, "NodeAlive", "may be alive")
		return fresh
	}
	onDead, onAlive := notYet("rejoin-dead"), notYet("rejoin-alive")
	// A Lease without a Node may be renewed too. After it is deleted as well, no node is alive.
	onDeleted := notYet("rejoin-deleted")
	kit.Remove(t, deleted)
	kit.Reaches(t, onDeleted, csr.Approved)

	pass(8, alive) // one other node is not enough
	notYet("rejoin-dead")
	pass(5, alive, other)
	notYet("rejoin-dead")
	isPending(t, onDead)
	pass(3, alive, other)
	kit.Reaches(t, token.asks(t, "rejoin-dead"), csr.Approved)
	isPending(t, onAlive)
	notYet("rejoin-mute") // without a Lease nothing is ever proven
}
