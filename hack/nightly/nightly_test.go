package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// fake returns a part with a limit of a minute.
func fake(name, run string) part {
	return part{Name: name, Command: run, Limit: metav1.Duration{Duration: time.Minute}}
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
	expect.True(t, regexp.MustCompile(`^`+strings.Join(want, `\n`)+`\n`).MatchString(table), "want rows %q, got:\n%s", want, out)
	out.Reset()
}

// TestPartsPassFailAndRunOutOfTime checks the results of parts, and that the end of the log of each failed part is
// printed.
func TestPartsPassFailAndRunOutOfTime(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	err := r.all(t.Context(), []part{
		fake("good", `[ "$PART" = good ]`),
		fake("bad", "echo it is broken; false"),
		{Name: "late", Command: "sleep 600", Limit: metav1.Duration{Duration: 200 * time.Millisecond}},
		fake("lost", "use false; echo the command goes on"),
		fake("lying", `printf '=== RUN   TestA\n--- FAIL: TestA (0.00s)\n'`),
		fake("empty", "echo 'testing: warning: no tests to run'"),
	})
	const want = "bad: FAILED, late: OUT OF TIME, lost: FAILED, lying: FAILED, empty: FAILED"
	expect.True(t, err != nil && err.Error() == want, "error %v, want %s", err, want)
	expect.True(t, strings.Contains(out.String(), "it is broken") && !strings.Contains(out.String(), "goes on"),
		"want the end of each log:\n%s", out)
	shows(t, out, `good +passed +0\.0 +- +- +-`, `bad +FAILED +0\.0 +- +- +-`, `late +OUT OF TIME .*`, `lost +FAILED .*`,
		`lying +FAILED +0\.0 +0 +1 +0`, `empty +FAILED +0\.0 +0 +1 +0`)
}

// TestAPartThatPassedRunsAgainOnlyForAnotherCommit checks that a part that fails, and a tree with changes, run again. A record names no commit
// if the commit has changed during the run.
func TestAPartThatPassedRunsAgainOnlyForAnotherCommit(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	ran := filepath.Join(t.TempDir(), "ran")
	parts := []part{fake("a", "echo a >>"+ran), fake("b", "echo b >>"+ran+"; false")}
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
	calls := 0
	r.commit = func() (string, error) { calls++; return strings.Repeat("c", calls), nil }
	expect.NoError(t, r.all(t.Context(), parts[:1]))
	if last, err := r.read(parts[0]); err != nil || last.Result != passed || last.Commit != "" {
		t.Errorf("record %+v, error %v", last, err)
	}
}

// TestInterruptedRunResumes interrupts the second of three parts. The next run starts with it.
func TestInterruptedRunResumes(t *testing.T) {
	t.Parallel()
	r, out := newRunner(t)
	started := filepath.Join(t.TempDir(), "started")
	parts := []part{
		fake("first", "true"),
		fake("second", "[ -e "+started+" ] || { echo $$ >"+started+"; sleep 600; }"),
		fake("third", "true"),
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
	expect.NoError(t, err)
	expect.True(t, syscall.Kill(-group, 0) != nil, "processes of the part are left")
	shows(t, out, `first +passed .*`, `second +interrupted .*`, `third +not run: interrupted +- .*`)

	expect.NoError(t, r.all(t.Context(), slices.Clone(parts)))
	shows(t, out, `second +passed .*`, `third +passed .*`, `first +passed before .*`)
}

// TestBudgetGoesToThePartThatWaitedLongest checks the order of parts, and that parts that need too long do not run.
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
		expect.NoError(t, r.write(part{Name: name}, last))
	}
	var parts []part
	for _, name := range []string{"recent", "older", "long", "before", "new", "short"} {
		parts = append(parts, fake(name, "true"))
	}
	parts[4].Limit.Duration = 3 * time.Hour // of new
	expect.NoError(t, r.all(t.Context(), parts))
	shows(t, out, `new +not run: needs 180\.0 min of 60\.0 min .*`, `short +passed .*`, `before +passed before +120\.0 .*`,
		`long +not run: needs 120\.0 min of .*`, `older +passed .*`, `recent +passed .*`)
}

// TestCount checks that the log of one test does not count as another test.
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
	expect.Equal(t, "tests", got, want)
}

