package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
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
	kit.Check(t, err == nil && report.Passed >= 3 && report.Unknown <= 0 && len(report.Results) == report.Passed+report.Failed,
		"error %v:\n%s", err, out)
	// The API server's clock is two hours ahead.
	proxy := kit.ThroughFaults(t, kit.ControlPlane(t).Config, faults.Rule{Do: faults.ShiftDate(2 * time.Hour)})
	out, _ = kit.RunPlugin(t, proxy.Config, "explain", obj.Name)
	for _, part := range []string{`created +\S+ \((120m|119m|2h)\S* ago\)`, `renewed (120m|119m|2h)\S* ago`} {
		kit.Check(t, regexp.MustCompile(part).MatchString(out), "no %s in:\n%s", part, out)
	}

	const subject = `"CN=system:node:shown,O=system:nodes"`
	plugin(t, 0, "pending", obj.Name+"  shown", "stranger", "approval", "NotAuthorized")
	plugin(t, 0, "explain "+obj.Name, "Next step", "do not let the request pass (NotAuthorized, see rules)", "Said in Events", "csr-approver NotAuthorized",
		"held by", "alive", subject)
	plugin(t, 0, "explain --node shown", obj.Name, "csr-approver NotAuthorized", "Next step")
	// Standard input is empty.
	plugin(t, 1, "approve "+obj.Name, "Approve 1 of 1 requests?", subject, "csr-approver NotAuthorized", "you did not confirm it")
	kit.IsIn(t, obj, csr.Pending)
	plugin(t, 1, "approve --node shown", "not offered, because the manager's rules do not let it pass (NotAuthorized): ")
	out, _, code := kit.Plugin(t, kit.ControlPlane(t).Config, "approve", obj.Name, "--yes", "-o", "json")
	kit.Says(t, out, code, 0, `"approved": true`)
	condition := csr.Condition(kit.Reaches(t, obj, csr.Issued), certificatesv1.CertificateApproved)
	kit.Check(t, condition.Reason == "ApprovedByHand" && strings.Contains(condition.Message, `by user "`), "%+v", condition)
	plugin(t, 1, "approve "+obj.Name+" --yes", "not approved: the request is already issued")
	out, code = kit.RunPlugin(t, kit.WithToken(t, kit.BootstrapperToken), "pending")
	kit.Says(t, out, code, 1, "forbidden")

	kit.Grant(t, "stranger", "csr-plugin-viewer")
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Namespace: "kube-system"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
	})
	kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
	server := kit.CreateRequest(t, kit.KubeletOf(t, "shown"), kit.ServingRequest(t, "shown", "shown"))
	kit.Eventually(t, "the roles for users suffice", func(context.Context) error {
		out, aside, _ := kit.Plugin(t, kit.TokenConfig(t, "stranger"), "check", "-v")
		judged, more, _ := kit.Plugin(t, kit.TokenConfig(t, "stranger"), "explain", server.Name)
		suffice := true
		for _, line := range []string{"ca-trusted       ok", "manager-running  ok", "serving-asked    ok", "do not let it pass (NodeNotFound)"} {
			suffice = suffice && strings.Contains(out+judged, line)
		}
		return kit.OrError(suffice, "%s%s%s%s", out, aside, judged, more)
	})
}

