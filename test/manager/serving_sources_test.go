package manager

import (
	"net/http"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestServingLeavesToMachinesWhatIsTheirs has machines with addresses and without Nodes, and Nodes without machines
// that report these addresses.
func TestServingLeavesToMachinesWhatIsTheirs(t *testing.T) {
	kit.Parallel(t)
	kit.Create(t, kit.Admin(t), signingSecretOf(t))
	machines := kit.InstallKind(t, kit.ClusterAPI)
	kit.Apply(t, "kubelet-serving")
	p := startIdentityManager(t, patient+", kubeletServing: {enabled: true}", "--leader-elect=false")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	having := func(name, addresses string) client.Object {
		return machines.Apply(t, machineIn(kit.ClusterAPI, name, "status: {addresses: ["+addresses+"]}"))
	}
	claims := func(node, address, machine string) *kit.Request {
		kit.NewNode(t, node, address)
		obj := kit.CreateRequest(t, kit.KubeletOf(t, node), kit.ServingRequest(t, node, address))
		kit.HasEvent(t, obj, "SANContested", address+` is claimed by node "`+node+`" and by Machine default/`+machine+`, which`)
		return obj
	}
	// A machine that can't be read completely has the readable addresses, and does not affect others.
	having("m-unreadable", "{type: InternalIP, address: 192.0.2.84}, {type: InternalIP}")

	gone := having("m-gone", "{type: InternalIP, address: 192.0.2.81}")
	waiting := claims("claims-a", "192.0.2.81", "m-gone")
	issuedSoon(t, waiting, func() { machines.Remove(t, gone) })

	having("m-moves", "{type: ExternalDNS, address: Moves.example.com}, {type: InternalIP, address: 192.0.2.82}")
	waiting = claims("claims-b", "moves.example.com", "m-moves")
	issuedSoon(t, waiting, func() { having("m-moves", "{type: InternalIP, address: 192.0.2.82}") })

	// It is the machine's own Node, which was not known before.
	having("m-own", "{type: InternalIP, address: 192.0.2.83}")
	waiting = claims("claims-c", "192.0.2.83", "m-own")
	issuedSoon(t, waiting, func() {
		machines.Apply(t, machineIn(kit.ClusterAPI, "m-own", "status: {nodeRef: {name: claims-c}, addresses: [{type: InternalIP, address: 192.0.2.83}]}"))
	})
	isPending(t, claims("claims-d", "192.0.2.84", "m-unreadable"))

	// Another Node reports it. A machine of one of the two settles that, and one without it does not.
	kit.NewNode(t, "claims-rival", "192.0.2.85")
	kit.NewNode(t, "claims-second", "192.0.2.85")
	waiting = kit.CreateRequest(t, kit.KubeletOf(t, "claims-second"), kit.ServingRequest(t, "claims-second", "192.0.2.85"))
	kit.HasEvent(t, waiting, "SANContested", "Node claims-rival")
	machines.Apply(t, machineIn(kit.ClusterAPI, "m-rival", "status: {nodeRef: {name: claims-rival}, addresses: [{type: InternalIP, address: 192.0.2.86}]}"))
	rival := asksFor(t, "claims-rival", "192.0.2.85")
	kit.HasEvent(t, rival, "SANNotOwned", "192.0.2.85", "Machine default/m-rival")
	isPending(t, waiting)
	issuedSoon(t, waiting, func() {
		machines.Apply(t, machineIn(kit.ClusterAPI, "m-second", "status: {nodeRef: {name: claims-second}, addresses: [{type: InternalIP, address: 192.0.2.85}]}"))
	})
	isPending(t, rival)
	checkStop(t, p)
}

// TestServingOfSharedRanges has rows that assign the same addresses and names to several nodes.
func TestServingOfSharedRanges(t *testing.T) {
	kit.Parallel(t)
	p := startServingManager(t, `}, inventory: {sources: [{static: {rows: [
    {name: range-exact, addresses: [192.0.2.100]}, {namePattern: "range-.*", addresses: [192.0.2.96/28], suffixes: [range.example.com]}]}}, {node: {}}]`)
	asks := func(node string, sans ...string) *kit.Request {
		return kit.CreateRequest(t, kit.KubeletOf(t, node), kit.ServingRequest(t, node, sans...))
	}
	// A Node gets no address that it does not report: not without a Node, and not because the Node is older.
	first := kit.NewNode(t, "range-a", "192.0.2.97")
	early, unborn := asks("range-a", "192.0.2.98"), asks("range-z", "192.0.2.99", "z.range.example.com")
	kit.HasEvent(t, early, "AddressNotPublished", "192.0.2.98 may belong to several nodes, according to row 2 of configuration", `Node "range-a" does not report it`)
	kit.HasEvent(t, unborn, "AddressNotPublished", "z.range.example.com may belong to several nodes")
	issuedSoon(t, early, func() { kit.Publish(t, first, "192.0.2.97", "192.0.2.98") })
	issuedSoon(t, unborn, func() { kit.NewNode(t, "range-z", "192.0.2.99", "z.range.example.com") })

	kit.NewNode(t, "range-b", "192.0.2.98", "192.0.2.100")
	contested := asks("range-b", "192.0.2.98")
	kit.HasEvent(t, contested, "SANContested", `192.0.2.98 is claimed by node "range-b" and by Node range-a`)

	// A value that a row assigns to one node alone belongs to that node before it has a Node, even if others report
	// it.
	const exact = "and by row 1 of configuration (node range-exact)"
	taken := asks("range-b", "192.0.2.100")
	kit.HasEvent(t, taken, "SANContested", `192.0.2.100 is claimed by node "range-b" `+exact)
	kit.NewNode(t, "a-stranger-to-ranges", "192.0.2.100")
	stranger := asks("a-stranger-to-ranges", "192.0.2.100")
	kit.HasEvent(t, stranger, "SANContested", exact)
	kit.Reaches(t, asks("range-exact", "192.0.2.100"), csr.Issued)
	for _, obj := range []*kit.Request{contested, taken, stranger} {
		isPending(t, obj)
	}
	checkStop(t, p)
}

// TestServingWaitsForNoWeakerSource has a node, known at most to an unreachable source, that reports the address of
// another node.
func TestServingWaitsForNoWeakerSource(t *testing.T) {
	kit.Parallel(t)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	kit.Write(t, ca, kit.ControlPlane(t).CA.CertPEM)
	p := startServingManager(t, `}, inventory: {sources: [{static: {rows: [{name: known, addresses: [192.0.2.110]}]}}, {webhook: {url: "https://127.0.0.1:1", caFile: `+ca+`}}, {node: {}}]`)
	kit.NewNode(t, "a-claimant", "192.0.2.110")
	waiting := kit.CreateRequest(t, kit.KubeletOf(t, "a-claimant"), kit.ServingRequest(t, "a-claimant", "192.0.2.110"))
	kit.HasEvent(t, waiting, "InventoryUnavailable", "ask webhook")
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "known"), kit.ServingRequest(t, "known", "192.0.2.110")), csr.Issued)
	isPending(t, waiting)
	checkStop(t, p)
}
