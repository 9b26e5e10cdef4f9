package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// RESTConfig returns how to reach the API server.
func RESTConfig(c *config.Configuration) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	cluster, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	cluster.UserAgent = "csr-controller-manager/" + VersionOrBuild()
	cluster.QPS, cluster.Burst = float32(c.KubeAPIQPS), c.KubeAPIBurst
	// API servers compress watches, and lists above 128 KiB. The few megabytes that this saves cost both sides more time.
	cluster.DisableCompression = true
	return cluster, nil
}

// server is the API server of a command, with a clock that shows the API server's time.
type server struct {
	config *rest.Config
	api    client.Client
	clock  clock.Clock
}

// connect returns the API server that source names for cmd.
func connect(ctx context.Context, source Source, cmd *cobra.Command) (server, error) {
	cluster, err := source.REST(cmd)
	if err != nil {
		return server{}, err
	}
	api, err := NewClient(cluster)
	if err != nil {
		return server{}, err
	}
	return server{cluster, api, serverClock(ctx, cluster, cmd.ErrOrStderr())}, nil
}

// NewClient returns a client that knows every kind that the commands read.
func NewClient(cluster *rest.Config) (client.Client, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	api, err := client.New(cluster, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	return api, nil
}

// serverClock returns a clock that shows the time of the API server, which sets the timestamps of objects. If that time
// is unknown, it returns the clock of this machine, which may be wrong. It writes warnings to aside.
func serverClock(ctx context.Context, cluster *rest.Config, aside io.Writer) clock.Clock {
	shown, err := servertime.Measure(ctx, cluster)
	if err != nil {
		_, _ = fmt.Fprintf(aside, "Warning: ages are by the clock of this machine: %v\n", err)
		return clock.RealClock{}
	}
	if skew := shown.Since(clock.RealClock{}.Now()); skew.Abs() > servertime.MaxSkew {
		_, _ = fmt.Fprintf(aside, "Warning: the clocks of this machine and of the API server differ by %s. "+
			"Ages are by the API server's.\n", skew.Abs().Round(time.Second))
	}
	return shown
}
