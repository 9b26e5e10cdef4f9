package inventory

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// clusterOf is a Cluster that has read objs.
func clusterOf(nodes ...any) *Cluster {
	c := &Cluster{}
	c.nodes, c.services, c.endpoints = viewOf(c, nodeSANs), viewOf(c, serviceSANs), viewOf(c, sliceSANs)
	holds(c.nodes, nodes...)
	holds(c.services)
	holds(c.endpoints)
	return c
}

// A node may report tens of thousands of addresses, and ask for a thousand of them: a copy for each would cost a second.
func TestClusterCopiesNothing(t *testing.T) {
	t.Parallel()
	held := nodeWith("a", "10.0.0.1")
	c := clusterOf(held)
	node, nodeErr := c.Node(t.Context(), "a")
	holders, holdersErr := c.Holders(ParseSAN("10.0.0.1"))
	_, _, takenErr := c.Taken(t.Context(), ParseSAN("10.0.0.1"))
	entry, entryErr := c.Lookup(t.Context(), "a", nil)
	if err := errors.Join(nodeErr, holdersErr, takenErr, entryErr); err != nil || len(holders) != 1 || entry == nil {
		t.Fatalf("%v, %v, %v, %v", err, node, holders, entry)
	}
	if node != held {
		t.Error("the addresses were copied")
	}
}

// What a Node reports may become free when a source says something else of it, if there is one.
func TestReported(t *testing.T) {
	t.Parallel()
	c := clusterOf(nodeWith("a", "10.0.0.1", "A.example.com"))
	for node, want := range map[string][]SAN{"a": sans("10.0.0.1", "a.example.com"), "b": nil, "": nil} {
		got, err := c.Reported(node)
		if diff := cmp.Diff(want, got, byValue); diff != "" || err != nil {
			t.Errorf("%q: error %v (-want +got):\n%s", node, err, diff)
		}
	}
	c.services.set(nil, errNotRead)
	if got, err := c.Reported("a"); len(got) > 0 || !IsUnread(err) {
		t.Errorf("before all is read, %v, error %v", got, err)
	}
}

// A right that is missing is named while nothing can be said. One resource that can't be read holds up all answers.
func TestClusterSaysWhyItIsNotRead(t *testing.T) {
	t.Parallel()
	c := clusterOf()
	services := schema.GroupVersionResource{Version: "v1", Resource: "services"}
	forbidden := explain("list", services, apierrors.NewForbidden(services.GroupResource(), "", errors.New("no right to list")))
	says := func(want string) {
		t.Helper()
		_, nodeErr := c.Node(t.Context(), "a")
		_, holdersErr := c.Holders(SAN{})
		_, _, takenErr := c.Taken(t.Context(), SAN{})
		for _, err := range []error{nodeErr, holdersErr, takenErr} {
			if err == nil || err.Error() != want || IsUnread(err) != (want == "not read yet") {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	c.nodes.set(nil, errNotRead)
	says("not read yet")
	c.services.set(nil, forbidden)
	says("grant list and watch on services (config/kubelet-serving): services is forbidden: no right to list")
	c.nodes.set(nil, errors.New("down"))
	says("down")
	holds(c.nodes)
	says("grant list and watch on services (config/kubelet-serving): services is forbidden: no right to list")
	holds(c.services)
	if _, err := c.Node(t.Context(), "a"); err != nil {
		t.Errorf("when all has been read: %v", err)
	}
}
