package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
)

// errorLines logs what is written as errors.
type errorLines struct{ logr.Logger }

func (e errorLines) Write(line []byte) (int, error) {
	e.Error(nil, "Error in net/http", "message", strings.TrimSpace(string(line)))
	return len(line), nil
}

// restConfig returns how to reach the API server. Without a file, kubectl's rules apply, or those for Pods.
func restConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	found, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", ascii.WithoutKeys(err))
	}
	found.UserAgent = "csr-controller-manager/" + VersionOrBuild()
	// API servers compress watches, and lists above 128 KiB. The few megabytes that this saves cost both sides more time.
	found.DisableCompression = true
	found.Wrap(newBounded) // ends calls that hang
	return found, nil
}

// manage runs the manager until ctx is done or the manager fails.
func manage(ctx context.Context, configuration *config.Configuration) error {
	logger := newLogger(configuration.Verbosity, os.Stderr)
	log.SetLogger(logger)
	// Any client of the metrics port can cause errors of client-go's authenticator and of net/http.
	seldom := logger.WithSink(&seldomSink{LogSink: logger.GetSink(), often: &rate.Sometimes{First: 10, Interval: time.Second}})
	klog.SetLogger(seldom)
	stdlog.SetFlags(0)
	stdlog.SetOutput(errorLines{seldom})
	logger.Info("Starting", "version", VersionOrBuild())
	if err := forbidCoreDumps(); err != nil { // a sandbox may not permit it
		logger.Error(err, "The memory of this process, with the keys of CAs, may be written to disk if it crashes")
	}
	for _, warning := range configuration.Warnings(os.Getenv("KUBERNETES_SERVICE_HOST") != "") {
		report.Warn(logger, warning)
	}
	served, err := restConfig(configuration.Kubeconfig)
	if err != nil {
		return err
	}
	home := served
	if configuration.Home.Apart() {
		if home, err = restConfig(configuration.Home.Kubeconfig); err != nil {
			return fmt.Errorf("--home-kubeconfig: %w", err)
		}
	}
	served.QPS, served.Burst = float32(configuration.KubeAPIQPS), configuration.KubeAPIBurst
	home.QPS, home.Burst = served.QPS, served.Burst
	options, err := controllers.FromConfiguration(configuration)
	if err != nil {
		return err
	}
	if options.ServerTime, err = servertime.New(served); err != nil {
		return err
	}
	served.Wrap(options.ServerTime.Wrap) // notes the time in each answer; no age depends on a time of another home
	mgr, err := newManager(served, home, configuration, options, logger)
	if err != nil {
		return err
	}
	if home != served {
		if options.Home, err = cluster.New(home, func(o *cluster.Options) { o.Logger = logger }); err != nil {
			return fmt.Errorf("set up the home: %w", err)
		}
		if err := mgr.Add(options.Home); err != nil {
			return err
		}
	}
	if err := options.SetupWithManager(mgr); err != nil {
		return err
	}
	// Without any check the path would not exist. A manager with nothing to check is ready.
	ping := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping))
	if ping != nil {
		return ping
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	logger.Info("Stopped")
	return nil
}

// newManager returns a manager of the served cluster, whose Lease and whose users of the metrics are at home.
func newManager(
	served, home *rest.Config, c *config.Configuration, options controllers.Options, logger logr.Logger,
) (manager.Manager, error) {
	election := rest.CopyConfig(home)
	election.QPS = -1 // renewing the Lease never waits behind work
	shown := metricsserver.Options{BindAddress: c.MetricsBindAddress}
	if c.MetricsSecure {
		shown.SecureServing, shown.CertDir = true, c.MetricsCertDir
		shown.FilterProvider = func(*rest.Config, *http.Client) (metricsserver.Filter, error) { return metricsFilter(home) }
	}
	return manager.New(served, manager.Options{
		Scheme:                        clientgoscheme.Scheme,
		Logger:                        logger,
		Cache:                         options.CacheOptions(),
		Metrics:                       shown,
		HealthProbeBindAddress:        c.HealthProbeBindAddress,
		GracefulShutdownTimeout:       new(call.Grace),
		LeaderElection:                c.LeaderElection.Enabled,
		LeaderElectionID:              c.LeaderElection.ResourceName,
		LeaderElectionNamespace:       controllers.LeaseNamespace(c),
		LeaderElectionConfig:          election,
		LeaderElectionReleaseOnCancel: true, // main returns right after Start does
		LeaseDuration:                 &c.LeaderElection.LeaseDuration.Duration,
		RenewDeadline:                 &c.LeaderElection.RenewDeadline.Duration,
		RetryPeriod:                   &c.LeaderElection.RetryPeriod.Duration,
	})
}

// bounded is a transport that ends each call but a watch after call.ListTimeout, whose answer has been read by then.
type bounded struct{ next http.RoundTripper }

func newBounded(next http.RoundTripper) http.RoundTripper { return bounded{next} }

// WrappedRoundTripper returns the transport inside. client-go closes its idle connections.
func (b bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Query().Get("watch") == "true" {
		return b.next.RoundTrip(request)
	}
	ctx, cancel := context.WithTimeout(request.Context(), call.ListTimeout)
	response, err := b.next.RoundTrip(request.WithContext(ctx))
	if err != nil {
		cancel()
		return response, err
	}
	response.Body = boundedBody{response.Body, cancel}
	return response, nil
}

// boundedBody ends the timeout of a call when its answer has been read.
type boundedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b boundedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}
