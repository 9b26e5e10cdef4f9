package approver

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// TestServingRefuses has a row for each difference from a request that is approved, or from what is known about it.
// TestInputs has more of them. Lookups stop at the first step with a violation.
func TestServingRefuses(t *testing.T) {
	t.Parallel()
	of := func(facts nameFacts) func(*known) { return func(k *known) { k.names["10.0.0.1"] = facts } }
	claimed := func(claim inventory.Claim) func(*known) { return of(nameFacts{claim: claim}) }
	entry := func(entry *inventory.Entry) func(*known) { return func(k *known) { k.nodes["a"] = entry } }
	fails := func(err, nameErr error) func(*known) { return func(k *known) { k.fault, k.nameFault = err, nameErr } }
	both := func(k *known) {
		has("10.0.0.2")(k)
		of(nameFacts{service: "Service default/x"})(k)
	}
	loadBalancer := func(k *known) {
		has("lb.test")(k)
		k.names["lb.test"] = nameFacts{claim: inventory.Claim{Other: "b", Nodes: 3}}
	}
	violations := content(func(r *x509.CertificateRequest) {
		*r = *kubelet("a", "10.0.0.1")
		r.EmailAddresses = []string{"a@b"}
		extension([]int{1, 2, 3}, 5, 0)(r)
	})
	starting := fmt.Errorf("nodes: %w", informer.ErrNotRead)
	busy := fmt.Errorf("ask webhook: %w", inventory.ErrBusy)
	tests := []trial{
		{name: "without the group system:nodes", obj: asks("a", "10.0.0.1", groups("system:authenticated")), want: "Denied RequesterNotNode"},
		{name: "a reserved address", obj: asks("a", "127.0.0.1"), want: "Denied SANReserved: 127.0.0.1 is a loopback address"},
		{name: "a reserved name that is not owned", obj: asks("a", "*.example.com"), want: "Denied SANReserved: *.example.com is a wildcard"},
		{name: "all violations are told", obj: asks("a", "", violations, usages("")),
			want: `Denied UsagesNotPermitted: the request for signer kubernetes.io/kubelet-serving is not approved: usages are [], but must be digital ` +
				`signature and server auth, with or without key encipherment; e-mail addresses ["a@b"] are not permitted; ` +
				`the request has content that no kubelet requests: ["extension 1.2.3"]; a new request is needed`},
		{name: "a Service's address beside foreign names", obj: asks("a", "x y 10.0.0.1"), known: of(nameFacts{service: "Service a/b"}),
			want: `Waits SANNotOwned: the request for signer kubernetes.io/kubelet-serving is not approved: ["x" "y"] do not belong to node "a": Node a has ` +
				`["10.0.0.1" "a.example.com"]; add them there if they are the node's; 10.0.0.1 is a name or an address of Service a/b, which no node can have: ` +
				`delete the Service if it is the node's; the request is checked again when this changes, or within five minutes`},
		{name: "a Service has the first of two", obj: asks("a", "10.0.0.1 10.0.0.2"), known: of(nameFacts{service: "Service a/b"}),
			looked: "node 10.0.0.1", want: "Waits SANReserved: 10.0.0.1 is a name or an address of Service a/b, which no node can have"},
		{name: "a name that many Nodes report", obj: asks("a", "lb.test"), known: loadBalancer,
			want: `Waits SANContested: {namePattern: ".*", dnsNames: ["${node}", "lb.test"], addresses: [CIDR of the nodes]}`},

		{name: "a Service's address that is not owned", known: both, want: "Waits SANReserved: Service default/x"},
		{name: "an address of the API server", known: of(nameFacts{apiServer: "in the kubeconfig"}),
			want: "Waits SANReserved: 10.0.0.1 is a name or an address of the API server (in the kubeconfig), which no node can have: " +
				"if one runs on this node, add the node to approval.kubeletServing.apiServerNodes"},
		{name: "no source knows the node", known: entry(nil), looked: "node", want: `Waits NodeNotFound: no source knows node "a"`},
		{name: "the lookup fails", known: fails(errors.New("ask machine: down"), nil), looked: "node",
			want: "Waits InventoryUnavailable: ask machine: down"},
		{name: "a source is busy", known: fails(busy, nil), looked: "node", want: "Waits InventoryPending"},
		{name: "a source is only starting", known: fails(starting, nil), looked: "node", want: "Waits InventoryPending"},
		{name: "the lookup of a name fails", known: fails(nil, errors.New("down")), looked: "node 10.0.0.1", want: "Waits InventoryUnavailable: down"},
		{name: "Services are only being read", known: fails(nil, informer.ErrNotRead), looked: "node 10.0.0.1", want: "Waits InventoryPending"},
		{name: "no addresses yet", known: has(""), want: "Waits AddressNotPublished: Node a has no names and no addresses yet"},
		{name: "a name, but no addresses yet", known: has("a.example.com"), want: "Waits SANNotOwned"},
		{name: "its machine has become another node", known: entry(&inventory.Entry{Source: "Machine default/m", Bound: "b"}),
			want: `Waits SANNotOwned: Machine default/m is node "b"`},
		{name: "a stronger entry gives it to another node", known: claimed(inventory.Claim{Owner: "Machine default/b"}),
			want: `Waits SANContested: 10.0.0.1 is claimed by node "a" and by Machine default/b, which comes from a stronger entry`},
		{name: "another Node reports it", known: claimed(inventory.Claim{Other: "b", Nodes: 2}),
			want: `Waits SANContested: 10.0.0.1 is claimed by node "a" and by Node b, so neither gets it: delete the Node of a replaced machine, ` +
				"put a Node that lies on the block list, or list the value for its node in a Machine, a static row or a webhook"},
		{name: "it is the name of another Node", known: claimed(inventory.Claim{Other: "10.0.0.1", Named: true, Nodes: 2}),
			want: `Waits SANContested: 10.0.0.1 is claimed by node "a", and it is the name of another Node, which keeps it`},
		{name: "many Nodes report it", known: claimed(inventory.Claim{Other: "b", Nodes: 3}),
			want: `Waits SANContested: 10.0.0.1 is reported by 3 Nodes, for example "a" and b, so none of them gets it: if they share it, ` +
				`add the row {namePattern: ".*", dnsNames: ["${node}"], addresses: ["10.0.0.1", CIDR of the nodes]}`},
		{name: "all Nodes report it", known: claimed(inventory.Claim{Other: "b", Nodes: mostCounted + 1}),
			want: "Waits SANContested: reported by more than 10 Nodes"},
		{name: "shared by several nodes, not reported", known: claimed(inventory.Claim{NotReported: true}),
			want: `Waits AddressNotPublished: 10.0.0.1 may belong to several nodes, according to Node a, but Node "a" does not report it`},
	}
	for _, name := range []string{"evil-node1.example.org", "node1.example.org.attacker", "node1xexample.org", "eviLa.pool.example.org"} {
		tests = append(tests, trial{name: "similar to its own: " + name, obj: asks("a", name), want: "Waits SANNotOwned", known: func(k *known) {
			k.nodes["a"].SANs, k.nodes["a"].Suffixes = sans("node1.example.org"), []string{"a.pool.example.org"}
		}})
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

// TestServingListsTheFirstNames checks that a refusal lists a bounded number of names, and that the others are not looked
// up.
func TestServingListsTheFirstNames(t *testing.T) {
	t.Parallel()
	for part, format := range map[string]string{`"10.1.2.`: "10.1.2.%d", ".cluster.local is ": "%d.cluster.local"} {
		var names []string
		for i := range 200 {
			names = append(names, fmt.Sprintf(format, i))
		}
		k, lookups := newKnown(), 0 // for reserved names
		if part[0] == '"' {
			lookups = mostRefused + 1
		}
		got, _ := k.judge(t.Context(), parse(asks("a", strings.Join(names, " "))))
		if strings.Count(got.Message, part) != mostRefused || len(k.asked) != lookups {
			t.Errorf("%d lookups: %+v", len(k.asked), got)
		}
	}
}

// TestNamesOfTheNode checks which names no Service takes from a node.
func TestNamesOfTheNode(t *testing.T) {
	t.Parallel()
	own := []string{"ip-10-0-0-1", "ip-10-0-0-1.ec2.internal", "IP-10-0-0-1.ec2.internal.", "ip-10-0-0-1.ec2.internal.example.com"}
	for _, name := range append([]string{
		"ip-10-0-0-1.ec2", "ip-10-0-0-10.ec2.internal", "xip-10-0-0-1.ec2.internal", "ec2.internal", "ec2", "ip-10-0-0-1.ec2.internalx", "10.0.0.1",
	}, own...) {
		if got := ofNode("ip-10-0-0-1.ec2.internal", san.Parse(name)); got != slices.Contains(own, name) {
			t.Errorf("%s: %t", name, got)
		}
	}
	// A node may be named by an address, or by a text that no Node can have. It does not get the address of a Service.
	for _, node := range []string{"10.96.0.10", ".x", ""} {
		if ofNode(node, san.Parse("10.96.0.10")) {
			t.Errorf("node %q takes the address of a Service", node)
		}
	}
}
