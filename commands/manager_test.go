package commands

import (
	"context"
	"os"
	"regexp"
	"strconv"
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
// each, and ends before the kubelet kills its Pod.
func TestStopWaitsForWrites(t *testing.T) {
	var grace time.Duration
	for _, file := range []string{
		"config/manager/base/deployment.yaml", "config/overlays/static-pod/pod/pod.yaml", "charts/csr-controller-manager/templates/deployment.yaml",
	} {
		found := regexp.MustCompile(`terminationGracePeriodSeconds: (\d+)`).FindSubmatch(kit.Must(os.ReadFile("../" + file))(t))
		if found == nil {
			t.Fatalf("%s has no terminationGracePeriodSeconds", file)
		}
		seconds := time.Duration(kit.Must(strconv.Atoi(string(found[1])))(t)) * time.Second
		if grace != 0 && seconds != grace {
			t.Errorf("%s: %s, want %s as in the others", file, seconds, grace)
		}
		grace = seconds
	}
	for calls, waits := range map[time.Duration]bool{time.Second: true, 90*time.Second + time.Second: true, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			off := &config.Configuration{MetricsBindAddress: "0", HealthProbeBindAddress: "0"}
			mgr := kit.Must(newManager(&rest.Config{Host: "127.0.0.1:1"}, off, controllers.Options{}, logr.Discard()))(t)
			ctx, stop := context.WithCancel(t.Context())
			ended := false
			kit.NoError(t, mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
				<-ctx.Done()
				<-time.After(calls)
				ended = true
				return nil
			})))
			time.AfterFunc(time.Second, stop)
			began := time.Now()
			err := mgr.Start(ctx)
			if took := time.Since(began) - time.Second; ended != waits || (err == nil) != waits || took > grace-10*time.Second {
				t.Errorf("calls of %s: ended %t after %s, error %v", calls, ended, took, err)
			}
			<-time.After(2 * time.Hour)
		})
	}
}
