package node

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// newSource returns a Source that has read nothing.
func newSource(t testing.TB) *Source {
	t.Helper()
	s, err := New(&rest.Config{}, nil, true, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// sourceOf returns a Source that has read nodes.
func sourceOf(t testing.TB, nodes ...*object) *Source {
	t.Helper()
	s := newSource(t)
	s.nodes.Fake(nil, nodes...)
	s.services.Fake(nil)
	s.endpoints.Fake(nil)
	return s
}

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func sans(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		all = append(all, san.Parse(text))
	}
	return all
}

func nodeWith(name string, addresses ...string) *object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Address: address})
	}
	return nodeObject(node)
}

// serviceWith returns a Service with the cluster address 10.96.0.1 that publishes addresses.
func serviceWith(name string, addresses ...string) *object {
	return serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: addresses},
	})
}

// TestLookup checks that a Node's own report is its entry, and that there is none without a Node.
func TestLookup(t *testing.T) {
	t.Parallel()
	node := nodeWith("a", "10.0.0.1", "A.example.com")
	node.CreationTimestamp = metav1.Unix(1_000_000, 0)
	s := sourceOf(t, node)
	for name, want := range map[string]*inventory.Entry{
		"a": {
			Source: "Node a", SANs: sans("10.0.0.1", "a.example.com"), OwnWord: true, Bound: "a", Created: time.Unix(1_000_000, 0),
		},
		"b": nil,
	} {
		got, err := s.Lookup(t.Context(), name, nil)
		if diff := cmp.Diff(want, got, byValue); diff != "" || err != nil {
			t.Errorf("%s: error %v (-want +got):\n%s", name, err, diff)
		}
	}
	s.nodes.Fake(informer.ErrNotRead)
	if got, err := s.Lookup(t.Context(), "a", nil); got != nil || !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("before all is read, %+v, error %v", got, err)
	}
}

// TestHolders checks that a Node holds what it reports, in every notation, and its own name. An address is no name.
func TestHolders(t *testing.T) {
	t.Parallel()
	s := sourceOf(t, nodeWith("a", "10.0.0.1", "Shared.example.com."), nodeWith("b", "010.0.0.1", "shared.example.com", "b"), nodeWith("10.0.0.7"), nodeWith("10.0.0.8", "10.0.0.8"))
	for text, want := range map[string][]string{
		"10.0.0.1": {"a", "b"}, "::ffff:10.0.0.1": {"a", "b"}, "SHARED.example.com": {"a", "b"}, "a": {"a"}, "b": {"b"}, "10.0.0.8": {"10.0.0.8"},
		"10.0.0.7": nil, "10.0.0.2": nil, "example.com": nil,
	} {
		got, err := s.Holders(san.Parse(text))
		slices.Sort(got)
		if !slices.Equal(got, want) || err != nil {
			t.Errorf("%s: %q, error %v, want %q", text, got, err, want)
		}
	}
}

// TestLargeNodes has a Node with 25,000 addresses. Only the first ones count, as many as a request may name, and lookups
// cost no more than for another Node.
func TestLargeNodes(t *testing.T) { // not in parallel, because it counts allocations
	var addresses []string
	for i := range 25_000 {
		addresses = append(addresses, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	s := sourceOf(t, nodeWith("a", addresses...))
	for address, want := range map[string]int{addresses[0]: 1, addresses[999]: 1, addresses[1000]: 0, addresses[24_999]: 0} {
		if holders, err := s.Holders(san.Parse(address)); len(holders) != want || err != nil {
			t.Errorf("%s: %q, error %v", address, holders, err)
		}
	}
	value := san.Parse("10.0.0.9")
	lookups := func() {
		entry, err := s.Lookup(t.Context(), "a", nil)
		err = errors.Join(append(questions(s, value), err)...)
		if err != nil || len(entry.SANs) != 1000 {
			t.Fatalf("%v, %d addresses", err, len(entry.SANs))
		}
	}
	if allocations := testing.AllocsPerRun(10, lookups); allocations > 40 {
		t.Errorf("%v allocations", allocations)
	}
	entry, _ := s.Lookup(t.Context(), "a", nil)
	if node, _, err := s.nodes.Get("", "a"); err != nil || &entry.SANs[0] != &node.sans[0] {
		t.Errorf("the addresses were copied, or error %v", err)
	}
}

// questions returns the errors of Holders, Service, Publisher and Endpoint.
func questions(s *Source, value san.SAN) []error {
	_, holders := s.Holders(value)
	_, service := s.Service(value)
	_, publisher := s.Publisher(value)
	_, endpoint := s.Endpoint(value)
	return []error{holders, service, publisher, endpoint}
}

// TestErr checks that a resource that can't be read fails the lookups that need it, and no others.
func TestErr(t *testing.T) {
	t.Parallel()
	down, unread := errors.New("grant list and watch on services (config/kubelet-serving): forbidden"), informer.ErrNotRead
	bare, err := New(&rest.Config{}, nil, false, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	bare.nodes.Fake(nil)
	without, noEndpoints := sourceOf(t, nodeWith("a", "10.0.0.1")), sourceOf(t)
	without.services.Fake(down)
	noEndpoints.endpoints.Fake(unread)
	for name, test := range map[string]struct {
		source *Source
		want   []error // of questions
		err    error
	}{
		"Services are down":     {without, []error{nil, down, down, nil}, down},
		"endpoints are unread":  {noEndpoints, []error{nil, nil, nil, unread}, unread},
		"a Source without them": {bare, []error{nil, unread, unread, unread}, nil},
	} {
		for _, text := range []string{"10.0.0.1", "web", "web.default"} {
			for i, got := range questions(test.source, san.Parse(text)) {
				if !errors.Is(got, test.want[i]) && (i < 3 || text == "10.0.0.1") {
					t.Errorf("%s, question %d about %s: error %v, want %v", name, i, text, got, test.want[i])
				}
			}
		}
		_, err := test.source.Lookup(t.Context(), "a", nil)
		if got := test.source.Err(); err != nil || !errors.Is(got, test.err) {
			t.Errorf("%s: lookup %v, all %v, want %v", name, err, got, test.err)
		}
	}
}

// TestChanged checks that Changed is called after a Node was created, deleted or changed, with what it no longer has. A
// heartbeat is no change.
func TestChanged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after *object
		want          string
	}{
		"it comes":          {nil, nodeWith("a", "10.0.0.1"), "node a []"},
		"it goes":           {nodeWith("a", "10.0.0.1", "A.example.com"), nil, "node a [10.0.0.1 a.example.com a]"},
		"an added address":  {nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1", "10.0.0.2"), "node a []"},
		"a removed address": {nodeWith("a", "10.0.0.1", "10.0.0.2"), nodeWith("a", "10.0.0.2"), "node a [10.0.0.1]"},
		"a heartbeat":       {nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1"), ""},
	} {
		told := ""
		s := newSource(t)
		s.Changed = func(node string, had ...san.SAN) { told += fmt.Sprintf("node %s %v", node, had) }
		s.nodes.OnChange(test.before, test.after)
		if told != test.want {
			t.Errorf("%s: told %q, want %q", name, told, test.want)
		}
	}
}

// TestEndpointsChange checks that changed endpoints request a read of their certificates, and that only a removed one is told.
func TestEndpointsChange(t *testing.T) {
	t.Parallel()
	s, told := newSource(t), 0
	s.Changed = func(string, ...san.SAN) { told++ }
	a := NewAPIServers(&rest.Config{}, s, logr.Discard())
	s.endpoints.OnSync()
	<-a.wake
	s.endpoints.OnChange(sliceWith("10.0.0.1", "10.0.0.2"), sliceWith("10.0.0.2"))
	s.endpoints.OnChange(sliceWith("10.0.0.2"), nil)
	if len(a.wake) != 1 || told != 1 {
		t.Errorf("%d reads after two changes, told %d times", len(a.wake), told)
	}
}

func sliceWith(addresses ...string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: addresses}},
	}
}

