// Command mutation runs gremlins over the packages that decide, and compares the result with the floors in targets.yaml. Gremlins
// changes one operator at a time, in a copy of the tree, and runs the unit tests of the package. A mutant that no test
// notices has survived: it needs a test, or an entry with a reason in accepted.yaml. "make mutation" runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The goals, in percent. A target with a lower floor says in targets.yaml what is left.
const (
	goalKilled  = 97
	goalCovered = 80
)

// target is an entry of targets.yaml: a package to mutate, with the packages below it.
type target struct {
	Dir string `json:"dir"`
	// Files, if any, are the only files to mutate. The others need an API server, which unit tests do not have.
	Files []string `json:"files"`
	// Slow is a regular expression for tests that take seconds. They test only the mutants that no other test kills.
	Slow string `json:"slow"`
	// MinKilled and MinCovered are the floors, in percent. MinKilled is for the covered mutants that a test kills, without
	// those in accepted.yaml. MinCovered is for the mutants that unit tests cover.
	MinKilled  float64 `json:"minKilled"`
	MinCovered float64 `json:"minCovered"`
	// Left says what is missing to the goals.
	Left string `json:"left"`
}

// belowGoal reports whether a floor is below its goal.
func (t target) belowGoal() bool { return t.MinKilled < goalKilled || t.MinCovered < goalCovered }

// readTargets reads the targets. One that is below a goal must say what is left, and no other may.
func readTargets(file string) ([]target, error) {
	var all []target
	if err := readYAML(file, &all); err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Dir == "" || t.belowGoal() != (t.Left != "") {
			return nil, fmt.Errorf("%s: %q has no dir, or its floors and \"left\" do not agree", file, t.Dir)
		}
	}
	return all, nil
}

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		if err := asGo(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "mutation:", err)
			os.Exit(codeOf(err))
		}
		return
	}
	only := flag.String("only", "", "comma-separated `packages` to mutate, such as pkg/csr,pkg/ca; all without it")
	workers := flag.Int("workers", 0, "mutants to test at a time; 0 is the number of processors")
	uncovered := flag.Bool("uncovered", false, "print also the mutants that unit tests do not cover")
	verbose := flag.Bool("verbose", false, "print each mutant as soon as it is tested")
	dryRun := flag.Bool("dry-run", false, "test no mutant; print how many mutants unit tests cover")
	flag.Parse()
	if err := run(*only, *workers, *uncovered, *verbose, *dryRun); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

// run mutates the packages and prints a line for each. Its error joins every package below a floor.
func run(only string, workers int, uncovered, verbose, dryRun bool) error {
	targets, err := readTargets("hack/mutation/targets.yaml")
	if err != nil {
		return err
	}
	chosen, err := choose(targets, only)
	if err != nil {
		return err
	}
	accepted, err := readAccepted("hack/mutation/accepted.yaml")
	if err != nil {
		return err
	}
	lab, err := newLab(workers)
	if err != nil {
		return err
	}
	defer lab.remove()
	var errs []error
	for _, t := range chosen {
		found, err := lab.unleash(t, verbose, dryRun)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.Dir, err))
			continue
		}
		if uncovered {
			printUncovered(found)
		}
		if dryRun {
			low, high := covered(found)
			fmt.Printf("%-22s covers %.1f %% to %.1f %% of %d mutants\n", t.Dir, low, high, len(found))
			continue
		}
		score, err := judge(t, found, accepted)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.Dir, err))
		}
		fmt.Printf("%-22s %s; floors %g %% and %g %%, goals %d %% and %d %%\n",
			t.Dir, score, t.MinKilled, t.MinCovered, goalKilled, goalCovered)
	}
	return errors.Join(errs...)
}

func printUncovered(all []mutant) {
	for _, m := range all {
		if m.status == notCovered {
			fmt.Println("not covered:", m)
		}
	}
}

// choose returns the targets that only names, or all.
func choose(targets []target, only string) ([]target, error) {
	if only == "" {
		return targets, nil
	}
	var chosen []target
	for dir := range strings.SplitSeq(only, ",") {
		at := slices.IndexFunc(targets, func(t target) bool { return t.Dir == dir })
		if at < 0 {
			return nil, fmt.Errorf("%s is not one of the packages to mutate", dir)
		}
		chosen = append(chosen, targets[at])
	}
	return chosen, nil
}
