// Command mutation runs gremlins over the packages that decide, and compares the result with two thresholds. Gremlins
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

// The thresholds, in percent. Efficacy is the part of the covered mutants that a test kills, without those in
// accepted.yaml. Coverage is the part of all mutants that unit tests cover.
const (
	minEfficacy = 97
	minCoverage = 80
)

// target is a package to mutate, with the packages below it.
type target struct {
	dir string
	// files, if any, are the only files to mutate. The others need an API server, which unit tests do not have.
	files []string
}

var targets = []target{
	{dir: "pkg/csr"},
	{dir: "pkg/ca"},
	{dir: "pkg/san"},
	{dir: "pkg/authz"},
	{dir: "controllers/approver"},
	{dir: "controllers/signer"},
	{dir: "controllers/cleaner"},
	{dir: "pkg/inventory"},
	// The pure files, as depguard's rule "pure" in .golangci.yml lists them.
	{dir: "controllers/rotation", files: []string{
		"next.go", "new.go", "preparing.go", "prepared.go", "completing.go", "completed.go", "secret.go",
	}},
}

func main() {
	if filepath.Base(os.Args[0]) == "go" {
		if err := asGo(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "mutation:", err)
			os.Exit(exitCode(err))
		}
		return
	}
	only := flag.String("only", "", "comma-separated `packages` to mutate, such as pkg/csr,pkg/ca; all without it")
	workers := flag.Int("workers", 0, "mutants to test at a time; 0 is the number of processors")
	flag.Parse()
	if err := run(*only, *workers); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

// run mutates the packages and prints a line for each. Its error joins every package below a threshold.
func run(only string, workers int) error {
	chosen, err := choose(only)
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
		found, err := lab.unleash(t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.dir, err)
		}
		score, err := judge(found, accepted)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.dir, err))
		}
		fmt.Printf("%-22s %s\n", t.dir, score)
	}
	return errors.Join(errs...)
}

// choose returns the targets that only names, or all.
func choose(only string) ([]target, error) {
	if only == "" {
		return targets, nil
	}
	var chosen []target
	for dir := range strings.SplitSeq(only, ",") {
		at := slices.IndexFunc(targets, func(t target) bool { return t.dir == dir })
		if at < 0 {
			return nil, fmt.Errorf("%s is not one of the packages to mutate", dir)
		}
		chosen = append(chosen, targets[at])
	}
	return chosen, nil
}
