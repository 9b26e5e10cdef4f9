package node

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
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

// sourceOf returns a Source that has read nodes.
func sourceOf(t testing.TB, nodes ...*corev1.Node) *Source {
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

// A node may report tens of thousands of addresses, and request a thousand of them. A copy for each would cost a
// second.
func TestSourceCopiesNothing(t *testing.T) {
	t.Parallel()
	held := nodeWith("a", "10.0.0.1")
	c := sourceOf(t, held)
	node, nodeErr := c.Node("a")
	holders, holdersErr := c.Holders(san.Parse("10.0.0.1"))
	_, _, takenErr := c.Taken(san.Parse("10.0.0.1"))
	entry, entryErr := c.Lookup(t.Context(), "a", nil)
	if err := errors.Join(nodeErr, holdersErr, takenErr, entryErr); err != nil || len(holders) != 1 || entry == nil {
		t.Fatalf("%v, %v, %v, %v", err, node, holders, entry)
	}
	if node != held {
		t.Error("the addresses were copied")
	}
}

// TestReported checks the values that may become free when a source reports something else about the Node.
func TestReported(t *testing.T) {
	t.Parallel()
	c := sourceOf(t, nodeWith("a", "10.0.0.1", "A.example.com"))
	for node, want := range map[string][]san.SAN{"a": sans("10.0.0.1", "a.example.com"), "b": nil, "": nil} {
		got, err := c.Reported(node)
		if diff := cmp.Diff(want, got, byValue); diff != "" || err != nil {
			t.Errorf("%q: error %v (-want +got):\n%s", node, err, diff)
		}
	}
	c.services.Fake(informer.ErrNotRead)
	if got, err := c.Reported("a"); len(got) > 0 || !errors.Is(err, informer.ErrNotRead) {
		t.Errorf("before all is read, %v, error %v", got, err)
	}
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

// A missing right is named while there is no answer. One resource that can't be read blocks all answers.
func TestErr(t *testing.T) {
	t.Parallel()
	c := sourceOf(t)
	const missing = "grant list and watch on services (config/kubelet-serving): forbidden"
	forbidden := errors.New(missing)
	says := func(want string) {
		t.Helper()
		_, nodeErr := c.Node("a")
		_, holdersErr := c.Holders(san.SAN{})
		_, _, takenErr := c.Taken(san.SAN{})
		for _, err := range []error{nodeErr, holdersErr, takenErr} {
			if err == nil || err.Error() != want || errors.Is(err, informer.ErrNotRead) != (want == "not read yet") {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	c.nodes.Fake(informer.ErrNotRead)
	says("not read yet")
	c.services.Fake(forbidden)
	says(missing)
	c.nodes.Fake(errors.New("down"))
	says("down")
	c.nodes.Fake(nil)
	says(missing)
	c.services.Fake(nil)
	if _, err := c.Node("a"); err != nil {
		t.Errorf("when all has been read: %v", err)
	}
}

// newSource returns a Source that has read nothing.
func newSource(t testing.TB) *Source {
	t.Helper()
	s, err := New(&rest.Config{}, nil, Options{Services: true}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func nodeWith(name string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Address: address})
	}
	return node
}

func serviceWith(addresses ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{ExternalIPs: addresses}}
}

// TestFreed checks that Freed gets names and addresses. A node that changes its addresses often then wakes only
// requests that need them.
func TestFreed(t *testing.T) {
	t.Parallel()
	type nodes = func(before, after *corev1.Node)
	type services = func(before, after *corev1.Service)
	for name, test := range map[string]struct {
		act  func(nodes, services)
		want string
	}{
		"a Node comes":                  {func(changed nodes, _ services) { changed(nil, nodeWith("a", "10.0.0.1")) }, "node a"},
		"a Node goes":                   {func(changed nodes, _ services) { changed(nodeWith("a", "10.0.0.1", "A"), nil) }, "node a, free [10.0.0.1 a]"},
		"a Node without addresses goes": {func(changed nodes, _ services) { changed(nodeWith("a"), nil) }, "node a"},
		"an added address": {func(changed nodes, _ services) {
			changed(nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1", "10.0.0.2"))
		}, "node a"},
		"a removed address": {func(changed nodes, _ services) {
			changed(nodeWith("a", "10.0.0.1", "10.0.0.2"), nodeWith("a", "10.0.0.2"))
		}, "node a, free [10.0.0.1]"},
		// Requests of b also wait for values that a or a third Node reports: the entry of b has changed.
		"an added address that another Node reports": {func(changed nodes, _ services) {
			changed(nodeWith("a"), nodeWith("a", "10.0.0.7"))
		}, "node a, free [10.0.0.7 b.example.com]"},
		"a removed address that another Node reports": {func(changed nodes, _ services) {
			changed(nodeWith("a", "10.0.0.7"), nodeWith("a"))
		}, "node a, free [10.0.0.7 10.0.0.7 b.example.com]"},
		"an added address that three other Nodes report": {func(changed nodes, _ services) {
			changed(nodeWith("a"), nodeWith("a", "10.0.0.9"))
		}, "node a, free [10.0.0.9 10.0.0.9 10.0.0.9]"},
		"an added address that many Nodes report": {func(changed nodes, _ services) {
			changed(nodeWith("a"), nodeWith("a", "10.0.0.8"))
		}, "node a"},
		"an added address that many Nodes report, and one that another does": {func(changed nodes, _ services) {
			changed(nodeWith("a"), nodeWith("a", "10.0.0.8", "10.0.0.7"))
		}, "node a, free [10.0.0.7 b.example.com]"},
		"the same":                         {func(changed nodes, _ services) { changed(nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1")) }, ""},
		"a Service comes":                  {func(_ nodes, changed services) { changed(nil, serviceWith("10.0.0.1")) }, ""},
		"a Service goes":                   {func(_ nodes, changed services) { changed(serviceWith("10.0.0.1"), nil) }, "free [web web.default 10.0.0.1]"},
		"a Service without addresses goes": {func(_ nodes, changed services) { changed(serviceWith(), nil) }, "free [web web.default]"},
		"a Service moves":                  {func(_ nodes, changed services) { changed(serviceWith("10.0.0.1"), serviceWith("10.0.0.2")) }, "free [10.0.0.1]"},
	} {
		var told []string
		s := newSource(t)
		s.Changed = func(node string) { told = append(told, "node "+node) }
		s.Freed = func(sans []san.SAN) { told = append(told, fmt.Sprintf("free %v", sans)) }
		test.act(s.nodes.OnChange, s.services.OnChange)
		if len(told) > 0 {
			t.Errorf("%s: told %q before all is read", name, told)
		}
		s.nodes.Fake(nil, nodeWith("b", "10.0.0.7", "b.example.com"), nodeWith("c", "10.0.0.8"), nodeWith("d", "10.0.0.8"),
			nodeWith("e", "10.0.0.8"), nodeWith("f", "10.0.0.8"),
			nodeWith("g", "10.0.0.9"), nodeWith("h", "10.0.0.9"), nodeWith("i", "10.0.0.9"))
		s.services.Fake(nil)
		s.endpoints.Fake(nil)
		test.act(s.nodes.OnChange, s.services.OnChange)
		if got := strings.Join(told, ", "); got != test.want {
			t.Errorf("%s: told %q, want %q", name, got, test.want)
		}
	}
}

// TestRecheckedNodesAreBounded has a Node that gets an address of each of many other Nodes. The requests of the first
// mostRechecked of them are judged again, and no more.
func TestRecheckedNodesAreBounded(t *testing.T) {
	t.Parallel()
	for others, want := range map[int]int{mostRechecked: mostRechecked, mostRechecked + 1: mostRechecked} {
		var nodes []*corev1.Node
		var addresses []string
		for i := range others {
			addresses = append(addresses, fmt.Sprintf("10.0.1.%d", i))
			nodes = append(nodes, nodeWith(fmt.Sprintf("n-%d", i), addresses[i]))
		}
		s := sourceOf(t, nodes...)
		var freed []san.SAN
		s.Freed = func(sans []san.SAN) { freed = append(freed, sans...) }
		s.nodes.OnChange(nodeWith("a"), nodeWith("a", addresses...))
		if diff := cmp.Diff(sans(addresses[:want]...), freed, byValue); diff != "" {
			t.Errorf("%d other Nodes: freed (-want +got):\n%s", others, diff)
		}
	}
}

// TestTaken checks which names and addresses a Service or an API server has.
func TestTaken(t *testing.T) {
	t.Parallel()
	s := newSource(t)
	if _, _, err := s.Taken(san.Parse("10.0.0.1")); err == nil {
		t.Error("no error before the Services are read")
	}
	s.nodes.Fake(nil)
	shared := serviceWith("10.0.0.1", "10.0.0.4")
	shared.Name = "zone"
	s.services.Fake(nil, shared, serviceWith("10.0.0.1"))
	s.endpoints.Fake(nil, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}}},
	})
	for text, want := range map[string][2]string{
		"10.0.0.1": {"Service default/web", ""}, "10.0.0.2": {"", "an endpoint"}, "10.0.0.3": {}, "10.0.0.4": {"Service default/zone", ""},
		"web": {"Service default/web", ""}, "web.default": {"Service default/web", ""}, "host.web.default": {"Service default/web", ""},
		"host.web.other": {}, "other.default": {},
	} {
		service, endpoint, err := s.Taken(san.Parse(text))
		if got := [2]string{service, endpoint}; err != nil || got != want {
			t.Errorf("%s: %q, error %v, want %q", text, got, err, want)
		}
	}
}

// TestWhatObjectsHave checks that addresses are parsed as the API server parses them, in every notation.
func TestWhatObjectsHave(t *testing.T) {
	for name, test := range map[string]struct{ got, want []san.SAN }{
		"a Service": {serviceSANs(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "metrics-server"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:0::1"}, ExternalIPs: []string{"010.0.0.1", "::ffff:010.0.0.2"},
				LoadBalancerIP: "192.0.2.66", ExternalName: "elsewhere.example.com",
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.000.002.007"}, {Hostname: "LB.example.com."}}}},
		}), sans("metrics-server", "metrics-server.kube-system", "10.96.0.1", "10.96.0.1", "fd00::1", "10.0.0.1", "10.0.0.2", "192.0.2.7", "lb.example.com")},
		"a Service without an address": {serviceSANs(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}},
		}), sans("headless", "headless.default")},
		"a Node": {nodeSANs(&corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Address: "010.000.000.001"}, {Address: "Node-1"}, {Address: "fd00::1%eth0"}, {Address: "010.0.0.256"}, {Address: ""},
		}}}), sans("10.0.0.1", "node-1", "fd00::1%eth0", "010.0.0.256")},
		"endpoints": {sliceSANs(&discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.01"}}}}), sans("10.0.0.1")},
	} {
		if diff := cmp.Diff(test.want, test.got, byValue); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestGrantedBy checks that the message about a missing right names the manifest with the role.
func TestGrantedBy(t *testing.T) {
	t.Parallel()
	s := newSource(t)
	for got, want := range map[string]string{
		s.nodes.GrantedBy:     "config/kubelet-serving or config/node-identity",
		s.services.GrantedBy:  "config/kubelet-serving",
		s.endpoints.GrantedBy: "config/kubelet-serving",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
