package nodeidentity

import "time"

// Life is the state of a node, as far as its Lease shows.
type Life int

// The states of a node. Unknown means neither alive nor dead.
const (
	Unknown Life = iota
	// Alive means that the node's Lease was seen to change within the last minute.
	Alive
	// Dead means that the node's Lease has not changed for a minute or more of watching, while Leases of other nodes
	// have.
	Dead
)

func (l Life) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

const (
	// standstill is how long a Lease must be watched without a change. A kubelet renews its Lease every ten seconds.
	standstill = time.Minute
	// quiet is the longest time without a change of any Lease that still counts as watching: two renewals of one
	// kubelet.
	quiet = 20 * time.Second
)

// heartbeat holds the times in a Lease. Renewed is by the node's clock, and is compared for equality only. Lasts is
// how long the node may leave the Lease unchanged.
type heartbeat struct {
	Renewed time.Time
	Lasts   time.Duration
}

// pulse judges nodes by the times at which their Leases are seen to change. It is pure: its caller passes the
// observations and the instant, by a clock that does not jump. It does not use the clocks of nodes.
//
// Observations count only while the watch works, and the watch is known to work only while Leases change. An
// unreachable API server, a hanging connection, a stopped process and a step of the clock all look the same: no Lease
// changes. After more than quiet without a change, the minute of every node begins again. A node is dead only if two
// other nodes were alive all the time. A single other node may be the only one that reaches the API server, or may be
// hostile. If there is only one other node, that node is enough.
type pulse struct {
	leases map[string]watched
	// last and before are the two Leases that changed last.
	last, before struct {
		node string
		at   time.Time
	}
	// one is the span of time in which at least one Lease changed in each period of quiet. two is the same for two
	// different Leases.
	one, two span
}

// span is a time without a pause longer than quiet.
type span struct{ from, to time.Time }

// extend extends s to an instant. After a pause, s begins at that instant.
func (s *span) extend(at time.Time) {
	if silence := at.Sub(s.to); silence > quiet || silence < 0 {
		s.from = at
	}
	s.to = at
}

// watched is the last observation of a Lease: its times, since when they are unchanged, and whether they ever
// changed.
type watched struct {
	heartbeat
	since time.Time
	moved bool
}

// see records the times in the Lease of node at an instant.
func (p *pulse) see(node string, says heartbeat, at time.Time) {
	if p.leases == nil {
		p.leases = map[string]watched{}
	}
	last, known := p.leases[node]
	switch {
	case !known: // the Lease may have been unchanged for long
		p.leases[node] = watched{heartbeat: says, since: at}
	case !last.Renewed.Equal(says.Renewed):
		p.leases[node] = watched{heartbeat: says, since: at, moved: true}
		if p.last.node != node {
			p.before = p.last
		}
		p.last.node, p.last.at = node, at
		p.one.extend(p.last.at)
		p.two.extend(p.before.at) // since then, two different Leases have changed
	default:
		last.Lasts = says.Lasts
		p.leases[node] = last
	}
}

// forget removes node after its Lease was deleted.
func (p *pulse) forget(node string) { delete(p.leases, node) }

// reset discards the observation history after a possible gap in the watch.
func (p *pulse) reset() { *p = pulse{leases: p.leases} }

// of returns the state of node at an instant.
func (p *pulse) of(node string, at time.Time) Life {
	lease, known := p.leases[node]
	if !known || lease.Renewed.IsZero() { // the Lease was never renewed
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
