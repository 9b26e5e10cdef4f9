//go:build bench

package bench

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

var (
	form         = flag.String("form", "quick", "quick or full")
	chosen       = flag.String("scenario", "", "comma-separated names of scenarios; empty for all")
	only         = flag.String("experiment", "", "measure only experiments whose name contains this, such as 500000")
	subjects     = flag.String("subjects", "", "comma-separated names of programs to measure, such as ours,base; empty for all")
	rounds       = flag.Int("rounds", 0, "rounds of each experiment; 0 stands for the experiment's own number")
	binary       = flag.String("binary", "../../csr-controller-manager", "the manager; make build makes it")
	base         = flag.String("base", "", "the manager of another revision, to compare with")
	revision     = flag.String("revision", "dev", "version of the manager")
	baseRevision = flag.String("base-revision", "", "version of -base")
	out          = flag.String("out", "../../bin/bench", "folder for bench.md")
)

// TestMain keeps the data of the control planes in memory, unless TMPDIR says otherwise. A disk would dominate what is measured.
func TestMain(m *testing.M) {
	if err := os.Setenv("TMPDIR", cmp.Or(os.Getenv("TMPDIR"), "/dev/shm")); err != nil {
		panic(err)
	}
	kit.Main(m, 1)
}

// experiment compares entries in turn, on one control plane.
type experiment struct {
	name   string
	rounds int
	// prepare prepares the control plane for all rounds, and may be nil.
	prepare func(*testing.T)
	entries []entry
}

// entry is a program, or a program under a named condition.
type entry struct {
	name    string
	subject subject
	measure func(*testing.T, subject) values
}

func each(measure func(*testing.T, subject) values, all ...subject) (entries []entry) {
	for _, one := range all {
		entries = append(entries, entry{one.name, one, measure})
	}
	return entries
}

func TestBench(t *testing.T) {
	kit.Require(t, *form == "quick" || *form == "full", "-form is %q, want quick or full", *form)
	all, asked := scenarios(*form == "full"), strings.Split(*chosen, ",")
	if *chosen != "" {
		all = slices.DeleteFunc(all, func(one scenario) bool { return !slices.Contains(asked, one.name) })
	}
	kit.Require(t, *chosen == "" || len(all) == len(asked), "-scenario is %q, which names only %v", *chosen, all)
	page := fmt.Sprintf("# Benchmark of %s %s\n\n%s, %s form, %d CPUs, %s. The median of the rounds, the lowest and the highest value.\n",
		*revision, *baseRevision, time.Now().Format(time.DateOnly), *form, runtime.NumCPU(), runtime.Version())
	measured := 0
	for _, one := range all {
		for _, e := range one.experiments {
			if strings.Contains(e.name, *only) {
				t.Run(one.name+", "+e.name, func(t *testing.T) {
					page += fmt.Sprintf("\n## %s, %s\n\n%s", one.name, e.name, table(e.run(t)))
					measured++
				})
			}
		}
	}
	kit.Require(t, measured != 0, "no experiment of %q is called %q", *chosen, *only)
	fmt.Print("\n", page)
	kit.NoError(t, os.MkdirAll(*out, 0o755))
	kit.Write(t, filepath.Join(*out, "bench.md"), []byte(page))
}

// run measures the entries. Every second round has the reverse order, so that a machine that becomes slower does not favour an entry.
func (e experiment) run(t *testing.T) (all []round) {
	prepare(t)
	if e.prepare != nil {
		e.prepare(t)
	}
	if *rounds > 0 {
		e.rounds = *rounds
	}
	entries := slices.DeleteFunc(e.entries, func(one entry) bool {
		isChosen := *subjects == "" || slices.Contains(strings.Split(*subjects, ","), one.subject.name)
		return !isChosen || one.subject.name == "base" && *base == ""
	})
	for number := range e.rounds {
		for _, one := range entries {
			found := one.measure(t, one.subject)
			t.Logf("round %d, %s: %v", number+1, one.name, found)
			for metric, value := range found {
				kit.Check(t, value > 0, "%s is %v", metric, value)
			}
			all = append(all, round{number, one.name, found})
		}
		slices.Reverse(entries)
	}
	return all
}
