package approver

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// maxRivals bounds how many other nodes are looked up for one request, each in sources that may be slow to answer. More
// have it wait.
const maxRivals = 50

// contest is about what one request asks for.
type contest struct {
	sources inventory.Inventory
	holders func(context.Context, inventory.SAN) ([]corev1.Node, error)
	req     *csr.Request
	found   inventory.Found            // of the node that asks
	node    *corev1.Node               // nil if there is none
	known   map[string]inventory.Found // by name, of other nodes that have been looked up
}

// weigh finds out whether the node has the best claim to what its source gives it.
func (s Serving) weigh(ctx context.Context, req *csr.Request, found inventory.Found, names []sanFacts) error {
	node, err := s.Inventory.cluster.Node(ctx, req.NodeName())
	if err != nil {
		return fmt.Errorf("look for Node %s: %w", csr.Shorten(req.NodeName()), err)
	}
	return contest{
		sources: s.Inventory.sources, holders: s.Inventory.cluster.Holders,
		req: req, found: found, node: node, known: map[string]inventory.Found{},
	}.weigh(ctx, names)
}

// weigh goes up to the first name to which another has a better claim.
func (c contest) weigh(ctx context.Context, names []sanFacts) error {
	for i := range names {
		each := &names[i]
		holders, err := c.holders(ctx, each.san)
		if err != nil {
			return fmt.Errorf("look for %s among Nodes: %w", each.san, err)
		}
		ours := claimOf(c.found, each.san, c.node)
		each.unpublished = ours.shared && !slices.ContainsFunc(holders, func(holder corev1.Node) bool { return holder.Name == c.req.NodeName() })
		if each.contested, err = c.sources.Owner(each.san, ours.stronger()); err == nil && each.contested == "" {
			each.contested, err = c.rival(ctx, each.san, ours, holders)
		}
		if err != nil || each.contested != "" {
			return err
		}
	}
	return nil
}

// rival names the first other one of holders, which report san, whose claim is better than ours.
func (c contest) rival(ctx context.Context, san inventory.SAN, ours claim, holders []corev1.Node) (string, error) {
	for i := range holders {
		holder := &holders[i]
		// One that no source could give a better claim is not looked up: that could fail, and is not waited for.
		if best := (claim{node: holder}); holder.Name == c.req.NodeName() || !best.beats(ours) {
			continue
		}
		theirs, err := c.lookup(ctx, holder.Name)
		if err != nil {
			return "", err
		}
		// It may report what a stronger source does not give it.
		if theirs.Entry != nil && theirs.Owns(san) && claimOf(theirs, san, holder).beats(ours) {
			return "Node " + holder.Name, nil
		}
	}
	return "", nil
}

// lookup asks for each node once. Sources weaker than ours could give it no better claim, and are not waited for.
func (c contest) lookup(ctx context.Context, node string) (inventory.Found, error) {
	if found, known := c.known[node]; known {
		return found, nil
	}
	if len(c.known) == maxRivals {
		return inventory.Found{}, fmt.Errorf("more than %d other Nodes report what it asks for", maxRivals)
	}
	found, err := c.sources[:c.found.Rank+1].Lookup(ctx, node, c.req)
	if err == nil {
		c.known[node] = found
	}
	return found, err
}
