package approver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// Serving is what KubeletServing asks.
type Serving struct {
	// Inventory says what belongs to a node, and what Services, the API server and other Nodes have.
	Inventory *Inventory
	// Reserved is what no node can have.
	Reserved inventory.Reserved
	// APIServerNodes are the nodes on which an API server runs, so that its endpoint is the node's own address: they hold
	// the API server's key already. No source makes a node one of them.
	APIServerNodes []string
}

// KubeletServing is the rule for kubelet serving certificates, which kube-controller-manager does not approve: the
// request is exactly a kubelet's, made by that very kubelet, and every name and address in it belongs to the node (TLS
// bootstrapping, "Certificate rotation"; asks for a certificate of somebody else's are what it is about).
func KubeletServing(s Serving) Rule {
	s.Inventory.services = true
	return Rule{SignerName: certificatesv1.KubeletServingSignerName, Judge: s.judge}
}

func (s Serving) judge(ctx context.Context, req *csr.Request) (Decision, error) {
	if len(reviewServing(req)) > 0 {
		return judgeServing(req, servingFacts{}), nil // whatever is known of the node
	}
	facts, err := s.facts(ctx, req)
	if err != nil {
		return Decision{}, err
	}
	return judgeServing(req, facts), nil
}

// facts looks up what judgeServing needs to know. What can't be found out is a fact too. Others' claims are weighed last,
// and only if nothing else stands against the request: that takes longest.
func (s Serving) facts(ctx context.Context, req *csr.Request) (servingFacts, error) {
	node := req.NodeName()
	found, err := s.Inventory.lookup(ctx, node, req)
	if ctx.Err() != nil {
		return servingFacts{}, context.Cause(ctx)
	}
	facts := servingFacts{entry: found.Entry}
	if err != nil {
		facts.unavailable = err.Error()
	}
	if err := s.Inventory.apiServers.Ready(); err != nil {
		facts.unavailable = err.Error()
	}
	for _, san := range inventory.SANs(req.Cert) {
		each := sanFacts{san: san, reserved: s.Reserved.Why(san)}
		if each.taken, each.apiServer, err = s.taken(ctx, node, found.Entry, san); err != nil {
			facts.unavailable = err.Error()
		}
		facts.names = append(facts.names, each)
	}
	if len(judgeNames(node, facts)) == 0 {
		if err := s.weigh(ctx, req, found, facts.names); err != nil {
			facts.unavailable = err.Error()
		}
	}
	return facts, nil
}

// taken says which Service has san, and what of the API servers it is. What is a node's own, and an API server runs there,
// is not counted. Nor is a Service that is called as the node is: only pods beside that Service mean it by this name alone.
func (s Serving) taken(ctx context.Context, node string, entry *inventory.Entry, san inventory.SAN) (service, apiServer string, err error) {
	service, apiServer, err = s.Inventory.taken(ctx, san)
	if err != nil {
		return "", "", fmt.Errorf("look for %s among Services: %w", san, err)
	}
	if short, _, _ := strings.Cut(node, "."); san.Name != "" && san.Name == short {
		service = ""
	}
	if apiServer != "" && entry != nil && entry.Owns(san) && slices.Contains(s.APIServerNodes, node) {
		apiServer = ""
	}
	return service, apiServer, nil
}

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
