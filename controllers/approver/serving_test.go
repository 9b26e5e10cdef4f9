package approver

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestServingRefuses has a row for each difference from a request that is approved, or from what is known about it.
// TestInputs has more of them. The inventory is read after the request itself has passed.
func TestServingRefuses(t *testing.T) {
	of := func(facts serving.Name) func(*known) { return func(k *known) { k.names["10.0.0.1"] = facts } }
	reports := func(names string, holders ...string) func(*known) { // by the report of the Node alone
		return func(k *known) {
			k.nodes["a"] = inventory.NodeEntry("a", sans(names), now)
			k.names[names] = serving.Name{Holders: append([]string{"a"}, holders...)}
		}
	}
	entry := func(entry *inventory.Entry) func(*known) { return func(k *known) { k.nodes["a"] = entry } }
	both := func(k *known) {
		has("10.0.0.2")(k)
		of(serving.Name{Service: "Service default/x"})(k)
	}
	violations := content(func(r *x509.CertificateRequest) {
		*r = *kubelet("a", "10.0.0.1")
		r.EmailAddresses = []string{"a@b"}
		extension([]int{1, 2, 3}, 5, 0)(r)
	})
	tests := []trial{
		{name: "without the group system:nodes", obj: asks("a", "10.0.0.1", groups("system:authenticated")), want: "Denied RequesterNotNode"},
		{name: "a reserved address", obj: asks("a", "127.0.0.1"), want: "Denied SANReserved: 127.0.0.1 is a loopback address"},
		{name: "a reserved name that is not owned", obj: asks("a", "*.example.com"), want: "Denied SANReserved: *.example.com is a wildcard"},
		{name: "all violations are named", obj: asks("a", "", violations, usages("")),
			want: `Denied UsagesNotPermitted: the request for signer kubernetes.io/kubelet-serving is not approved: usages are [], but must be digital ` +
				`signature and server auth, with or without key encipherment; e-mail addresses ["a@b"] are not permitted; ` +
				`the request has content that no kubelet requests: ["extension 1.2.3"]; a new request is needed`},
		{name: "a Service's address beside foreign names", obj: asks("a", "x y 10.0.0.1"), known: of(serving.Name{Service: "Service a/b"}),
			want: `Waits SANNotOwned: the request for signer kubernetes.io/kubelet-serving is not approved: ["x" "y"] do not belong to node "a": Node a has ` +
				`["10.0.0.1" "a.example.com"]; add them there if they are the node's; 10.0.0.1 is a name or an address of Service a/b, which no node can have: ` +
				`delete the Service if it is the node's; the request is checked again when this changes, or within five minutes`},
		{name: "a Service has the first of two", obj: asks("a", "10.0.0.1 10.0.0.2"), known: of(serving.Name{Service: "Service a/b"}),
			looked: "a", want: "Waits SANReserved: 10.0.0.1 is a name or an address of Service a/b, which no node can have"},
		{name: "a name that many Nodes report", obj: asks("a", "lb.test"), known: reports("lb.test", "b", "c"),
			want: `Waits SANContested: {namePattern: ".*", dnsNames: ["${node}", "lb.test"], addresses: [CIDR of the nodes]}`},

		{name: "a Service's address that is not owned", known: both, want: "Waits SANReserved: Service default/x"},
		{name: "no addresses yet", known: has(""), want: "Waits AddressNotPublished: Node a has no names and no addresses yet"},
		{name: "a name, but no addresses yet", known: has("a.example.com"), want: "Waits SANNotOwned"},
		{name: "its machine has become another node", known: entry(&inventory.Entry{Source: "Machine default/m", Bound: "b"}),
			want: `Waits SANNotOwned: Machine default/m is node "b"`},
		{name: "a stronger entry gives it to another node", known: of(serving.Name{Owner: "Machine default/b"}),
			want: `Waits SANContested: 10.0.0.1 is claimed by node "a" and by Machine default/b, which comes from a stronger entry`},
		{name: "it is the name of another Node", obj: asks("a", "b.test"), known: reports("b.test", "b.test"),
			want: `Waits SANContested: b.test is claimed by node "a", and it is the name of another Node, which keeps it`},
		{name: "many Nodes report it", known: reports("10.0.0.1", "b", "c"),
			want: `Waits SANContested: 10.0.0.1 is reported by 3 Nodes, for example "a" and b, so none of them gets it: if they share it, ` +
				`add the row {namePattern: ".*", dnsNames: ["${node}"], addresses: ["10.0.0.1", CIDR of the nodes]}`},
		{name: "all Nodes report it", known: reports("10.0.0.1", strings.Fields("b c d e f g h i j k")...),
			want: "Waits SANContested: reported by more than 10 Nodes"},
		{name: "shared by several nodes, not reported", known: func(k *known) { k.nodes["a"].Shared = true },
			want: `Waits AddressNotPublished: 10.0.0.1 may belong to several nodes, according to Node a, but Node "a" does not report it`},
	}
	for _, test := range tests {
		t.Run(test.name, test.run)
	}
}

