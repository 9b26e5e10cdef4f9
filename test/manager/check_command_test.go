package manager

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// row returns the line of a table that begins with check, for WHAT.
func row(t *testing.T, output, check, what string) string {
	t.Helper()
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, check) && strings.Contains(line, what) {
			return line
		}
	}
	t.Errorf("no row %q about %q in:\n%s", check, what, output)
	return ""
}

// TestSelfCheckOfTheManager removes rights from a running manager, and restores them. The checks issue no certificate.
func TestSelfCheckOfTheManager(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	path := filepath.Join(t.TempDir(), "audit.log")
	p := kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", "--self-check-interval=1s", "--audit-log-path", path)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_check_result{check="own-rights",result="ok"} 1`, `csr_check_result{check="own-rights",result="failed"} 0`,
		`csr_check_result{check="optional-rights",result="ok"} 1`, `csr_check_result{check="kubelet-rights",result="`, `csr_check_last_run_timestamp_seconds{check="own-rights"} 1.`)

	// A required right.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "csr-approver"}}
	restore := takeRule(t, role, "signers")
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]own-rights failed", "[+]signing-ca ok")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `csr_check_result{check="own-rights",result="failed"} 1`, `csr_check_result{check="own-rights",result="ok"} 0`)
	restore()
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `csr_check_result{check="own-rights",result="ok"} 1`)

	// An optional right does not affect readiness, and has its own check.
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "csr-ca-trust"}}
	if err := errors.Join(kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding), kit.Admin(t).Delete(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		if err := kit.Admin(t).Create(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `csr_check_result{check="optional-rights",result="failed"} 1`,
		`csr_check_result{check="own-rights",result="ok"} 1`)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	if log := p.Output(t); strings.Count(log, `"subject":"approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet"`) != 2 {
		t.Errorf("the loss of a right and its return are not logged once each:\n%s", log)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if records := auditRecords(t, path); len(records) > 0 {
		t.Errorf("a check has issued certificates: %+v", records)
	}
}

// takeRule removes the rule about resource from role, and returns a function that restores it.
func takeRule(t *testing.T, role *rbacv1.ClusterRole, resource string) (restore func()) {
	t.Helper()
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKeyFromObject(role), role); err != nil {
		t.Fatal(err)
	}
	all := role.Rules
	set := func(ctx context.Context, rules []rbacv1.PolicyRule) {
		role.Rules = rules
		if err := kit.Admin(t).Update(ctx, role); err != nil {
			t.Error(err)
		}
	}
	set(t.Context(), slices.DeleteFunc(slices.Clone(all), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, resource) }))
	t.Cleanup(func() { set(context.Background(), all) })
	return func() { set(t.Context(), all) }
}
