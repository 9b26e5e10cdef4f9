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