// TestInputs has bad or surprising content from practice. The signer's TestInputs and TestStoredBadInput in test/loop, with
// a real API server, use the same numbers.
func TestInputs(t *testing.T) {
	const account = "system:serviceaccount:kube-system:x"
	all := []trial{
		{name: "20 unknown conditions only", obj: asks("a", "10.0.0.1", with("Vetted")), want: "Approved"},
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

	const many = "10.0.0.1 10.0.0.11 2001:db8::1 a.example.com ip-10-0-0-1.ec2.internal"
	called := func(k *known) {
		k.nodes["10.0.0.1"] = &inventory.Entry{Source: "Node 10.0.0.1", SANs: sans("10.0.0.1")}
	}
	all = append(all, []trial{
		{name: "03 a Service's address, though reported", obj: asks("a", "10.0.0.1 10.97.0.1"), known: has("10.0.0.1 10.97.0.1"),
			want: "Waits SANReserved: 10.97.0.1 is a name or an address of Service default/x"}, // it may be deleted
		{name: "04 another node's name", obj: asks("a", "10.0.0.1 b.example.com"), want: `Waits SANNotOwned: ["b.example.com"] do not belong to node "a"`},
		{name: "05 no such node", obj: asks("gone", "10.0.0.1"), looked: "gone", want: `Waits NodeNotFound: no source knows node "gone"`},
		{name: "06 no name", obj: asks("a", ""), want: "Denied SANMissing"},
		{name: "06 DNS only", obj: asks("a", "a.example.com"), want: "Approved"},
		{name: "06 address only", looked: "a",
			want: "Approved: Auto approving kubelet serving certificate: according to Node a, every name belongs to the node."},
		{name: "06 the node's name is its address", obj: asks("10.0.0.1", "10.0.0.1"), known: called, want: "Approved"},
		{name: "07 many names, all owned", obj: asks("a", many), known: has(many + " x.example.com"), want: "Approved"},
		{name: "07 many names, one of them not", obj: asks("a", many+" x.example.com"), known: has(many), want: "Waits SANNotOwned"},
	}...)
	const configured = "Waits SANReserved: , which no node can have: correct approval.kubeletServing if it is the node's; "
	for name, want := range map[string]string{
		"kubernetes.default.svc": "Denied SANReserved", "kubernetes": "Denied SANReserved", "a.b.svc.other.domain": "Denied SANReserved",
		"10.96.0.1": configured, "192.0.2.100": configured, "API.example.com.": configured, "x.cluster.local": configured,
	} {
		all = append(all, trial{name: "03 reserved, though reported: " + name, obj: asks("a", "10.0.0.1 "+name),
			known: has("10.0.0.1 " + name), want: want})
	}

	address := must(asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 7, Bytes: net.ParseIP("10.0.0.1").To16()}}))
	all = append(all, []trial{
		{name: "09 short name that the source lacks", obj: asks("a", "a"), want: "Waits SANNotOwned"},
		{name: "09 short name that the source has", obj: asks("a", "a"), known: func(k *known) { k.nodes["a"].ShortNames = true }, want: "Approved"},
		{name: "09 upper case and trailing dot", obj: asks("a", "A.Example.COM."), want: "Approved"},
		{name: "09 IPv4-mapped address", obj: asks("a", "", content(extension([]int{2, 5, 29, 17}, address...))), want: "Denied Malformed"},
		{name: "09 IPv6 in full against compressed", obj: asks("a", "2001:0db8:0000::0001"), known: has("2001:db8::1"), want: "Approved"},
		{name: "09 the source has an address with a zone", obj: asks("a", "2001:db8::1"), known: has("2001:db8::1%eth0"), want: "Waits SANNotOwned"},
		{name: "09 an address as a name", obj: asks("a", "", dns("10.0.0.1", "2001:db8::1")), known: has("10.0.0.1 2001:db8::1"), want: "Approved"},
		{name: "10 with key encipherment, in another order", obj: asks("a", "10.0.0.1", usages("server auth, key encipherment, digital signature")),
			want: "Approved"},
		{name: "10 client, with key encipherment", obj: object(usages("client auth, key encipherment, digital signature")), grants: rights,
			asked: "nodeclient", want: bootstraps},
	}...)
	for _, name := range []string{
		"2001:db8::1%eth0", "::ffff:10.0.0.1%, DNS:kubernetes.default.svc", "victim.corp\x00.nodes.example.com", "kubernetes..", "a b",
	} {
		all = append(all, trial{name: "09 as a name: " + name, obj: asks("a", "", dns(name)),
			want: fmt.Sprintf("Denied NameNotPermitted: [%+q] are neither DNS names nor canonical IP addresses", name)})
	}
	for name, want := range map[string]string{ // C programs read the numeric ones as addresses, which could be another node's
		"10.1": "Denied NameNotPermitted", "666": "Denied NameNotPermitted", "0x7f000001": "Denied NameNotPermitted",
		"010.0.0.1": "Denied NameNotPermitted", "rack.42": "Approved", "a_b": "Approved", "a-.b": "Approved", "w1.svc.corp.test": "Approved",
	} {
		all = append(all, trial{name: "09 unusual, but reported: " + name, obj: asks("a", "", dns(name)), known: has(name), want: want})
	}
	for _, list := range []string{
		"digital signature", "server auth, key encipherment", "", "digital signature, client auth", "digital signature, server auth, client auth",
	} {
		all = append(all, trial{name: "11 usages for serving: " + list, obj: asks("a", "10.0.0.1", usages(list)), want: "Denied UsagesNotPermitted"})
	}

	const node, nodes, masters = ",CN=system:node:a", "O=system:nodes", "O=system:masters"
	uri := func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}} }
	email := func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@example.com"} }
	all = append(all, []trial{
		{name: "12 CA:TRUE", obj: asks("a", "", content(isCA)), want: "Denied UnexpectedContent: 2.5.29.19"},
		{name: "12 an extension of its own", obj: asks("a", "", content(extension([]int{1, 2, 3}, 5, 0))), want: "Denied UnexpectedContent: 1.2.3"},
		{name: "12 a URI", obj: asks("a", "", content(uri)), want: "Denied SANTypeNotPermitted"},
		{name: "12 an e-mail address", obj: asks("a", "", content(email)), want: "Denied SANTypeNotPermitted: a@example.com"},
		{name: "13 a node without a name", obj: asks("", "10.0.0.1"), want: "Denied RequesterNotNode: common name"},
		{name: "13 client with system:masters", obj: object(subject(nodes+","+masters+node, "")), grants: rights, want: mismatch},
		{name: "13 client without a common name", obj: object(subject(nodes, "")), grants: rights, want: mismatch},
	}...)
	for attributes, want := range map[string]string{
		masters + node: "ShapeMismatch", nodes + "," + masters + node: "ShapeMismatch: system:masters", nodes + "," + nodes + node: "ShapeMismatch",
		node[1:]: "ShapeMismatch", nodes + ",CN=": "CommonNameMismatch", nodes: "CommonNameMismatch",
		nodes + node + ",CN=system:node:b": "CommonNameMismatch", nodes + ",CN=system:node:b" + node: "UnexpectedContent",
		nodes + ",OU=x" + node: "UnexpectedContent: OU=x", nodes + ",SERIALNUMBER=x" + node: "UnexpectedContent: SERIALNUMBER=x",
	} {
		all = append(all, trial{name: "13 subject " + attributes, obj: asks("a", "", subject(attributes, "10.0.0.1")), want: "Denied " + want})
	}

	good, second := asks("a", "10.0.0.1").Spec.Request, asks("b", "10.0.0.2").Spec.Request
	of := func(parts ...[]byte) *request {
		return asks("a", "", func(obj *request) { obj.Spec.Request = bytes.Join(parts, nil) })
	}
	block, _ := pem.Decode(good)
	longer := pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: append(bytes.Clone(block.Bytes), 0)})
	all = append(all, []trial{
		{name: "23 text before", obj: of([]byte("Certificate Request:\n    Data:\n"), good), want: "Approved"},
		{name: "23 two blocks, the first another node's", obj: of(second, good), want: "Denied CommonNameMismatch"},
		{name: "23 CRLF", obj: of(bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n"))), want: "Approved"},
		{name: "23 garbage after", obj: of(good, []byte("\x00\xffgarbage")), want: "Approved"},
		{name: "23 garbage after the DER", obj: of(longer), want: "Denied Malformed"},
		{name: "23 the wrong kind of block", obj: of(bytes.ReplaceAll(good, []byte("CERT"), []byte("NEW CERT"))), want: "Denied Malformed"},
		{name: "23 nothing", obj: of(), want: "Denied Malformed"},
	}...)
	for _, test := range all {
		t.Run(test.name, test.run)
	}
}

func extension(id asn1.ObjectIdentifier, value ...byte) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) {
		r.ExtraExtensions = []pkix.Extension{{Id: id, Critical: id[0] == 2 && id[3] == 19, Value: value}}
	}
}

