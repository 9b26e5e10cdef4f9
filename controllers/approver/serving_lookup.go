package approver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Serving configures KubeletServing.
type Serving struct {
	// Inventory knows what belongs to a node, and what belongs to Services, the API server and other Nodes.
	Inventory *Inventory
	// Reserved holds the names and addresses that no node can have.
	Reserved san.Reserved
	// APIServerNodes are the nodes on which an API server runs. The API server's endpoint is such a node's own address,
	// and the node already holds the API server's key. Sources cannot add to this list.
	APIServerNodes []string
}

// KubeletServing returns the rule for kubelet serving certificates, which kube-controller-manager does not approve.
// The request must have exactly a kubelet's content, and its requester must be that kubelet. Every name and address in
// it must belong to the node (TLS bootstrapping, "Certificate rotation"). The rule prevents certificates for names of
// other nodes.
func KubeletServing(s Serving) Rule {
	return Rule{SignerName: certificatesv1.KubeletServingSignerName, Judge: s.judge, needsServices: true}
}

func (s Serving) judge(ctx context.Context, req *csr.Request) (Decision, error) {
	return judgeServing(req,
		func(facts *servingFacts) error { return s.lookUp(ctx, req, facts) },
		func(facts *servingFacts) error { return s.compareClaims(ctx, req, facts) })
}

// lookUp adds what is known about the node of req and about each name, except the claims of other nodes.
func (s Serving) lookUp(ctx context.Context, req *csr.Request, facts *servingFacts) error {
	for _, name := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
		facts.names = append(facts.names, nameFacts{san: name, reserved: s.Reserved.Why(name)})
	}
	switch {
	case s.Inventory.cluster == nil:
		return facts.fault(errNotRunning)
	case s.Inventory.reading.Load():
		return &pending.Waiting{}
	}
	var err error
	if facts.Found, err = s.Inventory.sources.Lookup(ctx, req.NodeName(), req); err != nil {
		if err := facts.fault(err); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := s.Inventory.apiServers.Ready(); err != nil {
		facts.unavailable = err.Error()
	}
	for i := range facts.names {
		if err := s.lookUpName(req.NodeName(), facts.Entry, &facts.names[i]); err != nil {
			facts.unavailable = err.Error()
		}
	}
	return nil
}

// lookUpName adds the Service and the API servers that have the name. It ignores the API servers if the name is an own
// address of a node in APIServerNodes. It ignores a Service with the node's name, because only pods in that Service's
// namespace use this name alone for it.
func (s Serving) lookUpName(node string, entry *inventory.Entry, name *nameFacts) error {
	service, apiServer, err := s.Inventory.cluster.Taken(name.san)
	if err != nil {
		return fmt.Errorf("look up %s in Services: %w", name.san, err)
	}
	if short, _, _ := strings.Cut(node, "."); name.san.Name == "" || name.san.Name != short {
		name.taken = service
	}
	if apiServer == "" {
		apiServer = s.Inventory.apiServers.Has(name.san)
	}
	if entry == nil || !entry.Owns(name.san) || !slices.Contains(s.APIServerNodes, node) {
		name.apiServer = apiServer
	}
	return nil
}

// compareClaims adds the claims of other nodes to the requested names.
func (s Serving) compareClaims(ctx context.Context, req *csr.Request, facts *servingFacts) error {
	c := claims{
		ctx: ctx, sources: s.Inventory.sources, holders: s.Inventory.cluster.Holders, reported: s.Inventory.cluster.Reported,
		barred: func(node string, name san.SAN) bool {
			return s.Inventory.apiServers.Has(name) != "" && !slices.Contains(s.APIServerNodes, node)
		},
		req: req, found: facts.Found, others: map[string]inventory.Found{},
	}
	if err := c.compare(facts.names); err != nil {
		return facts.fault(err)
	}
	return nil
}

// maxLookups bounds the other nodes that are looked up for a request in sources that may be slow.
const maxLookups = 4 * inventory.MaxRivals

// claims compares all claims to the names in a request.
type claims struct {
	ctx      context.Context
	sources  inventory.Sources
	holders  func(san.SAN) ([]string, error)
	reported func(node string) ([]san.SAN, error)
	// barred reports whether node cannot claim name because it is the API server's.
	barred func(node string, name san.SAN) bool
	req    *csr.Request
	found  inventory.Found            // of the requesting node
	others map[string]inventory.Found // other nodes that have been looked up, by name
}

// compare stops at the first name to which another node has a claim.
func (c claims) compare(names []nameFacts) error {
	node := c.req.NodeName()
	ownership := &inventory.Ownership{Holders: c.holders, Reported: c.reported, Claim: c.claim}
	for i := range names {
		each := &names[i]
		holders, err := c.holders(each.san)
		if err != nil {
			return fmt.Errorf("look up %s in Nodes: %w", each.san, err)
		}
		ours := c.found.Claim(each.san)
		each.unpublished = c.found.Shares(each.san) && !slices.Contains(holders, node)
		stronger := ours.Rank // stronger counts the sources whose exclusive claim outranks ours
		if ours.Strength != inventory.Alone {
			stronger++
		}
		if each.contested, err = c.sources.Owner(each.san, stronger); err != nil || each.contested != "" {
			return err
		}
		if ours.Strength == inventory.ForSeveral && c.sources.NamesOwners(stronger) {
			continue // other nodes may report it too, perhaps all of them
		}
		if each.contest, err = ownership.Contest(node, each.san); err != nil || each.contest.Contested() {
			return err
		}
	}
	return nil
}

// claim returns the claim of node to name. It skips sources that are weaker than the source of the requesting node,
// because they cannot give a better claim.
func (c claims) claim(node string, name san.SAN) (inventory.Claim, error) {
	if node == c.req.NodeName() {
		return c.found.Claim(name), nil
	}
	if c.barred(node, name) {
		return inventory.Claim{}, nil
	}
	found, known := c.others[node]
	if !known {
		first := c.found.Rank + 1
		if len(c.others) >= maxLookups && !c.sources.NamesOwners(first) {
			return inventory.Claim{}, fmt.Errorf("more than %d other Nodes claim the same names", maxLookups)
		}
		var err error
		if found, err = c.sources.Claimant(c.ctx, node, first, c.req); err != nil {
			return inventory.Claim{}, err
		}
		c.others[node] = found
	}
	return found.Claim(name), nil
}
