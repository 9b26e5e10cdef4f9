package approver

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// BootstrapPolicy says which requests for a node's first certificate may be approved. The zero value asks nothing but
// that a token that is bound to a node asks for that node.
type BootstrapPolicy struct {
	// Expected wants a source to expect the node. What the node says of itself does not count.
	Expected bool
	// TokenBinding wants the requester to be bound to the node by a group.
	TokenBinding bool
	// Users, if any, are the only ones who may bootstrap.
	Users []string
	// Rejoin lets an expected machine come back whose Node is dead or gone.
	Rejoin bool
	// MaxRequestAge is the age at which a request is left to the cleaner; zero is none.
	MaxRequestAge time.Duration
	// Window is when a new machine asks, counted from its creation.
	Window JoinWindow
	// CertificateLifetime is the longest that a kubelet's client certificate lives, whoever signed it. With Rejoin, a
	// node is dead too when it has not been seen for longer than that. Zero is not known.
	CertificateLifetime time.Duration
}

// JoinWindow is from Before a machine's creation to After it. Without an After there is none.
type JoinWindow struct{ Before, After time.Duration }

// tokenBinding is what the requester's groups say about the node.
type tokenBinding int

const (
	notBound tokenBinding = iota
	boundToNode
	boundToAnother
)

// bindingOf reads the groups that bind a token: one of them at least must be the node's.
func bindingOf(req *csr.Request) tokenBinding {
	binding := notBound
	own := csr.TokenGroup(req.NodeName())
	for _, group := range req.Requester.Groups {
		switch {
		case group == own:
			return boundToNode
		case strings.HasPrefix(group, csr.TokenGroupPrefix):
			binding = boundToAnother
		}
	}
	return binding
}

// nodeState is what is known of the Node of the name that is asked for.
type nodeState int

const (
	nodeUnknown nodeState = iota // it or its lease exists, and nothing is proven
	nodeNone
	nodeAlive
	nodeDead
)

// stateOf tells a node by its Node and its lease. A lease that moves is a node that is alive, even without a Node: so one
// that may be moving, as just after a start, is not nobody's.
func (p BootstrapPolicy) stateOf(exists bool, life inventory.Life, renewed time.Time, req *csr.Request) nodeState {
	dead := life == inventory.Dead || p.ranOut(renewed, req.Created)
	switch {
	case life == inventory.Alive:
		return nodeAlive
	case !exists && (dead || renewed.IsZero()):
		return nodeNone
	case dead:
		return nodeDead
	}
	return nodeUnknown
}

// skew is how far the clocks of a node and of the API server may be apart, and how long a node may have had a new
// certificate without renewing its lease.
const skew = time.Hour

// ranOut says whether the node's last certificate must have run out before the request: it was issued before the node
// was last seen. Both instants come with objects; our own clock has no part in it.
func (p BootstrapPolicy) ranOut(seen, requested time.Time) bool {
	return p.CertificateLifetime > 0 && !seen.IsZero() && requested.Sub(seen) > p.CertificateLifetime+skew
}

// windowState is where a request lies in the join window.
type windowState int

const (
	windowUnknown windowState = iota
	windowInside
	windowEarly
	windowLate
)

// place is windowInside where there is no window.
func (w JoinWindow) place(created, requested time.Time) windowState {
	switch {
	case w.After == 0:
		return windowInside
	case created.IsZero():
		return windowUnknown
	case requested.Before(created.Add(-w.Before)):
		return windowEarly
	case requested.After(created.Add(w.After)):
		return windowLate
	}
	return windowInside
}

// bootstrapFacts are what is known about a request for a first certificate beyond its content.
type bootstrapFacts struct {
	age time.Duration
	// unavailable is why something can't be found out.
	unavailable string
	// entry is what is known of the node by a source other than its Node, or nil.
	entry *inventory.Entry
	node  nodeState
	// renewed is when its lease was, by its own clock.
	renewed time.Time
	// gone is why the requester is not there any more.
	gone string
}

// returns says whether the machine has had a Node of this name, which is dead or gone.
func (f *bootstrapFacts) returns(node string) bool {
	return f.node == nodeDead || f.node == nodeNone && f.entry != nil && f.entry.Bound == node
}

// judge returns the first thing that stands against req, or no reason.
func (p BootstrapPolicy) judge(req *csr.Request, facts *bootstrapFacts) Decision {
	for _, row := range bootstrapTable {
		if why := row.why(&p, req, facts); why != "" {
			return Decision{Result: row.verdict.Because(row.reason, "%s%s", why, next(row.verdict))}
		}
	}
	return Decision{}
}

// next returns what comes after v, for messages.
func next(v verdict.Verdict) string {
	if v == verdict.Wait {
		return "; looked at again when that changes, as long as the request is young enough"
	}
	return "; a new request is needed"
}

func (p *BootstrapPolicy) permits(user string) bool {
	return len(p.Users) == 0 || slices.Contains(p.Users, user)
}

