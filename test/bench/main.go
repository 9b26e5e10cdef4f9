// Command bench measures the speed of a mass join. It sends a burst of kubelet requests through this project's
// manager and through the real kube-controller-manager without its client limit, in turn, on one real API server. It
// exits non-zero if ours is slower by more than the measurements vary. `make bench-quick` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	requests, rounds, creators int
	binary                     string
	steadyRate                 int
	steadyFor, timeout         time.Duration
}

func main() {
	var s settings
	flag.IntVar(&s.requests, "requests", 2000, "requests in a burst")
	flag.IntVar(&s.rounds, "rounds", 5, "rounds of each, for each case")
	flag.IntVar(&s.creators, "creators", 50, "clients that create at a time")
	flag.StringVar(&s.binary, "binary", "./csr-controller-manager", "ours; `make build` makes it")
	flag.IntVar(&s.steadyRate, "steady-rate", 50, "requests a second in the steady case, for ours alone; 0 leaves it out")
	flag.DurationVar(&s.steadyFor, "steady-for", 10*time.Second, "length of the steady case")
	flag.DurationVar(&s.timeout, "timeout", 15*time.Minute, "for everything")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	err := run(ctx, s)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) (err error) {
	b, err := newBench(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	fmt.Printf("%d requests in a burst from %d clients; rates are certificates a second, from the first creation to the last certificate\n", s.requests, s.creators)
	join, err := b.compare(ctx, "mass join (controller running, created in parallel)", b.join)
	if err != nil {
		return err
	}
	fmt.Println("In the backlog case the clock runs from the first certificate to the last, so that no start-up counts.")
	backlog, err := b.compare(ctx, "backlog (created before the controller starts)", b.backlog)
	if err != nil {
		return err
	}
	if s.steadyRate > 0 {
		if err := b.steady(ctx); err != nil {
			return err
		}
	}
	fmt.Println("± is half of the spread of the rounds; ours counts as slower when the ratio and the larger ± make less than 1:")
	fmt.Println(join)
	fmt.Println(backlog)
	return errors.Join(join.verdict(), backlog.verdict())
}
