package approver

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
)

// BootstrapPolicy says which requests for a node's first certificate may be approved. The zero value has one rule: a
// token that is bound to a node requests only that node's certificate.
type BootstrapPolicy struct {
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
	Window JoinWindow
	// CertificateLifetime is the longest lifetime of a kubelet's client certificate, whichever signer issued it. With
	// Rejoin, a node also counts as dead if it was last seen longer ago than that. Zero means unknown.
	CertificateLifetime time.Duration
}

// JoinWindow is the time from Before a machine's creation to After it. If After is zero, there is no window.
type JoinWindow struct{ Before, After time.Duration }

// reasonTooOld is the reason of a request that its kubelet no longer waits for.
const reasonTooOld = "RequestTooOld"

// boundHere reports whether a group binds req's requester to the requested node.
func boundHere(req *csr.Request) bool {
	return slices.Contains(req.Requester.Groups, csr.TokenGroup(req.NodeName()))
}

// boundElsewhere reports whether groups bind req's requester only to other nodes than the requested one.
func boundElsewhere(req *csr.Request) bool {
	return !boundHere(req) && slices.ContainsFunc(req.Requester.Groups, func(group string) bool {
		return strings.HasPrefix(group, csr.TokenGroupPrefix)
	})
}

// nodeState is what the Node and the Lease with the requested name show.
type nodeState int

const (
	nodeUnknown nodeState = iota // a Node or a Lease exists, and neither life nor death is proven
	nodeNone
	nodeAlive
	nodeDead
)

// stateOf returns the state of the node of req. A Lease that is renewed proves that the node is alive, even without a
// Node. An unobserved Lease, for example after startup, still counts as a live node. A node also counts as dead if its
// last certificate expired before the request. It received that certificate before it was last seen. Both instants
// come from objects, so this process's clock has no effect.
func (p BootstrapPolicy) stateOf(exists bool, life nodeidentity.Life, renewed time.Time, req *csr.Request) nodeState {
	expired := p.CertificateLifetime > 0 && !renewed.IsZero() && req.Created.Sub(renewed) > p.CertificateLifetime+skew
	dead := life == nodeidentity.Dead || expired
	switch {
	case life == nodeidentity.Alive:
		return nodeAlive
	case !exists && (dead || renewed.IsZero()):
		return nodeNone
	case dead:
		return nodeDead
	}
	return nodeUnknown
}

// skew bounds the difference between the clocks of a node and of the API server. It also covers the time between a
// node's new certificate and its next Lease renewal.
const skew = time.Hour

// bootstrapFacts holds what is known about a request for a first certificate, beside its content.
type bootstrapFacts struct {
	age time.Duration
	// unavailable says why facts are missing, or is empty.
	unavailable string
	// entry is what a source other than the Node knows about the node, or nil.
	entry *inventory.Entry
	node  nodeState
	// renewed is when the node's Lease was last renewed, by the node's clock.
	renewed time.Time
	// gone says why the requester no longer exists, or is empty.
	gone string
}

// comesBack reports whether the machine had a Node of this name that is now dead or gone.
func (f *bootstrapFacts) comesBack(node string) bool {
	return f.node == nodeDead || f.node == nodeNone && f.entry != nil && f.entry.Bound == node
}

// judge returns the first violation of req, or a Decision without a reason. It first checks the request itself, which
// never changes. Then a check that refuses if data is missing comes before a check that permits it.
func (p BootstrapPolicy) judge(req *csr.Request, facts *bootstrapFacts) judge.Decision {
	if decision := p.checkRequest(req, facts.age); decision.Reason != "" {
		return decision
	}
	switch {
	case facts.unavailable != "":
		return refuseBootstrap(judge.Wait, "InventoryUnavailable",
			"it is unknown whether node %q may join: %s", nodeOf(req), facts.unavailable)
	case facts.node == nodeAlive:
		return refuseBootstrap(judge.Wait, "NodeAlive",
			"node %q is alive, because its Lease is being renewed: stop its kubelet, or give this machine another name", nodeOf(req))
	case facts.node == nodeUnknown:
		return refuseBootstrap(judge.Wait, "NodeAlive",
			"node %q may be alive, because its Node or its Lease exists: delete both if its machine is gone, or wait "+
				"until the Lease is unchanged for one minute while other Leases are renewed", nodeOf(req))
	}
	if decision := p.checkExpected(req, facts.entry); decision.Reason != "" {
		return decision
	}
	if decision := p.checkReturn(req, facts); decision.Reason != "" {
		return decision
	}
	if facts.gone != "" {
		return refuseBootstrap(judge.Wait, reasonNotAuthorized,
			"user %q, which requests node %q, no longer exists: %s; use another credential", userOf(req), nodeOf(req), facts.gone)
	}
	return judge.Decision{}
}

