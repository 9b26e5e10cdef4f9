package approver

import (
	"slices"
	"strings"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
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
			return Decision{Verdict: row.verdict, Reason: row.reason, Message: why + row.verdict.next()}
		}
	}
	return Decision{}
}

// next is what comes after a verdict, for messages.
func (v Verdict) next() string {
	if v == Wait {
		return "; looked at again when that changes, as long as the request is young enough"
	}
	return "; a new request is needed"
}

func (p *BootstrapPolicy) permits(user string) bool {
	return len(p.Users) == 0 || slices.Contains(p.Users, user)
}