// TestServices checks which names and addresses a Service or an endpoint has, and which a Service only publishes.
func TestServices(t *testing.T) {
	t.Parallel()
	s := sourceOf(t)
	s.services.Fake(nil, serviceWith("zone", "10.0.0.1"), serviceWith("web", "10.0.0.1", "10.0.0.4"),
		serviceObject(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "internal", Name: "ec2"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "ip-10-0-0-1.ec2.internal"},
		}))
	s.endpoints.Fake(nil, sliceWith("10.0.0.2"))
	for text, want := range map[string]struct {
		service, publisher string
		endpoint           bool
	}{
		"10.0.0.1": {publisher: "Service default/web"}, "10.0.0.4": {publisher: "Service default/web"}, "10.0.0.2": {endpoint: true}, "10.0.0.3": {},
		"10.96.0.1": {service: "Service default/web"}, "::ffff:10.96.0.1": {service: "Service default/web"},
		"web": {service: "Service default/web"}, "WEB.default.": {service: "Service default/web"}, "host.web.default": {service: "Service default/web"},
		"a.host.web.default": {}, "host.web.other": {}, "other.default": {}, "host.web": {}, "xweb.default": {},
		"ip-10-0-0-1.ec2.internal": {service: "Service internal/ec2"}, "ec2.internal": {service: "Service internal/ec2"}, "ip-10-0-0-1": {},
		"ip-10-0-0-1.us-west-2.ec2.internal": {},
	} {
		value := san.Parse(text)
		service, serviceErr := s.Service(value)
		publisher, publisherErr := s.Publisher(value)
		endpoint, endpointErr := s.Endpoint(value)
		if err := errors.Join(serviceErr, publisherErr, endpointErr); err != nil || service != want.service || publisher != want.publisher || endpoint != want.endpoint {
			t.Errorf("%s: %q, %q, %t, error %v, want %+v", text, service, publisher, endpoint, err, want)
		}
	}
}

// TestWhatObjectsHave checks that addresses are parsed as the API server parses them, in every notation.
func TestWhatObjectsHave(t *testing.T) {
	t.Parallel()
	service := serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "metrics-server"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:0::1"}, ExternalIPs: []string{"010.0.0.1", "::ffff:010.0.0.2"},
			LoadBalancerIP: "192.0.2.66", ExternalName: "elsewhere.example.com",
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.000.002.007"}, {Hostname: "LB.example.com."}}}},
	})
	headless := serviceObject(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}},
	})
	for name, test := range map[string]struct{ got, want []san.SAN }{
		"a Service's own":    {service.sans, sans("metrics-server", "10.96.0.1", "10.96.0.1", "fd00::1")},
		"a Service's others": {service.published, sans("10.0.0.1", "10.0.0.2", "192.0.2.7", "lb.example.com")},
		"a headless Service": {headless.sans, sans("headless")},
		"a Node":             {nodeWith("a", "010.000.000.001", "Node-1", "fd00::1%eth0", "010.0.0.256", "").sans, sans("10.0.0.1", "node-1", "fd00::1%eth0", "010.0.0.256")},
		"endpoints":          {sliceSANs(sliceWith("10.0.0.01")), sans("10.0.0.1")},
	} {
		if diff := cmp.Diff(test.want, test.got, byValue); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