var isCA = extension([]int{2, 5, 29, 19}, 0x30, 3, 1, 1, 0xff)

// askedOf is a source that records which nodes it is asked about.
type askedOf struct {
	entries map[string]*inventory.Entry
	asked   []string
}

func (*askedOf) Name() string { return "asked" }

func (c *askedOf) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	c.asked = append(c.asked, node)
	return c.entries[node], nil
}

// world is an API server with the objects that the inventory watches, and the inventory that reads it. The certificate of
// the API server has the names example.com and *.example.com, and the address 127.0.0.1 (net/http/httptest).
type world struct {
	judge     KubeletServing
	inventory *Inventory
	rows      []static.Row    // of a source before that of Nodes
	blocked   map[string]bool // nodes on the block list

	objects map[string][]client.Object // by the last part of the path
	fails   map[string]int             // the status of lists that fail
}

// newWorld returns a world with objects, static.Rows and the names of apiServerNodes.
func newWorld(parts ...any) *world {
	w := &world{inventory: &Inventory{}, blocked: map[string]bool{}, objects: map[string][]client.Object{}}
	w.judge.Policy.Reserved = san.Reserved{ClusterDomain: "cluster.local"}
	for _, part := range parts {
		switch part := part.(type) {
		case *corev1.Node:
			w.objects["nodes"] = append(w.objects["nodes"], part)
		case *corev1.Service:
			w.objects["services"] = append(w.objects["services"], part)
		case *discoveryv1.EndpointSlice:
			w.objects["endpointslices"] = append(w.objects["endpointslices"], part)
		case san.Reserved:
			w.judge.Policy.Reserved = part
		case static.Row:
			w.rows = append(w.rows, part)
		case string:
			w.judge.Policy.APIServerNodes = append(w.judge.Policy.APIServerNodes, part)
		}
	}
	return w
}

