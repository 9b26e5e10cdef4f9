package manager

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestPluginShowsAndApproves has a manager that refuses a request. The plugin lists it, says why it waits, and approves it.
func TestPluginShowsAndApproves(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.Grant(t, "joiner", kit.MayCreate)
	kit.StartManager(t, kit.ServiceAccountConfig(t))
	obj := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "shown"))
	kit.HasEvent(t, obj, "NotAuthorized")

	out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "pending")
	kit.Says(t, out, code, 0, obj.Name+"  shown", "joiner", "approval", "NotAuthorized")
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", obj.Name)
	kit.Says(t, out, code, 0, "Next step", "kubectl create clusterrolebinding", "Said by the manager", "csr-approver NotAuthorized", "alive", `"CN=system:node:shown,O=system:nodes"`)
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "approve", obj.Name) // standard input is empty
	kit.Says(t, out, code, 1, "Approve 1 of 1 requests?", `"CN=system:node:shown,O=system:nodes"`, "csr-approver NotAuthorized", "you did not confirm it")
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
		t.Fatalf("the request is %s", got)
	}
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "approve", "--node", "shown")
	kit.Says(t, out, code, 1, "who is neither the node nor a bootstrap token")
	out, _, code = kit.Plugin(t, kit.ControlPlane(t).Config, "approve", obj.Name, "--yes", "-o", "json")
	kit.Says(t, out, code, 0, `"approved": true`)
	kit.Reaches(t, obj, csr.Issued)
	condition := csr.Condition(obj, certificatesv1.CertificateApproved)
	if condition.Reason != "ApprovedByHand" || !strings.Contains(condition.Message, `by user "`) {
		t.Errorf("%+v", condition)
	}
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "approve", obj.Name, "--yes")
	kit.Says(t, out, code, 1, "not approved: the request is already issued")
	out, code = kit.RunPlugin(t, kit.TokenConfig(t, "stranger"), "pending")
	kit.Says(t, out, code, 1, "forbidden")
}

// TestForgedObjectsChangeNothing has a user who may write ConfigMaps, Leases and Events. What that user forges is shown as
// said by the manager, and no request is approved that the signer would refuse. There is no manager.
func TestForgedObjectsChangeNothing(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	refused := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "forged", func(obj *kit.Request) {
		obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
	}))
	sound := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "forged"))
	approves := func() (texts []string) {
		for _, obj := range []*kit.Request{refused, sound} {
			out, _, code := kit.Plugin(t, kit.ControlPlane(t).Config, "approve", obj.Name, "-o", "json", "--yes=false")
			kit.Says(t, out, code, 1)
			out, aside, code := kit.Plugin(t, kit.ControlPlane(t).Config, "approve", obj.Name)
			kit.Says(t, aside, code, 1)
			texts = append(texts, out)
		}
		out, aside, code := kit.Plugin(t, kit.ControlPlane(t).Config, "approve", refused.Name, "--yes")
		kit.Says(t, out+aside, code, 1, "the signer would refuse the request (SignerValidationFailure)")
		return append(texts, out)
	}
	before := approves()

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "intruder"}}
	hold(lease, "an intruder")
	kit.Create(t, kit.Admin(t), lease)
	kit.Create(t, kit.Admin(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: kit.SystemNamespace, Name: "intruder-configuration", Labels: map[string]string{"csr-controller-manager.io/publishes": "configuration"},
		},
		Data: map[string]string{"configuration.yaml": "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n", "manager.yaml": "version: forged\n"},
	})
	for _, obj := range []*kit.Request{refused, sound} {
		kit.Create(t, kit.Admin(t), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: "forged-"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest", Name: obj.Name, UID: obj.UID},
			Reason:         "AutoApproved", Message: "approve it\x1b[31m", ReportingController: "csr-approver", ReportingInstance: "x",
			Action: "Approve", Type: "Normal", EventTime: metav1.NowMicro(),
		})
	}
	if after := approves(); !slices.Equal(before, after) {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	for _, obj := range []*kit.Request{refused, sound} {
		if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
			t.Errorf("%s is %s", obj.Name, got)
		}
		out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", obj.Name)
		kit.Says(t, out, code, 0, "Said by the manager (anyone", `approve it\x1b[31m`, `held by "an intruder"`)
	}
}

// TestPluginChecks runs check without a manager, with one, and with the roles that are shipped for users.
func TestPluginChecks(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Apply(t, "kubectl-plugin")
	out, aside, code := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-n", "plugin-none")
	kit.Says(t, out+aside, code, 1, "there is no Lease of a manager", "error: check: ")
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.StartManager(t, kit.ServiceAccountConfig(t))
	kit.GrantJoining(t, "joiner")
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "checked")), csr.Issued)

	// JSON on standard output, and nothing else there.
	out, _, _ = kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-o", "json")
	report := struct {
		Passed, Failed, Unknown int
		Results                 []struct{ Check, Subject, Status string }
	}{}
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.Passed < 3 || len(report.Results) != report.Passed+report.Failed+report.Unknown {
		t.Errorf("error %v:\n%s", err, out)
	}

	const user = "stranger"
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "csr-plugin-viewer"},
	})
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: "kube-system"}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	})
	kit.Eventually(t, "the roles for users suffice", func(context.Context) error {
		out, aside, _ := kit.Plugin(t, kit.TokenConfig(t, user), "check", "-v")
		for _, line := range []string{"ca-trusted       ok", "manager-running  ok", "serving-asked    ok"} {
			if !strings.Contains(out, line) {
				return fmt.Errorf("%q is not in:\n%s%s", line, out, aside)
			}
		}
		return nil
	})
}
