package inventory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// viewOf returns a view of c that runs nowhere.
func viewOf(c *Cluster, sans func(any) []SAN) *view {
	return c.view(&upstream{}, sans, logr.Discard())
}

// holds lets v have read objs.
func holds(v *view, objs ...any) {
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, v.indexers)
	for _, obj := range objs {
		_ = store.Add(obj)
	}
	v.set(store, nil)
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

// What is given up is told by name and address: who does it, and may do it often, wakes nobody who does not ask for it.
func TestClusterTellsWhatIsFree(t *testing.T) {
	t.Parallel()
	type handler = toolscache.ResourceEventHandler
	for name, test := range map[string]struct {
		act  func(nodes, services handler)
		want string
	}{
		"a Node comes": {func(nodes, _ handler) { nodes.OnAdd(nodeWith("a", "10.0.0.1"), false) }, "node a"},
		"a Node goes":  {func(nodes, _ handler) { nodes.OnDelete(nodeWith("a", "10.0.0.1", "A")) }, "node a, free [10.0.0.1 a]"},
		"a Node goes unseen": {func(nodes, _ handler) {
			nodes.OnDelete(toolscache.DeletedFinalStateUnknown{Obj: nodeWith("a", "10.0.0.1")})
		}, "node a, free [10.0.0.1]"},
		"a Node without addresses goes": {func(nodes, _ handler) { nodes.OnDelete(nodeWith("a")) }, "node a"},
		"an address more": {func(nodes, _ handler) {
			nodes.OnUpdate(nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1", "10.0.0.2"))
		}, "node a"},
		"an address less": {func(nodes, _ handler) {
			nodes.OnUpdate(nodeWith("a", "10.0.0.1", "10.0.0.2"), nodeWith("a", "10.0.0.2"))
		}, "node a, free [10.0.0.1]"},
		// Requests of b wait for what a reports too, or for what a third one does: what is known of b has changed.
		"an address that another one reports": {func(nodes, _ handler) {
			nodes.OnUpdate(nodeWith("a"), nodeWith("a", "10.0.0.7"))
		}, "node a, free [10.0.0.7 b.example.com]"},
		"an address less that another one reports": {func(nodes, _ handler) {
			nodes.OnUpdate(nodeWith("a", "10.0.0.7"), nodeWith("a"))
		}, "node a, free [10.0.0.7 10.0.0.7 b.example.com]"},
		"an address that many report": {func(nodes, _ handler) {
			nodes.OnUpdate(nodeWith("a"), nodeWith("a", "10.0.0.8"))
		}, "node a"},
		"the same":                         {func(nodes, _ handler) { nodes.OnUpdate(nodeWith("a", "10.0.0.1"), nodeWith("a", "10.0.0.1")) }, ""},
		"a Service comes":                  {func(_, services handler) { services.OnAdd(serviceWith("10.0.0.1"), false) }, ""},
		"a Service goes":                   {func(_, services handler) { services.OnDelete(serviceWith("10.0.0.1")) }, "free [web web.default 10.0.0.1]"},
		"a Service without addresses goes": {func(_, services handler) { services.OnDelete(serviceWith()) }, "free [web web.default]"},
		"a Service moves":                  {func(_, services handler) { services.OnUpdate(serviceWith("10.0.0.1"), serviceWith("10.0.0.2")) }, "free [10.0.0.1]"},
	} {
		var told []string
		c := &Cluster{
			Changed: func(node string) { told = append(told, "node "+node) },
			Freed:   func(sans []SAN) { told = append(told, fmt.Sprintf("free %v", sans)) },
		}
		c.nodes, c.services, c.endpoints = viewOf(c, nodeSANs), viewOf(c, serviceSANs), viewOf(c, sliceSANs)
		nodes, services := c.nodes.handler(), c.services.handler()
		test.act(nodes, services)
		if len(told) > 0 {
			t.Errorf("%s: told %q before all is read", name, told)
		}
		holds(c.nodes, nodeWith("b", "10.0.0.7", "b.example.com"), nodeWith("c", "10.0.0.8"), nodeWith("d", "10.0.0.8"), nodeWith("e", "10.0.0.8"), nodeWith("f", "10.0.0.8"))
		holds(c.services)
		holds(c.endpoints)
		test.act(nodes, services)
		if got := strings.Join(told, ", "); got != test.want {
			t.Errorf("%s: told %q, want %q", name, got, test.want)
		}
	}
}

// What a machine had is told once it has changed, as somebody whose claim was worse may wait for it.
func TestMachinesTellWhatIsFree(t *testing.T) {
	t.Parallel()
	a := known{node: "a", sans: []SAN{ParseSAN("10.0.0.1")}}
	gone, moved := a, a
	gone.leaving, moved.sans = true, []SAN{ParseSAN("10.0.0.2")}
	for name, test := range map[string]struct {
		before, after *machine
		want          string
	}{
		"comes":              {nil, &machine{known: a}, ""},
		"stays as it is":     {&machine{known: a}, &machine{known: a}, ""},
		"is being deleted":   {&machine{known: a}, &machine{known: gone}, "10.0.0.1"},
		"has another one":    {&machine{known: a}, &machine{known: moved}, "10.0.0.1"},
		"goes":               {&machine{known: a}, nil, "10.0.0.1"},
		"goes without names": {&machine{known: known{node: "a"}}, nil, ""},
	} {
		told := ""
		m := &Machine{Changed: func(string) {}, Freed: func(sans []SAN) { told = strings.Trim(fmt.Sprint(sans), "[]") }}
		var before, after metav1.Object
		if test.before != nil {
			before = test.before
		}
		if test.after != nil {
			after = test.after
		}
		if m.changed(before, after); told != test.want {
			t.Errorf("%s: told %q, want %q", name, told, test.want)
		}
	}
}
