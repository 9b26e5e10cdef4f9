package approver

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

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

// facts looks up what judgeServing needs to know. What can't be found out is a fact too.
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
	for _, san := range inventory.SANs(req.Cert) {
		each := sanFacts{san: san, reserved: s.Reserved.Why(san)}
		if each.taken, err = s.taken(ctx, node, found.Entry, san); err != nil {
			facts.unavailable = err.Error()
		}
		if facts.unavailable == "" && found.Entry != nil && found.Owns(san) {
			if err := s.weigh(ctx, req, found, &each); err != nil {
				facts.unavailable = err.Error()
			}
		}
		facts.names = append(facts.names, each)
	}
	return facts, nil
}

// taken says which Service or API server has san.
func (s Serving) taken(ctx context.Context, node string, entry *inventory.Entry, san inventory.SAN) (string, error) {
	service, endpoint, err := s.Inventory.taken(ctx, san)
	if err != nil {
		return "", fmt.Errorf("look for %s among Services: %w", san, err)
	}
	if endpoint != "" && entry != nil && entry.Owns(san) && slices.Contains(s.APIServerNodes, node) {
		endpoint = ""
	}
	if service != "" {
		return service, nil
	}
	return endpoint, nil
}

// weigh finds out whether the node has the best claim to what its source gives it.
func (s Serving) weigh(ctx context.Context, req *csr.Request, found inventory.Found, each *sanFacts) error {
	node, err := s.Inventory.cluster.Node(ctx, req.NodeName())
	if err != nil {
		return fmt.Errorf("look for Node %s: %w", csr.Shorten(req.NodeName()), err)
	}
	holders, err := s.Inventory.cluster.Holders(ctx, each.san)
	if err != nil {
		return fmt.Errorf("look for %s among Nodes: %w", each.san, err)
	}
	ours := claimOf(found, each.san, node)
	each.unpublished = ours.shared && !slices.ContainsFunc(holders, func(holder corev1.Node) bool { return holder.Name == req.NodeName() })
	if each.contested, err = s.Inventory.sources.Owner(each.san, ours.stronger()); err == nil && each.contested == "" {
		each.contested, err = s.rival(ctx, req, each.san, ours, holders)
	}
	return err
}

// rival names the first other one of holders, which report san, whose claim is better than ours.
func (s Serving) rival(ctx context.Context, req *csr.Request, san inventory.SAN, ours claim, holders []corev1.Node) (string, error) {
	for i := range holders {
		holder := &holders[i]
		if holder.Name == req.NodeName() {
			continue
		}
		// Weaker sources could give it no better claim, and are not waited for.
		theirs, err := s.Inventory.sources[:ours.rank+1].Lookup(ctx, holder.Name, req)
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
