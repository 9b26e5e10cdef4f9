package approver

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// Gate decides whether a recogniser is asked at all. A Decision without a reason lets the request pass; an error means
// that it could not find out.
type Gate func(context.Context, *csr.Request) (Decision, error)

// Bootstrap is what BoundNodeClient asks.
type Bootstrap struct {
	// Inventory says who expects the node, and which nodes are alive.
	Inventory *Inventory
	Policy    BootstrapPolicy
}

// confirmTimeout bounds the last look before an approval.
const confirmTimeout = 10 * time.Second

// BoundNodeClient is NodeClient with an identity behind each first certificate: whoever may bootstrap may ask only for a
// node that is expected and not there yet. Renewals are judged by their own permission alone, and wait for nothing; a node
// that may not renew is no new one. The permission is asked for last.
func BoundNodeClient(b Bootstrap) Rule {
	b.Inventory.bootstrap = true
	rule := NodeClient()
	for i := range rule.Recognisers {
		if recogniser := &rule.Recognisers[i]; recogniser.Name == "nodeclient" {
			bootstraps := recogniser.Matches
			recogniser.Matches = func(req *csr.Request) bool {
				return bootstraps(req) && req.Requester.Username != req.Cert.Subject.CommonName
			}
			recogniser.Gate = b.gate
		}
	}
	return rule
}

// gate judges by what the caches hold, and what passes once more by what the API server says at that moment.
func (b Bootstrap) gate(ctx context.Context, req *csr.Request) (Decision, error) {
	facts := b.known(ctx, req)
	decision := b.Policy.judge(req, facts)
	if decision.Reason == "" {
		b.confirm(ctx, req, facts)
		decision = b.Policy.judge(req, facts)
	}
	if ctx.Err() != nil {
		return Decision{}, context.Cause(ctx)
	}
	return decision, nil
}

// known are the facts that caches hold. What can't be found out is a fact too.
func (b Bootstrap) known(ctx context.Context, req *csr.Request) *bootstrapFacts {
	i := b.Inventory
	if i.cluster == nil {
		return &bootstrapFacts{unavailable: errNotRunning.Error()}
	}
	if _, err := i.serverTime.Skew(); err != nil { // its age is not known
		return &bootstrapFacts{unavailable: err.Error()}
	}
	facts := &bootstrapFacts{age: i.serverTime.Since(req.Created), unavailable: "it has not been looked up"}
	if decision := b.Policy.judge(req, facts); decision.Verdict != verdict.Wait {
		return facts // it is refused whatever is known of the node
	}
	facts.unavailable = ""
	node, nodeErr := i.cluster.Node(ctx, req.NodeName())
	life, renewed, leaseErr := i.leases.Of(req.NodeName())
	facts.node = b.Policy.stateOf(node != nil, life, renewed, req)
	facts.renewed = renewed
	var entryErr error
	if b.Policy.Expected {
		facts.entry, entryErr = i.expected(ctx, req)
	}
	if err := errors.Join(nodeErr, leaseErr, entryErr); err != nil {
		facts.unavailable = err.Error()
	}
	return facts
}

// confirm asks the API server itself for what a cache that lags behind could have wrong, and whether the requester is
// still there.
func (b Bootstrap) confirm(ctx context.Context, req *csr.Request, facts *bootstrapFacts) {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	live, name := b.Inventory.live, req.NodeName()
	var err, goneErr error
	switch facts.node {
	case nodeNone:
		var exists bool
		if exists, err = live.HasNode(ctx, name); exists {
			facts.node = nodeUnknown
		}
		if !facts.renewed.IsZero() { // its lease is left, and was dead
			renewed, leaseErr := live.Renewed(ctx, name)
			if leaseErr == nil && !renewed.Equal(facts.renewed) {
				facts.node = nodeUnknown
			}
			if !apierrors.IsNotFound(leaseErr) {
				err = errors.Join(err, leaseErr)
			}
		}
	case nodeDead:
		var renewed time.Time
		if renewed, err = live.Renewed(ctx, name); !renewed.Equal(facts.renewed) {
			facts.node = nodeUnknown
		}
	}
	facts.gone, goneErr = live.Gone(ctx, req.Requester)
	if err := errors.Join(err, goneErr); err != nil {
		facts.unavailable = err.Error()
	}
	facts.age = b.Inventory.serverTime.Since(req.Created)
}

// expected asks all sources but the Node: that a node is there is no reason to expect it.
func (i *Inventory) expected(ctx context.Context, req *csr.Request) (*inventory.Entry, error) {
	found, err := i.expecting.Lookup(ctx, req.NodeName(), req)
	return found.Entry, err
}
