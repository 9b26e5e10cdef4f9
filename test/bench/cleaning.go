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

// deleteAtOnce starts the subject when all requests are due, and watches it for most at the longest. Another user calls
// the API server before and meanwhile.
func deleteAtOnce(count int, most time.Duration) func(lab.Subject) round {
	return func(s lab.Subject) round {
		return amongDue(count, most, func(_ context.Context, l *lab.Lab, _ []lab.Request) (stop func() (float64, error), err error) {
			r, err := l.Launch(s)
			if err != nil {
				return nil, err
			}
			return func() (float64, error) {
				peak, err := r.PeakMemory()
				return peak, errors.Join(err, r.Stop())
			}, nil
		})
	}
}

// deleteBare is deleteAtOnce with a loop of bare deletions in place of a subject, at the rate of the cleaner.
func deleteBare(count int, most time.Duration) round {
	return amongDue(count, most, func(ctx context.Context, l *lab.Lab, due []lab.Request) (func() (float64, error), error) {
		stop := l.Delete(ctx, due, deletesPerSecond)
		return func() (float64, error) { return 0, stop() }, nil
	})
}

// deletesPerSecond is the default of the cleaner.
const deletesPerSecond = 100

// amongDue stores requests that are due, and measures how many are deleted after start.
func amongDue(
	count int, most time.Duration, start func(context.Context, *lab.Lab, []lab.Request) (stop func() (float64, error), err error),
) round {
	return func(ctx context.Context, l *lab.Lab) (round report.Round, err error) {
		past := time.Now().Add(-time.Minute)
		due, err := l.SeedDue(ctx, count, func(int) time.Time { return past })
		if err != nil {
			return report.Round{}, err
		}
		defer func() { err = errors.Join(err, l.Clear(ctx)) }()
		// The API server reads what was stored.
		if err := pause(ctx, 10*time.Second+time.Duration(count)*100*time.Microsecond); err != nil {
			return report.Round{}, err
		}
		before, err := probeFor(ctx, l, func(ctx context.Context) error { return pause(ctx, 10*time.Second) })
		if err != nil {
			return report.Round{}, err
		}
		begin := time.Now()
		stop, err := start(ctx, l, due)
		if err != nil {
			return report.Round{}, err
		}
		meanwhile, err := probeFor(ctx, l, func(ctx context.Context) error {
			for l.DeletedCount() < count && time.Since(begin) < most {
				if err := pause(ctx, 100*time.Millisecond); err != nil {
					return err
				}
			}
			return nil
		})
		took := time.Since(begin)
		peak, stopErr := stop()
		values := report.Values{
			report.Deleted:       float64(l.DeletedCount()) / took.Seconds(),
			report.OthersIdleP99: before[report.P99], report.OthersP99: meanwhile[report.P99], report.Peak: peak,
		}
		if peak == 0 {
			delete(values, report.Peak)
		}
		return report.Round{Values: values}, errors.Join(err, stopErr)
	}
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
