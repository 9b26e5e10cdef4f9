package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// TestPluginShowsAndApproves has a manager that refuses a request. The plugin lists it, says why it waits, and approves it.
func TestPluginShowsAndApproves(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	p := start(t, "--leader-elect=true")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	obj := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "shown"))
	kit.HasEvent(t, obj, "NotAuthorized")
	runbooks(t, obj)
	agesByServerTime(t, obj)

	out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "pending")
	kit.Says(t, out, code, 0, obj.Name+"  shown", "stranger", "approval", "NotAuthorized")
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", obj.Name)
	kit.Says(t, out, code, 0, "Next step", "kubectl create clusterrolebinding", "Said by the manager", "csr-approver NotAuthorized", "alive", `"CN=system:node:shown,O=system:nodes"`)
	out, code = kit.RunPlugin(t, kit.ControlPlane(t).Config, "approve", obj.Name) // standard input is empty
	kit.Says(t, out, code, 1, "Approve 1 of 1 requests?", `"CN=system:node:shown,O=system:nodes"`, "csr-approver NotAuthorized", "you did not confirm it")
	isPending(t, obj)
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
	out, code = kit.RunPlugin(t, kit.WithToken(t, kit.BootstrapperToken), "pending")
	kit.Says(t, out, code, 1, "forbidden")
}

// runbooks runs the commands of the runbooks that an administrator runs on a workstation, about a request that waits. No
// result may be unknown because of missing rights.
func runbooks(t *testing.T, obj *kit.Request) {
	t.Helper()
	for command, parts := range map[string][]string{
		"check -v":             {"kubelet-rights", "manager-running", "serving-asked"},
		"explain --node shown": {obj.Name, "csr-approver NotAuthorized", "Next step"},
		"explain " + obj.Name:  {"csr-approver NotAuthorized", "held by"},
		"pending":              {obj.Name, "NotAuthorized"},
	} {
		output, _ := kit.RunPlugin(t, kit.ControlPlane(t).Config, strings.Fields(command)...) // the exit code shows the findings
		for _, part := range parts {
			if !strings.Contains(output, part) {
				t.Errorf("%s: %q is not in:\n%s", command, part, output)
			}
		}
		if strings.Contains(output, "unknown: ") {
			t.Errorf("%s: something is unknown:\n%s", command, output)
		}
	}
}

// agesByServerTime explains obj over an API server whose clock is two hours ahead of the commands' machine.
func agesByServerTime(t *testing.T, obj *kit.Request) {
	t.Helper()
	proxy := kit.ThroughFaults(t, kit.ControlPlane(t).Config, faults.Rule{Do: faults.ShiftDate(2 * time.Hour)})
	out, code := kit.RunPlugin(t, proxy.Config, "explain", obj.Name)
	kit.Says(t, out, code, 0)
	for _, part := range []string{`created +\S+ \((120m|119m|2h)\S* ago\)`, `renewed (120m|119m|2h)\S* ago`} {
		if !regexp.MustCompile(part).MatchString(out) {
			t.Errorf("no %s in:\n%s", part, out)
		}
	}
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
		isPending(t, obj)
		out, code := kit.RunPlugin(t, kit.ControlPlane(t).Config, "explain", obj.Name)
		kit.Says(t, out, code, 0, "Said by the manager (anyone", `approve it\x1b[31m`, `held by "an intruder"`)
	}
}

// TestPluginChecks runs check without a manager, with one, and with the roles that are shipped for users.
func TestPluginChecks(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "kubectl-plugin")
	out, aside, code := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-n", "plugin-none")
	kit.Says(t, out+aside, code, 1, "there is no Lease of a manager", "error: check: ")
	start(t, "--leader-elect=true")
	kit.Reaches(t, joins(t, "checked"), csr.Issued)

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
	kit.Grant(t, user, "csr-plugin-viewer")
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: "kube-system"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
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

