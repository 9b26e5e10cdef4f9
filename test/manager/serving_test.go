package manager

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startServing runs a manager with approval of serving certificates, and more of that configuration.
func startServing(t *testing.T, more string) *kit.Process {
	t.Helper()
	cfg := kit.ManagerConfig(t)
	kit.Apply(t, "kubelet-serving")
	return startAs(t, cfg, servingConfig(t, more))
}

// servingConfig returns the flag of a configuration with approval of serving certificates.
func servingConfig(t *testing.T, more string) string {
	t.Helper()
	return kit.Configure(t, "approval: {kubeletServing: {enabled: true, clusterDomain: cluster.test, reserved: [api.example.com, 203.0.113.0/24]"+more+"}}\n")
}

// TestServing refuses what a Node reports and what belongs to others, with real Services. TestWhoseAddress in
// controllers/approver has the other names.
func TestServing(t *testing.T) {
	kit.Parallel(t)
	p := startServing(t, "")
	kit.NewNode(t, "serving-a", "192.0.2.1", "2001:db8::1", "serving-a.example.com")
	good := kit.Reaches(t, asksFor(t, "serving-a", "192.0.2.1", "SERVING-A.example.com"), csr.Issued)
	if err := kit.Leaf(t, good).VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-", Namespace: "default"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{"192.0.2.77"},
	}}
	kit.Create(t, kit.Admin(t), service)
	var apiServer corev1.Service
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &apiServer); err != nil {
		t.Fatal(err)
	}
	ours := "Service default/" + service.Name
	// The node's own report does not help it: it reports what it asks for, except the address of nobody and the external one.
	for i, test := range []struct{ san, reason, part string }{
		{"192.0.2.1", "SANContested", "Node serving-a"},
		{"serving-a.example.com", "SANContested", "Node serving-a"},
		{"192.0.2.3", "SANNotOwned", "192.0.2.3"},
		{apiServer.Spec.ClusterIP, "SANReserved", "Service default/kubernetes"},
		{service.Spec.ClusterIP, "SANReserved", ours},
		{"::ffff:" + service.Spec.ClusterIP, "SANReserved", ""},
		{service.Name + ".default", "SANReserved", ours},
		{service.Name, "SANReserved", ours},
		{"web-0." + service.Name + ".default", "SANReserved", ours},
		{"192.0.2.77", "SANReserved", ours},
		{"192-0-2-1.default.pod", "SANReserved", "a name of a Pod"},
		{"x.cluster.test", "SANReserved", ""},
		{"203.0.113.9", "SANReserved", ""},
		{"API.example.com", "SANReserved", ""},
	} {
		node := kit.NewNode(t, fmt.Sprint("x-greedy-", i), "192.0.2.2")
		if test.san != "192.0.2.3" && test.san != "192.0.2.77" {
			kit.Publish(t, node, test.san, "192.0.2.2")
		}
		isRefused(t, asksFor(t, node.Name, test.san), test.reason, test.part)
	}
	// A node with the name of a Service keeps its name.
	kit.NewNode(t, service.Name, "192.0.2.90", service.Name)
	kit.Reaches(t, asksFor(t, service.Name, "192.0.2.90", service.Name), csr.Issued)
	checkStop(t, p)
}

