package integration

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// runCheck runs the real command as cfg's user, and returns its output and its exit code.
func runCheck(t *testing.T, cfg *rest.Config, args ...string) (output string, exitCode int) {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig(strings.ReplaceAll(t.Name(), "/", "-")+"-check", cfg)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, append([]string{"check", "--all", "--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		exitCode = exit.ExitCode()
	}
	return unwrapped(string(out)), exitCode
}

// unwrapped returns the output of check with each result in one line.
func unwrapped(output string) string {
	return regexp.MustCompile(`\n {8,}`).ReplaceAllString(output, " ")
}

// caFiles writes of to files, and returns the flags for them.
func caFiles(t *testing.T, of *csrenv.CA) []string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	write(t, cert, of.CertPEM)
	write(t, key, of.KeyPEM)
	return []string{"--cluster-signing-cert-file", cert, "--cluster-signing-key-file", key}
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

// TestCheckCommand runs the command of the README: as the manager, under the shipped roles, first with everything
// right, and then with faults.
func TestCheckCommand(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grantGroup(t, "check-joiners", mayCreate)
	grantGroup(t, "check-joiners", mayJoin)
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
metricsSecure: true
leaderElection: {resourceNamespace: csr-controller-manager-system}
signing: {secret: csr-controller-manager-system/csr-signer}
selfCheck: {bootstrapGroups: [check-nobodies, check-joiners], nodeGroups: [check-joiners]}
`))
	manager := serviceAccountConfig(t)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-controller-manager"}}
	if err := client.IgnoreNotFound(admin(t).Delete(t.Context(), lease)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no manager runs", func(context.Context) error {
		output, code := runCheck(t, manager, "--config", file)
		if !strings.Contains(output, "1 failed, 0 unknown") || code != 1 {
			return fmt.Errorf("exit code %d:\n%s", code, output)
		}
		if line := row(t, output, "manager-running", "Lease csr-controller-manager-system/csr-controller-manager"); !strings.Contains(line, "no manager has ever led") {
			return errors.New(line)
		}
		return nil
	})
	leaseOf(t, "manager-a")
	eventually(t, "all is well", func(context.Context) error {
		output, code := runCheck(t, manager, "--config", file)
		if code != 0 {
			return fmt.Errorf("exit code %d:\n%s", code, output)
		}
		says(t, output, code, 0, "as system:serviceaccount:csr-controller-manager-system:csr-controller-manager")
		row(t, output, "optional-rights", "create events.events.k8s.io in default")
		row(t, output, "own-rights", "sign signers.certificates.k8s.io kubernetes.io/kubelet-serving")
		row(t, output, "kubelet-rights", "check-joiners")
		row(t, output, "ca-trusted", "kubernetes.io/kube-apiserver-client-kubelet")
		if strings.Contains(output, "TrustProbe") {
			t.Errorf("the log is in the output:\n%s", output)
		}
		row(t, output, "manager-running", "held by manager-a")
		return nil
	})

	// Kubelets can't join, and a CA is not trusted.
	output, code := runCheck(t, manager, append(caFiles(t, newCA(t)), "--leader-elect=false")...)
	says(t, output, code, 1, "failed", "kubectl create clusterrolebinding", "answers 401", "csr-controller-manager: check: ")

	// The Secret can't be read: the result is unknown, and says why.
	output, code = runCheck(t, tokenConfig(t, "joiner"), "--controllers=signer", "--signing-secret", systemNamespace+"/csr-signer", "--leader-elect=false")
	says(t, output, code, 1, "as joiner", "get Secret csr-controller-manager-system/csr-signer")
	if line := row(t, output, "ca-trusted", ""); !strings.Contains(line, "unknown") {
		t.Errorf("not unknown: %s", line)
	}

	// No API server: all results are unknown, and none failed.
	down := rest.CopyConfig(controlPlane(t).Config)
	down.Host = "https://" + freeAddress(t)
	output, code = runCheck(t, down, append(caFiles(t, controlPlane(t).CA), "--leader-elect=false")...)
	says(t, output, code, 1, "nothing failed, but", "could not ask", "an unknown user")

	output, code = runCheck(t, controlPlane(t).Config, "--help")
	says(t, output, code, 0, "--node name", "The exit code is 1 unless all checks pass")
	output, code = runCheck(t, controlPlane(t).Config, "--bogus", "surplus")
	says(t, output, code, 1, "-bogus", "surplus")
}

// TestCheckLeavesTheAuditLogAlone uses a configuration whose audit log a manager may be writing and rotating. A probe
// is written to it only if the command line says so, and to standard error only with a verbosity.
func TestCheckLeavesTheAuditLogAlone(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	file, path := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "audit.log")
	write(t, file, fmt.Appendf(nil, `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [signer]
leaderElection: {enabled: false}
audit: {path: %q}
`, path))
	args := append(caFiles(t, controlPlane(t).CA), "--config", file)
	output, code := runCheck(t, controlPlane(t).Config, args...)
	if says(t, output, code, 0, "checks passed"); strings.Contains(output, "TrustProbe") {
		t.Errorf("the log is in the output:\n%s", output)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the audit log of the configuration was opened: %v", err)
	}
	output, code = runCheck(t, controlPlane(t).Config, append(args, "--audit-log-path", path, "--v=1")...)
	says(t, output, code, 0, "TrustProbe")
	if records := auditRecords(t, path); len(records) != 1 || records[0].Event != audit.TrustProbe {
		t.Errorf("%+v", records)
	}
}

// TestCheckNeverLogsASecret runs with a verbosity at which client-go logs the bodies of responses.
func TestCheckNeverLogsASecret(t *testing.T) {
	parallel(t)
	installRBAC(t)
	secret := signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM)
	create(t, admin(t), secret)
	output, code := runCheck(t, controlPlane(t).Config, "--v=10", "--controllers=signer", "--leader-elect=false", "--signing-secret", systemNamespace+"/csr-signer")
	says(t, output, code, 0, "the API server knows the subject") // it has read the CA
	for _, word := range []string{" Body", base64.StdEncoding.EncodeToString(controlPlane(t).CA.KeyPEM)[:40]} {
		if strings.Contains(output, word) {
			t.Errorf("%q is logged", word)
		}
	}
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
