package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// plugin runs the real plugin as cfg's user. It returns what the plugin wrote to standard output and to standard error,
// and its exit code.
func plugin(t *testing.T, cfg *rest.Config, args ...string) (out, aside string, exitCode int) {
	t.Helper()
	path, err := cluster.Plugin()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig(strings.ReplaceAll(t.Name(), "/", "-")+"-plugin", cfg)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, append(args[:len(args):len(args)], "--kubeconfig", kubeconfig)...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		exitCode = exit.ExitCode()
	}
	out = stdout.String()
	if args[0] == "check" {
		out = unwrapped(out)
	}
	return out, stderr.String(), exitCode
}

// runPlugin runs the plugin, and returns all that it wrote and its exit code.
func runPlugin(t *testing.T, cfg *rest.Config, args ...string) (output string, exitCode int) {
	t.Helper()
	out, aside, exitCode := plugin(t, cfg, args...)
	return out + aside, exitCode
}

// TestPluginWithoutAManager says that nothing is published, and uses the defaults.
func TestPluginWithoutAManager(t *testing.T) {
	parallel(t)
	out, aside, code := plugin(t, controlPlane(t).Config, "check", "-n", "plugin-none")
	says(t, aside, code, 1, "no manager has published its configuration in namespace plugin-none", "The defaults are used instead", "error: check: ")
	if line := row(t, out, "configuration", "the manager's configuration"); !strings.Contains(line, "failed") {
		t.Error(line)
	}

	out, aside, code = plugin(t, tokenConfig(t, "joiner"), "check", "-o", "json")
	says(t, aside, code, 1, "list ConfigMaps in namespace csr-controller-manager-system", "forbidden")
	if !strings.Contains(out, `"check": "configuration"`) || strings.Contains(out, `"status": "failed",
      "evidence": "the configuration of the manager`) {
		t.Errorf("not unknown:\n%s", out)
	}
}

// TestPluginReadsThePublishedConfiguration asks about two managers, of which one lacks a right. Nobody but a reader of the
// Secret sees the key.
func TestPluginReadsThePublishedConfiguration(t *testing.T) {
	parallel(t)
	installRBAC(t)
	apply(t, "kubectl-plugin")
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	startManager(t, serviceAccountConfig(t), "--cluster-signing-duration=1h")
	awaitPublished(t, "csr-controller-manager", "user: ", ofAllSigners)

	// As an administrator: the manager's rights are asked for as the manager's.
	out, _, _ := plugin(t, controlPlane(t).Config, "check", "-v")
	if line := row(t, out, "own-rights", "sign signers.certificates.k8s.io kubernetes.io/kubelet-serving"); !strings.Contains(line, "ok") {
		t.Error(line)
	}
	row(t, out, "configuration", "manager csr-controller-manager")
	row(t, out, "manager-running", "Lease csr-controller-manager-system/csr-controller-manager")
	row(t, out, "ca-trusted", "by that certificate (X509SHA256=")

	// JSON on standard output, and nothing else there.
	out, _, _ = plugin(t, controlPlane(t).Config, "check", "-o", "json")
	report := struct {
		Passed, Failed, Unknown int
		Results                 []struct{ Check, Subject, Status string }
	}{}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Passed < 10 || len(report.Results) != report.Passed+report.Failed+report.Unknown {
		t.Errorf("error %v:\n%s", err, out)
	}

	// With the roles that are shipped for users, and without the Secret: the published certificate is compared.
	const user = "joiner"
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	create(t, admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "csr-plugin-viewer"},
	})
	for namespace, role := range map[string]string{systemNamespace: "csr-plugin-configuration", "kube-system": "extension-apiserver-authentication-reader"} {
		create(t, admin(t), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: namespace}, Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		})
	}
	eventuallyListsConfigMaps(t, user)
	out, aside, _ := plugin(t, tokenConfig(t, user), "check", "--verbose")
	line := row(t, out, "ca-trusted", "the CA of")
	if !strings.Contains(line, "ok") || !strings.Contains(line, "has it; no API server was asked, because the key can't be read") {
		t.Errorf("%s\n%s", line, aside)
	}
	if strings.Contains(out, "unknown: may not") {
		t.Errorf("the roles for users do not suffice:\n%s", out)
	}
}

// TestPluginAsksNoServerOfThePublishedConfiguration has a webhook in a published configuration. Whoever may write the
// ConfigMap must not choose where the machine of an administrator connects, and with which files.
func TestPluginAsksNoServerOfThePublishedConfiguration(t *testing.T) {
	parallel(t)
	var asked atomic.Bool
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Store(true) }))
	t.Cleanup(server.Close)
	caFile := filepath.Join(t.TempDir(), "ca.crt")
	write(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	file := servingConfig(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q}}]", server.URL, caFile))
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-webhook-"}}
	create(t, admin(t), namespace)
	name := namespace.Name
	create(t, admin(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "a-configuration", Labels: map[string]string{config.PublishedLabel: config.PublishedValue}},
		Data:       map[string]string{config.PublishedKey: string(text)},
	})
	newNode(t, name, "192.0.2.71")
	obj := createRequest(t, kubeletOf(t, name), servingRequest(t, name, "192.0.2.71"))

	out, _, code := plugin(t, controlPlane(t).Config, "explain", obj.Name, "-n", name, "-o", "json")
	says(t, out, code, 0, "the inventory has a source that only the manager can ask", "run explain with --config")
	if asked.Load() {
		t.Error("the server was asked")
	}
	plugin(t, controlPlane(t).Config, "explain", obj.Name, "--config", file)
	if !asked.Load() {
		t.Error("the server of the user's own file was not asked")
	}
}

// eventuallyListsConfigMaps waits until user may list ConfigMaps in the manager's namespace, and read the trust of API
// servers: the authorizer watches roles.
func eventuallyListsConfigMaps(t *testing.T, user string) {
	t.Helper()
	eventually(t, "RBAC of "+user, func(ctx context.Context) error {
		err := as(t, user).List(ctx, &corev1.ConfigMapList{}, client.InNamespace(systemNamespace))
		key := client.ObjectKey{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
		return errors.Join(err, as(t, user).Get(ctx, key, &corev1.ConfigMap{}))
	})
}
