package inventory

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// oneNode is a cache of one Node, which counts how often it is asked for copies.
type oneNode struct {
	cache.Cache
	node   *corev1.Node
	copies int
}

func (c *oneNode) Get(_ context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	if opts := (&client.GetOptions{}).ApplyOptions(options); opts.UnsafeDisableDeepCopy == nil || !*opts.UnsafeDisableDeepCopy {
		c.copies++
	}
	if key.Name != c.node.Name {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, key.Name)
	}
	*obj.(*corev1.Node) = *c.node
	return nil
}

func (c *oneNode) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	if opts := (&client.ListOptions{}).ApplyOptions(options); opts.UnsafeDisableDeepCopy == nil || !*opts.UnsafeDisableDeepCopy {
		c.copies++
	}
	if nodes, ok := list.(*corev1.NodeList); ok {
		nodes.Items = []corev1.Node{*c.node}
	}
	return nil
}

// A node may report tens of thousands of addresses, and ask for a thousand of them: a copy for each would cost a second.
func TestClusterCopiesNothing(t *testing.T) {
	t.Parallel()
	held := &oneNode{node: nodeWith("a", "10.0.0.1")}
	c := &Cluster{cache: held}
	c.synced.Store(true)
	node, nodeErr := c.Node(t.Context(), "a")
	holders, holdersErr := c.Holders(t.Context(), ParseSAN("10.0.0.1"))
	_, _, takenErr := c.Taken(t.Context(), ParseSAN("10.0.0.1"))
	entry, entryErr := c.Lookup(t.Context(), "a", nil)
	if err := errors.Join(nodeErr, holdersErr, takenErr, entryErr); err != nil || node == nil || len(holders) != 1 || entry == nil {
		t.Fatalf("%v, %v, %v, %v", err, node, holders, entry)
	}
	if held.copies > 0 {
		t.Errorf("%d copies", held.copies)
	}
}

// What a Node reports may become free when a source says something else of it, if there is one.
func TestReported(t *testing.T) {
	t.Parallel()
	c := &Cluster{cache: &oneNode{node: nodeWith("a", "10.0.0.1", "A.example.com")}}
	if got := c.Reported("a"); len(got) > 0 {
		t.Errorf("before all is read, %v", got)
	}
	c.synced.Store(true)
	for node, want := range map[string][]SAN{"a": sans("10.0.0.1", "a.example.com"), "b": nil, "": nil} {
		if diff := cmp.Diff(want, c.Reported(node), byValue); diff != "" {
			t.Errorf("%q (-want +got):\n%s", node, diff)
		}
	}
}

// A right that is missing is named while nothing can be said, and what has been read since is not.
func TestClusterSaysWhyItIsNotRead(t *testing.T) {
	t.Parallel()
	c := &Cluster{}
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no right to list"))
	}
	says := func(want string) {
		t.Helper()
		_, nodeErr := c.Node(t.Context(), "a")
		_, holdersErr := c.Holders(t.Context(), SAN{})
		for _, err := range []error{nodeErr, holdersErr} {
			if err == nil || err.Error() != want || IsUnread(err) != (want == "not read yet") {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	says("not read yet")
	c.faults.note("*v1.Service", forbidden("services"))
	says("grant list and watch: services is forbidden: no right to list")
	c.faults.note("*v1.Node", errors.New("down"))
	says("down")
	c.faults.note("*v1.Node", nil)
	says("grant list and watch: services is forbidden: no right to list")
	c.faults.note("*v1.Service", nil)
	says("not read yet")
}
