package nodeidentity

import "time"

// Life is whether a node is alive, as far as its Lease shows.
type Life int

// The lives of a node. Unknown proves neither life nor death.
const (
	Unknown Life = iota
	// Alive is a node whose Lease was seen to change within the last minute.
	Alive
	// Dead is a node whose Lease has not changed for a minute or more of watching, while those of other nodes have.
	Dead
)

func (l Life) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

const (
	// standstill is how long a Lease must have been watched without a change. A kubelet renews its own every ten seconds.
	standstill = time.Minute
	// quiet is the longest time without a sign of any node that still counts as watching: two renewals of one kubelet.
	quiet = 20 * time.Second
)

// heartbeat holds the times in a Lease. Renewed is by the node's clock, and is compared for equality only. Lasts is how
// long the node may leave the Lease unchanged.
type heartbeat struct {
	Renewed time.Time
	Lasts   time.Duration
}

// pulse judges nodes by when their Leases are seen to change. It is pure: its caller passes what was seen and the
// instant, by a clock that does not jump. It does not use the clocks of nodes.
//
// What was seen counts only while the watch worked, and the watch worked only while Leases changed. An API server
// that is away, a connection that hangs, a process that was stopped and a step of the clock all look the same:
// silence. After more than quiet of it, the minute of every node begins anew. A node is dead only if two others were
// alive all the time: a single other node may be the only one that reaches the API server, or may be hostile. If
// there is but one other node, that node is enough.
type pulse struct {
	leases map[string]watched
	// last and before are the two Leases that changed last.
	last, before struct {
		node string
		at   time.Time
	}
	// one and two are the times in which that many different Leases changed at least every quiet.
	one, two span
}

// span is a time without a pause.
type span struct{ from, to time.Time }

// extend makes s reach until an instant. It begins there after a pause.
func (s *span) extend(at time.Time) {
	if silence := at.Sub(s.to); silence > quiet || silence < 0 {
		s.from = at
	}
	s.to = at
}

// watched is a Lease as it was last seen, since when it has been like that, and whether it was seen to change at all.
type watched struct {
	heartbeat
	since time.Time
	moved bool
}

// see notes what the Lease of node says at an instant.
func (p *pulse) see(node string, says heartbeat, at time.Time) {
	if p.leases == nil {
		p.leases = map[string]watched{}
	}
	last, known := p.leases[node]
	switch {
	case !known: // it may have been like this for long
		p.leases[node] = watched{heartbeat: says, since: at}
	case !last.Renewed.Equal(says.Renewed):
		p.leases[node] = watched{heartbeat: says, since: at, moved: true}
		if p.last.node != node {
			p.before = p.last
		}
		p.last.node, p.last.at = node, at
		p.one.extend(p.last.at)
		p.two.extend(p.before.at) // since then two have changed
	default:
		last.Lasts = says.Lasts
		p.leases[node] = last
	}
}

// forget removes node, whose Lease is deleted.
func (p *pulse) forget(node string) { delete(p.leases, node) }

// reset discards the observation history after a possible gap in the watch.
func (p *pulse) reset() { *p = pulse{leases: p.leases} }

// of returns what is known of node at an instant.
func (p *pulse) of(node string, at time.Time) Life {
	lease, known := p.leases[node]
	if !known || lease.Renewed.IsZero() { // it was never renewed
		return Unknown
	}
	if silence := at.Sub(lease.since); lease.moved && silence >= 0 && silence <= standstill {
		return Alive
	}
	others := p.two
	if len(p.leases) <= 2 {
		others = p.one
	}
	if silence := at.Sub(others.to); silence > quiet || silence < 0 {
		return Unknown
	}
	begun := lease.since
	if begun.Before(others.from) {
		begun = others.from
	}
	if others.to.Sub(begun) >= max(standstill, lease.Lasts) {
		return Dead
	}
	return Unknown
}
