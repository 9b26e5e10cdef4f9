// Command bench measures this project's manager beside kube-controller-manager and beside bare API calls, on real
// control planes. It writes the results as JSON and as Markdown. CONTRIBUTING.md describes `make bench`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/test/bench/lab"
)

// settings are the flags.
type settings struct {
	lab.Options
	form, scenario, subjects string
	experiment               string
	rounds                   int
	out                      string
	revision, baseRevision   string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) > 1 && os.Args[1] == lab.FloorCommand {
		return lab.RunFloor(ctx, os.Args[2:])
	}
	log.SetLogger(logr.Discard()) // of the library that starts the control plane
	if err := inMemory(); err != nil {
		return err
	}
	var s settings
	flag.StringVar(&s.form, "form", quick, "quick or full")
	flag.StringVar(&s.scenario, "scenario", "",
		"comma-separated names of scenarios (default all): "+strings.Join(scenarioNames(), ", "))
	flag.StringVar(&s.experiment, "experiment", "", "measure only experiments whose name contains this, such as 500000")
	flag.StringVar(&s.subjects, "subjects", "",
		"comma-separated names of subjects to measure, such as ours,base (default all)")
	flag.IntVar(&s.rounds, "rounds", 0, "rounds of each experiment (default is the experiment's own number)")
	flag.StringVar(&s.Binary, "binary", "./csr-controller-manager", "the manager; `make build` makes it")
	flag.StringVar(&s.Base, "base", "", "the manager of another revision, to compare with")
	flag.StringVar(&s.revision, "revision", "dev", "version of the manager, for the report")
	flag.StringVar(&s.baseRevision, "base-revision", "", "version of -base, for the report")
	flag.StringVar(&s.out, "out", "bin/bench", "folder for bench.json and bench.md")
	timeout := flag.Duration("timeout", 12*time.Hour, "for everything")
	flag.Parse()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	s.Settle = settle[s.form]
	chosen, err := s.choose()
	if err != nil {
		return err
	}
	result, err := s.measure(ctx, chosen)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	page := result.Markdown()
	fmt.Print("\n", page)
	return errors.Join(result.WriteJSON(filepath.Join(s.out, "bench.json")),
		os.WriteFile(filepath.Join(s.out, "bench.md"), []byte(page), 0o644))
}

// memory is where Linux keeps files in memory.
const memory = "/dev/shm"

// inMemory makes the control planes keep their data in memory, unless TMPDIR says otherwise. A disk would dominate what
// is measured.
func inMemory() error {
	if info, err := os.Stat(memory); err != nil || !info.IsDir() || os.Getenv("TMPDIR") != "" {
		return nil
	}
	return os.Setenv("TMPDIR", memory)
}
