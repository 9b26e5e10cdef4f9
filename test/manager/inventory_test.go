package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// following is a running source, and the nodes that it has reported as changed.
type following struct {
	inventory.Source
	mu   sync.Mutex
	told map[string]int
}

func (f *following) changed(node string, _ ...san.SAN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told[node]++
}

// follow runs start until the test ends.
func follow(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- start(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the source stopped with %v", err)
			}
		case <-time.After(kit.Patience):
			t.Error("the source does not stop")
		}
	})
}

// finds waits until the source's answer about node matches want: a part of the error or, after =, of the entry. An
// empty want means that the node is not known.
func (f *following) finds(t *testing.T, node, want string) *inventory.Entry {
	t.Helper()
	var found *inventory.Entry
	kit.Eventually(t, fmt.Sprintf("lookup of %q", node), func(ctx context.Context) error {
		entry, err := f.Lookup(ctx, node, nil)
		found = entry
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case entry != nil:
			got = fmt.Sprintf("=%s bound %q leaving %t %v", entry.Source, entry.Bound, entry.Leaving, entry.SANs)
		}
		return kit.OrError((got == "") == (want == "") && strings.Contains(got, want), "is %q, want %q", got, want)
	})
	return found
}

// tells checks that change makes the source report node within less than the ten seconds after which failed sources retry.
func (f *following) tells(t *testing.T, node string, change func()) {
	t.Helper()
	told := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.told[node]
	}
	before := told()
	change()
	kit.Within(t, 8*time.Second, fmt.Sprintf("told of %q", node), func(context.Context) error { return kit.OrError(told() > before, "not") })
}

// grantStranger grants the rights to list and watch a resource in namespace default to stranger. The returned function changes the verbs.
func grantStranger(t *testing.T, group, resource string, names ...string) (change func(verbs ...string)) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "inventory-test"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{"list", "watch"}},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
	})
	return func(verbs ...string) {
		t.Helper()
		role.Rules[0].Verbs = verbs
		kit.Update(t, role)
	}
}

// machineIn returns a Machine of the cluster lab.
func machineIn(group, name, more string) string { return machineOf("lab", group, name, more) }

// machineOf returns a Machine in group of cluster, with Cluster API's label.
func machineOf(cluster, group, name, more string) string {
	return fmt.Sprintf("apiVersion: %s/v1beta1\nkind: Machine\nmetadata: {namespace: default, name: %s, labels: {%s: %s}}\n%s",
		group, name, machine.ClusterNameLabel, cluster, more)
}