// ServeHTTP lists objects. Its watches send nothing.
func (w *world) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	resource := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
	kind := map[string][2]string{
		"nodes": {"v1", "Node"}, "services": {"v1", "Service"}, "endpointslices": {"discovery.k8s.io/v1", "EndpointSlice"},
	}[resource]
	answer.Header().Set("Content-Type", "application/json")
	switch status := w.fails[resource]; {
	case status != 0:
		answer.WriteHeader(status)
	case request.URL.Query().Has("watch"):
		answer.(http.Flusher).Flush()
		<-request.Context().Done()
	default:
		_ = json.NewEncoder(answer).Encode(map[string]any{
			"apiVersion": kind[0], "kind": kind[1] + "List", "metadata": metav1.ListMeta{ResourceVersion: "1"}, "items": w.objects[resource],
		})
	}
}

// run runs the inventory until the test ends, and waits until everything was read or has failed.
func (w *world) run(t testing.TB) *world {
	t.Helper()
	server := httptest.NewUnstartedServer(w)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // a handshake is enough for the reader of the certificate
	server.StartTLS()
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
	}}
	mgr := managerOf(t, config)
	if len(w.rows) > 0 {
		source, mistakes := static.New(nil, w.rows)
		w.inventory.Sources = append([]SourceBuilder{builds(source, mistakes.ToAggregate())}, w.inventory.Sources...)
	}
	w.inventory.Sources = append(w.inventory.Sources, NodeSource)
	clock := clocktesting.NewFakePassiveClock(now)
	blocks := func(node string) bool { return w.blocked[node] }
	expect.NoError(t, w.inventory.setup(mgr, map[string]Judge{servingSigner: w.judge}, 8, clock, blocks, newWakeUps().inventory))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 10*time.Second, true, w.inventory.tried); err != nil {
		t.Fatalf("before everything was read or has failed: %v", err)
	}
	return w
}

