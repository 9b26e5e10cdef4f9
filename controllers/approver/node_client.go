package approver

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
)

// NodeClient judges requests for kubelet client certificates. The zero value does what kube-controller-manager does
// (package kubeletclient).
type NodeClient struct {
	// Bootstrap, if set, checks the identity of each node that requests its first certificate. A bootstrapper may then only
	// request a node that is expected and does not exist yet. Renewals need only their own permission and wait for nothing. A
	// node that may not renew is not treated as a new node.
	Bootstrap *bootstrap.Policy
}

// Judge implements Judge.
//
//  1. The content must be that of a kubelet, and no token for another node may be used.
//  2. With Bootstrap, a first certificate is refused by its content and its age alone, if possible.
//  3. Reviews: the first permission that the requester has approves.
//  4. With Bootstrap, a first certificate is judged by the caches and the sources of the inventory.
//  5. What it passes there is judged again by what the API server returns now.
func (n NodeClient) Judge(ctx context.Context, req *csr.Request, facts Facts) (judge.Decision, error) {
	policy := kubeletclient.Policy{RenewOnly: n.Bootstrap != nil}
	permissions := policy.Permissions(req)
	if len(permissions) == 0 {
		return policy.Judge(req), nil
	}
	first := n.Bootstrap != nil && permissions[0] == kubeletclient.NodeClient
	if first {
		age, err := n.age(ctx, req, facts)
		if refused := n.Bootstrap.Check(req, age); refused.Made() {
			return refused, nil
		}
		if err != nil {
			return missing(req, err), nil
		}
	}
	if !first || n.Bootstrap.Reviewed() {
		decision, err := review(ctx, req, policy, permissions, facts)
		if err != nil || decision.Verdict != judge.Approve || !first {
			return decision, err
		}
	}
	return n.judgeMachine(ctx, req, facts), nil
}

// review reviews permissions in order, until one is allowed.
func review(
	ctx context.Context, req *csr.Request, policy kubeletclient.Policy, permissions []kubeletclient.Permission, facts Facts,
) (judge.Decision, error) {
	for _, permission := range permissions {
		allowed, err := facts.Authorizer.Allowed(ctx, req.Requester, permission.Attributes())
		switch {
		case err != nil:
			return judge.Decision{}, fmt.Errorf("review permission %s of the requester: %w", string(permission), err)
		case allowed:
			return policy.Judge(req, permission), nil
		}
	}
	return policy.Judge(req), nil
}

// judgeMachine judges whether the machine behind req may become the node: by the caches, and before it passes, by what the
// API server returns now.
func (n NodeClient) judgeMachine(ctx context.Context, req *csr.Request, facts Facts) judge.Decision {
	found, seen, err := n.readCaches(ctx, req, facts.Inventory)
	if err != nil {
		return missing(req, err)
	}
	if decision := n.Bootstrap.Judge(req, found); decision.Verdict != judge.Approve {
		return decision
	}
	if err := n.readLive(ctx, req, facts, seen, &found); err != nil {
		return missing(req, err)
	}
	return n.Bootstrap.Judge(req, found)
}

// missing returns the decision about a first certificate while a fact is unknown because of err.
func missing(req *csr.Request, err error) judge.Decision {
	return judge.Wait.Because(unknown(err), "it is unknown whether node %q may join: %v; the request is checked again when "+
		"this changes, unless it is too old by then", csr.Shorten(req.NodeName()), err)
}

// readCaches returns what the caches and the sources hold about the node of req.
func (n NodeClient) readCaches(
	ctx context.Context, req *csr.Request, i *Inventory,
) (found bootstrap.Facts, seen bootstrap.Seen, err error) {
	exists, nodeErr := i.cluster.Exists(req.NodeName())
	life, renewed, leaseErr := i.leases.Of(req.NodeName())
	seen = bootstrap.Seen{
		Exists: exists, Renews: life == nodeidentity.Alive, Silent: life == nodeidentity.Dead, Renewed: renewed,
	}
	found.Node = n.Bootstrap.StateOf(req, seen)
	var entryErr error
	if n.Bootstrap.Expected {
		entry, err := i.expecting.Lookup(ctx, req.NodeName(), req)
		found.Entry, entryErr = entry.Entry, err
	}
	return found, seen, errors.Join(nodeErr, leaseErr, entryErr)
}

// age returns the age of req by the API servers' time. It asks for the time again before the age refuses req, because a
// clock that was set back makes new requests look old.
func (n NodeClient) age(ctx context.Context, req *csr.Request, facts Facts) (time.Duration, error) {
	if facts.Inventory.cluster == nil {
		return 0, errNotRunning
	}
	now, err := facts.ServerTime.Now(ctx)
	if err == nil && n.Bootstrap.Check(req, now.Sub(req.Created)).Reason == bootstrap.ReasonTooOld {
		now, err = facts.ServerTime.Fresh(ctx)
	}
	if err != nil {
		return 0, err
	}
	return now.Sub(req.Created), nil
}

// readLive corrects the facts that a lagging cache, in which seen was found, could have wrong. It also reads whether the
// requester still exists. The age is read last, because the calls may take long.
func (n NodeClient) readLive(
	ctx context.Context, req *csr.Request, facts Facts, seen bootstrap.Seen, found *bootstrap.Facts,
) error {
	live, node, none := nodeidentity.Live{Reader: facts.Live}, req.NodeName(), found.Node == bootstrap.NodeNone
	renewed, err := live.Renewed(ctx, node)
	switch {
	case none && apierrors.IsNotFound(err):
		err = nil
	case !renewed.Equal(seen.Renewed): // a kubelet may run without a Node
		found.Node = bootstrap.NodeUnknown
	}
	if none {
		exists, nodeErr := live.HasNode(ctx, node)
		if exists {
			found.Node = bootstrap.NodeUnknown
		}
		err = errors.Join(err, nodeErr)
	}
	if !n.Bootstrap.Trusted || req.Requester.UID != "" {
		gone, goneErr := live.Gone(ctx, req.Requester)
		found.Gone, err = gone, errors.Join(err, goneErr)
	}
	age, ageErr := n.age(ctx, req, facts)
	found.Age = age
	return errors.Join(err, ageErr)
}
