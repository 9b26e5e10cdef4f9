package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func fake(name, run string, limit time.Duration) part {
	return part{Name: name, Command: run, Limit: metav1.Duration{Duration: limit}}
}

func newRunner(t *testing.T) (*runner, *bytes.Buffer) {
	t.Helper()
	out := new(bytes.Buffer)
	return &runner{dir: t.TempDir(), commit: func() (string, error) { return "c1", nil }, out: out}, out
}

// shows requires that the table in out has rows that match the expressions, in their order, and empties out.
func shows(t *testing.T, out *bytes.Buffer, want ...string) {
	t.Helper()
	_, table, _ := strings.Cut(out.String(), "skipped\n")
	if !regexp.MustCompile(`^` + strings.Join(want, `\n`) + `\n`).MatchString(table) {
		t.Errorf("want rows %q, got:\n%s", want, out)
	}
	out.Reset()
}

func TestPartsPassFailAndRunOutOfTime(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	err := r.all(t.Context(), []part{
		fake("good", "true", time.Minute),
		fake("bad", "echo it is broken; false", time.Minute),
		fake("late", "sleep 600", 200*time.Millisecond),
		fake("lost", "use false; echo the command goes on", time.Minute),
		fake("lying", `printf '=== RUN   TestA\n--- FAIL: TestA (0.00s)\n'`, time.Minute),
		fake("empty", "echo 'testing: warning: no tests to run'", time.Minute),
	})
	const want = "bad: FAILED, late: OUT OF TIME, lost: FAILED, lying: FAILED, empty: FAILED"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if !strings.Contains(out.String(), "it is broken") || strings.Contains(out.String(), "goes on") {
		t.Errorf("want the end of each log:\n%s", out)
	}
	shows(t, out, `good +passed +0\.0 +- +- +-`, `bad +FAILED +0\.0 +- +- +-`, `late +OUT OF TIME .*`, `lost +FAILED .*`,
		`lying +FAILED +0\.0 +0 +1 +0`, `empty +FAILED +0\.0 +0 +1 +0`)
}

func TestAPartThatPassedRunsAgainOnlyForAnotherCommit(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	ran := filepath.Join(t.TempDir(), "ran")
	parts := []part{fake("a", "echo a >>"+ran, time.Minute), fake("b", "echo b >>"+ran+"; false", time.Minute)}
	for _, commit := range []string{"c1", "c1", "", "c1", "c1", "c2"} {
		r.commit = func() (string, error) { return commit, nil }
		_ = r.all(t.Context(), slices.Clone(parts))
	}
	data, _ := os.ReadFile(ran)
	// The second and the fifth run repeat only the part that fails. The third one tests changes that no commit has.
	if got := strings.Join(strings.Fields(string(data)), ""); got != "ab"+"b"+"ab"+"ab"+"b"+"ab" {
		t.Errorf("the parts ran as %s", got)
	}
	shows(t, out, `a +passed .*`, `b +FAILED .*`)
}

func TestAPartThatTestedTwoCommitsHasNoStamp(t *testing.T) {
	t.Parallel()
	r, _ := newRunner(t)
	calls := 0
	r.commit = func() (string, error) { calls++; return strings.Repeat("c", calls), nil }
	p := fake("a", "true", time.Minute)
	if err := r.all(t.Context(), []part{p}); err != nil {
		t.Fatal(err)
	}
	if last, err := r.read(p); err != nil || last.Result != passed || last.Commit != "" {
		t.Errorf("record %+v, error %v", last, err)
	}
}

// TestInterruptedRunResumes interrupts the second of three parts. The next run starts with it.
func TestInterruptedRunResumes(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	started := filepath.Join(t.TempDir(), "started")
	parts := []part{
		fake("first", "true", time.Minute),
		fake("second", "[ -e "+started+" ] || { echo $$ >"+started+"; sleep 600; }", time.Minute),
		fake("third", "true", time.Minute),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.all(ctx, slices.Clone(parts)) }()
	var pid string
	for !strings.HasSuffix(pid, "\n") {
		time.Sleep(10 * time.Millisecond)
		data, _ := os.ReadFile(started)
		pid = string(data)
	}
	stop()
	if err := <-ended; err == nil || err.Error() != "second: interrupted" {
		t.Errorf("error %v", err)
	}
	group, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(-group, 0); err == nil {
		t.Error("processes of the part are left")
	}
	shows(t, out, `first +passed .*`, `second +interrupted .*`, `third +not run: interrupted +- .*`)

	if err := r.all(t.Context(), slices.Clone(parts)); err != nil {
		t.Error(err)
	}
	shows(t, out, `second +passed .*`, `third +passed .*`, `first +passed before .*`)
}

