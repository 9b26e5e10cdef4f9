package inventory

import "time"

// Life says whether a node is there, as far as its lease tells.
type Life int

// The lives of a node. Unknown proves nothing, in neither direction.
const (
	Unknown Life = iota
	// Alive is a node whose lease has been seen to move within the last minute.
	Alive
	// Dead is a node whose lease has been watched standing still for a minute or more, while those of others moved.
	Dead
)

func (l Life) String() string { return [...]string{"unknown", "alive", "dead"}[l] }

const (
	// standstill is how long a lease must have been watched standing still. A kubelet renews its own every ten seconds.
	standstill = time.Minute
	// quiet is the longest time without a sign of any node that still counts as watching: two renewals of one kubelet.
	quiet = 20 * time.Second
)

// heartbeat is what a lease says. Renewed is by the node's clock and only compared for equality; Lasts is how long the
// node may leave the lease alone.
type heartbeat struct {
	Renewed time.Time
	Lasts   time.Duration
}

// pulse judges nodes by when their leases are seen to change. It is pure: it is told what was seen, and when by a clock
// that does not jump. It knows nothing of the clocks of nodes.
//
// What it saw counts only for as long as it was watching, and it was watching only while leases moved: an API server that
// is away, a connection that hangs, a process that was stopped, a step of the clock are all the same silence, and after
// more than quiet of it everybody's minute begins anew. For one node to be dead two others must be alive all the time: one
// alone may be the only one that reaches the API server, or may be up to something. Where there is but one other, that
// one is enough.
type pulse struct {
	leases map[string]watched
	// last and before are the two leases that moved last.
	last, before struct {
		node string
		at   time.Time
	}
	// one and two are the times in which that many different leases moved at least every quiet.
	one, two span
}

// span is a time without a pause.
type span struct{ from, to time.Time }

func (s *span) reach(at time.Time) {
	if silence := at.Sub(s.to); silence > quiet || silence < 0 {
		s.from = at
	}
	s.to = at
}

// watched is a lease as it was last seen, since when it has looked like that, and whether it was seen to move at all.
type watched struct {
	heartbeat
	since time.Time
	moved bool
}

// see notes what the lease of node says at an instant.
func (p *pulse) see(node string, says heartbeat, at time.Time) {
	if p.leases == nil {
		p.leases = map[string]watched{}
	}
	last, known := p.leases[node]
	switch {
	case !known: // it may have looked like this for long
		p.leases[node] = watched{heartbeat: says, since: at}
	case !last.Renewed.Equal(says.Renewed):
		p.leases[node] = watched{heartbeat: says, since: at, moved: true}
		p.moved(node, at)
	default:
		last.Lasts = says.Lasts
		p.leases[node] = last
	}
}

// moved notes a sign of life. Two have given one since before's.
func (p *pulse) moved(node string, at time.Time) {
	if p.last.node != node {
		p.before = p.last
	}
	p.last.node, p.last.at = node, at
	p.one.reach(p.last.at)
	p.two.reach(p.before.at)
}

// forget is that node has no lease any more.
func (p *pulse) forget(node string) { delete(p.leases, node) }

// lost is that something may have been missed.
func (p *pulse) lost() { *p = pulse{leases: p.leases} }

// of says what is known of node at an instant.
func (p *pulse) of(node string, at time.Time) Life {
	lease, known := p.leases[node]
	if !known || lease.Renewed.IsZero() { // nobody has ever renewed it
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