// reviewsAs returns a client for reviews that acts as user, or as the administrator if user is empty.
func reviewsAs(t *testing.T, user string) reviewsv1.AuthorizationV1Interface {
	t.Helper()
	cfg := rest.CopyConfig(kit.ControlPlane(t).Config)
	if user != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	api, err := reviewsv1.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// TestCheckKubeletRights checks groups that can't join or renew, and that the suggested commands help.
func TestCheckKubeletRights(t *testing.T) {
	kit.Parallel(t)
	bootstrappers := []string{"system:bootstrappers:check-one", "system:bootstrappers:check-two"}
	nodes := []string{"check-nodes"}
	look := func(ctx context.Context) []check.Result {
		return check.Kubelets(ctx, reviewsAs(t, "").SubjectAccessReviews(), bootstrappers, nodes)
	}
	results := look(t.Context())
	if len(results) != 2 {
		t.Fatalf("%+v", results)
	}
	for _, result := range results {
		if result.Status != check.Failed || !strings.Contains(result.Evidence, "may not create certificatesigningrequests") {
			t.Errorf("%+v", result)
		}
		runCommands(t, result.NextStep)
	}
	if !strings.Contains(results[1].Evidence, "are lost when their certificates expire") || !strings.Contains(results[1].Evidence, "selfnodeclient") {
		t.Errorf("the outage to come is not named: %s", results[1].Evidence)
	}
	kit.Eventually(t, "the commands help", func(ctx context.Context) error {
		if results := look(ctx); check.Worst(results) != check.OK {
			return fmt.Errorf("%+v", results)
		}
		return nil
	})

	// Rights that the Node authorizer grants to system:nodes are not missing.
	for _, result := range check.Kubelets(t.Context(), reviewsAs(t, "").SubjectAccessReviews(), bootstrappers, []string{"system:nodes"}) {
		if strings.Contains(result.NextStep, "system:node-bootstrapper") {
			t.Errorf("%+v", result)
		}
	}
	// A user without the right to ask gets unknown results.
	for _, result := range check.Kubelets(t.Context(), reviewsAs(t, "check-nobody").SubjectAccessReviews(), bootstrappers, nodes) {
		if result.Status != check.Unknown || !strings.Contains(result.Evidence, "could not ask") {
			t.Errorf("%+v", result)
		}
	}
}

// runCommands runs the kubectl commands at the beginning of a next step unchanged.
func runCommands(t *testing.T, step string) {
	t.Helper()
	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig("check-admin", kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	step, _, _ = strings.Cut(step, ";")
	for _, command := range strings.Split(step, " && ") {
		args, found := strings.CutPrefix(command, "kubectl ")
		if !found {
			t.Fatalf("no kubectl: %s", command)
		}
		kit.Kubectl(t, kubeconfig, strings.Fields(args)...)
	}
}

// printToken runs the real command, creates the printed objects, and returns the token.
func printToken(t *testing.T, args ...string) (token string) {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), path, append([]string{"bootstrap-token"}, args...)...)
	// The command calls no server, so it needs no cluster.
	command.Env, command.Stdout, command.Stderr = []string{"KUBECONFIG=/nonexistent"}, &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	found := regexp.MustCompile(`^# ([a-z0-9]{6}\.[a-z0-9]{16}) is the token of node [^\n]+\n$`).FindStringSubmatch(stderr.String())
	if found == nil {
		t.Fatalf("aside: %s", stderr.String())
	}
	documents := yaml.NewYAMLOrJSONDecoder(&stdout, 4096)
	for {
		obj := &unstructured.Unstructured{}
		if err := documents.Decode(obj); errors.Is(err, io.EOF) {
			return found[1]
		} else if err != nil {
			t.Fatal(err)
		}
		kit.Create(t, kit.Admin(t), obj)
	}
}

// TestBootstrapTokenCommand uses a token as a kubelet does. The API server knows it, in the node's group and in no
// other group that kubeadm binds. Bindings to the group of the node permit its certificate.
func TestBootstrapTokenCommand(t *testing.T) {
	kit.Parallel(t)
	token := printToken(t, "--node", "token-a")
	user, err := kubelet.WhoAmI(t.Context(), kit.WithToken(t, token))
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(token, ".")
	slices.Sort(user.Groups)
	want := []string{"system:authenticated", "system:bootstrappers", csr.TokenGroup("token-a")}
	if user.Username != "system:bootstrap:"+id || !slices.Equal(user.Groups, want) {
		t.Errorf("the token is user %s in groups %q, want %q", user.Username, user.Groups, want)
	}

	start(t)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayCreate)
	kit.GrantGroup(t, csr.TokenGroup("token-a"), kit.MayJoin)
	c, obj := kit.ClientOf(t, kit.WithToken(t, token)), kit.NodeRequest(t, "token-a")
	kit.Eventually(t, "the authorizer knows of the bindings", func(ctx context.Context) error { return c.Create(ctx, obj) })
	if got := kit.Leaf(t, kit.Reaches(t, obj, csr.Issued)).Subject.CommonName; got != "system:node:token-a" {
		t.Errorf("common name %s", got)
	}
}
