package approver

import (
	"context"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
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

func (s Serving) judge(ctx context.Context, req *csr.Request) (judge.Decision, error) {
	node := req.NodeName()
	return judgeServing(req, s.Reserved, func() (servingFacts, error) {
		if s.Inventory.cluster == nil {
			return servingFacts{}, errNotRunning
		}
		found, err := s.Inventory.sources.Lookup(ctx, node, req)
		return servingFacts{found, func(value san.SAN) (nameFacts, error) { return s.lookUpName(node, found, value) }}, err
	}), nil
}

// lookUpName returns what is known about one requested name or address of node. Each lookup is one in an index.
func (s Serving) lookUpName(node string, found inventory.Found, value san.SAN) (nameFacts, error) {
	holders, err := s.Inventory.cluster.Holders(value)
	if err != nil {
		return nameFacts{}, fmt.Errorf("look up %s in Nodes: %w", value, err)
	}
	var facts nameFacts
	if facts.apiServer, err = s.apiServer(node, value); err != nil {
		return nameFacts{}, fmt.Errorf("look up %s in API servers: %w", value, err)
	}
	// What a Node on the block list reports counts for nobody. What an API server has belongs to the nodes on which one
	// runs, whatever other Nodes report or are called.
	holders = slices.DeleteFunc(holders, func(holder string) bool {
		return s.Inventory.blocked(holder) && !inventory.IsName(holder, value) ||
			facts.apiServer != "" && !slices.Contains(s.APIServerNodes, holder)
	})
	if facts.service, err = s.service(node, value, len(holders) > 0); err != nil {
		return nameFacts{}, fmt.Errorf("look up %s in Services: %w", value, err)
	}
	if slices.Contains(s.APIServerNodes, node) {
		facts.apiServer = ""
	}
	facts.claim, err = s.Inventory.sources.Claim(found, node, value, holders)
	return facts, err
}

// apiServer returns how the API servers use value, or an empty text. Until their certificates have been read, only the
// node's own name can be approved, and for a moment after the start not even that.
func (s Serving) apiServer(node string, value san.SAN) (string, error) {
	endpoint, err := s.Inventory.cluster.Endpoint(value)
	switch {
	case err != nil:
		return "", err
	case endpoint:
		return "an endpoint", nil
	}
	ready := s.Inventory.apiServers.Ready
	if inventory.IsName(node, value) {
		ready = s.Inventory.apiServers.ReadyForOwnNames
	}
	if err := ready(); err != nil { // before Has, which knows all names from then on
		return "", err
	}
	return s.Inventory.apiServers.Has(value), nil
}

// service returns the Service that has value, or an empty text. A value that a Service only publishes counts if no Node
// reports it.
func (s Serving) service(node string, value san.SAN, reported bool) (string, error) {
	if !ofNode(node, value) {
		if service, err := s.Inventory.cluster.Service(value); service != "" || err != nil {
			return service, err
		}
	}
	if reported {
		return "", nil
	}
	return s.Inventory.cluster.Publisher(value)
}
