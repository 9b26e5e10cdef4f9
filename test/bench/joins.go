package main

import (
	"context"
	"errors"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// burst creates all requests at once. The rate is from the first creation to the last certificate.
func burst(requests, identities int) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			joins, err := l.Joins(s.AtMost(requests), identities)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s, atOnce(ctx, l, joins))
		}
	}
}

// renewal is a burst of requests of nodes, with a CA of the given algorithm.
func renewal(nodes int, algorithm string) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			renewals, err := l.Renewals(nodes)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s.SigningWith(algorithm), atOnce(ctx, l, renewals))
		}
	}
}

func makeCA(algorithm string) func(context.Context, *lab.Lab) error {
	return func(_ context.Context, l *lab.Lab) error {
		if algorithm == lab.DefaultCA {
			return nil
		}
		return l.MakeCAs(algorithm)
	}
}

// atOnce creates requests and waits for their certificates.
func atOnce(ctx context.Context, l *lab.Lab, requests []lab.Request) func(*lab.Running) (report.Values, error) {
	return func(*lab.Running) (report.Values, error) {
		start := time.Now()
		if err := l.Create(ctx, requests); err != nil {
			return nil, err
		}
		issued, err := l.Issued(ctx, requests)
		if err != nil {
			return nil, err
		}
		_, last := span(issued)
		return report.Values{report.Rate: float64(len(requests)) / last.Sub(start).Seconds()}, nil
	}
}

// trickle creates requests at a constant rate.
func trickle(rate int, duration time.Duration) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			joins, err := l.Joins(int(duration.Seconds()*float64(rate)), 1)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s, func(*lab.Running) (report.Values, error) {
				took, err := l.Trickle(ctx, joins, rate)
				return report.Latencies(took), err
			})
		}
	}
}

// backlog starts the subject after the requests exist. The rate is from the first certificate to the last, so that it
// does not contain the start.
func backlog(requests int) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
			joins, err := l.Joins(requests, 1)
			if err != nil {
				return report.Round{}, err
			}
			if err := l.Seed(ctx, joins); err != nil {
				return report.Round{}, err
			}
			start := time.Now()
			r, err := l.Launch(s)
			if err != nil {
				return report.Round{}, err
			}
			defer func() { err = errors.Join(err, r.Stop(), l.Clear(ctx)) }()
			issued, err := l.Issued(ctx, joins)
			if err != nil {
				return report.Round{}, err
			}
			first, last := span(issued)
			cpu, err := r.CPU()
			if err != nil {
				return report.Round{}, err
			}
			values, err := r.Memory(ctx)
			if err != nil {
				return report.Round{}, err
			}
			values[report.Rate] = float64(requests-1) / last.Sub(first).Seconds()
			values[report.FirstIssued] = first.Sub(start).Seconds()
			values[report.CPU] = float64(cpu.Milliseconds()) / float64(requests)
			return report.Round{Values: values}, nil
		}
	}
}

func seedOld(requests int) func(context.Context, *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error { return l.SeedOld(ctx, requests) }
}

// startAmongOld measures the start until the first certificate of a new request, and the memory.
func startAmongOld(s lab.Subject) round {
	return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
		start := time.Now()
		r, err := l.Start(ctx, s)
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, r.Stop()) }()
		first := time.Since(start)
		values, err := r.Memory(ctx)
		if err != nil {
			return report.Round{}, err
		}
		values[report.FirstIssued] = first.Seconds()
		return report.Round{Values: values}, nil
	}
}

// standbyAmongOld measures the memory of a replica that does not lead.
func standbyAmongOld(s lab.Subject) round {
	return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
		s := s.With("replica", "--leader-elect")
		leader, err := l.Start(ctx, s)
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, leader.Stop()) }()
		standby, err := l.Launch(s)
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, standby.Stop()) }()
		if err := standby.Ready(ctx); err != nil {
			return report.Round{}, err
		}
		values, err := standby.Memory(ctx)
		return report.Round{Values: values}, err
	}
}

// span returns the first and the last of times.
func span(times map[string]time.Time) (first, last time.Time) {
	for _, at := range times {
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return first, last
}