func TestBudgetGoesToThePartThatWaitedLongest(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	r.budget = time.Hour
	now := time.Now()
	for name, last := range map[string]record{
		"recent": {Commit: "c0", Started: now.Add(-time.Hour), Took: time.Second, Result: passed},
		"older":  {Commit: "c0", Started: now.Add(-2 * time.Hour), Took: time.Second, Result: failed},
		"long":   {Commit: "c0", Started: now.Add(-3 * time.Hour), Took: 2 * time.Hour, Result: passed},
		"before": {Commit: "c1", Started: now.Add(-4 * time.Hour), Took: 2 * time.Hour, Result: passed},
	} {
		if err := r.write(part{Name: name}, last); err != nil {
			t.Fatal(err)
		}
	}
	var parts []part
	for _, name := range []string{"recent", "older", "long", "before"} {
		parts = append(parts, fake(name, "true", 3*time.Hour))
	}
	if err := r.all(t.Context(), append(parts, fake("new", "true", 3*time.Hour), fake("short", "true", time.Minute))); err != nil {
		t.Error(err)
	}
	shows(t, out, `new +not run: needs 180\.0 min of 60\.0 min .*`, `short +passed .*`, `before +passed before +120\.0 .*`,
		`long +not run: needs 120\.0 min of .*`, `older +passed .*`, `recent +passed .*`)
}

func TestCount(t *testing.T) {
	t.Parallel()
	got := count(`=== RUN   TestA
=== RUN   TestA/one
=== PAUSE TestA/one
=== RUN   TestA/two
    helper.go:7: needs root
=== CONT  TestA/one
    a_test.go:3: the log of another run:
        --- FAIL: TestOther (0.00s)
=== NAME  TestA
text without a newline--- PASS: TestA (0.01s)
    --- PASS: TestA/one (0.00s)
    --- SKIP: TestA/two (0.00s)
=== RUN   TestB
    b_test.go:9: want 1
--- FAIL: TestB (0.00s)
=== RUN   TestC
panic: test timed out after 1m0s
`)
	want := tests{Passed: 2, Failed: 2, Skipped: 1, Notes: []string{"skipped TestA/two: needs root", "failed TestB: want 1", "did not end: TestC"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"":             "soak mutation-ca mutation-csr",
		"mutation-*":   "mutation-ca mutation-csr",
		"soak":         "soak",
		"fuzz":         `no part is called "fuzz": ` + list + " lists the parts",
		"soak,":        `no part is called "": ` + list + " lists the parts",
		"mutation-[":   `no part is called "mutation-[": ` + list + " lists the parts",
		"soak,soak,*a": "soak mutation-ca",
	} {
		chosen, err := choose([]part{{Name: "soak"}, {Name: "mutation-ca"}, {Name: "mutation-csr"}}, names)
		var got []string
		for _, p := range chosen {
			got = append(got, p.Name)
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%q: %s", names, diff)
		}
	}
}

// TestParts checks parts.yaml: what its commands name exists, and each package to mutate and each older version of Kubernetes has a part.
func TestParts(t *testing.T) {
	t.Parallel()
	parts, err := readParts("parts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	name, target := regexp.MustCompile(`^[a-z0-9.-]+$`), regexp.MustCompile(`^make (\S+)`)
	names, commands := map[string]bool{}, map[string]bool{}
	for _, p := range parts {
		if !name.MatchString(p.Name) || names[p.Name] {
			t.Errorf("the name %q is invalid, or there twice", p.Name)
		}
		names[p.Name], commands[p.Command] = true, true
		if limit := p.Limit.Duration; limit < time.Minute || limit > 340*time.Minute {
			t.Errorf("%s: the limit is %s, and a job of the workflow has 350 minutes", p.Name, limit)
		}
		if found := target.FindStringSubmatch(p.Command); found != nil && !strings.Contains(string(makefile), "\n"+found[1]+":") {
			t.Errorf("%s: the Makefile has no target %s", p.Name, found[1])
		}
	}
	var want []string
	targets, err := os.ReadFile("../mutation/targets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var packages []struct {
		Dir string `json:"dir"`
	}
	if err := yaml.Unmarshal(targets, &packages); err != nil {
		t.Fatal(err)
	}
	for _, each := range packages {
		want = append(want, "make mutation MUTATION="+each.Dir)
	}
	versions, err := filepath.Glob("../controlplane/go-*.mod")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range versions {
		version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "go-"), ".mod")
		want = append(want, "make test-matrix VERSIONS="+version)
		if !regexp.MustCompile(`(?m)^OLDER := .*\b` + regexp.QuoteMeta(version) + `\b`).Match(makefile) {
			t.Errorf("OLDER in the Makefile lacks %s", version)
		}
	}
	var got []string
	for command := range commands {
		if strings.Contains(command, "MUTATION=") || strings.Contains(command, "VERSIONS=") {
			got = append(got, command)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts for hack/mutation/targets.yaml and hack/controlplane (-want +got):\n%s", diff)
	}
}
