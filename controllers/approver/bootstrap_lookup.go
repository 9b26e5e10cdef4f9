package approver

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// Bootstrap configures BoundNodeClient.
type Bootstrap struct {
	// Inventory knows which nodes are expected, and which nodes are alive.
	Inventory *Inventory
	Policy    BootstrapPolicy
}

// BoundNodeClient is NodeClient with an identity check for each first certificate. A bootstrapper may only request a
// node that is expected and does not exist yet. Renewals need only their own permission and wait for nothing. A node
// that may not renew is not treated as a new node. The inventory is asked after the permission was reviewed.
func BoundNodeClient(b Bootstrap) Rule {
	rule := NodeClient()
	rule.needsLeases = true
	bootstrapper := &rule.Recognisers[1] // nodeclient
	bound := bootstrapper.Matches
	bootstrapper.Matches = func(req *csr.Request) bool {
		return bound(req) && req.Requester.Username != req.Cert.Subject.CommonName
	}
	bootstrapper.Gate, bootstrapper.Confirm = b.gate, b.confirm
	if b.Policy.Trusted && len(b.Policy.Users) > 0 { // gate refuses all other users
		bootstrapper.Unreviewed = true
		bootstrapper.Message = "Auto approving kubelet client certificate of an expected machine."
	}
	return rule
}

// gate judges the content and the age of req.
func (b Bootstrap) gate(ctx context.Context, req *csr.Request) (judge.Decision, error) {
	facts := &bootstrapFacts{}
	if err := b.readAge(ctx, req, facts); err != nil {
		return b.judge(req, facts, err), nil
	}
	return b.Policy.checkRequest(req, facts.age), nil
}

// confirm judges req by the caches, and before it passes, by what the API server returns now.
func (b Bootstrap) confirm(ctx context.Context, req *csr.Request) (judge.Decision, error) {
	facts, err := b.lookUp(ctx, req)
	if decision := b.judge(req, facts, err); decision.Reason != "" {
		return decision, nil
	}
	return b.judge(req, facts, b.readLive(ctx, req, facts)), nil
}

// judge returns the decision by facts, which are incomplete if err is not nil.
func (b Bootstrap) judge(req *csr.Request, facts *bootstrapFacts, err error) judge.Decision {
	switch {
	case unknown(err) == reasonPending:
		return refuseBootstrap(judge.Wait, reasonPending,
			"the inventory can't say yet whether node %q may join: %v", nodeOf(req), err)
	case err != nil:
		facts.unavailable = err.Error()
	}
	return b.Policy.judge(req, facts)
}

// lookUp returns what the caches and the sources hold.
func (b Bootstrap) lookUp(ctx context.Context, req *csr.Request) (*bootstrapFacts, error) {
	i, node, facts := b.Inventory, req.NodeName(), &bootstrapFacts{}
	exists, nodeErr := i.cluster.Exists(node)
	life, renewed, leaseErr := i.leases.Of(node)
	facts.node, facts.renewed = b.Policy.stateOf(exists, life, renewed, req), renewed
	var entryErr error
	if b.Policy.Expected {
		var found inventory.Found
		found, entryErr = i.expecting.Lookup(ctx, node, req)
		facts.entry = found.Entry
	}
	return facts, errors.Join(nodeErr, leaseErr, entryErr)
}

// readAge sets the age of req by the API servers' time. It asks for the time again before the age refuses req, because a
// clock that was set back makes new requests look old.
func (b Bootstrap) readAge(ctx context.Context, req *csr.Request, facts *bootstrapFacts) error {
	if b.Inventory.serverTime == nil {
		return errNotRunning
	}
	now, err := b.Inventory.serverTime.Now(ctx)
	if err == nil && b.Policy.checkRequest(req, now.Sub(req.Created)).Reason == reasonTooOld {
		now, err = b.Inventory.serverTime.Fresh(ctx)
	}
	facts.age = now.Sub(req.Created)
	return err
}

// readLive reads from the API server the facts that a lagging cache could have wrong. It also checks whether the
// requester still exists. The age is read last, because the calls may take long.
func (b Bootstrap) readLive(ctx context.Context, req *csr.Request, facts *bootstrapFacts) error {
	live, node, none := b.Inventory.live, req.NodeName(), facts.node == nodeNone
	renewed, err := live.Renewed(ctx, node)
	switch {
	case none && apierrors.IsNotFound(err):
		err = nil
	case !renewed.Equal(facts.renewed): // a kubelet may run without a Node
		facts.node = nodeUnknown
	}
	if none {
		exists, nodeErr := live.HasNode(ctx, node)
		if exists {
			facts.node = nodeUnknown
		}
		err = errors.Join(err, nodeErr)
	}
	if !b.Policy.Trusted || req.Requester.UID != "" {
		gone, goneErr := live.Gone(ctx, req.Requester)
		facts.gone, err = gone, errors.Join(err, goneErr)
	}
	return errors.Join(err, b.readAge(ctx, req, facts))
}