// TestForgedObjectsChangeNothing has a user who may write ConfigMaps, Leases and Events. What that user forges is quoted
// as text of an Event or a Lease, and no request is approved that the signer would refuse. There is no manager.
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
		plugin(t, 0, "explain "+obj.Name, "Said in Events in the name of the manager (anyone", `approve it\x1b[31m`, `held by "an intruder"`)
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
	kit.Require(t, len(results) == 2, "%+v", results)
	for _, result := range results {
		kit.Check(t, result.Status == check.Failed && strings.Contains(result.Evidence, "may not create certificatesigningrequests"),
			"%+v", result)
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
		kit.Check(t, !strings.Contains(result.NextStep, "system:node-bootstrapper"), "%+v", result)
	}
	// A user without the right to ask gets unknown results.
	for _, result := range look(t.Context(), kit.TokenConfig(t, "stranger"), "check-nodes") {
		kit.Check(t, result.Status == check.Unknown && strings.Contains(result.Evidence, "could not ask"), "%+v", result)
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
	kit.Require(t, found != nil, "aside: %s", stderr.String())
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

// TestWriterOfConfigMapsAndLeases plays a user who may only write ConfigMaps and Leases, in the manager's namespace. While
// requests arrive, ten times a second this user takes, releases or deletes the Lease. So both replicas work at the same time.
// Each request that must get a certificate gets one, and no other does.
//
// At the end the user holds a Lease that lasts for years. A new replica waits for it, and check says who holds the
// Lease. Once the Lease is deleted, the replica leads.
func TestWriterOfConfigMapsAndLeases(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	// The Lease does not end within the test, and the leader does not give up.
	args := []string{"--leader-elect-renew-deadline=5m", "--leader-elect-lease-duration=10m", kit.Configure(t, "approval: {denial: Permanent}\n")}
	p := startPair(t, args...)
	w := startLeaseWriter(t)
	l := newLoad(t, client.MatchingLabels{"joins": "during-attack"})
	stop := l.start(t)
	endAttack := every(t, time.Second/10, func(i int) error {
		_, err := w.change(t.Context(), func(lease *coordinationv1.Lease) error {
			switch i % 5 {
			case 0:
				hold(lease, "intruder")
			case 1:
				hold(lease, p.holder)
			case 2:
				return w.Delete(t.Context(), lease)
			default: // twice, so that the standby has time to take the Lease
				hold(lease, "")
			}
			return w.Update(t.Context(), lease)
		})
		return err
	})
	hasLed := func(replica *kit.Process) bool {
		return strings.Contains(replica.Output(t), "Successfully acquired lease")
	} // client-go's text
	kit.Eventually(t, "the standby leads", func(context.Context) error { return kit.OrError(hasLed(p.all[1]), "it does not") })
	wrong := map[*kit.Request]csr.State{}
	for range 5 { // both lead while requests arrive
		l.gets(t, 4)
		wrong[kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "waits"))] = csr.Pending
		wrong[kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "denied", kit.WrongUsage))] = csr.Denied
		wrong[decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)] = csr.Failed
	}
	endAttack()
	kit.Eventually(t, "the user holds the Lease", func(ctx context.Context) error {
		changed, err := w.change(ctx, func(lease *coordinationv1.Lease) error {
			hold(lease, "intruder")
			return w.Update(ctx, lease)
		})
		return errors.Join(err, kit.OrError(changed, "it has changed, or there is none"))
	})
	stop()
	l.longest(t)
	stored, discarded := p.checkRecords(t, l)
	kit.Check(t, stored[1] != 0 && discarded[0]+discarded[1] != 0,
		"leader and standby stored %v certificates and discarded %v: the attack had no effect", stored, discarded)
	for obj, state := range wrong {
		if kit.Reaches(t, obj, state); len(obj.Status.Certificate) > 0 || len(obj.Status.Conditions) > 2 {
			t.Errorf("%s: %+v", obj.Name, obj.Status)
		}
	}

	p.all[0].Kill()
	p.all[1].Kill()
	next := p.start(t, args...)
	after := joins(t, "after")
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-v")
	kit.Check(t, regexp.MustCompile(`(?m)^manager-running.*held by intruder`).MatchString(out),
		"check does not say who holds the Lease:\n%s", out)
	if kit.IsIn(t, after, csr.Pending); hasLed(next) {
		t.Error("a replica leads that does not hold the Lease")
	}
	kit.Remove(t, leaderAfter(t, ""))
	leaderAfter(t, "intruder")
	kit.Reaches(t, after, csr.Issued)
}

// leaseWriter is a client of the user who may write ConfigMaps and Leases.
type leaseWriter struct{ client.Client }

// startLeaseWriter creates the user, and waits until the role is in effect.
func startLeaseWriter(t *testing.T) leaseWriter {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "intruder"}
	verbs := []string{"get", "create", "update", "delete"}
	kit.Create(t, kit.Admin(t), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs},
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: verbs},
	}})
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: *meta.DeepCopy(), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{kit.AccountCalled(meta.Name)},
	})
	account := &corev1.ServiceAccount{ObjectMeta: *meta.DeepCopy()}
	kit.Create(t, kit.Admin(t), account)
	w := leaseWriter{kit.ClientOf(t, kit.TokenOf(t, account))}
	kit.Eventually(t, "the role is in effect", func(ctx context.Context) error {
		_, err := w.change(ctx, func(*coordinationv1.Lease) error { return nil })
		return err
	})
	return w
}

// hold makes holder the holder of lease for 68 years. An empty holder releases it.
func hold(lease *coordinationv1.Lease, holder string) {
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, new(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = new(int32(math.MaxInt32))
}

// change calls do with the Lease, and reports whether do succeeded. There may be no Lease, and a replica may write at the same time.
func (w leaseWriter) change(ctx context.Context, do func(*coordinationv1.Lease) error) (bool, error) {
	lease := &coordinationv1.Lease{}
	err := w.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
	if err == nil {
		err = do(lease)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