// TestServingWakes approves at once when the Node has its addresses, and when another Node that reports one of them no longer
// does, is deleted, or is put on the block list.
func TestServingWakes(t *testing.T) {
	kit.Parallel(t)
	list := kit.BlockList(t, "")
	p := startBlockListManager(t)
	waiting := asksFor(t, "wakes-a", "192.0.2.10")
	kit.HasEvent(t, waiting, "NodeNotFound", `"wakes-a"`)
	node := kit.NewNode(t, "wakes-a")
	kit.HasEvent(t, waiting, "AddressNotPublished", "wakes-a")
	issuedSoon(t, waiting, func() { kit.Publish(t, node, "192.0.2.10", "192.0.2.11", "192.0.2.12", "192.0.2.13") })

	var contested []*kit.Request
	var others []*corev1.Node
	for i, address := range []string{"192.0.2.11", "192.0.2.12", "192.0.2.13"} {
		others = append(others, kit.NewNode(t, fmt.Sprint("other-", i), address))
		contested = append(contested, asksFor(t, node.Name, address))
		kit.HasEvent(t, contested[i], "SANContested", fmt.Sprintf(`%s is claimed by node "wakes-a" and by Node other-%d`, address, i))
		isRefused(t, asksFor(t, others[i].Name, address), "SANContested", "Node wakes-a")
	}
	backdate(t, contested...)
	for i, change := range []func(){
		func() { kit.Publish(t, others[0], "192.0.2.14") },
		func() { kit.Remove(t, others[1]) },
		func() { block(t, list, "other-2\n") },
	} {
		for _, obj := range contested[i:] {
			isPending(t, obj)
		}
		change()
		kit.Reaches(t, contested[i], csr.Issued)
	}
	kit.HasEvent(t, asksFor(t, "other-2", "192.0.2.13"), "NodeBlocked")
	checkStop(t, p)
}

// TestServingSharedAddress has one address on all Nodes. They wait, the Event suggests a row, and that row resolves
// it.
func TestServingSharedAddress(t *testing.T) {
	kit.Parallel(t)
	const nat = "198.51.100.7"
	p := startServing(t, "")
	asks := func(i int) *kit.Request {
		return asksFor(t, fmt.Sprint("nat-", i), nat, fmt.Sprint("192.0.2.6", i), fmt.Sprint("nat-", i))
	}
	for i := range 3 {
		kit.NewNode(t, fmt.Sprint("nat-", i), nat, fmt.Sprint("192.0.2.6", i), fmt.Sprint("nat-", i))
	}
	waiting, row := asks(0), `{namePattern: ".*", dnsNames: ["${node}"], addresses: ["`+nat+`", CIDR of the nodes]}`
	isRefused(t, waiting, "SANContested", nat+` is reported by 3 Nodes, for example "nat-0" and nat-1`, row)
	checkStop(t, p)

	row = strings.Replace(row, "CIDR of the nodes", "192.0.2.0/24", 1)
	config := servingConfig(t, "}, inventory: {sources: [{static: {rows: ["+row+"]}}, {node: {}}]")
	p = kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", config)
	for _, obj := range []*kit.Request{waiting, asks(1), asks(2)} {
		kit.Reaches(t, obj, csr.Issued)
	}
	// A Node still has its own address, and a Node that does not report the shared address does not get it.
	kit.NewNode(t, "nat-9", "192.0.2.60")
	kit.HasEvent(t, asksFor(t, "nat-9", "192.0.2.60"), "SANContested", "Node nat-0")
	kit.HasEvent(t, asksFor(t, "nat-9", nat), "AddressNotPublished", nat)
	checkStop(t, p)
}

