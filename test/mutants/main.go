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
	chosen, err := choose(only, kind)
	if err != nil {
		return err
	}
	if kind == "defects" {
		parallel = 1 // some change files of the tree
	}
	lab, err := newLab()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.close()) }()
	if err := lab.prepare(ctx, chosen); err != nil {
		return err
	}
	verdicts := lab.judgeAll(ctx, chosen, parallel, shortPatience)
	// A turn that only timed out may have been slow: it had a short patience and ran beside others.
	var again []mutation
	verdicts = slices.DeleteFunc(verdicts, func(one verdict) bool {
		if one.kind == slow {
			again = append(again, one.mutation)
		}
		return one.kind == slow
	})
	verdicts = append(verdicts, lab.judgeAll(ctx, again, min(parallel, 2), fullPatience)...)
	return errors.Join(ctx.Err(), summary(verdicts))
}

func choose(only, kind string) ([]mutation, error) {
	expression, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	chosen := slices.DeleteFunc(slices.Clone(mutations), func(one mutation) bool {
		return !expression.MatchString(one.rule) || kind != one.kind()
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no mutation of %s has a name that matches %q", kind, only)
	}
	return chosen, nil
}

// judgeAll judges several mutations concurrently.
func (l *lab) judgeAll(ctx context.Context, chosen []mutation, parallel int, patience string) []verdict {
	queue := make(chan int)
	verdicts := make([]verdict, len(chosen))
	var workers sync.WaitGroup
	for range max(1, parallel) {
		workers.Go(func() {
			for i := range queue {
				verdicts[i] = l.judge(ctx, chosen[i], patience)
				verdicts[i].print()
			}
		})
	}
	for i := range chosen {
		queue <- i
	}
	close(queue)
	workers.Wait()
	return verdicts
}

// The possible results of a mutation.
const (
	caught   = "caught"
	survived = "SURVIVED"
	broken   = "BROKEN" // for example, it does not compile, so it proves nothing about the table
	slow     = "slow"   // nothing happened any more; that counts if it happens again with full patience, alone
	skipped  = "skipped"
)

type verdict struct {
	mutation
	kind, detail string
	took         time.Duration
}

func (v verdict) print() {
	if v.kind != skipped {
		fmt.Printf("%-9s %s: %s (%s)\n", v.kind, v.rule, v.detail, v.took.Round(time.Second))
	}
}

// summary counts the verdicts. It returns an error unless all mutations were noticed.
func summary(verdicts []verdict) error {
	count := map[string]int{}
	var errs []error
	for _, one := range verdicts {
		count[one.kind]++
		if one.kind != caught {
			errs = append(errs, fmt.Errorf("%s: %s", one.rule, one.kind))
		}
	}
	fmt.Printf("%d mutations: %d caught, %d survived, %d broken\n", len(verdicts), count[caught], count[survived], count[broken])
	return errors.Join(errs...)
}
