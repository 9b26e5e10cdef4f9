package main

import (
	"context"
	"errors"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

const (
	failoverRate = 12               // requests/s
	failoverFor  = 24 * time.Second // longer than the duration of the Lease
	leaderEndsAt = 3 * time.Second
)

// stopLeader ends the leader with SIGTERM, as the kubelet does. The leader releases the Lease.
func stopLeader(r *lab.Running) { _ = r.Stop() }

// killLeader ends the leader without warning.
func killLeader(r *lab.Running) { r.Kill() }

// loseLeader runs two replicas of ours and ends the leader under load. It measures how long requests wait.
func loseLeader(end func(*lab.Running)) round {
	return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
		replica := lab.Ours.With("replica", "--leader-elect")
		leader, err := l.Start(ctx, replica)
		if err != nil {
			return report.Round{}, err
		}
		defer leader.Kill()
		standby, err := l.Launch(replica)
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, standby.Stop(), l.ReleaseLease(ctx), l.Clear(ctx)) }()
		if err := standby.Ready(ctx); err != nil {
			return report.Round{}, err
		}
		joins, err := l.Joins(int(failoverFor.Seconds()*failoverRate), 1)
		if err != nil {
			return report.Round{}, err
		}
		timer := time.AfterFunc(leaderEndsAt, func() { end(leader) })
		defer timer.Stop()
		took, err := l.Trickle(ctx, joins, failoverRate)
		return report.Round{Values: report.Latencies(took)}, err
	}
}