// TestServingLeavesToMachinesWhatIsTheirs has machines with addresses and without Nodes, and Nodes without machines
// that report these addresses.
func TestServingLeavesToMachinesWhatIsTheirs(t *testing.T) {
	kit.Parallel(t)
	signingSecret(t)
	machines := kit.InstallKind(t, kit.ClusterAPI)
	kit.Apply(t, "kubelet-serving")
	p := startIdentityManager(t, patient+", kubeletServing: {enabled: true}")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	having := func(name, status string) client.Object {
		return machines.Apply(t, machineIn(kit.ClusterAPI, name, "status: {"+status+"}"))
	}
	claims := func(node, address, machine string) *kit.Request {
		kit.NewNode(t, node, address)
		obj := asksFor(t, node, address)
		kit.HasEvent(t, obj, "SANContested", address+` is claimed by node "`+node+`" and by Machine default/`+machine+`, which`)
		return obj
	}
	gone := having("m-gone", "addresses: [{type: InternalIP, address: 192.0.2.81}]")
	having("m-moves", "addresses: [{type: ExternalDNS, address: Moves.example.com}, {type: InternalIP, address: 192.0.2.82}]")
	having("m-own", "addresses: [{type: InternalIP, address: 192.0.2.83}]")
	// A machine that can't be read completely has the readable addresses, and does not affect others.
	having("m-unreadable", "addresses: [{type: InternalIP, address: 192.0.2.84}, {type: InternalIP}]")
	waiting := []*kit.Request{claims("claims-a", "192.0.2.81", "m-gone"), claims("claims-b", "moves.example.com", "m-moves"), claims("claims-c", "192.0.2.83", "m-own")}
	unreadable := claims("claims-d", "192.0.2.84", "m-unreadable")
	backdate(t, waiting...)
	machines.Remove(t, gone)
	kit.Reaches(t, waiting[0], csr.Issued)
	having("m-moves", "addresses: [{type: InternalIP, address: 192.0.2.82}]")
	kit.Reaches(t, waiting[1], csr.Issued)
	having("m-own", "nodeRef: {name: claims-c}, addresses: [{type: InternalIP, address: 192.0.2.83}]") // it is the machine's own Node
	kit.Reaches(t, waiting[2], csr.Issued)
	isPending(t, unreadable)

	// Another Node reports it. A machine of one of the two settles that, and one without it does not.
	kit.NewNode(t, "claims-rival", "192.0.2.85")
	kit.NewNode(t, "claims-second", "192.0.2.85")
	second := asksFor(t, "claims-second", "192.0.2.85")
	kit.HasEvent(t, second, "SANContested", "Node claims-rival")
	having("m-rival", "nodeRef: {name: claims-rival}, addresses: [{type: InternalIP, address: 192.0.2.86}]")
	rival := asksFor(t, "claims-rival", "192.0.2.85")
	isRefused(t, rival, "SANNotOwned", "192.0.2.85", "Machine default/m-rival")
	isPending(t, second)
	issuedSoon(t, second, func() {
		having("m-second", "nodeRef: {name: claims-second}, addresses: [{type: InternalIP, address: 192.0.2.85}]")
	})
	isPending(t, rival)
	checkStop(t, p)
}

// TestColdStart starts while a source does not answer. A request that needs it is judged only once it answers. Renewals need
// no source.
func TestColdStart(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "kubelet-serving")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.NewNode(t, "cold-a", "192.0.2.160")
	waiting, release := asksFor(t, "cold-a", "192.0.2.160"), make(chan struct{})
	cfg := kit.ManagerConfig(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return kit.RoundTrip(func(request *http.Request) (*http.Response, error) {
			if strings.HasPrefix(request.URL.Path, "/api/v1/nodes") {
				select {
				case <-release:
				case <-request.Context().Done():
					return nil, request.Context().Err()
				}
			}
			return next.RoundTrip(request)
		})
	})
	kit.StartLoopAs(t, cfg, csrenv.Options{Customize: func(o *controllers.Options) { o.Approver = kit.ServingApprover() }})
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "cold-b"), kit.NodeRequest(t, "cold-b")), csr.Issued)
	isPending(t, waiting)
	close(release)
	kit.Reaches(t, waiting, csr.Issued)
	for _, event := range kit.EventsOf(t.Context(), t, waiting) {
		t.Errorf("it was judged before: %s %s", event.Reason, event.Note)
	}
}

// kubeadmNames are the names in the API server's certificate on a kubeadm control plane. Its node is cp-1 at
// 192.0.2.200, with certSANs for a load balancer and a wildcard (kubeadm, GetAPIServerAltNames).
var kubeadmNames = []string{
	"cp-1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
	"api.lab.example", "*.wild.example",
}

