package approver

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

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

// TestInputs has bad or surprising content from practice. The signer's TestInputs and TestStoredBadInput in test/loop, with
// a real API server, use the same numbers.
func TestInputs(t *testing.T) {
	t.Parallel()
	for _, test := range slices.Concat(requesterInputs(), nameInputs(), formInputs(), contentInputs(), encodingInputs()) {
		t.Run(test.name, test.run)
	}
}

func requesterInputs() []trial {
	const account = "system:serviceaccount:kube-system:x"
	all := []trial{
		{name: "01 serving for a node by another", obj: asks("a", "10.0.0.1", user("system:node:b")),
			want: `Denied CommonNameMismatch: common name "system:node:a" is not the requester's user name "system:node:b"`},
		{name: "02 serving by an account", obj: asks("a", "10.0.0.1", user(account)), want: fmt.Sprintf("Denied RequesterNotNode: user %q", account)},
		{name: "02 for itself", obj: asks("a", "", subject("O=system:nodes,CN=test", "10.0.0.1"), user("test")),
			want: `Denied RequesterNotNode: user "test"`},
		{name: "22 a node for another node", obj: object(user("system:node:b")), grants: "selfnodeclient", asked: "nodeclient",
			want: "Waits NotAuthorized"},
	}
	for _, name := range []string{"kubernetes.io/legacy-unknown", "interlink.example.com/node-a", "kubernetes.io/Kubelet-Serving", ""} {
		all = append(all, trial{name: "15 serving for signer " + name, obj: asks("a", "10.0.0.1", signer(name)), grants: rights, want: "Untouched"})
	}
	vague := func(kind certificatesv1.RequestConditionType) func(*request) {
		return func(obj *request) { obj.Status.Conditions = append(obj.Status.Conditions, condition{Type: kind}) }
	}
	for name, state := range map[string]func(*request){
		"Approved": with("Approved"), "Denied": with("Denied"), "Approved and Failed": with("Approved", "Failed"), "24 issued by another": issued,
		"Approved without a status": vague("Approved"), "Denied without a status": vague("Denied"),
	} {
		all = append(all, trial{name: "20 " + name, obj: asks("a", "10.0.0.1", state), want: "Untouched"})
	}
	return append(all, trial{name: "20 unknown conditions only", obj: asks("a", "10.0.0.1", with("Vetted")), want: "Approved"})
}

func nameInputs() []trial {
	const many = "10.0.0.1 10.0.0.11 2001:db8::1 a.example.com ip-10-0-0-1.ec2.internal"
	called := func(k *known) {
		k.nodes["10.0.0.1"] = &inventory.Entry{Source: "Node 10.0.0.1", SANs: sans("10.0.0.1")}
	}
	all := []trial{
		{name: "03 a Service's address, though reported", obj: asks("a", "10.0.0.1 10.97.0.1"), known: has("10.0.0.1 10.97.0.1"),
			want: "Waits SANReserved: 10.97.0.1 is a name or an address of Service default/x"}, // it may be deleted
		{name: "04 another node's name", obj: asks("a", "10.0.0.1 b.example.com"), want: `Waits SANNotOwned: ["b.example.com"] do not belong to node "a"`},
		{name: "05 no such node", obj: asks("gone", "10.0.0.1"), looked: "node", want: `Waits NodeNotFound: no source knows node "gone"`},
		{name: "06 no name", obj: asks("a", ""), want: "Denied SANMissing"},
		{name: "06 DNS only", obj: asks("a", "a.example.com"), want: "Approved"},
		{name: "06 address only", looked: "node 10.0.0.1",
			want: "Approved: Auto approving kubelet serving certificate: according to Node a, every name belongs to the node."},
		{name: "06 the node's name is its address", obj: asks("10.0.0.1", "10.0.0.1"), known: called, want: "Approved"},
		{name: "07 many names, all owned", obj: asks("a", many), known: has(many + " x.example.com"), want: "Approved"},
		{name: "07 many names, one of them not", obj: asks("a", many+" x.example.com"), known: has(many), want: "Waits SANNotOwned"},
	}
	for _, name := range []string{"kubernetes.default.svc", "kubernetes", "10.96.0.1", "192.0.2.100", "API.example.com."} {
		all = append(all, trial{name: "03 reserved, though reported: " + name, obj: asks("a", "10.0.0.1 "+name),
			known: has("10.0.0.1 " + name), want: "Denied SANReserved"})
	}
	return all
}

