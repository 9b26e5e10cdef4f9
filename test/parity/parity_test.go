// Package parity sends the same requests through the real kube-controller-manager and through csr-controller-manager,
// each alone and in turn on one API server. It compares the outcomes field by field.
package parity

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// table is every row.
var table = func() map[string]row {
	all := map[string]row{}
	for _, part := range []map[string]row{approverRows, signerRows, certificateRows, cleanerRows, startRows} {
		for key, r := range part {
			if _, twice := all[key]; twice {
				panic("two rows are called " + key)
			}
			all[key] = r
		}
	}
	return all
}()

func isCleanerRow(key string) bool {
	_, found := cleanerRows[key]
	return found
}

// expected returns the row's state at the end.
func (r row) expected(ours bool) string {
	if ours && r.deviation != "" {
		return r.ours
	}
	return r.want
}

func TestParity(t *testing.T) {
	env := startEnv(t)
	theirs := env.recorded(t)
	ours := env.ourTurn(t).outcomes(t)
	for _, key := range slices.Sorted(maps.Keys(table)) {
		t.Run(key, func(t *testing.T) {
			r := table[key]
			if their, seen := theirs[key]; seen {
				compare(t, r, their, ours[key])
			} else if !isCleanerRow(key) {
				t.Errorf("kube-controller-manager's turn has no such row")
			} else if want := r.expected(true); ours[key].State != want {
				t.Errorf("we made %q of it, the table says %q", ours[key].State, want)
			}
		})
	}
	t.Run("documented", testDocumented)
}

// testDocumented checks that docs/reference/kcm-parity.md has a row for each deviation, and no other row.
func testDocumented(t *testing.T) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/reference/kcm-parity.md")
	kit.NoError(t, err)
	documented := map[string]bool{}
	for _, found := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[found[1]] = true
	}
	// ca-bundle and key-label are the files of the start ownCAs. The test of unknown-usage is in controllers/signer, because of all signers
	// of kube-controller-manager only legacy-unknown does not check the usages.
	listed := map[string]bool{"ca-bundle": true, "key-label": true, "unknown-usage": true}
	for _, r := range table {
		if r.deviation != "" {
			listed[r.deviation] = true
		}
	}
	if diff := cmp.Diff(documented, listed); diff != "" {
		t.Errorf("deviations (-in docs/reference/kcm-parity.md +in the table):\n%s", diff)
	}
}

func compare(t *testing.T, r row, theirs, ours outcome) {
	t.Helper()
	if theirs.State != r.want {
		t.Errorf("kube-controller-manager made %q of it, the table says %q", theirs.State, r.want)
	}
	diff := cmp.Diff(theirs, ours)
	if r.deviation == "" {
		if diff != "" {
			t.Errorf("a difference that is no listed deviation (-kube-controller-manager +ours):\n%s", diff)
		}
		return
	}
	if diff == "" {
		t.Errorf("deviation %q no longer differs", r.deviation)
	}
	if ours.State != r.ours {
		t.Errorf("we made %q of it, deviation %q is %q", ours.State, r.deviation, r.ours)
	}
	want := append(slices.Clone(theirs.Conditions), "Failed=True "+r.message+" (times filled: true)")
	got := ours.Conditions
	if r.ours == approvedIssued {
		want, got = append(slices.Clone(theirs.Certificate), r.message), ours.Certificate
	} else if theirs.State == approvedFailed {
		want = append(want[:len(want)-2], want[len(want)-1]) // ours fails it for another reason
	}
	if r.message != "" && !slices.Equal(got, want) {
		t.Errorf("we say\n%q, want\n%q", got, want)
	}
}

// recorded runs kube-controller-manager's turn, or reads the file PARITY_RECORDED of an earlier turn.
func (e *env) recorded(t *testing.T) map[string]outcome {
	t.Helper()
	file := os.Getenv("PARITY_RECORDED")
	recorded, err := os.ReadFile(file)
	outcomes := map[string]outcome{}
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		e.testRefused(t)
		outcomes = e.theirTurn().outcomes(t)
		if file != "" {
			recorded, err := json.Marshal(outcomes)
			kit.NoError(t, errors.Join(err, os.WriteFile(file, recorded, 0o600)))
		}
		return outcomes
	}
	kit.NoError(t, errors.Join(err, json.Unmarshal(recorded, &outcomes)))
	return outcomes
}

// testRefused checks that kube-controller-manager exits with the files that ours has in ownCAs.
func (e *env) testRefused(t *testing.T) {
	t.Helper()
	for words, files := range e.refused {
		u := e.theirTurn()
		u.run(t, append(files, controllersFlag+"csrsigning"))
		select {
		case <-u.processes[0].Done:
		case <-time.After(time.Minute):
			t.Errorf("kube-controller-manager runs, want it to say %q", words)
		}
		if tail := u.tail(); !strings.Contains(tail, words) {
			t.Errorf("kube-controller-manager ended, but did not say %q:\n%s", words, tail)
		}
	}
}
