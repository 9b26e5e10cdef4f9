// Command mutants removes one rule at a time, and demands that a test fails each time. The parity test must notice
// rules of the approver, the signer and the cleaner: then its table is complete enough. The unit tests must notice
// rules for serving certificates, node identity and rotations, which kube-controller-manager does not have. The tests of
// "make test" must notice the defects.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	only := flag.String("only", "", "run only mutants whose name matches this `expression`")
	kind := flag.String("kind", "parity", "run the mutants that the `tests` parity or units must notice, or the defects")
	parallel := flag.Int("parallel", 3, "how many mutants to run at a time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *only, *kind, *parallel)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, kind string, parallel int) (err error) {
	expression, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(mutations), func(one mutation) bool {
		return !expression.MatchString(one.rule) || kind != one.kind()
	})
	if len(chosen) == 0 {
		return fmt.Errorf("no mutation of %s has a name that matches %q", kind, only)
	}
	if kind == "defects" {
		parallel = 1 // some tests start control planes
	}
	lab, err := newLab()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.close()) }()
	if err := lab.copy(ctx, parallel); err != nil {
		return err
	}
	if err := lab.prepare(ctx, chosen); err != nil {
		return err
	}
	return lab.tryAll(ctx, chosen, parallel)
}

// tryAll tries the mutations, several at a time, and returns an error for each one that no test notices.
func (l *lab) tryAll(ctx context.Context, chosen []mutation, parallel int) error {
	var mu sync.Mutex
	var workers sync.WaitGroup
	var missed []error
	queue := make(chan mutation)
	for worker := range parallel {
		workers.Go(func() {
			for one := range queue {
				start := time.Now()
				err := l.try(ctx, l.tree(worker), one)
				fmt.Printf("%s: %v (%s)\n", one.rule, err, time.Since(start).Round(time.Second))
				if notice := (noticed{}); !errors.As(err, &notice) {
					mu.Lock()
					missed = append(missed, fmt.Errorf("%s: %w", one.rule, err))
					mu.Unlock()
				}
			}
		})
	}
	for _, one := range chosen {
		if ctx.Err() == nil {
			queue <- one
		}
	}
	close(queue)
	workers.Wait()
	fmt.Printf("%d mutations, %d not noticed\n", len(chosen), len(missed))
	return errors.Join(ctx.Err(), errors.Join(missed...))
}