// tried reports whether each running source has been read or has failed.
func (i *Inventory) tried(ctx context.Context) (bool, error) {
	_, nodes := i.cluster.Lookup(ctx, "", nil)
	_, services := i.cluster.Service(san.SAN{})
	_, endpoints := i.cluster.Endpoint(san.SAN{})
	_, apiServers := i.apiServers.Use(san.SAN{}, false)
	err := errors.Join(nodes, services, endpoints, apiServers)
	for _, source := range i.sources {
		if _, runs := source.(manager.Runnable); runs { // other sources have nothing to read in advance
			_, sourceErr := source.Lookup(ctx, "", nil)
			err = errors.Join(err, sourceErr)
		}
	}
	return !errors.Is(err, informer.ErrNotRead), nil
}

func nodeObject(name string, addresses ...string) *corev1.Node {
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}}
	for _, address := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(address) == nil {
			kind = corev1.NodeInternalDNS
		}
		obj.Status.Addresses = append(obj.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	return obj
}

// named returns Nodes that report their own name.
func named(names ...string) []any {
	return mapped(names, func(name string) any { return nodeObject(name, name) })
}

func serviceObject(namespace, name, clusterIP string, published ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1"},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, ExternalIPs: published},
	}
}

// endpointsObject returns the EndpointSlice of API servers. None of them is reached.
func endpointsObject(addresses ...string) *discoveryv1.EndpointSlice {
	name, port := "https", int32(1)
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", ResourceVersion: "1"},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: addresses}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}
}

// decide returns the decision about a request of node for names.
func (w *world) decide(ctx context.Context, node, names string) judge.Decision {
	return must(w.judge.Judge(ctx, parse(asks(node, names)), Readers{Inventory: w.inventory}))
}

// expect checks the reasons of requests, which rows write as "NODE asks for NAMES".
func (w *world) expect(t testing.TB, want map[string]string) {
	t.Helper()
	for asked, want := range want {
		node, names, _ := strings.Cut(asked, " asks for ")
		got := w.decide(t.Context(), node, names)
		reason, part, _ := strings.Cut(want, " ")
		expect.True(t, got.Reason == reason && strings.Contains(got.Message, part), "%s: %+v, want %s", asked, got, want)
	}
}