// issueServer returns a serving certificate of authority and its key, in PEM.
func issueServer(t *testing.T, authority *csrenv.CA, names []string, ips ...net.IP) (certPEM, keyPEM []byte) {
	t.Helper()
	key := kit.NewKey(t)
	profile, err := ca.NewProfile(ca.ProfileConfig{})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := kit.Load(t, authority).Issue(profile, ca.Request{
		PublicKey: key.Public(), DNSNames: names, IPAddresses: ips,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return issued.PEM, keyPEM
}

// anotherAPIServer listens on host, with a certificate of authority for names, and returns its port.
func anotherAPIServer(t *testing.T, authority *csrenv.CA, host string, names []string, ips ...net.IP) int32 {
	t.Helper()
	pair, err := tls.X509KeyPair(issueServer(t, authority, names, ips...))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = server.Listener.Close()
	server.Listener, server.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// storeEndpoint stores an EndpointSlice of the API servers with one endpoint. API servers refuse a loopback address.
func storeEndpoint(t *testing.T, name, address string, port int32) {
	t.Helper()
	https := "https"
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: &https, Port: &port}},
	}
	if err := kit.ControlPlane(t).Store(t.Context(), "endpointslices/default/"+name, slice); err != nil {
		t.Fatal(err)
	}
}

// TestServingReadsAPIServers has a worker that reports names of API servers' certificates: that of a kubeadm control plane, and those that
// EndpointSlices name, also after a new API server was added. The control-plane node gets its own name and address. A wildcard in a
// certificate reserves nothing, and an unreachable API server stops nothing.
func TestServingReadsAPIServers(t *testing.T) {
	kit.Parallel(t)
	authority := kit.NewCA(t)
	kit.WithAPIServer(t, authority.CertPEM, func(dir string, args *envtest.Arguments) {
		certPEM, keyPEM := issueServer(t, authority, kubeadmNames, net.ParseIP("192.0.2.200"), net.ParseIP("127.0.0.1"))
		certFile, keyFile := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
		kit.Write(t, certFile, certPEM)
		kit.Write(t, keyFile, keyPEM)
		args.Set("tls-cert-file", certFile).Set("tls-private-key-file", keyFile)
	})
	kit.Apply(t, "rbac")
	kit.Apply(t, "node-identity")
	second := anotherAPIServer(t, authority, "127.0.0.2", []string{"kubernetes", "cp-2", "*.second.example"}, net.ParseIP("192.0.2.210"))
	storeEndpoint(t, "kubernetes-second", "127.0.0.2", second)
	storeEndpoint(t, "kubernetes-away", "127.0.0.3", 1)
	p := startServing(t, ", apiServerNodes: [cp-1]}, nodeClient: {requireTokenBinding: true")
	kit.NewNode(t, "cp-1", "192.0.2.200", "cp-1")
	kit.NewNode(t, "w-1", "192.0.2.201", "w-1", "192.0.2.200", "cp-1", "api.lab.example", "node.wild.example",
		"192.0.2.210", "cp-2", "node.second.example", "192.0.2.211", "cp-3")
	kit.Reaches(t, asksFor(t, "cp-1", "192.0.2.200", "cp-1"), csr.Issued)
	kit.Reaches(t, asksFor(t, "w-1", "192.0.2.201", "w-1", "node.wild.example", "node.second.example", "cp-3"), csr.Issued)
	refused := func(san, server string) {
		t.Helper()
		isRefused(t, asksFor(t, "w-1", san), "SANReserved", san+" is a name or an address of the API server (in the serving certificate of "+server, "approval.kubeletServing.apiServerNodes")
	}
	for _, san := range []string{"192.0.2.200", "cp-1", "api.lab.example"} {
		refused(san, "")
	}
	kit.HasEvent(t, asksFor(t, "w-1", "API.lab.example"), "SANReserved")
	refused("192.0.2.210", "127.0.0.2:")
	refused("cp-2", "127.0.0.2:")
	if !strings.Contains(p.Output(t), `"apiServer":"127.0.0.3:1"`) {
		t.Error("the API server that can't be reached is not named in the log")
	}

	storeEndpoint(t, "kubernetes-third", "127.0.0.4", anotherAPIServer(t, authority, "127.0.0.4", []string{"kubernetes", "cp-3"}, net.ParseIP("192.0.2.211")))
	kit.HasEvent(t, asksFor(t, "w-1", "cp-3", "of-nobody"), "SANReserved", "cp-3 is a name or an address of the API server (in the serving certificate of 127.0.0.4:")
	refused("192.0.2.211", "127.0.0.4:")
	checkStop(t, p)
}