// checkRequest checks req and its age only.
func (p BootstrapPolicy) checkRequest(req *csr.Request, age time.Duration) judge.Decision {
	_, _, noAccount := req.Requester.ServiceAccount()
	switch {
	case req.NodeName() == "":
		return refuseBootstrap(judge.Deny, "ShapeMismatch", "subject %q has no node name", req.SubjectText())
	case len(validation.IsDNS1123Subdomain(req.NodeName())) > 0:
		return refuseBootstrap(judge.Deny, "ShapeMismatch", "node name %q is not a name that a Node can have", nodeOf(req))
	case boundElsewhere(req):
		return refuseElsewhere(req)
	case p.TokenBinding && !boundHere(req):
		return refuseBootstrap(judge.Ignore, reasonNotAuthorized,
			"user %q is not bound to node %q: approval.nodeClient.requireTokenBinding permits only a token "+
				"with the group %s", userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	case len(p.Users) > 0 && !slices.Contains(p.Users, req.Requester.Username):
		return refuseBootstrap(judge.Ignore, reasonNotAuthorized,
			"user %q may not bootstrap nodes: only users %q may", userOf(req), csr.ShortenAll(p.Users))
	case noAccount != "":
		return refuseBootstrap(judge.Ignore, reasonNotAuthorized, "user %q may not bootstrap nodes: %s", userOf(req), noAccount)
	case p.MaxRequestAge > 0 && age > p.MaxRequestAge:
		return refuseBootstrap(judge.Ignore, reasonTooOld,
			"the request is older than approval.nodeClient.maxRequestAge, %s: its kubelet no longer waits for it",
			p.MaxRequestAge)
	}
	return judge.Decision{}
}

// checkExpected checks the machine's source, if a source must expect the node.
func (p BootstrapPolicy) checkExpected(req *csr.Request, entry *inventory.Entry) judge.Decision {
	switch {
	case !p.Expected:
		return judge.Decision{}
	case entry == nil:
		return refuseBootstrap(judge.Wait, "NotExpected",
			"no source of approval.inventory expects node %q: add the node to a source", nodeOf(req))
	case entry.Leaving:
		return refuseBootstrap(judge.Wait, "NotExpected",
			"%s of node %q is being deleted: create another one", entry.Source, nodeOf(req))
	case entry.Bound != "" && entry.Bound != req.NodeName():
		return refuseBootstrap(judge.Wait, "MachineBound",
			"%s is already node %q, so it cannot become node %q: create another one", entry.Source, csr.Shorten(entry.Bound), nodeOf(req))
	}
	return judge.Decision{}
}

// checkReturn checks whether a returning machine may join again, and whether a new machine is within its window.
func (p BootstrapPolicy) checkReturn(req *csr.Request, facts *bootstrapFacts) judge.Decision {
	comesBack := facts.comesBack(req.NodeName())
	switch {
	case facts.node == nodeDead && !p.Rejoin:
		return refuseBootstrap(judge.Wait, "MachineBound",
			"Node %q is dead but still exists: delete it to let its machine join again, "+
				"or enable approval.nodeClient.rejoin", nodeOf(req))
	case !p.Expected:
		return judge.Decision{}
	case comesBack && !p.Rejoin:
		return refuseBootstrap(judge.Wait, "MachineBound",
			"%s was node %q before: enable approval.nodeClient.rejoin to let it join again", facts.entry.Source, nodeOf(req))
	case comesBack, facts.entry.AnyTime:
		return judge.Decision{}
	}
	return p.Window.check(req, facts.entry)
}

// check returns a violation if req was made outside the window, or a Decision without a reason.
func (w JoinWindow) check(req *csr.Request, machine *inventory.Entry) judge.Decision {
	early, late := machine.Created.Sub(req.Created), req.Created.Sub(machine.Created)
	switch {
	case w.After == 0:
		return judge.Decision{}
	case machine.Created.IsZero():
		return refuseBootstrap(judge.Wait, "OutsideJoinWindow",
			"%s has no creation time yet, which the join window of node %q starts from", machine.Source, nodeOf(req))
	case early > w.Before:
		return refuseBootstrap(judge.Wait, "OutsideJoinWindow",
			"node %q made its request %s before %s was created: approval.nodeClient.joinWindow permits %s before",
			nodeOf(req), early.Round(time.Second), machine.Source, w.Before)
	case late > w.After:
		return refuseBootstrap(judge.Wait, "OutsideJoinWindow",
			"node %q made its request %s after %s was created: approval.nodeClient.joinWindow permits %s after",
			nodeOf(req), late.Round(time.Second), machine.Source, w.After)
	}
	return judge.Decision{}
}

// refuseElsewhere returns the Decision about a token for another node. It is final, because neither the groups nor the
// subject of a request change.
func refuseElsewhere(req *csr.Request) judge.Decision {
	return refuseBootstrap(judge.Deny, reasonNotAuthorized,
		"user %q is bound to another node than %q: only a token with the group %s may request this node",
		userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
}

// refuseBootstrap returns a Decision whose message also names the next step.
func refuseBootstrap(v judge.Verdict, reason, format string, args ...any) judge.Decision {
	advice := "; a new request is needed"
	if v == judge.Wait {
		advice = "; the request is checked again when this changes, unless it is too old by then"
	}
	return v.Because(reason, format+advice, args...)
}

func userOf(req *csr.Request) string { return csr.Shorten(req.Requester.Username) }
func nodeOf(req *csr.Request) string { return csr.Shorten(req.NodeName()) }
