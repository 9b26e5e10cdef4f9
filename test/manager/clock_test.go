package manager

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/clock"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestClockAnHourAhead runs the manager with a clock that is an hour ahead of the API server, by the Date headers.
// Approvals continue, nothing is signed, and nothing is deleted early. After the clocks agree, the waiting requests
// are handled.
func TestClockAnHourAhead(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	config := kit.Configure(t, `cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 59m}}
`)
	hour := faults.Rule{Do: faults.ShiftDate(-time.Hour)}
	proxy := kit.ThroughFaults(t, kit.ServiceAccountConfig(t), hour)
	p := kit.StartManager(t, proxy.Config, "--leader-elect=false", config)

	denied := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "denied", func(obj *kit.Request) { obj.Spec.SignerName = "example.com/short" }))
	kit.Decide(t, denied, "Denied")
	obj := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "fresh"))
	kit.Reaches(t, obj, csr.Approved)
	kit.HasEvent(t, obj, "ClockSkewed", "the manager's clock is 1h0m", "ahead of the API server's")
	p.Answers(t, p.Probes, "/readyz/clock", http.StatusInternalServerError)
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	skewed := regexp.MustCompile(`(?m)^csr_clock_skew_seconds 36\d\d$`)
	kit.Eventually(t, "metric", func(ctx context.Context) error {
		if _, body := cluster.Get(ctx, p.Metrics, "/metrics"); !skewed.MatchString(body) {
			return fmt.Errorf("no match for %s", skewed)
		}
		return nil
	})
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Approved {
		t.Errorf("the request is %s while the clock is skewed", got)
	}
	kit.Reload(t, denied) // by the manager's clock it is due

	proxy.Use()
	kit.Within(t, 2*time.Minute, "the request is signed once the clocks agree", func(ctx context.Context) error {
		if err := kit.Admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if got := csr.StateOf(obj); got != csr.Issued {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Reload(t, denied)
}

// TestClockAnHourBehind deletes requests that are due by the API server's time.
func TestClockAnHourBehind(t *testing.T) {
	kit.Parallel(t)
	config := kit.Configure(t, `controllers: [cleaner]
cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 59m}}
`)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"), faults.Rule{Do: faults.ShiftDate(time.Hour)})
	kit.StartManager(t, proxy.Config, "--leader-elect=false", config)
	denied := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "denied", func(obj *kit.Request) { obj.Spec.SignerName = "example.com/short" }))
	kit.Decide(t, denied, "Denied")
	kit.IsDeleted(t, denied)
}

// TestClockIsSetForward sets the clock of a running manager forward by 25 hours. Nothing is signed, and nothing is deleted that is not
// due by the API server's time. After the clock is right again, the waiting request is signed.
func TestClockIsSetForward(t *testing.T) {
	kit.Parallel(t)
	config := kit.Configure(t, `cleaning:
  signers:
  - {name: example.com/short, retention: {denied: 1s}}
`)
	p := startJoinable(t, kit.ManagerConfig(t), config)
	foreign := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "foreign", func(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" }))
	if err := clock.Shift(p.Pid(), 25*time.Hour); err != nil {
		t.Fatal(err)
	}
	fresh := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "fresh"))
	kit.Reaches(t, fresh, csr.Approved)
	kit.HasEvent(t, fresh, "ClockSkewed", "the manager's clock is 25h0m", "ahead of the API server's")
	for i := range 2 { // the second request is found by another pass of the cleaner
		short := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, fmt.Sprint("short-", i), func(obj *kit.Request) { obj.Spec.SignerName = "example.com/short" }))
		kit.Decide(t, short, "Denied")
		kit.IsDeleted(t, short)
	}
	kit.Reload(t, foreign)
	if got := csr.StateOf(kit.Reload(t, fresh)); got != csr.Approved {
		t.Errorf("the request is %s while the clock is wrong", got)
	}
	if err := clock.Shift(p.Pid(), 0); err != nil {
		t.Fatal(err)
	}
	kit.Reaches(t, fresh, csr.Issued)
	kit.Reload(t, foreign)
}
