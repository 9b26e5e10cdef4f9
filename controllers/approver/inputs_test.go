package approver

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"slices"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

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
	for name, state := range map[string]func(*request){
		"Approved": with("Approved"), "Denied": with("Denied"), "Approved and Failed": with("Approved", "Failed"), "24 issued by another": issued,
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

// Input 08: a source's answer counts only at the moment of the decision.
func TestInput08AnEgressAddressThatGoes(t *testing.T) {
	t.Parallel()
	p := newParts(asks("a", "10.0.0.1 198.51.100.7"))
	for _, step := range [][2]string{ // the write does not reach the test's cache
		{"10.0.0.1", "Waits SANNotOwned"}, {"10.0.0.1 198.51.100.7", "Approved"}, {"10.0.0.1", "Waits"}, {"198.51.100.7 10.0.0.1", "Approved"},
	} {
		has(step[0])(p.known)
		p.expect(t, step[1])
	}
}
