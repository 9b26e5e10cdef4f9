// Command csr-controller-manager approves, signs and cleans CertificateSigningRequests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/commands"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/health"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/apiuse"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// version is set by the build with -ldflags "-X main.version=…".
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, printable(err))
		os.Exit(1)
	}
}

// printable returns err as the last words of the process.
func printable(err error) string {
	return "csr-controller-manager: " + strings.ReplaceAll(ascii.Lines(err.Error()), "\n", "\n  ")
}

func run(ctx context.Context, args []string) error {
	commands.Version = version
	if len(args) > 0 {
		if command, found := commands.ByName[args[0]]; found {
			return command(ctx, args[1:], ascii.LinesWriter(os.Stdout))
		}
	}
	return serve(ctx, args, terminationLog)
}

// serve runs the manager. If that fails, the file at log tells a kubelet why. Commands don't write it: a person who runs one
// in the manager's Pod ends nothing.
func serve(ctx context.Context, args []string, log string) error {
	err := configureAndManage(ctx, args)
	if err != nil {
		err = errors.Join(err, noteTermination(log, printable(err)))
	}
	return err
}

func configureAndManage(ctx context.Context, args []string) error {
	configuration, err := config.Load(args, os.Stdout)
	switch {
	case errors.Is(err, config.ErrHelp):
		return nil
	case errors.Is(err, config.ErrVersion):
		fmt.Println("csr-controller-manager", commands.VersionOrBuild())
		return nil
	case err != nil:
		return fmt.Errorf("bad configuration (--help lists the flags):\n%w", err)
	}
	return manage(ctx, configuration)
}

// manage runs the manager until ctx is done or the manager fails.
func manage(ctx context.Context, configuration *config.Configuration) error {
	logger := commands.NewLogger(configuration.Verbosity, os.Stderr)
	logger.Info("Starting", "version", commands.VersionOrBuild())
	for _, warning := range configuration.Warnings(os.Getenv("KUBERNETES_SERVICE_HOST") != "") {
		report.Warn(logger, warning)
	}
	options, err := controllers.FromConfiguration(configuration)
	if err != nil {
		return err
	}
	options.Observer = apiuse.New()
	mgr, err := newManager(configuration, options.Observer, logger)
	if err != nil {
		return err
	}
	if mgr, err = health.Serve(mgr, configuration.HealthProbeBindAddress); err != nil {
		return err
	}
	if err := options.SetupWithManager(mgr); err != nil {
		return err
	}
	// Without any check there would be no path to ask: a manager with nothing to check is ready.
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	logger.Info("Stopped")
	return nil
}

func newManager(c *config.Configuration, observer *apiuse.Observer, logger logr.Logger) (manager.Manager, error) {
	cluster, err := commands.RESTConfig(c)
	if err != nil {
		return nil, err
	}
	apicall.Bound(cluster)
	observer.Wrap(cluster)
	election := rest.CopyConfig(cluster)
	election.QPS = -1 // renewing the Lease never waits behind work
	served := metricsserver.Options{BindAddress: c.MetricsBindAddress}
	if c.MetricsSecure {
		served.SecureServing, served.CertDir, served.FilterProvider = true, c.MetricsCertDir, controllers.MetricsFilter
	}
	return manager.New(cluster, manager.Options{
		Scheme:                        clientgoscheme.Scheme,
		Logger:                        logger,
		Cache:                         cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                       served,
		HealthProbeBindAddress:        health.Off, // health.Serve does
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
