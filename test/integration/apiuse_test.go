package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// soon bounds "within seconds".
const soon = 15 * time.Second

// shows waits until a page of p has status and contains part.
func shows(t *testing.T, address, path string, status int, part string) {
	t.Helper()
	within(t, soon, path, func(ctx context.Context) error {
		got, body := cluster.Get(ctx, address, path)
		if got != status || !strings.Contains(body, part) {
			return fmt.Errorf("status %d, want %d with %q", got, status, part)
		}
		return nil
	})
}

// TestAnAPIServerThatIsGoneShowsAtOnce stops the API server and starts it again. In between the replica is not ready,
// but alive.
func TestAnAPIServerThatIsGoneShowsAtOnce(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	proxy := throughFaults(t, serviceAccountConfig(t))
	p := startManager(t, proxy.Config, "--leader-elect=false")
	shows(t, p.probes, "/readyz", http.StatusOK, "")
	shows(t, p.metrics, "/metrics", http.StatusOK, "csr_api_server_reachable 1")
	if err := proxy.Down(); err != nil {
		t.Fatal(err)
	}
	shows(t, p.probes, "/readyz", http.StatusInternalServerError, "[-]api-server failed: no call to the API server has succeeded for ")
	shows(t, p.metrics, "/metrics", http.StatusOK, "csr_api_server_reachable 0")
	shows(t, p.probes, "/healthz", http.StatusOK, "")
	if err := proxy.Up(); err != nil {
		t.Fatal(err)
	}
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	p.answers(t, p.metrics, "/metrics", http.StatusOK, "csr_api_server_reachable 1")
}

// TestALostRightShowsAtItsFirstUse removes all rights of the approver from a manager, and restores them. A request that
// waited meanwhile is then approved.
func TestALostRightShowsAtItsFirstUse(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	p := startManager(t, serviceAccountConfig(t), "--leader-elect=false")
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	const healthy, lost = `csr_check_result{check="own-rights",result="ok"} 1`, `csr_check_result{check="own-rights",result="failed"} 1`
	p.answers(t, p.metrics, "/metrics", http.StatusOK, healthy)

	binding := bindingOfApprover(t)
	if err := admin(t).Delete(t.Context(), binding.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin(t).Create(context.Background(), binding) })
	time.Sleep(2 * time.Second) // the authorizer of the API server follows its informers
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "joins"))
	shows(t, p.probes, "/readyz/own-rights", http.StatusInternalServerError, "")
	shows(t, p.metrics, "/metrics", http.StatusOK, lost)
	shows(t, p.probes, "/healthz", http.StatusOK, "")

	if err := admin(t).Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	within(t, 2*time.Minute, "the request is approved", func(ctx context.Context) error {
		if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if csr.StateOf(obj) == csr.Pending {
			return fmt.Errorf("it is pending")
		}
		return nil
	})
}

// bindingOfApprover returns the binding of config/rbac that permits the manager to approve.
func bindingOfApprover(t *testing.T) *rbacv1.ClusterRoleBinding {
	t.Helper()
	found := &rbacv1.ClusterRoleBinding{}
	if err := admin(t).Get(t.Context(), client.ObjectKey{Name: "csr-approver"}, found); err != nil {
		t.Fatal(err)
	}
	found.ResourceVersion, found.UID = "", ""
	return found
}
