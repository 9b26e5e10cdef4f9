package approver

import (
	"context"
	"fmt"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// KubeletServing judges requests for kubelet serving certificates, which kube-controller-manager does not approve.
type KubeletServing struct{ Policy serving.Policy }

// Judge implements Judge. It reads the inventory after req itself has passed.
func (k KubeletServing) Judge(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error) {
	if refused := k.Policy.Check(req); refused.Made() {
		return refused, nil
	}
	found, err := from.Inventory.servingFacts(ctx, req)
	if err != nil {
		return judge.Wait.Because(unknown(err), "the request for signer %s is not approved: it is unknown what belongs to node %q: %v; "+
			"the request is checked again when this changes, or within five minutes", req.SignerName, csr.Shorten(req.NodeName()), err), nil
	}
	return k.Policy.Judge(req, found), nil
}

// servingFacts returns what is known about the node of req, and about each name and address in it.
func (i *Inventory) servingFacts(ctx context.Context, req *csr.Request) (facts serving.Facts, err error) {
	if i == nil || i.cluster == nil || i.apiServers == nil {
		return facts, errNotRunning
	}
	found, err := i.sources.Lookup(ctx, req.NodeName(), req)
	if found.Entry == nil || err != nil {
		return facts, err
	}
	facts = serving.Facts{Entry: found.Entry, Names: map[san.SAN]serving.Name{}}
	for _, value := range san.Of(req.Cert.DNSNames, req.Cert.IPAddresses) {
		if facts.Names[value], err = i.name(req.NodeName(), found, value); err != nil {
			return facts, fmt.Errorf("look up %s: %w", value, err)
		}
	}
	return facts, nil
}

// name returns what is known about value, which node requests. Each lookup is one in an index.
func (i *Inventory) name(node string, found inventory.Found, value san.SAN) (name serving.Name, err error) {
	if name.Holders, err = i.cluster.Holders(value); err != nil {
		return name, fmt.Errorf("in Nodes: %w", err)
	}
	name.Holders = slices.DeleteFunc(name.Holders, func(holder string) bool { return i.blocked(holder) && !inventory.IsName(holder, value) })
	if name.APIServer, err = i.apiServer(node, value); err != nil {
		return name, fmt.Errorf("in API servers: %w", err)
	}
	if name.Service, err = i.cluster.Service(value); err != nil {
		return name, fmt.Errorf("in Services: %w", err)
	}
	if name.Publisher, err = i.cluster.Publisher(value); err != nil {
		return name, fmt.Errorf("in Services: %w", err)
	}
	name.Owner, err = i.sources.Owner(found, value)
	return name, err
}

// apiServer returns how the API servers use value, or an empty text. Until their certificates have been read, only the
// node's own name can be approved, and for a moment after the start not even that.
func (i *Inventory) apiServer(node string, value san.SAN) (string, error) {
	endpoint, err := i.cluster.Endpoint(value)
	switch {
	case err != nil:
		return "", err
	case endpoint:
		return "an endpoint", nil
	}
	return i.apiServers.Use(value, inventory.IsName(node, value))
}
