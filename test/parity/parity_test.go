package parity

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/discovery"

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

func rowsWhere(keep func(row) bool) map[string]row {
	rows := maps.Clone(table)
	maps.DeleteFunc(rows, func(_ string, r row) bool { return !keep(r) })
	return rows
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
	own := csrControllerManager(env.ownBinary(t))
	theirs := env.recorded(t)
	ours := env.pass(t, own)
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
	t.Run("CA file with several certificates", func(t *testing.T) { env.testSeveralCertificates(t, own) })
	t.Run("key under a wrong label", func(t *testing.T) { env.testWrongLabel(t, own) })
	t.Run("CA that is an intermediate", func(t *testing.T) { env.testIntermediate(t, own) })
	t.Run("certificate that is refused", func(t *testing.T) { env.testNotStored(t, own) })
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
	// These have their own tests. That of "unknown-usage" is in controllers/signer, because of all signers of
	// kube-controller-manager only legacy-unknown does not check the usages.
	listed := map[string]bool{"ca-bundle": true, "chain": true, "key-label": true, "unknown-usage": true}
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
	if r.message != "" && (len(ours.Conditions) == 0 || ours.Conditions[len(ours.Conditions)-1] != "Failed=True "+r.message+" (times filled: true)") {
		t.Errorf("conditions %q, want the last to be Failed with %q", ours.Conditions, r.message)
	}
}

// recorded runs kube-controller-manager's turn, or reads the file PARITY_RECORDED of an earlier turn.
func (e *env) recorded(t *testing.T) map[string]outcome {
	t.Helper()
	file := os.Getenv("PARITY_RECORDED")
	recorded, err := os.ReadFile(file)
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		kcm := kubeControllerManager(os.Getenv("KUBE_CONTROLLER_MANAGER"))
		version, err := discovery.NewDiscoveryClientForConfigOrDie(e.Config).ServerVersion()
		kit.NoError(t, err)
		if slices.Contains(uncleaning, version.Minor) {
			kcm.passes = 0
		}
		outcomes := e.pass(t, kcm)
		if file != "" {
			recorded, err := json.Marshal(outcomes)
			kit.NoError(t, errors.Join(err, os.WriteFile(file, recorded, 0o600)))
		}
		return outcomes
	}
	outcomes := map[string]outcome{}
	kit.NoError(t, errors.Join(err, json.Unmarshal(recorded, &outcomes)))
	return outcomes
}