func formInputs() []trial {
	address := must(asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 7, Bytes: net.ParseIP("10.0.0.1").To16()}}))
	all := []trial{
		{name: "09 short name that the source lacks", obj: asks("a", "a"), want: "Waits SANNotOwned"},
		{name: "09 short name that the source has", obj: asks("a", "a"), known: func(k *known) { k.nodes["a"].ShortNames = true }, want: "Approved"},
		{name: "09 upper case and trailing dot", obj: asks("a", "A.Example.COM."), want: "Approved"},
		{name: "09 IPv4-mapped address", obj: asks("a", "", content(extension([]int{2, 5, 29, 17}, address...))), want: "Approved"},
		{name: "09 IPv6 in full against compressed", obj: asks("a", "2001:0db8:0000::0001"), known: has("2001:db8::1"), want: "Approved"},
		{name: "09 the source has an address with a zone", obj: asks("a", "2001:db8::1"), known: has("2001:db8::1%eth0"), want: "Waits SANNotOwned"},
		{name: "09 an address as a name", obj: asks("a", "", dns("10.0.0.1", "2001:db8::1")), known: has("10.0.0.1 2001:db8::1"), want: "Approved"},
		{name: "10 with key encipherment, in another order", obj: asks("a", "10.0.0.1", usages("server auth, key encipherment, digital signature")),
			want: "Approved"},
		{name: "10 client, with key encipherment", obj: object(usages("client auth, key encipherment, digital signature")), grants: rights,
			asked: "nodeclient", want: bootstraps},
	}
	for _, name := range []string{
		"2001:db8::1%eth0", "::ffff:10.0.0.1%, DNS:kubernetes.default.svc", "victim.corp\x00.nodes.example.com", "kubernetes..", "a b",
	} {
		all = append(all, trial{name: "09 as a name: " + name, obj: asks("a", "", dns(name)),
			want: fmt.Sprintf("Denied NameNotPermitted: [%+q] are neither DNS names nor canonical IP addresses", name)})
	}
	for _, name := range []string{"a_b", "127.1"} { // some programs parse the second one as an address
		all = append(all, trial{name: "09 no host name: " + name, obj: asks("a", "", dns(name)), want: "Denied UnexpectedContent"})
	}
	for _, list := range []string{
		"digital signature", "server auth, key encipherment", "", "digital signature, client auth", "digital signature, server auth, client auth",
	} {
		all = append(all, trial{name: "11 usages for serving: " + list, obj: asks("a", "10.0.0.1", usages(list)), want: "Denied UsagesNotPermitted"})
	}
	return all
}

// extension returns a change that adds an extension.
func extension(id asn1.ObjectIdentifier, value ...byte) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) {
		r.ExtraExtensions = []pkix.Extension{{Id: id, Critical: id[0] == 2 && id[3] == 19, Value: value}}
	}
}

var isCA = extension([]int{2, 5, 29, 19}, 0x30, 3, 1, 1, 0xff)

func contentInputs() []trial {
	const node, nodes, masters = ",CN=system:node:a", "O=system:nodes", "O=system:masters"
	uri := func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }
	email := func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} }
	all := []trial{
		{name: "12 CA:TRUE", obj: asks("a", "", content(isCA)), want: "Denied UnexpectedContent: 2.5.29.19"},
		{name: "12 an extension of its own", obj: asks("a", "", content(extension([]int{1, 2, 3}, 5, 0))), want: "Denied UnexpectedContent: 1.2.3"},
		{name: "12 a URI", obj: asks("a", "", content(uri)), want: "Denied SANTypeNotPermitted"},
		{name: "12 an e-mail address", obj: asks("a", "", content(email)), want: "Denied SANTypeNotPermitted: a@example.com"},
		{name: "13 a node without a name", obj: asks("", "10.0.0.1"), want: "Denied RequesterNotNode: common name"},
		{name: "13 client with system:masters", obj: object(subject(nodes+","+masters+node, "")), grants: rights, want: mismatch},
		{name: "13 client without a common name", obj: object(subject(nodes, "")), grants: rights, want: mismatch},
	}
	for attributes, want := range map[string]string{
		masters + node: "ShapeMismatch", nodes + "," + masters + node: "ShapeMismatch: system:masters", nodes + "," + nodes + node: "ShapeMismatch",
		node[1:]: "ShapeMismatch", nodes + ",CN=": "CommonNameMismatch", nodes: "CommonNameMismatch",
		nodes + node + ",CN=system:node:b": "CommonNameMismatch", nodes + ",CN=system:node:b" + node: "UnexpectedContent",
		nodes + ",OU=x" + node: "UnexpectedContent: OU=x", nodes + ",SERIALNUMBER=x" + node: "UnexpectedContent: SERIALNUMBER=x",
	} {
		all = append(all, trial{name: "13 subject " + attributes, obj: asks("a", "", subject(attributes, "10.0.0.1")), want: "Denied " + want})
	}
	return all
}

func encodingInputs() []trial {
	good, second := asks("a", "10.0.0.1").Spec.Request, asks("b", "10.0.0.2").Spec.Request
	of := func(parts ...[]byte) *request {
		return asks("a", "", func(obj *request) { obj.Spec.Request = bytes.Join(parts, nil) })
	}
	block, _ := pem.Decode(good)
	longer := pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: append(bytes.Clone(block.Bytes), 0)})
	names := func(count int) (all string) {
		for i := range count {
			all += fmt.Sprintf("host-%d.of-somebody-else.example.com ", i)
		}
		return all
	}
	return []trial{
		{name: "23 text before", obj: of([]byte("Certificate Request:\n    Data:\n"), good), want: "Approved"},
		{name: "23 two blocks, the first another node's", obj: of(second, good), want: "Denied CommonNameMismatch"},
		{name: "23 CRLF", obj: of(bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))), want: "Approved"},
		{name: "23 garbage after", obj: of(good, []byte("\x00\xffgarbage")), want: "Approved"},
		{name: "23 garbage after the DER", obj: of(longer), want: "Denied Malformed"},
		{name: "23 the wrong kind of block", obj: of(bytes.ReplaceAll(good, []byte("CERT"), []byte("NEW CERT"))), want: "Denied Malformed"},
		{name: "23 nothing", obj: of(), want: "Denied Malformed"},
		{name: "23 a thousand names", obj: asks("a", names(1000)), want: "Waits SANNotOwned"},
		{name: "23 more than a thousand names", obj: asks("a", names(1001)), want: "Denied RequestTooLarge"},
	}
}
