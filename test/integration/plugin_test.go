package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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

// TestPluginShowsAndApproves has a manager that refuses a request. The plugin lists it, says why it waits, and approves it.
func TestPluginShowsAndApproves(t *testing.T) {
	parallel(t)
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	startManager(t, serviceAccountConfig(t))
	obj := createRequest(t, as(t, "joiner"), nodeRequest(t, "shown"))
	hasEvent(t, obj, "NotAuthorized")

	out, code := runPlugin(t, controlPlane(t).Config, "pending")
	says(t, out, code, 0, obj.Name+"  shown", "joiner", "approval", "NotAuthorized")
	out, code = runPlugin(t, controlPlane(t).Config, "explain", obj.Name)
	says(t, out, code, 0, "Next step", "kubectl create clusterrolebinding", "Said by the manager", "csr-approver NotAuthorized", "alive", `"CN=system:node:shown,O=system:nodes"`)
	out, code = runPlugin(t, controlPlane(t).Config, "approve", obj.Name) // standard input is empty
	says(t, out, code, 1, "Approve 1 of 1 requests?", `"CN=system:node:shown,O=system:nodes"`, "csr-approver NotAuthorized", "you did not confirm it")
	if got := csr.StateOf(reload(t, obj)); got != csr.Pending {
		t.Fatalf("the request is %s", got)
	}
	out, code = runPlugin(t, controlPlane(t).Config, "approve", "--node", "shown")
	says(t, out, code, 1, "who is neither the node nor a bootstrap token")
	out, _, code = plugin(t, controlPlane(t).Config, "approve", obj.Name, "--yes", "-o", "json")
	says(t, out, code, 0, `"approved": true`)
	reaches(t, obj, csr.Issued)
	condition := csr.Condition(obj, certificatesv1.CertificateApproved)
	if condition.Reason != "ApprovedByHand" || !strings.Contains(condition.Message, `by user "`) {
		t.Errorf("%+v", condition)
	}
	out, code = runPlugin(t, controlPlane(t).Config, "approve", obj.Name, "--yes")
	says(t, out, code, 1, "not approved: the request is already issued")
	out, code = runPlugin(t, tokenConfig(t, "stranger"), "pending")
	says(t, out, code, 1, "forbidden")
}

// TestForgedObjectsChangeNothing has a user who may write ConfigMaps, Leases and Events. What that user forges is shown as
// said by the manager, and no request is approved that the signer would refuse. There is no manager.
func TestForgedObjectsChangeNothing(t *testing.T) {
	parallel(t)
	installRBAC(t)
	refused := createRequest(t, admin(t), nodeRequest(t, "forged", func(obj *request) {
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
	}))
	sound := createRequest(t, admin(t), nodeRequest(t, "forged"))
	approves := func() (texts []string) {
		for _, obj := range []*request{refused, sound} {
			out, _, code := plugin(t, controlPlane(t).Config, "approve", obj.Name, "-o", "json", "--yes=false")
			says(t, out, code, 1)
			out, aside, code := plugin(t, controlPlane(t).Config, "approve", obj.Name)
			says(t, aside, code, 1)
			texts = append(texts, out)
		}
		out, aside, code := plugin(t, controlPlane(t).Config, "approve", refused.Name, "--yes")
		says(t, out+aside, code, 1, "the signer would refuse the request (SignerValidationFailure)")
		return append(texts, out)
	}
	before := approves()

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "intruder"}}
	hold(lease, "an intruder")
	create(t, admin(t), lease)
	create(t, admin(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: systemNamespace, Name: "intruder-configuration", Labels: map[string]string{"csr-controller-manager.io/publishes": "configuration"},
		},
		Data: map[string]string{"configuration.yaml": "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n", "manager.yaml": "version: forged\n"},
	})
	for _, obj := range []*request{refused, sound} {
		create(t, admin(t), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: "forged-"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest", Name: obj.Name, UID: obj.UID},
			Reason:         "AutoApproved", Message: "approve it\x1b[31m", ReportingController: "csr-approver", ReportingInstance: "x",
			Action: "Approve", Type: "Normal", EventTime: metav1.NowMicro(),
		})
	}
	if after := approves(); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	for _, obj := range []*request{refused, sound} {
		if got := csr.StateOf(reload(t, obj)); got != csr.Pending {
			t.Errorf("%s is %s", obj.Name, got)
		}
		out, code := runPlugin(t, controlPlane(t).Config, "explain", obj.Name)
		says(t, out, code, 0, "Said by the manager (anyone", `approve it\x1b[31m`, `held by "an intruder"`)
	}
}

// TestPluginChecks runs check without a manager, with one, and with the roles that are shipped for users.
func TestPluginChecks(t *testing.T) {
	parallel(t)
	installRBAC(t)
	apply(t, "kubectl-plugin")
	out, aside, code := plugin(t, controlPlane(t).Config, "check", "-n", "plugin-none")
	says(t, out+aside, code, 1, "there is no Lease of a manager", "error: check: ")
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	startManager(t, serviceAccountConfig(t))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "checked")), csr.Issued)

	// JSON on standard output, and nothing else there.
	out, _, _ = plugin(t, controlPlane(t).Config, "check", "-o", "json")
	report := struct {
		Passed, Failed, Unknown int
		Results                 []struct{ Check, Subject, Status string }
	}{}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Passed < 3 || len(report.Results) != report.Passed+report.Failed+report.Unknown {
		t.Errorf("error %v:\n%s", err, out)
	}

	const user = "stranger"
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	create(t, admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "csr-plugin-viewer"},
	})
	create(t, admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: "kube-system"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	})
	eventually(t, "the roles for users suffice", func(context.Context) error {
		out, aside, _ := plugin(t, tokenConfig(t, user), "check", "-v")
		for _, line := range []string{"ca-trusted       ok", "manager-running  ok", "serving-asked    ok"} {
			if !strings.Contains(out, line) {
				return fmt.Errorf("%q is not in:\n%s%s", line, out, aside)
			}
		}
		return nil
	})
}
