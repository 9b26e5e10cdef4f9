package main

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestJudge checks the floors, and that an accepted mutant counts as covered and not as a survivor.
func TestJudge(t *testing.T) {
	t.Parallel()
	mutants := func(counts map[string]int) (all []mutant) {
		for status, n := range counts {
			for range n {
				all = append(all, mutant{file: "a.go", mutation: "M", status: status, line: 7, column: 3, code: "a < b"})
			}
		}
		return all
	}
	entry := func(count int) []survivor {
		return []survivor{{File: "a.go", Mutation: "M", Code: "a < b", Count: count}}
	}
	for name, test := range map[string]struct {
		counts   map[string]int
		accepted []survivor
		want     string // part of the error
	}{
		"enough":                        {map[string]int{killed: 97, timedOut: 3, notCovered: 20}, nil, ""},
		"a survivor without a reason":   {map[string]int{killed: 99, lived: 1}, nil, "1 mutants survive"},
		"too many survivors":            {map[string]int{killed: 96, lived: 4}, nil, "96.0 % of the covered mutants are killed, want 97 %"},
		"survivors with a reason":       {map[string]int{killed: 96, lived: 4}, entry(4), ""},
		"one survivor more":             {map[string]int{killed: 30, lived: 2}, entry(1), "96.8 % of the covered mutants are killed, want 97 %"},
		"one survivor less":             {map[string]int{killed: 96, lived: 3}, entry(4), "3 survive, the entry has 4"},
		"accepted, but a test kills it": {map[string]int{killed: 10}, entry(1), "0 survive, the entry has 1"},
		"not enough coverage":           {map[string]int{killed: 79, notCovered: 21}, nil, "unit tests cover 79.0 % of the mutants, want 80 %"},
		"accepted in another file":      {map[string]int{killed: 10}, []survivor{{File: "b.go", Mutation: "M", Code: "x", Count: 1}}, ""},
		"accepted for another operator": {map[string]int{killed: 10, lived: 4},
			[]survivor{{File: "a.go", Mutation: "N", Code: "a < b", Count: 4}}, "are killed"},
		"timed out is not killed":         {map[string]int{killed: 96, timedOut: 4}, nil, "96.0 % of the covered mutants are killed"},
		"timed out with a reason":         {map[string]int{killed: 96, timedOut: 4}, entry(4), ""},
		"what does not build is no score": {map[string]int{killed: 80, notCovered: 20, doesNotBuild: 50}, nil, ""},
		"another status":                  {map[string]int{killed: 80, "SKIPPED": 1}, nil, `unknown status "SKIPPED"`},
	} {
		_, err := judge(target{MinKilled: 97, MinCovered: 80}, mutants(test.counts), test.accepted)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

// TestCovered checks the bounds of a dry run, which does not know whether changed arithmetic compiles.
func TestCovered(t *testing.T) {
	t.Parallel()
	all := []mutant{
		{mutation: "INVERT_LOGICAL", status: "RUNNABLE"}, {mutation: "INVERT_LOGICAL", status: notCovered},
		{mutation: "ARITHMETIC_BASE", status: "RUNNABLE"}, {mutation: "ARITHMETIC_BASE", status: "RUNNABLE"},
	}
	if low, high := covered(all); low != 50 || high != 75 {
		t.Errorf("covers %g %% to %g %%, want 50 %% to 75 %%", low, high)
	}
}

// TestAccepted checks that every entry has a reason, and names a line of code that exists.
func TestAccepted(t *testing.T) {
	t.Parallel()
	accepted, err := readAccepted("accepted.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range accepted {
		source, err := os.ReadFile(filepath.Join("../..", entry.File))
		lines := strings.Split(string(source), "\n")
		if err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.TrimLeft(line, "\t") == entry.Code }) {
			t.Errorf("%s: no such line, error %v", entry, err)
		}
	}
	refuses(t, readAccepted, "- {file: a, mutation: b, code: c}", "- {file: a, code: c, reason: d, more: b}",
		"- {file: a, code: c, reason: d, count: -1}", "- &a {file: a, code: c, reason: d}\n- *a")
}

// refuses checks that read refuses a file with each of texts.
func refuses[T any](t *testing.T, read func(file string) (T, error), texts ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a.yaml")
	for _, text := range texts {
		written := os.WriteFile(file, []byte(text), 0o600)
		if _, err := read(file); err == nil || written != nil {
			t.Errorf("%q is accepted, or not written: %v", text, written)
		}
	}
}

// TestTargets checks that the targets exist, and that the files of rotation are those that depguard keeps pure.
func TestTargets(t *testing.T) {
	t.Parallel()
	targets, err := readTargets("targets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range targets {
		if info, err := os.Stat(filepath.Join("../..", each.Dir)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", each.Dir, err)
		}
		if each.Files == nil {
			continue
		}
		var want []string
		for _, file := range pureFiles(t) {
			if dir, name := path.Split(file); dir == "**/"+each.Dir+"/" {
				want = append(want, name)
			}
		}
		if !slices.Equal(each.Files, want) {
			t.Errorf("%s: mutates %q, and depguard keeps %q pure", each.Dir, each.Files, want)
		}
	}
	refuses(t, readTargets, "- {dir: a, minKilled: 97, minCovered: 79}", "- {dir: a, minKilled: 96, minCovered: 80}",
		"- {dir: a, minKilled: 97, minCovered: 80, left: b}", "- {minKilled: 97, minCovered: 80}",
		"- {dir: a, minKilled: 97, minCovered: 80, more: b}")
}

// pureFiles returns the files of depguard's rule "pure".
func pureFiles(t *testing.T) []string {
	t.Helper()
	var configuration struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct {
						Files []string `json:"files"`
					} `json:"rules"`
				} `json:"depguard"`
			} `json:"settings"`
		} `json:"linters"`
	}
	data, err := os.ReadFile("../../.golangci.yml")
	if err := errors.Join(err, yaml.Unmarshal(data, &configuration)); err != nil {
		t.Fatal(err)
	}
	return configuration.Linters.Settings.Depguard.Rules["pure"].Files
}

// TestChoose checks that packages are chosen by their folder.
func TestChoose(t *testing.T) {
	t.Parallel()
	targets := []target{{Dir: "pkg/csr"}, {Dir: "pkg/ca"}, {Dir: "pkg/san"}}
	for names, want := range map[string][]target{"": targets, "pkg/san,pkg/csr": {targets[2], targets[0]}, "pkg/none": nil} {
		if got, err := choose(targets, names); !reflect.DeepEqual(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, error %v", names, got, err)
		}
	}
}
