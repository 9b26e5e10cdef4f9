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

// KubeletClient judges requests for kubelet client certificates. The zero value does what kube-controller-manager does
// (package kubeletclient).
type KubeletClient struct {
	// Bootstrap, if set, checks the identity of each node that requests its first certificate. A bootstrapper may then only
	// request a node that is expected and does not exist yet. Renewals need only their own permission and wait for nothing. A
	// node that may not renew is not treated as a new node.
	Bootstrap *bootstrap.Policy
}

// Judge implements Judge.
//
//  1. The content must be that of a kubelet, and no token for another node may be used.
//  2. With Bootstrap, a first certificate is refused by its requester, its name and its age alone, if possible.
//  3. Reviews: the first permission that the requester has approves.
//  4. With Bootstrap, a first certificate is judged by the caches and the sources of the inventory.
//  5. What it passes there is judged again by what the API server returns now.
func (n KubeletClient) Judge(ctx context.Context, req *csr.Request, from Readers) (judge.Decision, error) {
	policy := kubeletclient.Policy{RenewOnly: n.Bootstrap != nil}
	permissions := policy.Permissions(req)
	if len(permissions) == 0 {
		return policy.Judge(req), nil
	}
	first := n.Bootstrap != nil && permissions[0] == kubeletclient.NodeClient
	if first {
		now, err := n.now(ctx, req, from)
		if refused := n.Bootstrap.Check(req, now); refused.Made() { // without a time, the rest of the request still counts
			return refused, nil
		}
		if err != nil {
			return missing(req, err), nil
		}
	}
	var allowed []kubeletclient.Permission
	if !first || n.Bootstrap.Reviewed() {
		var err error
		if allowed, err = review(ctx, req, permissions, from); err != nil {
			return judge.Decision{}, err // the queue retries
		}
		if decision := policy.Judge(req, allowed...); decision.Verdict != judge.Approve || !first {
			return decision, nil
		}
	}
	found, seen, err := n.readCaches(ctx, req, from)
	if err != nil {
		return missing(req, err), nil
	}
	if decision := n.Bootstrap.Judge(req, found, allowed...); decision.Verdict != judge.Approve {
		return decision, nil
	}
	if err := n.readLive(ctx, req, from, seen, &found); err != nil {
		return missing(req, err), nil
	}
	return n.Bootstrap.Judge(req, found, allowed...), nil
}

// review returns the first of permissions that the requester has, if any.
func review(
	ctx context.Context, req *csr.Request, permissions []kubeletclient.Permission, from Readers,
) (allowed []kubeletclient.Permission, err error) {
	for _, permission := range permissions {
		permitted, err := from.Authorizer.Allowed(ctx, req.Requester, permission.Attributes())
		if err != nil {
			return nil, fmt.Errorf("review permission %s of the requester: %w", string(permission), err)
		}
		if permitted {
			return []kubeletclient.Permission{permission}, nil
		}
	}
	return nil, nil
}

// missing returns the decision about a first certificate while a fact is unknown because of err.
func missing(req *csr.Request, err error) judge.Decision {
	return judge.Wait.Because(unknown(err), "it is unknown whether node %q may join: %v; the request is checked again when "+
		"this changes, unless it is too old by then", csr.Shorten(req.NodeName()), err)
}

// readCaches returns what the caches and the sources hold about the node of req. Only readLive reads the time and whether the
// requester exists: until then, req counts as new and its requester as existing.
func (n KubeletClient) readCaches(
	ctx context.Context, req *csr.Request, from Readers,
) (found bootstrap.Facts, seen bootstrap.Seen, err error) {
	i := from.Inventory
	node, nodeErr := i.cluster.Lookup(ctx, req.NodeName(), req)
	lease, renewed, leaseErr := i.leases.Of(req.NodeName())
	seen = bootstrap.Seen{Exists: node != nil, Lease: lease, Renewed: renewed}
	found = bootstrap.Facts{Now: req.Created, Node: n.Bootstrap.StateOf(req, seen), Exists: true}
	var entryErr error
	if n.Bootstrap.Expected {
		entry, err := i.expecting.Lookup(ctx, req.NodeName(), req)
		found.Entry, entryErr = entry.Entry, err
	}
	return found, seen, errors.Join(nodeErr, leaseErr, entryErr)
}

// now returns the API servers' time, or zero with an error. It asks for the time again before the age refuses req, because a
// clock that was set back makes new requests look old.
func (n KubeletClient) now(ctx context.Context, req *csr.Request, from Readers) (time.Time, error) {
	if i := from.Inventory; i == nil || i.cluster == nil || i.leases == nil {
		return time.Time{}, errNotRunning
	}
	now, err := from.ServerTime.Now(ctx)
	if err == nil && n.Bootstrap.Check(req, now).Reason == bootstrap.ReasonTooOld {
		return from.ServerTime.Fresh(ctx)
	}
	return now, err
}

// readLive corrects the facts that a lagging cache, in which seen was found, could have wrong. It also reads whether the
// requester still exists. The time is read last, because the calls may take long.
func (n KubeletClient) readLive(
	ctx context.Context, req *csr.Request, from Readers, seen bootstrap.Seen, found *bootstrap.Facts,
) error {
	live, node, none := nodeidentity.Live{Reader: from.Live}, req.NodeName(), found.Node == bootstrap.NodeNone
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
	now, timeErr := n.now(ctx, req, from)
	found.Now = now
	return errors.Join(err, timeErr)
}
