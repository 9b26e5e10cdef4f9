package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// plugin runs the plugin as the administrator, and checks its exit code and that it says all parts.
func plugin(t *testing.T, code int, command string, parts ...string) {
	t.Helper()
	output, got := kit.RunPlugin(t, kit.ControlPlane(t).Config, strings.Fields(command)...)
	kit.Says(t, output, got, code, parts...)
}

// TestPluginShowsAndApproves has a manager that refuses a request. The plugin lists it, says why it waits, and approves it, as the
// runbooks do. Nothing is unknown because of missing rights, also with the roles that are shipped for users.
func TestPluginShowsAndApproves(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "kubectl-plugin")
	kit.Grant(t, "stranger", kit.MayCreate)
	plugin(t, 1, "check -n plugin-none", "there is no Lease of a manager", "error: check: ")
	p := start(t, "--leader-elect=true")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Reaches(t, joins(t, "checked"), csr.Issued)
	obj := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "shown"))
	kit.HasEvent(t, obj, "NotAuthorized")
	// JSON on standard output, and nothing else there.
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-o", "json")
	report := struct {
		Passed, Failed, Unknown int
		Results                 []struct{ Check, Subject, Status string }
	}{}
	err := json.Unmarshal([]byte(out), &report)
	if err != nil || report.Passed < 3 || report.Unknown > 0 || len(report.Results) != report.Passed+report.Failed {
		t.Errorf("error %v:\n%s", err, out)
	}
	// The API server's clock is two hours ahead.
	proxy := kit.ThroughFaults(t, kit.ControlPlane(t).Config, faults.Rule{Do: faults.ShiftDate(2 * time.Hour)})
	out, _ = kit.RunPlugin(t, proxy.Config, "explain", obj.Name)
	for _, part := range []string{`created +\S+ \((120m|119m|2h)\S* ago\)`, `renewed (120m|119m|2h)\S* ago`} {
		if !regexp.MustCompile(part).MatchString(out) {
			t.Errorf("no %s in:\n%s", part, out)
		}
	}

	const subject = `"CN=system:node:shown,O=system:nodes"`
	plugin(t, 0, "pending", obj.Name+"  shown", "stranger", "approval", "NotAuthorized")
	plugin(t, 0, "explain "+obj.Name, "Next step", "kubectl create clusterrolebinding", "Said by the manager", "csr-approver NotAuthorized",
		"held by", "alive", subject)
	plugin(t, 0, "explain --node shown", obj.Name, "csr-approver NotAuthorized", "Next step")
	// Standard input is empty.
	plugin(t, 1, "approve "+obj.Name, "Approve 1 of 1 requests?", subject, "csr-approver NotAuthorized", "you did not confirm it")
	kit.IsIn(t, obj, csr.Pending)
	plugin(t, 1, "approve --node shown", "who is neither the node nor a bootstrap token")
	out, _, code := kit.Plugin(t, kit.ControlPlane(t).Config, "approve", obj.Name, "--yes", "-o", "json")
	kit.Says(t, out, code, 0, `"approved": true`)
	condition := csr.Condition(kit.Reaches(t, obj, csr.Issued), certificatesv1.CertificateApproved)
	if condition.Reason != "ApprovedByHand" || !strings.Contains(condition.Message, `by user "`) {
		t.Errorf("%+v", condition)
	}
	plugin(t, 1, "approve "+obj.Name+" --yes", "not approved: the request is already issued")
	out, code = kit.RunPlugin(t, kit.WithToken(t, kit.BootstrapperToken), "pending")
	kit.Says(t, out, code, 1, "forbidden")

	kit.Grant(t, "stranger", "csr-plugin-viewer")
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: "kube-system"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	})
	kit.Eventually(t, "the roles for users suffice", func(context.Context) error {
		out, aside, _ := kit.Plugin(t, kit.TokenConfig(t, "stranger"), "check", "-v")
		suffice := true
		for _, line := range []string{"ca-trusted       ok", "manager-running  ok", "serving-asked    ok"} {
			suffice = suffice && strings.Contains(out, line)
		}
		return kit.OrError(suffice, "%s%s", out, aside)
	})
}