// TestWhoseAddress judges requests with the real watches of Nodes, Services and API servers. Each row is a cluster.
func TestWhoseAddress(t *testing.T) {
	const fleet, host = "ip-10-0-0-1.ec2.internal", "ip-10-0-0-1"
	lb := serviceObject("kube-system", "traefik", "10.43.0.9")
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}, {IP: "10.0.0.9"}, {Hostname: "lb.test"}}
	externalName := serviceObject("internal", "ec2", "")
	externalName.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: fleet}
	for name, test := range map[string]struct {
		*world
		want map[string]string
	}{
		"a liar reports the names and addresses of others": {
			newWorld(nodeObject("a", "10.0.0.1", "a", "a.test"), nodeObject("b.test", "10.0.0.2", "b.test"),
				nodeObject("liar", "10.0.0.9", "a", "b.test", "a.test", "10.0.0.2", "B.TEST.")),
			map[string]string{
				"a asks for a 10.0.0.1":    "AutoApproved",
				"b.test asks for B.test":   "AutoApproved",
				"liar asks for a":          "SANContested it is the name of another Node",
				"liar asks for b.test":     "SANContested it is the name of another Node",
				"liar asks for a.test":     "SANContested Node a",
				"liar asks for 10.0.0.9":   "AutoApproved",
				"a asks for a.test":        "SANContested Node liar",
				"b.test asks for 10.0.0.2": "SANContested Node liar",
				"liar asks for 10.0.0.2":   "SANContested Node b.test",
				"liar asks for liar":       "AutoApproved",
			},
		},
		"Services of any name and type": {
			newWorld(nodeObject(fleet, "10.0.0.1", fleet, host, "ec2-1.example.net"), nodeObject("web", "10.0.0.2", "web", "web.prod", "other.prod"),
				nodeObject("mysql", "db-0.web.prod", "mysql.web.prod"), externalName, serviceObject("internal", "headless", "None"),
				serviceObject("prod", "web", "10.43.0.1", "10.0.0.2"), serviceObject("prod", "other", "10.43.0.2"),
				serviceObject("x", host, "10.43.0.3"), serviceObject("default", "kubernetes", "10.43.0.10")),
			map[string]string{
				fleet + " asks for 10.0.0.1 " + fleet + " " + host: "AutoApproved",
				"web asks for web web.prod 10.0.0.2":               "AutoApproved",
				"web asks for other.prod":                          "SANReserved Service prod/other",
				"mysql asks for db-0.web.prod":                     "SANReserved Service prod/web",
				"mysql asks for mysql.web.prod":                    "AutoApproved",
				"web asks for 10.43.0.1":                           "SANReserved Service prod/web",
				"web asks for 10.43.0.10":                          "SANReserved Service default/kubernetes",
				"web asks for 10.0.0.2 ec2.internal":               "SANReserved Service internal/ec2",
				"web asks for " + fleet:                            "SANReserved Service internal/ec2",
			},
		},
		"any name that Kubernetes accepts": {
			newWorld(named("666", "10", "010.0.0.1", "rack.42", "167772161", "0xcafe", "w1.pod", "rack-7.hall.pod", "w1.svc", "a.b.svc.corp.test", "n.cluster.local",
				"kubernetes", "kubernetes.default", "payments.shop.svc", "a.b.svc.cluster.local", "10-244-0-5.shop.pod", "x.pod.cluster.local",
				"localhost", "127.0.0.1", "fe80--1.hall.pod", "a.b.svc.clusterset.local", "kubernetes.default.svc.corp.test")...),
			map[string]string{
				"666 asks for 666": "AutoApproved", "10 asks for 10": "AutoApproved", "rack.42 asks for rack.42 rack.42.": "AutoApproved",
				"167772161 asks for 167772161": "AutoApproved", "0xcafe asks for 0xCAFE": "AutoApproved", // read as 10.0.0.1 and 0.0.202.254
				"w1.pod asks for w1.pod": "AutoApproved", "rack-7.hall.pod asks for rack-7.hall.pod": "AutoApproved",
				"w1.svc asks for w1.svc": "AutoApproved", "a.b.svc.corp.test asks for a.b.svc.corp.test": "AutoApproved",
				"n.cluster.local asks for n.cluster.local":                   "AutoApproved",
				"010.0.0.1 asks for 010.0.0.1":                               "NameNotPermitted", // Kubernetes reads it as 10.0.0.1
				"10 asks for 666":                                            "NameNotPermitted",
				"kubernetes asks for kubernetes":                             "SANReserved API server, which no node can have: give the node another name",
				"kubernetes.default asks for kubernetes.default":             "SANReserved give the node another name",
				"payments.shop.svc asks for payments.shop.svc":               "SANReserved a name of a Service, which no node can have: give the node",
				"a.b.svc.cluster.local asks for a.b.svc.cluster.local":       "SANReserved give the node another name",
				"10-244-0-5.shop.pod asks for 10-244-0-5.shop.pod":           "SANReserved a name of a Pod",
				"fe80--1.hall.pod asks for fe80--1.hall.pod":                 "SANReserved a name of a Pod",
				"x.pod.cluster.local asks for x.pod.cluster.local":           "SANReserved a name of a Pod",
				"localhost asks for localhost":                               "SANReserved give the node another name",
				"127.0.0.1 asks for 127.0.0.1":                               "SANReserved correct the addresses that the Node reports (--node-ip and --hostname-override",
				"a.b.svc.clusterset.local asks for a.b.svc.clusterset.local": "SANReserved a name of a Service",
				"w1.pod asks for a.b.svc.corp.test":                          "SANReserved correct the addresses",
			},
		},
		"a node that is named by an address of a Service": {
			newWorld(nodeObject("10.43.0.10", "10.43.0.10"), nodeObject("10.0.0.5", "10.0.0.5"), nodeObject("liar", "10.0.0.5"),
				serviceObject("kube-system", "dns", "10.43.0.10"),
				nodeObject("a", "10.0.0.6"), nodeObject("10.0.0.6", "10.0.0.7"), nodeObject("10.0.0.8", "10.0.0.8")),
			map[string]string{
				"10.43.0.10 asks for 10.43.0.10": "SANReserved Service kube-system/dns",
				"10.0.0.5 asks for 10.0.0.5":     "SANContested by Node liar, so neither gets it",
				"liar asks for 10.0.0.5":         "SANContested by Node 10.0.0.5, so neither gets it",
				"a asks for 10.0.0.6":            "AutoApproved",
				"10.0.0.6 asks for 10.0.0.6":     "SANNotOwned",
				"10.0.0.8 asks for 10.0.0.8":     "AutoApproved", // it alone reports it
			},
		},
		"k3s publishes the addresses of nodes": {
			newWorld(nodeObject("a", "10.0.0.1"), nodeObject("b", "10.0.0.2"), lb, serviceObject("x", "of-a-user", "10.43.0.2", "10.0.0.2", "10.0.0.8"),
				static.Row{Name: "gateway", Addresses: []string{"10.0.0.8", "10.0.0.9"}, DNSNames: []string{"lb.test"}}),
			map[string]string{
				"a asks for 10.0.0.1":       "AutoApproved",
				"b asks for 10.0.0.2":       "AutoApproved",
				"gateway asks for 10.0.0.9": "SANReserved Service kube-system/traefik",
				"gateway asks for lb.test":  "SANReserved Service kube-system/traefik",
				"gateway asks for 10.0.0.8": "SANReserved Service x/of-a-user",
				"a asks for lb.test":        "SANReserved Service kube-system/traefik",
			},
		},
		"a Node reports what a Service publishes": {
			newWorld(nodeObject("gateway", "10.0.0.9"), lb, static.Row{Name: "gateway", Addresses: []string{"10.0.0.9"}}),
			map[string]string{"gateway asks for 10.0.0.9": "AutoApproved"},
		},
		"the API server's own names and addresses": {
			newWorld("cp-1", nodeObject("cp-1", "10.0.0.1", "cp-1", "example.com"), nodeObject("cp-2", "10.0.0.2", "cp-2"),
				nodeObject("worker", "10.0.0.1", "10.0.0.2", "example.com", "a.example.com"), nodeObject("example.com", "10.0.0.7", "example.com"),
				endpointsObject("10.0.0.1", "10.0.0.2")),
			map[string]string{
				"cp-1 asks for 10.0.0.1 cp-1 example.com": "AutoApproved",
				"cp-2 asks for 10.0.0.2":                  "SANReserved 10.0.0.2 is a name or an address of the API server (an endpoint)",
				"cp-2 asks for cp-2":                      "AutoApproved",
				"worker asks for 10.0.0.1":                "SANReserved an endpoint",
				"worker asks for example.com":             "SANReserved in the serving certificate of",
				"worker asks for a.example.com":           "AutoApproved", // a wildcard reserves nothing
				"example.com asks for example.com":        "SANReserved approval.kubeletServing.apiServerNodes",
				"example.com asks for 10.0.0.7":           "AutoApproved",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.run(t).expect(t, test.want)
		})
	}
}

