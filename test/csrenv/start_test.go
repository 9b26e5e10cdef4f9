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
// the other. It reports the median of each time until the cache is synced, and the ratio. A suite waits for the cache of a manager
// with WaitForCacheSync, which asks only ten times a second. So bare-ms is the time to that answer, and synced-ms the time until
// the informer has synced.
func BenchmarkStart(b *testing.B) {
	kit.Alone(b)
	cfg, authority := kit.ControlPlane(b).Config, kit.ControlPlane(b).CA
	var bare, synced, loops []time.Duration
	for b.Loop() {
		waits, syncs := startBare(b, cfg)
		bare, synced = append(bare, waits), append(synced, syncs)
		began := time.Now()
		env := must(csrenv.Start(b.Context(), cfg, csrenv.Options{CA: authority}))
		loops = append(loops, time.Since(began))
		kit.NoError(b, env.Stop())
	}
	median := func(all []time.Duration) float64 {
		slices.Sort(all)
		return all[len(all)/2].Seconds() * 1000
	}
	b.ReportMetric(median(bare), "bare-ms")
	b.ReportMetric(median(synced), "synced-ms")
	b.ReportMetric(median(loops), "csrenv-ms")
	b.ReportMetric(median(loops)/median(bare), "csrenv/bare")
	b.ReportMetric(median(loops)/median(synced), "csrenv/synced")
}

// startBare returns the times from the making of a manager until WaitForCacheSync returns, and until its informer has synced.
func startBare(b *testing.B, cfg *rest.Config) (waits, syncs time.Duration) {
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
	waited := make(chan time.Duration, 1)
	go func() {
		_ = mgr.GetCache().WaitForCacheSync(ctx)
		waited <- time.Since(began)
	}()
	for !requests.HasSynced() {
		time.Sleep(time.Millisecond)
	}
	syncs, waits = time.Since(began), <-waited
	cancel()
	kit.NoError(b, <-stopped)
	return waits, syncs
}
