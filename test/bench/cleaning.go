package main

import (
	"context"
	"errors"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
	"github.com/csr-controller-manager/csr-controller-manager/test/bench/report"
)

// deleteWhenDue has requests that become due at a constant rate, and measures how late each is deleted. Times in
// requests are whole seconds, so those of one second become due together.
func deleteWhenDue(rate int, duration time.Duration) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (report.Round, error) {
			count := int(duration.Seconds()) * rate
			forStart := 10*time.Second + time.Duration(count)*time.Millisecond
			begin := time.Now().Add(forStart).Truncate(time.Second)
			due := func(i int) time.Time { return begin.Add(time.Duration(i/rate) * time.Second) }
			requests, err := l.SeedDue(ctx, count, due)
			if err != nil {
				return report.Round{}, err
			}
			return l.During(ctx, s, func(*lab.Running) (report.Values, error) {
				if time.Now().After(begin) {
					return nil, errors.New("the start took so long that requests are due already")
				}
				deleted, err := l.Deleted(ctx, requests)
				if err != nil {
					return nil, err
				}
				late := make([]time.Duration, count)
				for i, request := range requests {
					late[i] = deleted[request.Name()].Sub(due(i))
				}
				latencies := report.Latencies(late)
				return report.Values{report.LateP50: latencies[report.P50], report.LateP99: latencies[report.P99]}, nil
			})
		}
	}
}

// deleteAtOnce runs the subject while many requests become due at once, and watches it for most at the longest. Another
// user calls the API server before and meanwhile.
func deleteAtOnce(count int, most time.Duration) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
			_, due, err := seedDueAtOnce(ctx, l, count)
			if err != nil {
				return report.Round{}, err
			}
			defer func() { err = errors.Join(err, l.Clear(ctx)) }()
			r, err := l.Launch(s)
			if err != nil {
				return report.Round{}, err
			}
			defer func() { err = errors.Join(err, r.Stop()) }()
			values, err := watchDue(ctx, l, count, due, most)
			if err != nil {
				return report.Round{}, err
			}
			values[report.Peak], err = r.PeakMemory()
			return report.Round{Values: values}, err
		}
	}
}

// deletesPerSecond is the default of the cleaner.
const deletesPerSecond = 100

// deleteBare is deleteAtOnce with a loop of bare deletions in place of a subject, at the rate of the cleaner.
func deleteBare(count int, most time.Duration) round {
	return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
		requests, due, err := seedDueAtOnce(ctx, l, count)
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, l.Clear(ctx)) }()
		stop := l.Delete(ctx, requests, due, deletesPerSecond)
		defer func() { err = errors.Join(err, stop()) }()
		values, err := watchDue(ctx, l, count, due, most)
		return report.Round{Values: values}, err
	}
}

// seedDueAtOnce stores requests that become due together, after enough time to store them and to start a subject.
func seedDueAtOnce(ctx context.Context, l *lab.Lab, count int) ([]lab.Request, time.Time, error) {
	due := time.Now().Add(30*time.Second + time.Duration(count)*600*time.Microsecond).Truncate(time.Second)
	requests, err := l.SeedDue(ctx, count, func(int) time.Time { return due })
	return requests, due, err
}

// watchDue measures how many requests are deleted from due on, and another user's calls ten seconds before and
// meanwhile.
func watchDue(ctx context.Context, l *lab.Lab, count int, due time.Time, most time.Duration) (report.Values, error) {
	wait := time.Until(due.Add(-10 * time.Second))
	if wait < 0 {
		return nil, errors.New("the start took so long that requests are due already")
	}
	if err := pause(ctx, wait); err != nil {
		return nil, err
	}
	before, err := probeFor(ctx, l, func(ctx context.Context) error { return pause(ctx, time.Until(due)) })
	if err != nil {
		return nil, err
	}
	meanwhile, err := probeFor(ctx, l, func(ctx context.Context) error {
		for l.DeletedCount() < count && time.Since(due) < most {
			if err := pause(ctx, 100*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	return report.Values{
		report.Deleted:       float64(l.DeletedCount()) / time.Since(due).Seconds(),
		report.OthersIdleP99: before[report.P99], report.OthersP99: meanwhile[report.P99],
	}, err
}

// probeFor calls the API server as another user during work.
func probeFor(ctx context.Context, l *lab.Lab, work func(context.Context) error) (report.Values, error) {
	end, err := l.Probe(ctx)
	if err != nil {
		return nil, err
	}
	err = work(ctx)
	took, failed := end()
	return report.Latencies(took), errors.Join(err, failed)
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
