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
	chosen := slices.DeleteFunc(slices.Clone(mutations[kind]), func(one mutation) bool { return !expression.MatchString(one.rule) })
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
	trees, missed := make(chan string, parallel), make([]error, len(chosen))
	for worker := range parallel {
		trees <- l.tree(worker)
	}
	var trials sync.WaitGroup
	for i, one := range chosen {
		tree := <-trees
		if ctx.Err() != nil {
			break
		}
		trials.Go(func() {
			defer func() { trees <- tree }()
			start := time.Now()
			by, err := l.try(ctx, tree, one)
			if err != nil {
				missed[i] = fmt.Errorf("%s: %w", one.rule, err)
			}
			fmt.Printf("%s: noticed by %q, error %v (%s)\n", one.rule, by, err, time.Since(start).Round(time.Second))
		})
	}
	trials.Wait()
	missed = slices.DeleteFunc(missed, func(err error) bool { return err == nil })
	fmt.Printf("%d mutations, %d not noticed\n", len(chosen), len(missed))
	return errors.Join(ctx.Err(), errors.Join(missed...))
}
