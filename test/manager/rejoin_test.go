package manager

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
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

// listed returns a source of rows.
func listed(rows []static.Row) approver.SourceBuilder {
	return func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) {
		source, mistakes := static.New(nil, rows)
		return source, mistakes.ToAggregate()
	}
}

// approving runs only an approver, in this process and with its own clock.
func approving(t *testing.T, steps *clocktesting.FakeClock, policy approver.BootstrapPolicy, rows ...static.Row) {
	t.Helper()
	mgr := kit.NewManager(t, kit.RoleConfig(t, "approver", "node-identity"), manager.Options{})
	known := &approver.Inventory{Sources: []approver.SourceBuilder{listed(rows)}}
	options := controllers.Options{
		Approver: &approver.Reconciler{
			Rules:     []approver.Rule{approver.BoundNodeClient(approver.Bootstrap{Inventory: known, Policy: policy})},
			Inventory: known,
		},
		Clock: steps,
	}
	if err := options.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	follow(t, mgr.Start)
}

// beating is a cluster whose nodes renew their Leases as its clock is stepped.
type beating struct {
	steps  *clocktesting.FakeClock
	leases []*coordinationv1.Lease
}

// pass steps the clock by ten seconds n times, and renews the Leases of the living nodes. The pauses give the watch
// more time than it needs. Without them less time would seem to pass, never more.
func (b *beating) pass(t *testing.T, n int) {
	t.Helper()
	for range n {
		b.steps.Step(10 * time.Second)
		for _, lease := range b.leases {
			renew(t, lease)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// TestRejoin reuses the name of a dead node, and of no other node.
func TestRejoin(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	token := newToken(t, "rejoin")
	for _, name := range []string{"rejoin-dead", "rejoin-alive", "rejoin-other", "rejoin-mute"} {
		kit.NewNode(t, name)
	}
	newLease(t, "rejoin-dead", time.Now())
	alive, other := newLease(t, "rejoin-alive", time.Now()), newLease(t, "rejoin-other", time.Now())
	deleted := newLease(t, "rejoin-deleted", time.Now())
	steps := clocktesting.NewFakeClock(time.Now())
	c := &beating{steps: steps, leases: []*coordinationv1.Lease{alive}}
	approving(t, steps, approver.BootstrapPolicy{Expected: true, Rejoin: true, MaxRequestAge: 15 * time.Minute},
		static.Row{NamePattern: "rejoin-.*"})
	onDead, onAlive, onMute := token.asks(t, "rejoin-dead"), token.asks(t, "rejoin-alive"), token.asks(t, "rejoin-mute")
	notYet := func(when string) {
		t.Helper()
		fresh := token.asks(t, "rejoin-dead") // it is judged now, and older requests after their pause
		kit.HasEvent(t, fresh, "NodeAlive", "may be alive")
		for _, obj := range []*kit.Request{onDead, fresh} {
			if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
				t.Fatalf("%s: request is %s", when, got)
			}
		}
	}
	kit.HasEvent(t, onDead, "NodeAlive", "may be alive")

	// A Lease without a Node may be renewed too. After it is deleted as well, no node is alive.
	onDeleted := token.asks(t, "rejoin-deleted")
	kit.HasEvent(t, onDeleted, "NodeAlive", "may be alive")
	kit.Remove(t, deleted)
	kit.Reaches(t, onDeleted, csr.Approved)

	c.pass(t, 10)
	notYet("100 s in which one other renewed")
	c.leases = append(c.leases, other)
	c.pass(t, 5)
	notYet("50 s in which two others renewed")
	kit.HasEvent(t, onAlive, "NodeAlive")

	// An outage. Then the other node is back first.
	steps.Step(10 * time.Minute)
	renew(t, alive)
	notYet("after an outage of 10 minutes")
	c.pass(t, 3)
	notYet("30 s after the outage")

	c.pass(t, 4)
	kit.Reaches(t, token.asks(t, "rejoin-dead"), csr.Approved)
	isPending(t, onAlive)
	isRefused(t, onMute, "NodeAlive", "may be alive") // without a Lease nothing is ever proven
}

// TestRejoinAfterTheLastCertificate restarts a cluster that was stopped for longer than certificates are valid, when
// no Lease is renewed.
func TestRejoinAfterTheLastCertificate(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	token := newToken(t, "expire")
	long, short := kit.NewNode(t, "expired-a"), kit.NewNode(t, "expired-b")
	newLease(t, long.Name, time.Now().Add(-26*time.Hour))
	newLease(t, short.Name, time.Now().Add(-24*time.Hour))
	startIdentityManager(t, "nodeClient: {inventory: static, rejoin: true, certificateLifetime: 24h}, inventory: {sources: [{static: {rows: [{namePattern: \"expired-.*\"}]}}]}")
	kit.Reaches(t, token.asks(t, long.Name), csr.Issued)
	isRefused(t, token.asks(t, short.Name), "NodeAlive", "may be alive")
}
