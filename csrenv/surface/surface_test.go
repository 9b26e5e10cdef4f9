// Package surface_test checks that importing the library registers metrics, once, and does nothing else. It imports no
// test environment, because that would register flags.
package surface_test

import (
	"flag"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	_ "github.com/csr-controller-manager/csr-controller-manager/controllers" // the import is under test
)

var atStart struct {
	stacks  string
	logging bool
}

func TestMain(m *testing.M) {
	buffer := make([]byte, 1<<20)
	atStart.stacks = string(buffer[:runtime.Stack(buffer, true)])
	atStart.logging = log.Log.Enabled()
	os.Exit(m.Run())
}

func TestImportHasNoOtherEffect(t *testing.T) {
	flag.CommandLine.VisitAll(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			t.Errorf("flag %q", f.Name)
		}
	})
	ours := regexp.MustCompile(`csr-controller-manager/(controllers|internal|pkg)`)
	for stack := range strings.SplitSeq(atStart.stacks, "\n\n") {
		if !strings.Contains(stack, "surface_test.TestMain") && ours.MatchString(stack) {
			t.Errorf("goroutine:\n%s", stack)
		}
	}
	if atStart.logging {
		t.Error("controller-runtime has a logger")
	}
}

// TestImportRegistersMetrics registers metrics of the same names again, with another help text, which the registry refuses. If
// the library had registered its own twice, the import would have panicked.
func TestImportRegistersMetrics(t *testing.T) {
	for name, labels := range map[string]string{
		"csr_approver_decisions_total": "signer rule verdict reason", "csr_approver_dry_run_total": "signer verdict reason outcome",
		"csr_signer_dry_run_total": "signer outcome reason", "csr_signer_outcomes_total": "signer outcome reason",
		"csr_signer_lifetime_cut_total": "signer", "csr_signer_ca_reloads_total": "result", "csr_signer_ca_expiration_timestamp_seconds": "signer",
		"csr_cleaner_deleted_total": "state reason", "csr_cleaner_dry_run_total": "state reason", "csr_approver_static_rows_refused": "",
		"csr_block_list_nodes": "", "csr_block_list_certificates": "", "csr_block_list_problems": "",
	} {
		again := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: "another"}, strings.Fields(labels))
		if err := metrics.Registry.Register(again); err == nil {
			t.Errorf("%s is not registered", name)
		}
	}
}
