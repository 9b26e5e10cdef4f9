// Package bootstrap judges whether the machine behind a request may become the node that it names. It is for the first
// client certificate of a node: the permission nodeclient (package kubeletclient) alone permits any name.
package bootstrap

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
)

// Policy says which requests for a node's first certificate may be approved. The zero value has one rule: a token that is
// bound to a node requests only that node's certificate.
type Policy struct {
	// Expected requires that a source other than the Node expects the node.
	Expected bool
	// TokenBinding requires that a group binds the requester to the node.
	TokenBinding bool
	// Users, if any, are the only users that may bootstrap nodes.
	Users []string
	// Trusted drops two checks of Users, as OpenShift's machine-approver does: the permission nodeclient, and whether the
	// ServiceAccount still exists if the requester has no UID. A client certificate in the name of a ServiceAccount has none.
	Trusted bool
	// Rejoin permits an expected machine to join again if its Node is dead or gone.
	Rejoin bool
	// MaxRequestAge is the age above which a request is ignored; zero means no limit.
	MaxRequestAge time.Duration
	// Window is the time around a machine's creation in which a new machine may request its certificate.
	Window Window
	// CertificateLifetime is the longest lifetime of a kubelet's client certificate, whichever signer issued it. With
	// Rejoin, a node also counts as dead if it was last seen longer ago than that. Zero means unknown.
	CertificateLifetime time.Duration
}

// Window is the time from Before a machine's creation to After it. If After is zero, there is no window.
type Window struct{ Before, After time.Duration }

// Reasons of decisions.
const (
	// ReasonTooOld is the reason of a request that its kubelet no longer waits for.
	ReasonTooOld        = "RequestTooOld"
	reasonNotAuthorized = "NotAuthorized"
)

// NodeState is what the Node and the Lease with the requested name show.
type NodeState int

// The states of a node.
const (
	// NodeUnknown means that a Node or a Lease exists, and that neither life nor death is proven.
	NodeUnknown NodeState = iota
	NodeNone
	NodeAlive
	NodeDead
)

// LeaseState is what was observed of a Lease.
type LeaseState int

// The states of a Lease.
const (
	// LeaseUnknown means that it was not observed for long enough.
	LeaseUnknown LeaseState = iota
	// LeaseRenewing means that it was seen to change within the last minute.
	LeaseRenewing
	// LeaseSilent means that it has not changed for a minute or more of watching, while Leases of other nodes have.
	LeaseSilent
)

// Seen is what was observed of the Node and the Lease with the requested name.
type Seen struct {
	// Exists reports whether the Node exists.
	Exists bool
	Lease  LeaseState
	// Renewed is when the Lease was last renewed, by the node's clock. It is zero if the Lease does not exist.
	Renewed time.Time
}

// StateOf returns the state of the node of req. A Lease that is renewed proves that the node is alive, even without a
// Node. An unobserved Lease, for example after startup, still counts as a live node. A node also counts as dead if its
// last certificate expired before the request. It received that certificate before it was last seen. Both instants
// come from objects, so this process's clock has no effect.
func (p Policy) StateOf(req *csr.Request, seen Seen) NodeState {
	expired := p.CertificateLifetime > 0 && !seen.Renewed.IsZero() && req.Created.Sub(seen.Renewed) > p.CertificateLifetime+skew
	dead := seen.Lease == LeaseSilent || expired
	switch {
	case seen.Lease == LeaseRenewing:
		return NodeAlive
	case !seen.Exists && (dead || seen.Renewed.IsZero()):
		return NodeNone
	case dead:
		return NodeDead
	}
	return NodeUnknown
}

// skew bounds the difference between the clocks of a node and of the API server. It also covers the time between a
// node's new certificate and its next Lease renewal.
const skew = time.Hour

// Facts holds what is known about a request, beside its content. The zero value approves nothing.
type Facts struct {
	// Now is the time of the API servers. Zero means unknown.
	Now time.Time
	// Entry is what a source other than the Node knows about the node, or nil.
	Entry *inventory.Entry
	// Node is the state of the node.
	Node NodeState
	// Exists reports that the requester exists now, or that no API knows users of its kind. Gone says why it does not.
	Exists bool
	Gone   csr.Objection
}