// TestMachinesComeAndGo follows machines before their CRD exists, before and after the right to read them is there, and after the
// CRD is deleted. Each change of a machine wakes its node. TestLookup in pkg/inventory/machine has what a machine says.
func TestMachinesComeAndGo(t *testing.T) {
	kit.Parallel(t)
	const group = "comes.example.org"
	options, proxy := machine.ClusterAPI(), kit.ThroughFaults(t, kit.TokenConfig(t, "stranger"))
	options.Group, options.Namespace = group, "default"
	source := kit.Must(machine.New(proxy.Config, options, logr.Discard()))(t)
	f := &following{Source: source, told: map[string]int{}}
	source.Changed = f.changed
	if _, err := source.Lookup(t.Context(), "a", nil); err == nil {
		t.Error("an answer before anything is read")
	}
	follow(t, source.Start)
	const missing, spec = "Machine." + group + " is not installed yet", "spec: {infrastructureRef: {name: node-1}}\n"
	f.finds(t, "node-1", missing)
	crd := kit.InstallKind(t, group)
	f.finds(t, "node-1", "grant list and watch on machines."+group+`: machines.`+group+` is forbidden: User "stranger" cannot list`)
	change := grantStranger(t, group, "machines")
	f.finds(t, "node-1", "")

	f.tells(t, "node-1", func() { kit.Put(t, machineIn(group, "m", spec)) })
	if age := time.Since(f.finds(t, "node-1", `=Machine default/m bound "" leaving false []`).Created); age.Abs() > time.Minute {
		t.Errorf("created %s ago", age)
	}
	var obj client.Object
	f.tells(t, "node-1", func() {
		obj = kit.Put(t, machineIn(group, "m", spec+"status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}]}"))
	})
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving false [10.0.0.1]`)
	f.tells(t, "node-1", func() { kit.Remove(t, obj) })
	f.finds(t, "node-1", "")

	kit.Put(t, machineIn(group, "m-2", spec))
	change("list")
	f.finds(t, "node-1", "=Machine default/m-2") // an open watch continues
	proxy.Use()                                  // ends all watches
	f.finds(t, "node-1", `cannot watch resource "machines"`)
	change("list", "watch")
	f.finds(t, "node-1", "=Machine default/m-2")
	kit.Remove(t, crd) // with a machine in it
	f.finds(t, "node-1", missing)
	kit.InstallKind(t, group)
	f.finds(t, "node-1", "")
	f.tells(t, "node-1", func() { kit.Put(t, machineIn(group, "m-3", spec)) })
}

// TestStaticConfigMap has a role for only the ConfigMap with the list, which comes, changes and goes. TestLastGoodListStaysInUse
// in pkg/inventory/static has more versions of it.
func TestStaticConfigMap(t *testing.T) {
	kit.Parallel(t)
	recorder := events.NewFakeRecorder(100)
	says := func(want string) {
		t.Helper()
		select {
		case got := <-recorder.Events:
			if !strings.Contains(got, want) {
				t.Fatalf("Event %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("no Event %q", want)
		}
	}
	grantStranger(t, "", "configmaps", "csr-nodes")
	name := types.NamespacedName{Namespace: "default", Name: "csr-nodes"}
	source := kit.Must(static.NewConfigMap(kit.TokenConfig(t, "stranger"), name, logr.Discard()))(t)
	f := &following{Source: source, told: map[string]int{}}
	source.Changed, source.Recorder = f.changed, recorder
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: not read yet")
	follow(t, source.Start)
	f.finds(t, "node-1", "ConfigMap default/csr-nodes does not exist: create it with a list of rows under nodes.yaml")
	says("StaticListMissing")

	nodes := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}}
	f.tells(t, "", func() { kit.Create(t, kit.Admin(t), nodes) })
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: has no key nodes.yaml")
	says("Warning StaticListInvalid the list is rejected, and no row is in use: ConfigMap default/csr-nodes: has no key nodes.yaml")
	for _, version := range []struct{ address, want, event string }{
		{"10.0.0.1", `=row 1 of ConfigMap default/csr-nodes bound "" leaving false [10.0.0.1]`, "Normal StaticListRead all rows are in use"},
		{"0.0.0.0/0", "[10.0.0.1]", `the last good version stays in use: nodes.yaml[0].addresses[0]: Invalid value: "0.0.0.0/0"`},
		{"10.0.0.2", "[10.0.0.2]", "Normal StaticListRead all rows are in use"},
	} {
		f.tells(t, "", func() {
			nodes.Data = map[string]string{"nodes.yaml": "[{name: node-1, addresses: [" + version.address + "]}]"}
			kit.Update(t, nodes)
		})
		says(version.event)
		f.finds(t, "node-1", version.want)
	}
	f.tells(t, "", func() { kit.Remove(t, nodes) })
	f.finds(t, "node-1", "does not exist")
	says("StaticListMissing")
}

// inventoryServer runs a webhook of the inventory. It returns the server, and the file with the CA of its certificate.
func inventoryServer(t *testing.T, answer http.HandlerFunc) (server *httptest.Server, caFile string) {
	t.Helper()
	server = httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // managers are killed at the end
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	caFile = filepath.Join(t.TempDir(), "inventory-ca.crt")
	kit.Write(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return server, caFile
}

// TestWebhookURLIsSecret has a webhook with a secret in its URL, which fails in several ways one after the other. The URL
// is in nothing that the manager stores, serves or logs, however verbose.
func TestWebhookURLIsSecret(t *testing.T) {
	kit.Parallel(t)
	var answer atomic.Pointer[http.HandlerFunc]
	answers := func(with http.HandlerFunc) { answer.Store(&with) }
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
	authority := kit.Must(os.ReadFile(ca))(t)
	kit.Apply(t, "kubelet-serving")
	records := filepath.Join(t.TempDir(), "audit.log")
	url := server.URL + "/s3cr3t-path?token=s3cr3t"
	sources := fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 2s}}, {node: {}}]", url, ca)
	p := start(t, servingConfig(t, sources), "-v", "10", "--audit-log-path", records)
	fails := func(node, part string) {
		t.Helper()
		kit.HasEvent(t, asksFor(t, node, "192.0.2.90"), "InventoryUnavailable", "ask webhook", part)
	}
	answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "s3cr3t", http.StatusInternalServerError) })
	fails("answers-500", "answered 500, want 200")
	answers(http.RedirectHandler("https://s3cr3t-host.example.com/s3cr3t", http.StatusTemporaryRedirect).ServeHTTP)
	fails("redirects", "answered 307, want 200")
	answers(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	fails("hangs", "context deadline exceeded")
	kit.Write(t, ca, kit.NewCA(t).CertPEM)
	fails("has-another-ca", "certificate signed by unknown authority")
	kit.Write(t, ca, authority)
	server.CloseClientConnections()
	server.Close()
	fails("is-down", "connection refused")

	_, metrics := cluster.Get(t.Context(), p.Metrics, "/metrics")
	checkStop(t, p)
	shown := p.Output(t) + metrics + string(kit.Must(os.ReadFile(records))(t))
	kit.Check(t, strings.Contains(shown, "has-another-ca"), "the texts are not complete")
	for _, list := range []client.ObjectList{
		&corev1.ConfigMapList{}, &eventsv1.EventList{}, &coordinationv1.LeaseList{}, &certificatesv1.CertificateSigningRequestList{},
	} {
		kit.NoError(t, kit.Admin(t).List(t.Context(), list))
		shown += string(kit.Must(json.Marshal(list))(t))
	}
	for _, secret := range []string{"s3cr3t", server.Listener.Addr().String()} {
		if at := strings.Index(shown, secret); at >= 0 {
			t.Errorf("%q is shown: %s", secret, shown[max(0, at-300):min(len(shown), at+100)])
		}
	}
}

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
	return kit.Configure(t, "approval: {kubeletServing: {enabled: true, clusterDomain: cluster.test, "+
		"reserved: [api.example.com, 203.0.113.0/24]"+more+"}}\n")
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
	issued := kit.Must(kit.Load(t, authority).Issue(kit.Must(ca.NewProfile(ca.ProfileConfig{}))(t), ca.Request{
		PublicKey: key.Public(), DNSNames: names, IPAddresses: ips,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Now()))(t)
	return issued.PEM, kit.Must(keyutil.MarshalPrivateKeyToPEM(key))(t)
}

// anotherAPIServer listens on host, with a certificate of authority for names, and returns its port.
func anotherAPIServer(t *testing.T, authority *csrenv.CA, host string, names []string, ips ...net.IP) int32 {
	t.Helper()
	pair := kit.Must(tls.X509KeyPair(issueServer(t, authority, names, ips...)))(t)
	listener := kit.Must(net.Listen("tcp", net.JoinHostPort(host, "0")))(t)
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
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
	}
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), "endpointslices/default/"+name, slice))
}

// TestServing has a worker that reports names of API servers' certificates: that of a kubeadm control plane, and those that
// EndpointSlices name, also after a new API server was added. The control-plane node gets its own name and address. A wildcard in a
// certificate reserves nothing, and an unreachable API server stops nothing. Names and addresses of others are refused too:
// TestWhoseAddress in controllers/approver has more of them.
func TestServing(t *testing.T) {
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
	const reserved = " is a name or an address of the API server (in the serving certificate of "
	refused := func(san, server string) {
		t.Helper()
		isRefused(t, asksFor(t, "w-1", san), "SANReserved", san+reserved+server, "approval.kubeletServing.apiServerNodes")
	}
	for _, san := range []string{"192.0.2.200", "cp-1", "api.lab.example"} {
		refused(san, "")
	}
	kit.HasEvent(t, asksFor(t, "w-1", "API.lab.example"), "SANReserved")
	refused("192.0.2.210", "127.0.0.2:")
	refused("cp-2", "127.0.0.2:")
	kit.Check(t, strings.Contains(p.Output(t), `"apiServer":"127.0.0.3:1"`), "the API server that can't be reached is not named in the log")

	third := anotherAPIServer(t, authority, "127.0.0.4", []string{"kubernetes", "cp-3"}, net.ParseIP("192.0.2.211"))
	storeEndpoint(t, "kubernetes-third", "127.0.0.4", third)
	kit.HasEvent(t, asksFor(t, "w-1", "cp-3", "of-nobody"), "SANReserved", "cp-3"+reserved+"127.0.0.4:")
	refused("192.0.2.211", "127.0.0.4:")

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-", Namespace: "default"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{"192.0.2.77"},
	}}
	kit.Create(t, kit.Admin(t), service)
	apiServer := kit.Get(t, "default", "kubernetes", &corev1.Service{})
	ours := "Service default/" + service.Name
	// The node's own report does not help it: it reports what it asks for, except the address of nobody and the external one.
	for i, test := range []struct{ san, reason, part string }{
		{"192.0.2.201", "SANContested", "Node w-1"}, {"192.0.2.3", "SANNotOwned", "192.0.2.3"},
		{apiServer.Spec.ClusterIP, "SANReserved", "Service default/kubernetes"},
		{"::ffff:" + service.Spec.ClusterIP, "SANReserved", ours}, {"web-0." + service.Name + ".default", "SANReserved", ours},
		{service.Name, "SANReserved", ours}, {"192.0.2.77", "SANReserved", ours}, {"192-0-2-1.default.pod", "SANReserved", "a name of a Pod"},
		{"x.cluster.test", "SANReserved", ""}, {"203.0.113.9", "SANReserved", ""}, {"API.example.com", "SANReserved", ""},
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
