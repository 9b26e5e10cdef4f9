package csrenv_test

import (
	"context"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// BenchmarkStart starts, against one API server, a manager with one controller of requests that does nothing, and a loop, one after
// the other. It reports the median of each time until the cache is synced, and their ratio.
func BenchmarkStart(b *testing.B) {
	kit.Alone(b)
	cfg, authority := kit.ControlPlane(b).Config, kit.ControlPlane(b).CA
	var bare, loops []time.Duration
	for b.Loop() {
		bare = append(bare, startBare(b, cfg))
		began := time.Now()
		env := must(csrenv.Start(b.Context(), cfg, csrenv.Options{CA: authority}))
		loops = append(loops, time.Since(began))
		kit.NoError(b, env.Stop())
	}
	slices.Sort(bare)
	slices.Sort(loops)
	one, other := bare[len(bare)/2].Seconds(), loops[len(loops)/2].Seconds()
	b.ReportMetric(one*1000, "bare-ms")
	b.ReportMetric(other*1000, "csrenv-ms")
	b.ReportMetric(other/one, "csrenv/bare")
}

// startBare returns the time from the making of a manager until its cache is synced.
func startBare(b *testing.B, cfg *rest.Config) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	began := time.Now()
	mgr := must(manager.New(cfg, manager.Options{
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	}))
	nothing := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })
	kit.NoError(b, builder.ControllerManagedBy(mgr).For(&certificatesv1.CertificateSigningRequest{}).Complete(nothing))
	requests := must(mgr.GetCache().GetInformer(ctx, &certificatesv1.CertificateSigningRequest{}))
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	for !requests.HasSynced() { // WaitForCacheSync asks only ten times a second
		time.Sleep(time.Millisecond)
	}
	took := time.Since(began)
	cancel()
	kit.NoError(b, <-stopped)
	return took
}
