// Package reliability injects faults from outside while requests of all kinds are in flight: into the API server, etcd,
// the permissions, the CA, the clock, the disk and the processes themselves. kube-controller-manager goes through the same
// schedules. Afterwards each request must be as it would be without the fault. docs/explanation/reliability.md has the
// results.
package reliability

import (
	"os"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// full reports whether all scenarios run, with kube-controller-manager beside ours, and with the whole load. Otherwise
// one runs, in two minutes.
var full = os.Getenv("RELIABILITY") == "full"

func TestMain(m *testing.M) { kit.Main(m, 4) }