// comesBack reports whether the machine had a Node of this name that is now dead or gone.
func (f Facts) comesBack(node string) bool {
	return f.Node == NodeDead || f.Node == NodeNone && f.Entry != nil && f.Entry.Bound == node
}

// Judge returns the decision about req. allowed holds the permissions that a SubjectAccessReview has allowed.
//
//  1. The content is that of a kubelet, and the requester has the permission nodeclient (package kubeletclient), unless the
//     policy needs no review of it. A renewal needs only its own permission, and ends here.
//  2. The request itself, which never changes, and its age (Check).
//  3. No node of this name may be alive.
//  4. A source must expect the machine, if the policy says so.
//  5. A machine that was this node before needs Rejoin. A new one must be within its window.
//  6. The requester must still exist.
func (p Policy) Judge(req *csr.Request, facts Facts, allowed ...kubeletclient.Permission) judge.Decision {
	if !p.Reviewed() {
		allowed = append(slices.Clone(allowed), kubeletclient.NodeClient)
	}
	approved := kubeletclient.Policy{RenewOnly: true}.Judge(req, allowed...)
	if approved.Verdict != judge.Approve || approved.By != string(kubeletclient.NodeClient) {
		return approved
	}
	for _, refusal := range []judge.Decision{p.Check(req, facts.Now), checkNode(req, facts.Node), p.checkExpected(req, facts.Entry)} {
		if refusal.Made() {
			return refusal
		}
	}
	if refusal := p.checkReturn(req, facts); refusal.Made() {
		return refusal
	}
	switch {
	case facts.Gone != csr.NoObjection:
		return refuse(judge.Wait, reasonNotAuthorized,
			"user %q, which requests node %q, no longer exists: %s; use another credential", userOf(req), nodeOf(req), facts.Gone)
	case !facts.Exists || facts.Now.IsZero():
		return refuse(judge.Wait, "InventoryUnavailable", "it is unknown whether user %q exists, or how old its request is", userOf(req))
	case !p.Reviewed():
		approved.Message = "Auto approving kubelet client certificate of an expected machine."
	}
	return approved
}

// Reviewed reports whether the requester needs the permission nodeclient.
func (p Policy) Reviewed() bool { return !p.Trusted || len(p.Users) == 0 }

