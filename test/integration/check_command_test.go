package integration

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// unwrapped returns the output of check with each result in one line.
func unwrapped(output string) string {
	return regexp.MustCompile(`\n {8,}`).ReplaceAllString(output, " ")
}

// says fails unless output contains all parts and the exit code is want.
func says(t *testing.T, output string, code, want int, parts ...string) {
	t.Helper()
	if code != want {
		t.Errorf("exit code %d, want %d:\n%s", code, want, output)
	}
	for _, part := range parts {
		if !strings.Contains(output, part) {
			t.Errorf("%q is not in:\n%s", part, output)
		}
	}
}

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

// tokenConfig returns the configuration of a user in the control plane's token file.
func tokenConfig(t *testing.T, user string) *rest.Config {
	cfg := rest.AnonymousClientConfig(controlPlane(t).Config)
	cfg.BearerToken = user + "-token"
	return cfg
}

// grantGroup binds one of Kubernetes' roles to a group for the duration of the test.
func grantGroup(t *testing.T, group, clusterRole string) {
	t.Helper()
	create(t, admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	})
}

// TestSelfCheckOfTheManager removes rights from a running manager, and restores them. The checks issue no certificate.
func TestSelfCheckOfTheManager(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	path := filepath.Join(t.TempDir(), "audit.log")
	p := startManager(t, serviceAccountConfig(t), "--leader-elect=false", "--self-check-interval=1s", "--audit-log-path", path)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	p.answers(t, p.metrics, "/metrics", http.StatusOK,
		`csr_check_result{check="own-rights",result="ok"} 1`, `csr_check_result{check="own-rights",result="failed"} 0`,
		`csr_check_result{check="optional-rights",result="ok"} 1`, `csr_check_result{check="kubelet-rights",result="`, `csr_check_last_run_timestamp_seconds{check="own-rights"} 1.`)

	// A required right.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "csr-approver"}}
	restore := takeRule(t, role, "signers")
	p.answers(t, p.probes, "/readyz?verbose", http.StatusInternalServerError, "[-]own-rights failed", "[+]signing-ca ok")
	p.answers(t, p.metrics, "/metrics", http.StatusOK, `csr_check_result{check="own-rights",result="failed"} 1`, `csr_check_result{check="own-rights",result="ok"} 0`)
	restore()
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	p.answers(t, p.metrics, "/metrics", http.StatusOK, `csr_check_result{check="own-rights",result="ok"} 1`)

	// An optional right does not affect readiness, and has its own check.
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "csr-ca-trust"}}
	if err := errors.Join(admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding), admin(t).Delete(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		binding.ResourceVersion, binding.UID = "", ""
		if err := admin(t).Create(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
	p.answers(t, p.metrics, "/metrics", http.StatusOK, `csr_check_result{check="optional-rights",result="failed"} 1`,
		`csr_check_result{check="own-rights",result="ok"} 1`)
	p.answers(t, p.probes, "/readyz", http.StatusOK)

	if log := p.log(t); strings.Count(log, `"subject":"approve signers.certificates.k8s.io kubernetes.io/kube-apiserver-client-kubelet"`) != 2 {
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
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(role), role); err != nil {
		t.Fatal(err)
	}
	all := role.Rules
	set := func(ctx context.Context, rules []rbacv1.PolicyRule) {
		role.Rules = rules
		if err := admin(t).Update(ctx, role); err != nil {
			t.Error(err)
		}
	}
	set(t.Context(), slices.DeleteFunc(slices.Clone(all), func(rule rbacv1.PolicyRule) bool { return slices.Contains(rule.Resources, resource) }))
	t.Cleanup(func() { set(context.Background(), all) })
	return func() { set(t.Context(), all) }
}