// TestReportsOfBlockedNodesCountForNobody checks that a Node on the block list takes nothing by its report, and that it
// keeps its own name.
func TestReportsOfBlockedNodesCountForNobody(t *testing.T) {
	w := newWorld(nodeObject("a", "10.0.0.1", "a.test", "10.0.0.9", "liar"), nodeObject("liar", "10.0.0.1", "a.test", "10.0.0.2"),
		nodeObject("b", "10.0.0.2"), nodeObject("c", "10.0.0.2"), nodeObject("10.0.0.3", "10.0.0.3"), nodeObject("d", "10.0.0.3")).run(t)
	w.expect(t, map[string]string{
		"a asks for 10.0.0.1": "SANContested Node liar", "a asks for a.test": "SANContested Node liar",
		"b asks for 10.0.0.2": "SANContested reported by 3 Nodes", "a asks for liar": "SANContested it is the name of another Node",
	})
	w.blocked["liar"], w.blocked["10.0.0.3"] = true, true
	w.expect(t, map[string]string{
		"a asks for 10.0.0.1 a.test": "AutoApproved", "b asks for 10.0.0.2": "SANContested by Node c, so neither gets it",
		"a asks for liar": "SANContested it is the name of another Node", "liar asks for 10.0.0.1": "SANNotOwned",
		"d asks for 10.0.0.3": "AutoApproved", // an address is no name
	})
	delete(w.blocked, "liar")
	w.expect(t, map[string]string{"a asks for 10.0.0.1": "SANContested Node liar"})
}