// TestForgedObjectsChangeNothing has a user who may write ConfigMaps, Leases and Events. What that user forges is shown as
// said by the manager, and no request is approved that the signer would refuse. There is no manager.
func TestForgedObjectsChangeNothing(t *testing.T) {
	kit.Parallel(t)
	refused := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "forged", kit.WrongUsage))
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
		Data: map[string]string{
			"configuration.yaml": "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n",
			"manager.yaml":       "version: forged\n",
		},
	})
	for _, obj := range []*kit.Request{refused, sound} {
		kit.Create(t, kit.Admin(t), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: "forged-"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest", Name: obj.Name, UID: obj.UID},
			Reason:         "AutoApproved", Message: "approve it\x1b[31m", ReportingController: "csr-approver", ReportingInstance: "x",
			Action: "Approve", Type: "Normal", EventTime: metav1.NowMicro(),
		})
	}
	kit.Equal(t, "what the plugin says afterwards", approves(), before)
	for _, obj := range []*kit.Request{refused, sound} {
		kit.IsIn(t, obj, csr.Pending)
		plugin(t, 0, "explain "+obj.Name, "Said by the manager (anyone", `approve it\x1b[31m`, `held by "an intruder"`)
	}
}

// TestCheckKubeletRights checks groups that can't join or renew, and that the suggested commands help.
func TestCheckKubeletRights(t *testing.T) {
	kit.Parallel(t)
	bootstrappers := []string{"system:bootstrappers:check-one", "system:bootstrappers:check-two"}
	look := func(ctx context.Context, cfg *rest.Config, nodes string) []check.Result {
		return check.Kubelets(ctx, reviewsv1.NewForConfigOrDie(cfg).SubjectAccessReviews(), bootstrappers, []string{nodes})
	}
	admin := kit.ControlPlane(t).Config
	kubeconfig, results := kit.Kubeconfig(t, "check-admin", admin), look(t.Context(), admin, "check-nodes")
	if len(results) != 2 {
		t.Fatalf("%+v", results)
	}
	for _, result := range results {
		if result.Status != check.Failed || !strings.Contains(result.Evidence, "may not create certificatesigningrequests") {
			t.Errorf("%+v", result)
		}
		step, _, _ := strings.Cut(result.NextStep, ";")
		for _, command := range strings.Split(step, " && ") {
			kit.Kubectl(t, kubeconfig, strings.Fields(strings.TrimPrefix(command, "kubectl "))...)
		}
	}
	if !strings.Contains(results[1].Evidence, "are lost when their certificates expire") || !strings.Contains(results[1].Evidence, "selfnodeclient") {
		t.Errorf("the outage to come is not named: %s", results[1].Evidence)
	}
	kit.Eventually(t, "the commands help", func(ctx context.Context) error {
		results := look(ctx, admin, "check-nodes")
		return kit.OrError(check.Worst(results) == check.OK, "%+v", results)
	})

	// Rights that the Node authorizer grants to system:nodes are not missing.
	for _, result := range look(t.Context(), admin, "system:nodes") {
		if strings.Contains(result.NextStep, "system:node-bootstrapper") {
			t.Errorf("%+v", result)
		}
	}
	// A user without the right to ask gets unknown results.
	for _, result := range look(t.Context(), kit.TokenConfig(t, "stranger"), "check-nodes") {
		if result.Status != check.Unknown || !strings.Contains(result.Evidence, "could not ask") {
			t.Errorf("%+v", result)
		}
	}
}

// TestBootstrapTokenCommand runs the real command, creates the printed objects, and uses the token as a kubelet does. The API server
// knows it, in the node's group and in no other group that kubeadm binds. Bindings to the group of the node permit its certificate.
func TestBootstrapTokenCommand(t *testing.T) {
	kit.Parallel(t)
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Manager())(t), "bootstrap-token", "--node", "token-a")
	// The command calls no server, so it needs no cluster.
	command.Env, command.Stdout, command.Stderr = []string{"KUBECONFIG=/nonexistent"}, &stdout, &stderr
	kit.NoError(t, command.Run())
	found := regexp.MustCompile(`^# (([a-z0-9]{6})\.[a-z0-9]{16}) is the token of node [^\n]+\n$`).FindStringSubmatch(stderr.String())
	if found == nil {
		t.Fatalf("aside: %s", stderr.String())
	}
	kit.Create(t, kit.Admin(t), kit.Object(t, stdout.String()))
	user := kit.Must(kubelet.WhoAmI(t.Context(), kit.WithToken(t, found[1])))(t)
	slices.Sort(user.Groups)
	kit.Equal(t, "user of the token", user.Username, "system:bootstrap:"+found[2])
	kit.Equal(t, "groups of the token", user.Groups, []string{"system:authenticated", "system:bootstrappers", csr.TokenGroup("token-a")})

	start(t)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayCreate)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayJoin)
	c, obj := kit.ClientOf(t, kit.WithToken(t, found[1])), kit.NodeRequest(t, "token-a")
	kit.Eventually(t, "the authorizer knows of the bindings", func(ctx context.Context) error { return c.Create(ctx, obj) })
	kit.Equal(t, "common name", kit.Leaf(t, kit.Reaches(t, obj, csr.Issued)).Subject.CommonName, "system:node:token-a")
}
