// Command nightly runs the parts of parts.yaml, the tests that take too long for every change, one after the other. Each part has a time
// limit and a log. A part that passed for the commit of a clean tree does not run again. "make nightly" runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const list = "hack/nightly/parts.yaml"

// part is an entry of parts.yaml.
type part struct {
	Name    string          `json:"name"`
	Command string          `json:"run"`
	Limit   metav1.Duration `json:"limit"`
}

// The results of a part that ran.
const (
	passed      = "passed"
	failed      = "FAILED"
	outOfTime   = "OUT OF TIME"
	interrupted = "interrupted"
)

// record is the last run of a part to its end, as PART.json stores it.
type record struct {
	// Commit is the commit that was tested, or empty if the tree had uncommitted changes.
	Commit  string
	Started time.Time
	Took    time.Duration
	Result  string
	Tests   tests
}

// row is a line of the table at the end. The record is empty if the part did not run.
type row struct {
	part, result string
	record       record
}

// runner runs parts in the current folder.
type runner struct {
	dir    string        // of logs and records
	budget time.Duration // of all parts together, or zero
	commit func() (string, error)
	out    io.Writer
}

func main() {
	names := flag.String("parts", "", "comma-separated `names` of parts to run, such as soak,mutation-*; all without it")
	budget := flag.String("budget", "", "start only parts that fit into this `duration`, such as 3h")
	only := flag.Bool("list", false, "print the names of the parts for a workflow, and run none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *names, *budget, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nightly:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names, budget string, only bool) error {
	parts, err := readParts(list)
	if err != nil {
		return err
	}
	if parts, err = choose(parts, names); err != nil {
		return err
	}
	if only {
		var all []string
		for _, p := range parts {
			all = append(all, p.Name)
		}
		text, err := json.Marshal(all)
		fmt.Printf("parts=%s\n", text)
		return err
	}
	const dir = "bin/nightly"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := runner{dir: dir, commit: headCommit, out: os.Stdout}
	if budget != "" {
		if r.budget, err = time.ParseDuration(budget); err != nil || r.budget <= 0 {
			return fmt.Errorf("the budget %q is not a duration such as 3h or 90m", budget)
		}
	}
	return r.all(ctx, parts)
}

// readParts reads parts from file. For the part kubernetes-VERSION it returns one part for each go-VERSION.mod in ../controlplane.
func readParts(file string) ([]part, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var parts []part
	if err := yaml.UnmarshalStrict(data, &parts); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	pins, err := filepath.Glob(filepath.Join(filepath.Dir(file), "../controlplane/go-*.mod"))
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(parts, func(p part) bool { return p.Name == "kubernetes-VERSION" })
	if at < 0 || len(pins) == 0 {
		return nil, fmt.Errorf("%s: there is no part kubernetes-VERSION, or no version beside it in hack/controlplane", file)
	}
	each := parts[at]
	parts = slices.Delete(parts, at, at+1)
	for _, pin := range pins {
		each.Name = "kubernetes-" + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(pin), "go-"), ".mod")
		parts = slices.Insert(parts, at, each)
	}
	return parts, nil
}

