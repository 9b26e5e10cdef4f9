package integration

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/clock"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// throughFaults starts a proxy with rules between the manager's identity and the API server.
func throughFaults(t *testing.T, cfg *rest.Config, rules ...faults.Rule) *faults.Proxy {
	t.Helper()
	proxy, err := faults.Start(cfg, 1, rules...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Stop(); err != nil {
			t.Error(err)
		}
	})
	return proxy
}

// TestClockAnHourAhead runs the manager with a clock that is an hour ahead of the API server, by the Date headers.
// Approvals continue, nothing is signed, and nothing is deleted early. After the clocks agree, the waiting requests
// are handled.
func TestClockAnHourAhead(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 59m}}
`))
	hour := faults.Rule{Do: faults.ShiftDate(-time.Hour)}
	proxy := throughFaults(t, serviceAccountConfig(t), hour)
	p := startManager(t, proxy.Config, "--leader-elect=false", "--config", file)

	denied := createRequest(t, admin(t), nodeRequest(t, "denied", func(obj *request) { obj.Spec.SignerName = "example.com/short" }))
	decide(t, denied, "Denied")
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "fresh"))
	reaches(t, obj, csr.Approved)
	hasEvent(t, obj, "ClockSkewed", "the manager's clock is 1h0m", "ahead of the API server's")
	p.answers(t, p.probes, "/readyz/clock", http.StatusInternalServerError)
	p.answers(t, p.probes, "/healthz", http.StatusOK)
	skewed := regexp.MustCompile(`(?m)^csr_clock_skew_seconds 36\d\d$`)
	eventually(t, "metric", func(ctx context.Context) error {
		if _, body := cluster.Get(ctx, p.metrics, "/metrics"); !skewed.MatchString(body) {
			return fmt.Errorf("no match for %s", skewed)
		}
		return nil
	})
	if got := csr.StateOf(reload(t, obj)); got != csr.Approved {
		t.Errorf("the request is %s while the clock is skewed", got)
	}
	reload(t, denied) // by the manager's clock it is due

	proxy.Use()
	within(t, 2*time.Minute, "the request is signed once the clocks agree", func(ctx context.Context) error {
		if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if got := csr.StateOf(obj); got != csr.Issued {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	reload(t, denied)
}

// TestClockAnHourBehind deletes requests that are due by the API server's time.
func TestClockAnHourBehind(t *testing.T) {
	parallel(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [cleaner]
cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 59m}}
`))
	proxy := throughFaults(t, roleConfig(t, "cleaner"), faults.Rule{Do: faults.ShiftDate(time.Hour)})
	startManager(t, proxy.Config, "--leader-elect=false", "--config", file)
	denied := createRequest(t, admin(t), nodeRequest(t, "denied", func(obj *request) { obj.Spec.SignerName = "example.com/short" }))
	decide(t, denied, "Denied")
	isDeleted(t, denied)
}

// TestClockIsSetForward sets the clock of a running manager forward by 25 hours. Nothing is signed, and nothing is deleted that is not
// due by the API server's time. After the clock is right again, the waiting request is signed.
func TestClockIsSetForward(t *testing.T) {
	parallel(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 1s}}
`))
	p := startJoinable(t, managerConfig(t), "--config", file)
	foreign := createRequest(t, admin(t), nodeRequest(t, "foreign", func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }))
	if err := clock.Shift(p.Pid(), 25*time.Hour); err != nil {
		t.Fatal(err)
	}
	fresh := createRequest(t, as(t, "joiner"), nodeRequest(t, "fresh"))
	reaches(t, fresh, csr.Approved)
	hasEvent(t, fresh, "ClockSkewed", "the manager's clock is 25h0m", "ahead of the API server's")
	for i := range 2 { // the second request is found by another pass of the cleaner
		short := createRequest(t, admin(t), nodeRequest(t, fmt.Sprint("short-", i), func(obj *request) { obj.Spec.SignerName = "example.com/short" }))
		decide(t, short, "Denied")
		isDeleted(t, short)
	}
	reload(t, foreign)
	if got := csr.StateOf(reload(t, fresh)); got != csr.Approved {
		t.Errorf("the request is %s while the clock is wrong", got)
	}
	if err := clock.Shift(p.Pid(), 0); err != nil {
		t.Fatal(err)
	}
	reaches(t, fresh, csr.Issued)
	reload(t, foreign)
}