// TestChoose checks names and patterns of parts, and that an unknown one is an error.
func TestChoose(t *testing.T) {
	t.Parallel()
	soak, ca, csr := part{Name: "soak"}, part{Name: "mutation-ca"}, part{Name: "mutation-csr"}
	for names, want := range map[string][]part{
		"": {soak, ca, csr}, "mutation-*": {ca, csr}, "soak": {soak}, "soak,soak,*a": {soak, ca}, "fuzz": nil, "soak,": nil, "mutation-[": nil,
	} {
		got, err := choose([]part{soak, ca, csr}, names)
		unknown := fmt.Sprintf("no part is called %q: %s lists the parts", names[strings.LastIndex(names, ",")+1:], list)
		expect.True(t, slices.Equal(got, want) && (err == nil) == (want != nil) && (err == nil || err.Error() == unknown),
			"%q: %v, error %v", names, got, err)
	}
}

// TestParts checks parts.yaml: what its commands name exists, and each command is valid for a shell.
func TestParts(t *testing.T) {
	t.Parallel()
	parts, err := readParts("parts.yaml")
	expect.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	expect.NoError(t, err)
	name := regexp.MustCompile(`^[a-z0-9.-]+$`)
	// A target of make, a script, a package of tests or of a program, and a package to mutate.
	mentioned := regexp.MustCompile(`make ([a-z0-9-]+)|(hack/\S+\.sh)|\./([a-z0-9/]+)|mutation\.sh (\S+)`)
	names := map[string]bool{}
	for _, p := range parts {
		expect.True(t, name.MatchString(p.Name) && !names[p.Name], "the name %q is invalid, or there twice", p.Name)
		names[p.Name] = true
		if limit := p.Limit.Duration; limit < time.Minute || limit > 340*time.Minute {
			t.Errorf("%s: the limit is %s, and a job of the workflow has 350 minutes", p.Name, limit)
		}
		if output, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", p.Command).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", p.Name, output)
		}
		found := mentioned.FindAllStringSubmatch(p.Command, -1)
		expect.True(t, len(found) > 0, "%s: the command runs nothing of this repository", p.Name)
		for _, one := range found {
			_, err := os.Stat(filepath.Join("../..", one[2]+one[3]+one[4]))
			expect.True(t, err == nil && (one[1] == "" || strings.Contains(string(makefile), "\n"+one[1]+":")),
				"%s: there is no %q: %v", p.Name, one[0], err)
		}
	}
}

// TestEachVersionHasAPart adds the pins of a newer version of Kubernetes. It gets a part, and its kubelet is not one of the older ones.
func TestEachVersionHasAPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	expect.NoError(t, os.CopyFS(filepath.Join(dir, "hack/nightly"), os.DirFS(".")))
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "hack/controlplane"), 0o700))
	for name, content := range map[string]string{
		"go.mod": "require (\n\tk8s.io/kubernetes v1.37.2\n)\n", "go-1.9.3.mod": "", "go-1.36.3.mod": "", "go-1.38.0.mod": "",
		"get.sh": "#!/bin/sh\necho CONTROLPLANE=$K8S_VERSION\n",
	} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, "hack/controlplane", name), []byte(content), 0o700))
	}
	parts, err := readParts(filepath.Join(dir, "hack/nightly/parts.yaml"))
	expect.NoError(t, err)
	var names []string
	for _, p := range parts {
		if version, found := strings.CutPrefix(p.Name, "kubernetes-"); found {
			names = append(names, version)
		}
		if p.Name != "e2e-nightly" {
			continue
		}
		kubelets, _, found := strings.Cut(p.Command, "export OLD_KUBELETS")
		_, kubelets, hasStart := strings.Cut(kubelets, "make image\n")
		expect.True(t, found && hasStart, "%s", p.Command)
		command := exec.CommandContext(t.Context(), "bash", "-c", prelude+kubelets+"echo $OLD_KUBELETS")
		command.Dir = dir
		output, err := command.Output()
		expect.NoError(t, err)
		expect.Equal(t, "kubelets", strings.TrimSpace(string(output)), "1.36.3/kubelet 1.9.3/kubelet")
	}
	expect.Equal(t, "versions", names, []string{"1.9.3", "1.38.0", "1.36.3"})
}