// choose returns the parts that match a name or a pattern (path.Match) in names, or all.
func choose(parts []part, names string) (chosen []part, err error) {
	if names == "" {
		return parts, nil
	}
	wanted := map[string]bool{}
	for pattern := range strings.SplitSeq(names, ",") {
		found := false
		for _, p := range parts {
			if match, err := path.Match(pattern, p.Name); err == nil && match {
				found, wanted[p.Name] = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no part is called %q: %s lists the parts", pattern, list)
		}
	}
	return slices.DeleteFunc(parts, func(p part) bool { return !wanted[p.Name] }), nil
}

// headCommit returns the commit that is checked out, or "" if the tree differs from it.
func headCommit() (string, error) {
	status, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil {
		return "", fmt.Errorf("git status: %w", err)
	}
	if len(status) > 0 {
		return "", nil
	}
	head, err := exec.Command("git", "rev-parse", "HEAD").Output()
	return strings.TrimSpace(string(head)), err
}

// all runs parts until ctx ends, the part first whose last run is the longest ago, and prints a table. It returns an error if a part
// failed, was out of time, or was interrupted.
func (r *runner) all(ctx context.Context, parts []part) error {
	commit, err := r.commit()
	if err != nil {
		return err
	}
	if commit == "" {
		r.say("nightly: the tree has uncommitted changes: parts that pass will run again")
	}
	last := map[string]record{}
	for _, p := range parts {
		if last[p.Name], err = r.read(p); err != nil {
			return err
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return last[a.Name].Started.Compare(last[b.Name].Started) })
	start := time.Now()
	var rows []row
	for _, p := range parts {
		before := last[p.Name]
		if commit != "" && before.Commit == commit && before.Result == passed {
			rows = append(rows, row{p.Name, "passed before", before})
			continue
		}
		if reason := r.notNow(ctx, p, before, time.Since(start)); reason != "" {
			rows = append(rows, row{p.Name, reason, record{}})
			continue
		}
		done, err := r.one(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		rows = append(rows, row{p.Name, done.Result, done})
	}
	return r.report(rows)
}

// notNow returns why p does not run, after the time that others took, or "" if it runs.
func (r *runner) notNow(ctx context.Context, p part, before record, took time.Duration) string {
	if ctx.Err() != nil {
		return "not run: interrupted"
	}
	need := before.Took
	if before.Result == "" {
		need = p.Limit.Duration // it never ran
	}
	if left := max(0, r.budget-took); r.budget > 0 && need > left {
		return fmt.Sprintf("not run: needs %s min of %s min", minutes(need), minutes(left))
	}
	return ""
}

// one runs a part. It stores the record of a run that was not interrupted.
func (r *runner) one(ctx context.Context, p part) (record, error) {
	commit, err := r.commit()
	if err != nil {
		return record{}, err
	}
	log := filepath.Join(r.dir, p.Name+".log")
	r.say("nightly: %s starts, for %s min at most; its log is %s", p.Name, minutes(p.Limit.Duration), log)
	done := record{Commit: commit, Started: time.Now()}
	if done.Result, err = p.run(ctx, log); err != nil {
		return record{}, err
	}
	done.Took = time.Since(done.Started)
	text, err := os.ReadFile(log)
	if err != nil {
		return record{}, err
	}
	if done.Tests = count(string(text)); done.Result == passed && done.Tests.Failed > 0 {
		done.Result = failed
	}
	r.say("nightly: %s: %s after %s min", p.Name, done.Result, minutes(done.Took))
	switch done.Result {
	case interrupted:
		return done, nil
	case failed, outOfTime:
		r.say("the end of %s:\n%s", log, tail(string(text), 40))
	}
	// What changed during the run was not tested as a whole.
	if after, err := r.commit(); err != nil || after != commit {
		done.Commit = ""
	}
	return done, r.write(p, done)
}

// report prints the table, the tests that failed or were skipped, and returns an error that names what did not pass.
func (r *runner) report(rows []row) error {
	var notes, wrong []string
	var lines strings.Builder
	lines.WriteString("\npart\tresult\tminutes\tpassed\tfailed\tskipped\n")
	for _, one := range rows {
		tests, cells := one.record.Tests, "-\t-\t-"
		if tests.Passed+tests.Failed+tests.Skipped > 0 {
			cells = fmt.Sprintf("%d\t%d\t%d", tests.Passed, tests.Failed, tests.Skipped)
		}
		took := "-"
		if one.record.Result != "" {
			took = minutes(one.record.Took)
		}
		lines.WriteString(strings.Join([]string{one.part, one.result, took, cells}, "\t") + "\n")
		for _, note := range tests.Notes {
			notes = append(notes, one.part+": "+note)
		}
		if one.record.Result != "" && one.record.Result != passed {
			wrong = append(wrong, one.part+": "+one.result)
		}
	}
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	_, err := table.Write([]byte(lines.String()))
	if err := errors.Join(err, table.Flush()); err != nil {
		return err
	}
	for _, note := range notes {
		r.say("%s", note)
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, ", "))
	}
	return nil
}

func (r *runner) say(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format+"\n", args...) }

func (r *runner) read(p part) (last record, err error) {
	data, err := os.ReadFile(filepath.Join(r.dir, p.Name+".json"))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, nil
	}
	return last, errors.Join(err, json.Unmarshal(data, &last))
}

func (r *runner) write(p part, done record) error {
	data, err := json.MarshalIndent(done, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir, p.Name+".json"), data, 0o644)
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.1f", d.Minutes()) }

// tail returns the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
