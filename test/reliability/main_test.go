// Package reliability injects faults from outside while requests of all kinds are in flight: into the API server, etcd,
// the permissions, the CA, the clock, the disk and the processes themselves. kube-controller-manager goes through the same
// schedules. Afterwards each request must be as it would be without the fault. docs/explanation/reliability.md has the
// results.
package reliability

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// full reports whether all scenarios run, with kube-controller-manager beside ours, and with the whole load. Otherwise
// a subset runs, in three minutes.
var full = os.Getenv("RELIABILITY") == "full"

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // client-go's, which would hide what a failed test says
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, errors.New("KUBEBUILDER_ASSETS is not set: run the tests with make test"))
		os.Exit(1)
	}
	code := m.Run()
	if file := os.Getenv("RELIABILITY_TABLE"); file != "" {
		if err := os.WriteFile(file, []byte(table()), 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}
