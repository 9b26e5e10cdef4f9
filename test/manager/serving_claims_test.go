package manager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// asksFor creates a request of the kubelet of node.
func asksFor(t *testing.T, node string, sans ...string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.KubeletOf(t, node), kit.ServingRequest(t, node, sans...))
}

// createdBefore makes node older by age.
func createdBefore(t *testing.T, node *corev1.Node, age time.Duration) {
	t.Helper()
	node.CreationTimestamp.Time = node.CreationTimestamp.Add(-age)
	node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	if err := kit.ControlPlane(t).Store(t.Context(), "minions/"+node.Name, node); err != nil {
		t.Fatal(err)
	}
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
		t.Fatal(err)
	}
}

// TestServingOlderNodeTakesNothing has a Node that reports the address of a younger one. Neither gets it, not even
// after a restart. A replaced machine is the same, and continues when its old Node is deleted.
func TestServingOlderNodeTakesNothing(t *testing.T) {
	kit.Parallel(t)
	p := startServingManager(t, "")
	liar := kit.NewNode(t, "a-older-liar", "192.0.2.20")
	createdBefore(t, liar, time.Hour)
	kit.NewNode(t, "b-younger-victim", "192.0.2.21")
	kit.Publish(t, liar, "192.0.2.20", "192.0.2.21")
	theirs, ours := asksFor(t, liar.Name, "192.0.2.21"), asksFor(t, "b-younger-victim", "192.0.2.21")
	waits := func() {
		t.Helper()
		kit.HasEvent(t, theirs, "SANContested", `192.0.2.21 is claimed by node "a-older-liar" and by Node b-younger-victim`)
		kit.HasEvent(t, ours, "SANContested", `192.0.2.21 is claimed by node "b-younger-victim" and by Node a-older-liar`, "delete the Node of a replaced machine")
		isPending(t, theirs)
		isPending(t, ours)
	}
	waits()
	kit.Reaches(t, asksFor(t, liar.Name, "192.0.2.20"), csr.Issued) // an address that only this Node reports is its own
	checkStop(t, p)
	p = kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", servingConfig(t, ""))
	theirsBefore, oursBefore := theirs, ours
	theirs, ours = asksFor(t, liar.Name, "192.0.2.21"), asksFor(t, "b-younger-victim", "192.0.2.21")
	waits() // the Events about the requests before are older than the restart
	isPending(t, theirsBefore)
	isPending(t, oursBefore)
	issuedSoon(t, ours, func() {
		if err := kit.Admin(t).Delete(t.Context(), liar); err != nil {
			t.Fatal(err)
		}
	})
	isPending(t, theirs)
	kit.Reaches(t, oursBefore, csr.Issued)
	isPending(t, theirsBefore)
	checkStop(t, p)
}

// TestServingSharedAddress has one address on all Nodes. They wait, the Event suggests a row, and that row resolves
// it.
func TestServingSharedAddress(t *testing.T) {
	kit.Parallel(t)
	const nat = "198.51.100.7"
	p := startServingManager(t, "")
	for i := range 3 {
		kit.NewNode(t, fmt.Sprintf("nat-%d", i), nat, fmt.Sprintf("192.0.2.%d", 60+i), fmt.Sprintf("nat-%d", i))
	}
	waiting := asksFor(t, "nat-0", nat, "192.0.2.60", "nat-0")
	kit.HasEvent(t, waiting, "SANContested", nat+` is reported by 3 Nodes, for example "nat-0" and nat-1`,
		`{namePattern: ".*", dnsNames: ["${node}"], addresses: ["`+nat+`", CIDR of the nodes]}`)
	isPending(t, waiting)
	warned := `"level":"WARN","msg":"Kubelet serving certificates depend only on what nodes report about themselves`
	if !strings.Contains(p.Output(t), warned) {
		t.Error("no warning that node is the only source")
	}
	checkStop(t, p)

	row := strings.Replace(`{namePattern: ".*", dnsNames: ["${node}"], addresses: ["`+nat+`", CIDR of the nodes]}`, "CIDR of the nodes", "192.0.2.0/24", 1)
	p = kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", servingConfig(t, "}, inventory: {sources: [{static: {rows: ["+row+"]}}, {node: {}}]"))
	kit.Reaches(t, waiting, csr.Issued)
	if strings.Contains(p.Output(t), warned) {
		t.Error("a warning that node is the only source, and there is a static one")
	}
	for i := 1; i < 3; i++ {
		kit.Reaches(t, asksFor(t, fmt.Sprintf("nat-%d", i), nat, fmt.Sprintf("192.0.2.%d", 60+i), fmt.Sprintf("nat-%d", i)), csr.Issued)
	}
	// A Node still has its own address, and a Node that does not report the shared address does not get it.
	kit.NewNode(t, "nat-9", "192.0.2.60")
	kit.HasEvent(t, asksFor(t, "nat-9", "192.0.2.60"), "SANContested", "Node nat-0")
	kit.HasEvent(t, asksFor(t, "nat-9", nat), "AddressNotPublished", nat)
	checkStop(t, p)
}

// TestServingAfterLeaderChange has two leaders that answer alike about two Nodes with the same address.
func TestServingAfterLeaderChange(t *testing.T) {
	kit.Parallel(t)
	stop, leads := startCandidate(t, clocktesting.NewFakeClock(time.Now()))
	elected(t, leads)
	kit.NewNode(t, "leads-a", "192.0.2.170")
	kit.NewNode(t, "leads-b", "192.0.2.170")
	for round := range 2 {
		a, b := asksFor(t, "leads-a", "192.0.2.170"), asksFor(t, "leads-b", "192.0.2.170")
		kit.HasEvent(t, a, "SANContested", "Node leads-b")
		kit.HasEvent(t, b, "SANContested", "Node leads-a")
		isPending(t, a)
		isPending(t, b)
		if round == 0 {
			next := clocktesting.NewFakeClock(time.Now())
			_, leads = startCandidate(t, next)
			stop()
			elected(t, leads)
		}
	}
}