// objection is one row of the decision table: why says in words that it applies, or is empty.
type objection struct {
	verdict verdict.Verdict
	reason  string
	why     func(*BootstrapPolicy, *csr.Request, *bootstrapFacts) string
}

// bootstrapTable is the whole decision about a request for a first certificate, in order: the first row that applies
// decides, and a request that none applies to is approved if its requester has the permission. What never changes comes
// first; what a fault could hide comes before what it could allow.
var bootstrapTable = []objection{
	{verdict.Deny, "ShapeMismatch", func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(req.NodeName() == "", "the subject %q names no node", req.SubjectText())
	}},
	{verdict.Deny, "NotAuthorized", func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(bindingOf(req) == boundToAnother, elsewhere,
			userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	}},
	{verdict.Ignore, "NotAuthorized", func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(p.TokenBinding && bindingOf(req) != boundToNode,
			"user %q is not bound to node %q, and approval.nodeClient.requireTokenBinding is on: only a token with the group %s may ask for it", userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	}},
	{verdict.Ignore, "NotAuthorized", func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(!p.permits(req.Requester.Username), "user %q is none of those who may bootstrap nodes: %q", userOf(req), csr.ShortenAll(p.Users))
	}},
	{verdict.Ignore, "RequestTooOld", func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) string {
		return when(p.MaxRequestAge > 0 && f.age > p.MaxRequestAge, "the request is older than %s: its kubelet has given up on it and asks anew", p.MaxRequestAge)
	}},
	{verdict.Wait, "InventoryUnavailable", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.unavailable != "", "whether node %q may join can't be found out: %s", nodeOf(req), f.unavailable)
	}},
	{verdict.Wait, "NodeAlive", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.node == nodeAlive, "node %q is alive: its lease is being renewed, and it renews its certificate itself", nodeOf(req))
	}},
	{verdict.Wait, "NodeAlive", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.node == nodeUnknown, "Node %q exists, or its lease does, and it is not known to be dead: its lease must be seen standing still for a minute while others move", nodeOf(req))
	}},
	{verdict.Wait, "NotExpected", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry == nil, "no source of approval.inventory expects node %q", nodeOf(req))
	}},
	{verdict.Wait, "NotExpected", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry != nil && f.entry.Leaving, "%s of node %q is being deleted", sourceOf(f), nodeOf(req))
	}},
	{verdict.Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry != nil && f.entry.Bound != "" && f.entry.Bound != req.NodeName(), "%s has become node %q, not %q", sourceOf(f), boundOf(f), nodeOf(req))
	}},
	{verdict.Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(!p.Rejoin && f.node == nodeDead, "Node %q is dead but exists: delete it if its machine is to join anew, or switch on approval.nodeClient.rejoin", nodeOf(req))
	}},
	{verdict.Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && !p.Rejoin && f.returns(req.NodeName()), "%s has been node %q before, and approval.nodeClient.rejoin is off", sourceOf(f), nodeOf(req))
	}},
	{verdict.Wait, "OutsideJoinWindow", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		if !p.Expected || f.entry == nil || f.entry.AnyTime || f.returns(req.NodeName()) {
			return ""
		}
		return p.Window.outside(req, f)
	}},
	{verdict.Wait, "NotAuthorized", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.gone != "", "user %q, who asks for node %q, is gone: %s", userOf(req), nodeOf(req), f.gone)
	}},
}

func (w JoinWindow) outside(req *csr.Request, f *bootstrapFacts) string {
	created := f.entry.Created
	switch w.place(created, req.Created) {
	case windowEarly:
		return fmt.Sprintf("node %q asks %s before %s was created, and may at most %s before", nodeOf(req), rounded(created.Sub(req.Created)), sourceOf(f), w.Before)
	case windowLate:
		return fmt.Sprintf("node %q asks %s after %s was created, and may at most %s after", nodeOf(req), rounded(req.Created.Sub(created)), sourceOf(f), w.After)
	case windowUnknown:
		return fmt.Sprintf("%s does not say since when it is there, so that node %q may not join yet", sourceOf(f), nodeOf(req))
	}
	return ""
}

const elsewhere = "user %q is bound to another node than %q, which it asks for and whose group is %s"

// boundElsewhere is the decision about a token for another node: neither its groups nor the subject ever change.
func boundElsewhere(req *csr.Request) Decision {
	why := fmt.Sprintf(elsewhere, userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	return Decision{Result: verdict.Deny.Because("NotAuthorized", "%s%s", why, next(verdict.Deny))}
}

func when(applies bool, format string, args ...any) string {
	if !applies {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func userOf(req *csr.Request) string { return csr.Shorten(req.Requester.Username) }
func nodeOf(req *csr.Request) string { return csr.Shorten(req.NodeName()) }

func boundOf(f *bootstrapFacts) string {
	if f.entry == nil {
		return ""
	}
	return csr.Shorten(f.entry.Bound)
}

// source names the machine, or whatever else knows of the node.
func sourceOf(f *bootstrapFacts) string {
	if f.entry == nil {
		return "the machine"
	}
	return f.entry.Source
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Second) }
