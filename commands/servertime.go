package commands

import (
	"context"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// serverClock returns a clock that shows the time of the API server of cluster, by which objects are stamped. A command may
// run on a workstation whose clock is wrong. If the API server's time is not known, the clock of the machine counts.
// Standard error tells of both.
func serverClock(ctx context.Context, cluster *rest.Config) clock.Clock {
	aside := ascii.LinesWriter(os.Stderr)
	shown, err := servertime.Measure(ctx, cluster)
	if err != nil {
		_, _ = fmt.Fprintf(aside, "Warning: ages are by the clock of this machine, because the time of the API server is not known: %v\n", err)
		return clock.RealClock{}
	}
	if skew := shown.Since(clock.RealClock{}.Now()); skew.Abs() > servertime.MaxSkew {
		_, _ = fmt.Fprintf(aside, "Warning: the clocks of this machine and of the API server differ by %s. Ages are by the API server's.\n", skew.Abs().Round(time.Second))
	}
	return shown
}