// TestServingWaitsForWhatIsNotRead checks that nothing is approved without a list of each kind, even from another source.
func TestServingWaitsForWhatIsNotRead(t *testing.T) {
	for resource, status := range map[string]int{"nodes": 403, "services": 403, "endpointslices": 500} {
		w := newWorld(nodeObject("a", "10.0.0.1"), static.Row{Name: "known", Addresses: []string{"10.0.0.2"}})
		w.fails = map[string]int{resource: status}
		want := "InventoryUnavailable " + resource
		w.run(t).expect(t, map[string]string{"a asks for 10.0.0.1": want, "known asks for 10.0.0.2": want})
	}
}

// TestServingWaitsForTheAPIServersCertificate has names of API servers that are not read yet. Later only the node's own name
// does not wait.
func TestServingWaitsForTheAPIServersCertificate(t *testing.T) {
	const wait = "InventoryPending"
	w := newWorld(nodeObject("a", "10.0.0.1", "a", "a.test"), nodeObject("api.test", "api.test")).run(t)
	other := must(node.New(&rest.Config{}, nil, true, logr.Discard()))
	newWorld().expect(t, map[string]string{"a asks for 10.0.0.1": "InventoryUnavailable the inventory is not running"})
	synctest.Test(t, func(t *testing.T) {
		apiServers := node.NewAPIServers(&rest.Config{Host: "https://api.test"}, other, logr.Discard())
		w.inventory.apiServers = apiServers
		w.expect(t, map[string]string{"a asks for a": wait, "a asks for a.test": wait, "api.test asks for api.test": wait})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { _ = apiServers.Start(ctx) }() // it never reads an endpoint
		time.Sleep(time.Minute)
		w.expect(t, map[string]string{
			"a asks for a": "AutoApproved", "a asks for a.test": wait, "a asks for 10.0.0.1": wait, "a asks for a 10.0.0.1": wait,
			"api.test asks for api.test": "SANReserved in the kubeconfig",
		})
		time.Sleep(2 * time.Hour) // it ends
	})
}

// TestSlowSourcesShareTheWorkers checks how many lookups each slow source gets, and that the others wait without a worker.
func TestSlowSourcesShareTheWorkers(t *testing.T) {
	w := newWorld()
	hangs := &hanging{entered: make(chan string, 100)}
	w.inventory.Sources = []SourceBuilder{builds(hangs, nil), builds(&hanging{}, nil)}
	w.run(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, node := range []string{"a", "b"} { // of 8 workers, three shares
		running.Go(func() { w.decide(ctx, node, "10.0.0.1") })
		if got := <-hangs.entered; got != node {
			t.Fatalf("asked about %s, want %s", got, node)
		}
	}
	w.expect(t, map[string]string{"c asks for 10.0.0.1": "InventoryPending ask hanging: too many requests"})
	expect.True(t, len(w.inventory.expecting) == 2 && slices.Equal(w.inventory.expecting, w.inventory.sources[:2]),
		"%v expect nodes, want the first two of %v", w.inventory.expecting, w.inventory.sources)
}

// hanging is a slow source that does not answer.
type hanging struct{ entered chan string }

func (*hanging) Name() string     { return "hanging" }
func (*hanging) Concurrency() int { return 32 }

func (h *hanging) Lookup(ctx context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	h.entered <- node
	<-ctx.Done()
	return nil, ctx.Err()
}
