package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJudge checks the thresholds, and that an accepted mutant counts as covered and not as a survivor.
func TestJudge(t *testing.T) {
	t.Parallel()
	mutants := func(killed, lived, uncovered int) (all []mutant) {
		for status, n := range map[string]int{"KILLED": killed, "LIVED": lived, "NOT COVERED": uncovered} {
			for range n {
				all = append(all, mutant{file: "a.go", mutation: "M", status: status, line: 7, column: 3, code: "a < b"})
			}
		}
		return all
	}
	entry := []survivor{{File: "a.go", Mutation: "M", Code: "a < b", Reason: "equivalent"}}
	for name, test := range map[string]struct {
		all      []mutant
		accepted []survivor
		want     string // part of the error
	}{
		"enough":                         {mutants(97, 3, 20), nil, ""},
		"too many survivors":             {mutants(96, 4, 0), nil, "96.0 % of the covered mutants are killed, want 97 %"},
		"survivors with a reason":        {mutants(96, 4, 0), entry, ""},
		"not enough coverage":            {mutants(79, 0, 21), nil, "unit tests cover 79.0 % of the mutants, want 80 %"},
		"accepted, but a test kills it":  {mutants(10, 0, 0), entry, "does not survive any more"},
		"accepted in another file":       {mutants(10, 0, 0), []survivor{{File: "b.go", Mutation: "M", Code: "x", Reason: "y"}}, ""},
		"accepted for another operator":  {mutants(10, 4, 0), []survivor{{File: "a.go", Mutation: "N", Code: "a < b", Reason: "y"}}, "are killed, want 97 %"},
		"a mutant that timed out is out": {append(mutants(97, 3, 0), mutant{file: "a.go", status: "TIMED OUT"}), nil, ""},
	} {
		if _, err := judge(test.all, test.accepted); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
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
		if err != nil || !strings.Contains(string(source), "\t"+entry.Code+"\n") {
			t.Errorf("%s: no such line, error %v", entry, err)
		}
	}
	for _, wrong := range []string{"- {file: a, mutation: b, code: c}", "- {file: a, more: b}", "- &a {file: a, code: c, reason: d}\n- *a"} {
		file := filepath.Join(t.TempDir(), "accepted.yaml")
		if err := os.WriteFile(file, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readAccepted(file); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	if all, err := choose(""); err != nil || len(all) != len(targets) {
		t.Errorf("%v, error %v", all, err)
	}
	if some, err := choose("pkg/san,pkg/csr"); err != nil || len(some) != 2 || some[0].dir != "pkg/san" {
		t.Errorf("%v, error %v", some, err)
	}
	if _, err := choose("pkg/none"); err == nil {
		t.Error("an unknown package is chosen")
	}
	for _, each := range targets {
		if info, err := os.Stat(filepath.Join("../..", each.dir)); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", each.dir, err)
		}
		for _, file := range each.files {
			if _, err := os.Stat(filepath.Join("../..", each.dir, file)); err != nil {
				t.Error(err)
			}
		}
	}
}
