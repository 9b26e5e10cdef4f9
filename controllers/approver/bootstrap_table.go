package approver

import (
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// objection is one row of the decision table: why says in words that it applies, or is empty.
type objection struct {
	verdict Verdict
	reason  string
	why     func(*BootstrapPolicy, *csr.Request, *bootstrapFacts) string
}

// bootstrapTable is the whole decision about a request for a first certificate, in order: the first row that applies
// decides, and a request that none applies to is approved if its requester has the permission. What never changes comes
// first; what a fault could hide comes before what it could allow.
var bootstrapTable = []objection{
	{Deny, "ShapeMismatch", func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(req.NodeName() == "", "the subject %q names no node", req.SubjectText())
	}},
	{Deny, "NotAuthorized", func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(bindingOf(req) == boundToAnother, elsewhere,
			userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	}},
	{Ignore, "NotAuthorized", func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(p.TokenBinding && bindingOf(req) != boundToNode,
			"user %q is not bound to node %q, and approval.nodeClient.requireTokenBinding is on: only a token with the group %s may ask for it", userOf(req), nodeOf(req), csr.TokenGroup(req.NodeName()))
	}},
	{Ignore, "NotAuthorized", func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) string {
		return when(!p.permits(req.Requester.Username), "user %q is none of those who may bootstrap nodes: %q", userOf(req), csr.ShortenAll(p.Users))
	}},
	{Ignore, "RequestTooOld", func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) string {
		return when(p.MaxRequestAge > 0 && f.age > p.MaxRequestAge, "the request is older than %s: its kubelet has given up on it and asks anew", p.MaxRequestAge)
	}},
	{Wait, "InventoryUnavailable", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.unavailable != "", "whether node %q may join can't be found out: %s", nodeOf(req), f.unavailable)
	}},
	{Wait, "NodeAlive", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.node == nodeAlive, "node %q is alive: its lease is being renewed, and it renews its certificate itself", nodeOf(req))
	}},
	{Wait, "NodeAlive", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(f.node == nodeUnknown, "Node %q exists, or its lease does, and it is not known to be dead: its lease must be seen standing still for a minute while others move", nodeOf(req))
	}},
	{Wait, "NotExpected", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry == nil, "no source of approval.inventory expects node %q", nodeOf(req))
	}},
	{Wait, "NotExpected", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry != nil && f.entry.Leaving, "%s of node %q is being deleted", sourceOf(f), nodeOf(req))
	}},
	{Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && f.entry != nil && f.entry.Bound != "" && f.entry.Bound != req.NodeName(), "%s has become node %q, not %q", sourceOf(f), boundOf(f), nodeOf(req))
	}},
	{Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(!p.Rejoin && f.node == nodeDead, "Node %q is dead but exists: delete it if its machine is to join anew, or switch on approval.nodeClient.rejoin", nodeOf(req))
	}},
	{Wait, "MachineBound", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		return when(p.Expected && !p.Rejoin && f.returns(req.NodeName()), "%s has been node %q before, and approval.nodeClient.rejoin is off", sourceOf(f), nodeOf(req))
	}},
	{Wait, "OutsideJoinWindow", func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
		if !p.Expected || f.entry == nil || f.entry.AnyTime || f.returns(req.NodeName()) {
			return ""
		}
		return p.Window.outside(req, f)
	}},
	{Wait, "NotAuthorized", func(_ *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) string {
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
	return Decision{Verdict: Deny, Reason: "NotAuthorized", Message: why + Deny.next()}
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
