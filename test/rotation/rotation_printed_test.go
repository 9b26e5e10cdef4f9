//go:build nightly

package rotation

import (
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// testPrinted reads kubectl's output for an authority, in the phases in which it waits for a person and in the
// others.
func testPrinted(t *testing.T, r *rotating) {
	const name = "printed"
	kubeconfig, err := r.WriteKubeconfig("printed", r.Config)
	if err != nil {
		t.Fatal(err)
	}
	printed := func(args ...string) map[string]string {
		t.Helper()
		out := kit.Kubectl(t, kubeconfig, append([]string{"get", "signingauthorities", name}, args...)...)
		t.Log(out)
		if strings.Contains(out, "<invalid>") {
			t.Errorf("<invalid> in:\n%s", out)
		}
		return columnsOf(t, out)
	}

	r.run(t, r.everything(t, time.Hour, map[string]string{certificatesv1.KubeletServingSignerName: name}))
	r.adopted(t, name, func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Signers, spec.Verification = []string{certificatesv1.KubeletServingSignerName}, v1alpha1.Verification{APIServers: []string{"192.0.2.1:6443"}}
	})
	signing := r.get(t, name).Status.Signing
	for _, args := range [][]string{nil, {"-o", "wide"}} {
		got := printed(args...)
		if got["PHASE"] != "Completed" || got["READY"] != "True" || got["KEY"] != signing.KeyID || got["ENDS"] != signing.NotAfter.UTC().Format(time.RFC3339) || got["AGE"] == "" {
			t.Errorf("columns %q", got)
		}
		if _, last := got["WAITING FOR"]; last != (len(args) > 0) || got["WAITING FOR"] != "" {
			t.Errorf("waits for %q", got["WAITING FOR"])
		}
	}
	r.ask(t, name, v1alpha1.OperationStart)
	waiting := r.reaches(t, name, v1alpha1.Preparing, func(obj *v1alpha1.SigningAuthority) bool {
		return len(obj.Status.WaitingFor) == 1 && strings.Contains(obj.Status.WaitingFor[0], "rotation confirm ")
	}).Status.WaitingFor
	if got := printed("-o", "wide"); got["WAITING FOR"] != waiting[0] {
		t.Errorf("waits for %q, want %q", got["WAITING FOR"], waiting[0])
	}
	if got := printed(); got["PHASE"] != "Preparing" {
		t.Errorf("columns %q", got)
	}
}

// columnsOf splits a table with one row at the columns of its header, which end with two blanks.
func columnsOf(t *testing.T, table string) map[string]string {
	t.Helper()
	lines := strings.Split(strings.TrimRight(table, "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("%d lines:\n%s", len(lines), table)
	}
	columns := map[string]string{}
	for start := 0; start < len(lines[0]); {
		end := len(lines[0])
		if gap := strings.Index(lines[0][start:], "  "); gap >= 0 {
			end = start + gap
			for end < len(lines[0]) && lines[0][end] == ' ' {
				end++
			}
		}
		row := lines[1][min(start, len(lines[1])):]
		if end < len(lines[0]) {
			row = row[:min(end-start, len(row))]
		}
		columns[strings.TrimSpace(lines[0][start:end])] = strings.TrimSpace(row)
		start = end
	}
	return columns
}
