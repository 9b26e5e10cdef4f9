package nodeidentity

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
)

const (
	// standstill is how long a Lease must be watched without a change. A kubelet renews its Lease every ten seconds.
	standstill = time.Minute
	// A pause between two renewals of a Lease that another node's death is judged by may be as long as two renewals of
	// its kubelet, which renews the Lease after a quarter of its duration. leastQuiet and mostQuiet bound that.
	leastQuiet, mostQuiet = 20 * time.Second, time.Minute
)

// observed is what was seen of one Lease. Instants are by a clock that does not jump, except renewed.
type observed struct {
	metav1.ObjectMeta
	// renewed is when the node says that it renewed the Lease, by its own clock. It is compared for equality only.
	renewed time.Time
	// lasts is how long the node may leave the Lease unchanged.
	lasts time.Duration
	// since is when the last renewal was seen, or when the Lease was first seen. A Lease that was just read may have been
	// unchanged for long.
	since time.Time
	// steady is since when the Lease was seen to be renewed without a pause longer than quiet(). It is zero if no renewal
	// was seen.
	steady time.Time
}

// quiet returns the longest pause between two renewals of a Lease by which another node's death is judged.
func (o *observed) quiet() time.Duration { return min(max(o.lasts/2, leastQuiet), mostQuiet) }

// observationOf returns what was seen of lease at an instant. before is what was seen of it earlier, or nil.
func observationOf(before *observed, lease *coordinationv1.Lease, at time.Time) *observed {
	after := &observed{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID, ResourceVersion: lease.ResourceVersion},
		renewed:    renewTime(lease),
		lasts:      time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second,
		since:      at,
	}
	switch {
	case before == nil:
	case before.renewed.Equal(after.renewed):
		after.since, after.steady = before.since, before.steady
	case before.steady.IsZero() || !within(after.quiet(), before.since, at):
		after.steady = at
	default:
		after.steady = before.steady
	}
	return after
}

// renewTime returns when lease was renewed, by the clock of its node, or zero.
func renewTime(lease *coordinationv1.Lease) time.Time {
	return ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
}

// within reports whether the instant at is at most limit after from, and not before from.
func within(limit time.Duration, from, at time.Time) bool {
	passed := at.Sub(from)
	return passed >= 0 && passed <= limit
}

// stateOf returns the state of lease at an instant. all are the Leases of all nodes. It does not use the clocks of nodes.
//
// Time without a renewal counts only while renewals of other nodes are seen. An unreachable API server, a hanging
// connection, a stopped process and a step of the clock all look the same: no Lease changes. So a node is dead only if
// two other nodes renewed their Leases without a pause for the whole time. A single other node may be the only one that
// reaches the API server, or may be hostile. If there is only one other node, that node is enough.
func stateOf(lease *observed, all []*observed, at time.Time) bootstrap.LeaseState {
	switch {
	case lease.renewed.IsZero(): // it was never renewed
		return bootstrap.LeaseUnknown
	case !lease.steady.IsZero() && within(standstill, lease.since, at):
		return bootstrap.LeaseRenewing
	}
	others, witnesses := 0, 0
	for _, other := range all {
		if other.Name == lease.Name {
			continue
		}
		others++
		if other.proves(lease, at) {
			witnesses++
		}
	}
	if witnesses > 0 && witnesses >= min(others, 2) {
		return bootstrap.LeaseSilent
	}
	return bootstrap.LeaseUnknown
}

// proves reports whether o was renewed without a pause, up to an instant, for as long as the node of lease must be silent.
func (o *observed) proves(lease *observed, at time.Time) bool {
	if o.steady.IsZero() || !within(o.quiet(), o.since, at) {
		return false
	}
	return min(o.since.Sub(lease.since), o.since.Sub(o.steady)) >= max(standstill, lease.lasts)
}