// Check returns why req is refused at the time of the API servers, whatever is known about the node, or the zero Decision. If
// the time is unknown, the zero now, the age refuses nothing.
func (p Policy) Check(req *csr.Request, now time.Time) judge.Decision {
	_, _, noAccount := req.Requester.ServiceAccount()
	switch {
	case req.NodeName() == "":
		return refuse(judge.Deny, "ShapeMismatch", "subject %q has no node name", req.SubjectText())
	case len(validation.IsDNS1123Subdomain(req.NodeName())) > 0:
		return refuse(judge.Deny, "ShapeMismatch", "node name %q is not a name that a Node can have", nodeOf(req))
	case req.BoundElsewhere():
		return kubeletclient.BoundElsewhere(req)
	case p.TokenBinding && !req.BoundHere():
		return refuse(judge.Ignore, reasonNotAuthorized,
			"user %q is not bound to node %q: approval.nodeClient.requireTokenBinding permits only a token "+
				"with the group %s", userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	case len(p.Users) > 0 && !slices.Contains(p.Users, req.Requester.Username):
		return refuse(judge.Ignore, reasonNotAuthorized,
			"user %q may not bootstrap nodes: only users %q may", userOf(req), csr.ShortenAll(p.Users))
	case noAccount != csr.NoObjection:
		return refuse(judge.Ignore, reasonNotAuthorized, "user %q may not bootstrap nodes: %s", userOf(req), noAccount)
	case p.MaxRequestAge > 0 && !now.IsZero() && now.Sub(req.Created) > p.MaxRequestAge:
		return refuse(judge.Ignore, ReasonTooOld,
			"the request is older than approval.nodeClient.maxRequestAge, %s: its kubelet no longer waits for it", p.MaxRequestAge)
	}
	return judge.Decision{}
}

// checkNode refuses a node that is alive, or may be.
func checkNode(req *csr.Request, state NodeState) judge.Decision {
	switch state {
	case NodeAlive:
		return refuse(judge.Wait, "NodeAlive",
			"node %q is alive, because its Lease is being renewed: stop its kubelet, or give this machine another name", nodeOf(req))
	case NodeUnknown:
		return refuse(judge.Wait, "NodeAlive",
			"node %q may be alive, because its Node or its Lease exists: delete both if its machine is gone, or wait "+
				"until the Lease is unchanged for one minute while other Leases are renewed", nodeOf(req))
	}
	return judge.Decision{}
}

// checkExpected checks the machine's source, if a source must expect the node.
func (p Policy) checkExpected(req *csr.Request, entry *inventory.Entry) judge.Decision {
	switch {
	case !p.Expected:
		return judge.Decision{}
	case entry == nil:
		return refuse(judge.Wait, "NotExpected", "no source of approval.inventory expects node %q: add the node to a source", nodeOf(req))
	case entry.Leaving:
		return refuse(judge.Wait, "NotExpected", "%s of node %q is being deleted: create another one", entry.Source, nodeOf(req))
	case entry.Bound != "" && entry.Bound != req.NodeName():
		return refuse(judge.Wait, "MachineBound",
			"%s is already node %q, so it cannot become node %q: create another one", entry.Source, csr.Shorten(entry.Bound), nodeOf(req))
	}
	return judge.Decision{}
}

// checkReturn checks whether a returning machine may join again, and whether a new machine is within its window.
func (p Policy) checkReturn(req *csr.Request, facts Facts) judge.Decision {
	comesBack := facts.comesBack(req.NodeName())
	switch {
	case facts.Node == NodeDead && !p.Rejoin:
		return refuse(judge.Wait, "MachineBound",
			"Node %q is dead but still exists: delete it to let its machine join again, or enable approval.nodeClient.rejoin", nodeOf(req))
	case !p.Expected:
		return judge.Decision{}
	case comesBack && !p.Rejoin:
		return refuse(judge.Wait, "MachineBound",
			"%s was node %q before: enable approval.nodeClient.rejoin to let it join again", facts.Entry.Source, nodeOf(req))
	case comesBack, facts.Entry.AnyTime:
		return judge.Decision{}
	}
	return p.Window.check(req, facts.Entry)
}

// check refuses req if it was made outside the window.
func (w Window) check(req *csr.Request, machine *inventory.Entry) judge.Decision {
	early, late := machine.Created.Sub(req.Created), req.Created.Sub(machine.Created)
	switch {
	case w.After == 0:
		return judge.Decision{}
	case machine.Created.IsZero():
		return refuse(judge.Wait, "OutsideJoinWindow",
			"%s has no creation time yet, which the join window of node %q starts from", machine.Source, nodeOf(req))
	case early > w.Before:
		return refuse(judge.Wait, "OutsideJoinWindow",
			"node %q made its request %s before %s was created: approval.nodeClient.joinWindow permits %s before",
			nodeOf(req), early.Round(time.Second), machine.Source, w.Before)
	case late > w.After:
		return refuse(judge.Wait, "OutsideJoinWindow",
			"node %q made its request %s after %s was created: approval.nodeClient.joinWindow permits %s after",
			nodeOf(req), late.Round(time.Second), machine.Source, w.After)
	}
	return judge.Decision{}
}

// refuse returns a Decision whose message also names the next step.
func refuse(v judge.Verdict, reason, format string, args ...any) judge.Decision {
	advice := "; a new request is needed"
	if v == judge.Wait {
		advice = "; the request is checked again when this changes, unless it is too old by then"
	}
	return v.Because(reason, format+advice, args...)
}

func userOf(req *csr.Request) string { return csr.Shorten(req.Requester.Username) }
func nodeOf(req *csr.Request) string { return csr.Shorten(req.NodeName()) }
