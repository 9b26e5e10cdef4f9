package approver

import (
	"context"
	"fmt"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// maxLookups bounds how many other nodes are looked up for one request in sources that may be slow to answer.
const maxLookups = 4 * inventory.MaxRivals

// contest is about what one request asks for.
type contest struct {
	ctx      context.Context
	sources  inventory.Inventory
	holders  func(inventory.SAN) ([]string, error)
	reported func(node string) ([]inventory.SAN, error)
	// barred reports whether node can have no claim to san, because it is the API server's.
	barred func(node string, san inventory.SAN) bool
	req    *csr.Request
	found  inventory.Found            // of the node that asks
	known  map[string]inventory.Found // by name, of other nodes that have been looked up
}

// weigh finds out whether others have a claim to what the node's source gives it.
func (s Serving) weigh(ctx context.Context, req *csr.Request, found inventory.Found, names []sanFacts) error {
	c := contest{
		ctx: ctx, sources: s.Inventory.sources, holders: s.Inventory.cluster.Holders, reported: s.Inventory.cluster.Reported,
		barred: func(node string, san inventory.SAN) bool {
			return s.Inventory.apiServers.Has(san) != "" && !slices.Contains(s.APIServerNodes, node)
		},
		req: req, found: found, known: map[string]inventory.Found{},
	}
	return c.weigh(names)
}

// weigh goes up to the first name that others have a claim to.
func (c contest) weigh(names []sanFacts) error {
	node := c.req.NodeName()
	ownership := &inventory.Ownership{Holders: c.holders, Reported: c.reported, Claim: c.claim}
	for i := range names {
		each := &names[i]
		holders, err := c.holders(each.san)
		if err != nil {
			return fmt.Errorf("look for %s among Nodes: %w", each.san, err)
		}
		ours := c.found.Claim(each.san)
		each.unpublished = c.found.Shares(each.san) && !slices.Contains(holders, node)
		stronger := ours.Rank // sources whose word that another one has it alone counts more
		if ours.Strength != inventory.Alone {
			stronger++
		}
		if each.contested, err = c.sources.Owner(each.san, stronger); err != nil || each.contested != "" {
			return err
		}
		if ours.Strength == inventory.ForSeveral && c.sources.NamesOwners(stronger) {
			continue // whoever else reports it may do so, and may be every node there is
		}
		if each.contest, err = ownership.Contest(node, each.san); err != nil || each.contest.Contested() {
			return err
		}
	}
	return nil
}

// claim is what speaks for node's having san. Sources weaker than the one that knows the node that asks could give no
// better claim, and are not waited for.
func (c contest) claim(node string, san inventory.SAN) (inventory.Claim, error) {
	if node == c.req.NodeName() {
		return c.found.Claim(san), nil
	}
	if c.barred(node, san) {
		return inventory.Claim{}, nil
	}
	found, known := c.known[node]
	if !known {
		first := c.found.Rank + 1
		if len(c.known) >= maxLookups && !c.sources.NamesOwners(first) {
			return inventory.Claim{}, fmt.Errorf("more than %d other Nodes would have to be looked up", maxLookups)
		}
		var err error
		if found, err = c.sources.Claimant(c.ctx, node, first, c.req); err != nil {
			return inventory.Claim{}, err
		}
		c.known[node] = found
	}
	return found.Claim(san), nil
}

// disputed says why nobody gets san for now, and what to do about it.
func disputed(node string, san inventory.SAN, contest inventory.Contest) string {
	node = csr.Shorten(node)
	switch {
	case contest.LeftOut != nil:
		return fmt.Sprintf("Node %q is left out of the comparison and gets nothing by its own word: %s; "+
			"find out what runs there, or have a Machine, a row or a webhook say what belongs to it",
			node, contest.LeftOut)
	case contest.Twice != "":
		return fmt.Sprintf("%s is given to node %q alone and to Node %s alone by the same source, so neither gets it: "+
			"correct the source, or delete the Node of a machine that was replaced",
			san, node, contest.Twice)
	case contest.Reporters > 2:
		return fmt.Sprintf("%s is reported by %d Nodes, such as %q and %s, so none of them gets it: "+
			"if they share it, add the row %s to a static source before the others",
			san, contest.Reporters, node, contest.Equal[0], sharedRow(san))
	}
	return fmt.Sprintf("%s is claimed by node %q and by Node %s with the same right, so neither gets it: "+
		"delete the Node of a machine that was replaced; have a Machine, a row or a webhook say whose it is; "+
		"or, if they share it, add the row %s to a static source before the others",
		san, node, contest.Equal[0], sharedRow(san))
}

// sharedRow is the row of a static list that lets all nodes have san.
func sharedRow(san inventory.SAN) string {
	if san.Name != "" {
		return fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}", %q], addresses: [CIDR of the nodes]}`, csr.Shorten(san.Name))
	}
	return fmt.Sprintf(`{namePattern: ".*", dnsNames: ["${node}"], addresses: [%q, CIDR of the nodes]}`, san)
}
