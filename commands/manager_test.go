package commands

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestStopWaitsForWrites checks that a manager that stops waits for a write and the read after it, which have 45 seconds
// each, and ends before the kubelet kills its Pod after 120 seconds.
func TestStopWaitsForWrites(t *testing.T) {
	for calls, waits := range map[time.Duration]bool{time.Second: true, 91 * time.Second: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			unreachable := &rest.Config{Host: "127.0.0.1:1"}
			off := &config.Configuration{MetricsBindAddress: "0", HealthProbeBindAddress: "0"}
			mgr := kit.Must(newManager(unreachable, unreachable, off, controllers.Options{}, logr.Discard()))(t)
			kit.NoError(t, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				<-ctx.Done()
				<-time.After(calls)
				return nil
			})))
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			began := time.Now()
			err := mgr.Start(ctx)
			if took := time.Since(began); (err == nil) != waits || took > 110*time.Second {
				t.Errorf("calls of %s: ended after %s, error %v", calls, took, err)
			}
			<-time.After(2 * calls) // no goroutine may be left
		})
	}
}
