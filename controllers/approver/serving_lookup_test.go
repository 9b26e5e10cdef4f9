package approver

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

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
	serving   Serving
	inventory *Inventory
	rows      []static.Row    // of a source before that of Nodes
	blocked   map[string]bool // nodes on the block list

	objects map[string][]client.Object // by the last part of the path
	fails   map[string]int             // the status of lists that fail
}

// newWorld returns a world with objects, static.Rows and the names of apiServerNodes.
func newWorld(parts ...any) *world {
	i := &Inventory{}
	w := &world{serving: Serving{Inventory: i}, inventory: i, blocked: map[string]bool{}, objects: map[string][]client.Object{}}
	for _, part := range parts {
		switch part := part.(type) {
		case *corev1.Node:
			w.objects["nodes"] = append(w.objects["nodes"], part)
		case *corev1.Service:
			w.objects["services"] = append(w.objects["services"], part)
		case *discoveryv1.EndpointSlice:
			w.objects["endpointslices"] = append(w.objects["endpointslices"], part)
		case static.Row:
			w.rows = append(w.rows, part)
		case string:
			w.serving.APIServerNodes = append(w.serving.APIServerNodes, part)
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
	if err := w.inventory.setup(mgr, []Rule{KubeletServing(w.serving)}, 8, clock, servertime.Of(clock), blocks, newWakeUps().inventory); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(10 * time.Second); !w.inventory.tried(t.Context()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("ten seconds passed before everything was read or has failed")
		}
	}
	return w
}

// tried reports whether each running source has been read or has failed.
func (i *Inventory) tried(ctx context.Context) bool {
	err := errors.Join(i.cluster.Err(), i.apiServers.Ready())
	for _, source := range i.sources {
		if _, runs := source.(manager.Runnable); runs { // other sources have nothing to read in advance
			_, sourceErr := source.Lookup(ctx, "", nil)
			err = errors.Join(err, sourceErr)
		}
	}
	return !errors.Is(err, informer.ErrNotRead)
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

// expect checks the reasons of requests, which rows write as "NODE asks for NAMES".
func (w *world) expect(t testing.TB, want map[string]string) {
	t.Helper()
	for asked, want := range want {
		node, names, _ := strings.Cut(asked, " asks for ")
		got := must(w.serving.judge(t.Context(), parse(asks(node, names))))
		if reason, part, _ := strings.Cut(want, " "); got.Reason != reason || !strings.Contains(got.Message, part) {
			t.Errorf("%s: %+v, want %s", asked, got, want)
		}
	}
}

// TestWhoseAddress judges requests with the real watches of Nodes, Services and API servers. Each row is a cluster.
func TestWhoseAddress(t *testing.T) {
	t.Parallel()
	const fleet, host = "ip-10-0-0-1.ec2.internal", "ip-10-0-0-1"
	lb := serviceObject("kube-system", "traefik", "10.43.0.9")
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}, {IP: "10.0.0.9"}, {Hostname: "lb.test"}}
	externalName := serviceObject("internal", "ec2", "")
	externalName.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: fleet}
	for name, test := range map[string]struct {
		*world
		want map[string]string
	}{
		"a dual-stack node, a stale Node and a third Node": {
			newWorld(nodeObject("v", "10.0.0.1", "fd00::1", "v"), nodeObject("stale", "10.0.0.1"), nodeObject("third", "fd00::1", "10.0.0.3")),
			map[string]string{
				"v asks for fd00::1 v":     "SANContested fd00::1 is claimed by node \"v\" and by Node third",
				"v asks for 10.0.0.1":      "SANContested 10.0.0.1 is claimed by node \"v\" and by Node stale",
				"v asks for v":             "AutoApproved",
				"third asks for fd00::1":   "SANContested Node v",
				"third asks for 10.0.0.1":  "SANNotOwned 10.0.0.1",
				"nobody asks for 10.0.0.1": "NodeNotFound",
			},
		},
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
		"an administrator lists values": {
			newWorld(nodeObject("a", "10.0.0.1", "192.0.2.1", "a"), nodeObject("b", "10.0.0.1", "192.0.2.1", "a.test"),
				nodeObject("c", "10.0.0.3", "192.0.2.1", "c.test"),
				static.Row{Name: "a", Addresses: []string{"10.0.0.1", "192.0.2.1"}, DNSNames: []string{"a", "a.test"}},
				static.Row{NamePattern: "[cd]", Addresses: []string{"192.0.2.1", "10.0.0.0/24"}, Suffixes: []string{"test"}}),
			map[string]string{
				"a asks for 10.0.0.1 192.0.2.1 a a.test": "AutoApproved",
				"b asks for 10.0.0.1":                    "SANContested row 1 of configuration (node a)",
				"b asks for a.test":                      "SANContested row 1 of configuration (node a)",
				"c asks for 10.0.0.3 c.test":             "AutoApproved",
				"c asks for 192.0.2.1":                   "SANContested row 1 of configuration (node a)",
				"c asks for 10.0.0.4":                    "AddressNotPublished according to row 2 of configuration",
				"d asks for 10.0.0.3":                    "AddressNotPublished",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.run(t).expect(t, test.want)
		})
	}
}

// TestReportsOfBlockedNodesCountForNobody checks that a Node on the block list takes nothing by its report, and that it
// keeps its own name.
func TestReportsOfBlockedNodesCountForNobody(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	w := newWorld()
	hangs := &hanging{entered: make(chan string, 100)}
	w.inventory.Sources = []SourceBuilder{builds(hangs, nil), builds(&hanging{}, nil)}
	w.run(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, node := range []string{"a", "b"} { // of 8 workers, three shares
		running.Go(func() { _, _ = w.serving.judge(ctx, parse(asks(node, "10.0.0.1"))) })
		if got := <-hangs.entered; got != node {
			t.Fatalf("asked about %s, want %s", got, node)
		}
	}
	w.expect(t, map[string]string{"c asks for 10.0.0.1": "InventoryPending ask hanging: too many requests"})
	if len(w.inventory.expecting) != 2 || !slices.Equal(w.inventory.expecting, w.inventory.sources[:2]) {
		t.Errorf("%v expect nodes, want the first two of %v", w.inventory.expecting, w.inventory.sources)
	}
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
