package integration

import (
	"context"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// handArgs are the flags of a command that knows the configuration of a manager which does not run.
func handArgs(t *testing.T) []string {
	t.Helper()
	return []string{"--kubeconfig", adminKubeconfig(t), "--signing-secret", systemNamespace + "/csr-signer", "--config", identityConfig(t, "")}
}

// runCommand runs the real binary, and wants its exit code and each of parts in what it writes.
func runCommand(t *testing.T, code int, parts []string, args ...string) string {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	out, got := string(output), 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != code {
		t.Errorf("%s: exit %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, part := range parts {
		if !strings.Contains(out, part) && !explains(out, part) {
			t.Errorf("%s: %q is not in:\n%s", strings.Join(args, " "), part, out)
		}
	}
	return out
}

// TestApproveByHand has no manager, so that nothing but the command decides.
func TestApproveByHand(t *testing.T) {
	unshared(t)
	create(t, admin(t), signingSecretOf(t))
	grant(t, "stranger", mayCreate)
	flags := handArgs(t)
	run := func(code int, parts []string, args ...string) {
		runCommand(t, code, parts, append(append([]string{"approve"}, flags...), args...)...)
	}
	pending := func(obj *request) {
		t.Helper()
		if state := csr.StateOf(reload(t, obj)); state != csr.Pending {
			t.Errorf("%s is %s", obj.Name, state)
		}
	}

	permitted := createRequest(t, admin(t), nodeRequest(t, "hand-a")) // a master may do everything
	run(0, []string{"would be approved (dry run: client)", "approve: Auto approving"}, "--dry-run", permitted.Name)
	run(0, []string{"would be approved (dry run: server)"}, "--dry-run=server", permitted.Name)
	pending(permitted)
	run(1, []string{"no rule refuses a request for that reason"}, permitted.Name, "--override=NotAuthorized")
	pending(permitted)
	run(0, []string{permitted.Name + "  approved\n"}, permitted.Name)
	hasApproval(t, permitted, "The rules of csr-controller-manager approve the request.")
	run(1, []string{"the request is already approved"}, permitted.Name)

	refused := createRequest(t, as(t, "stranger"), nodeRequest(t, "hand-b"))
	run(1, []string{"not approved: a rule refuses the request: NotAuthorized", "--override NotAuthorized"}, refused.Name)
	run(1, []string{"no rule refuses a request for that reason"}, refused.Name, "--override=NodeAlive")
	pending(refused)
	run(0, []string{"approved\n", "overridden  NotAuthorized"}, refused.Name, "--override=NotAuthorized")
	hasApproval(t, refused, "The user overrides NotAuthorized: ")

	unsignable := createRequest(t, admin(t), nodeRequest(t, "hand-c", func(obj *request) {
		obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
	}))
	run(1, []string{"the signer would refuse the request (SignerValidationFailure)"}, unsignable.Name)
	run(1, nil, unsignable.Name, "--override=ShapeMismatch")
	pending(unsignable)
	foreign := createRequest(t, admin(t), nodeRequest(t, "hand-c", func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }))
	run(1, []string{"the manager does not serve signer example.com/foreign"}, foreign.Name)
	pending(foreign)

	first, second := createRequest(t, as(t, "stranger"), nodeRequest(t, "hand-d")), createRequest(t, admin(t), nodeRequest(t, "hand-d"))
	run(1, []string{first.Name + "  not approved", second.Name + "  approved", "1 of 2 requests not approved"}, "--node", "hand-d")
	pending(first)
	if state := csr.StateOf(reload(t, second)); state != csr.Approved {
		t.Errorf("%s is %s", second.Name, state)
	}
	third := createRequest(t, admin(t), nodeRequest(t, "hand-d"))
	run(1, []string{"the pending requests of the node have different requesters"}, "--node", "hand-d", "--override=NotAuthorized")
	pending(first)
	pending(third)
	run(1, []string{`node "nowhere" has no pending request`}, "--node", "nowhere")
	runCommand(t, 1, []string{"the rules of the running manager are unknown"}, "approve", "--kubeconfig", adminKubeconfig(t), first.Name)
}

// hasApproval wants an approval by hand whose message has part.
func hasApproval(t *testing.T, obj *request, part string) {
	t.Helper()
	for _, condition := range reload(t, obj).Status.Conditions {
		if condition.Type == certificatesv1.CertificateApproved && condition.Reason == "ApprovedByHand" && strings.Contains(condition.Message, part) &&
			strings.Contains(condition.Message, "Approved by hand by user ") {
			return
		}
	}
	t.Errorf("no approval by hand with %q: %+v", part, reload(t, obj).Status.Conditions)
}

// TestApproveByHandRefusesABlockedNode blocks the node of a request that the rules approve.
func TestApproveByHandRefusesABlockedNode(t *testing.T) {
	unshared(t)
	create(t, admin(t), signingSecretOf(t))
	obj := createRequest(t, admin(t), nodeRequest(t, "hand-blocked"))
	flags := append(handArgs(t), "--node-block-list="+systemNamespace+"/hand-blocked")
	args := append(append([]string{"approve"}, flags...), obj.Name)
	runCommand(t, 1, []string{"not approved: InventoryUnavailable: "}, args...)
	create(t, admin(t), object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: hand-blocked, namespace: "+systemNamespace+"}, data: {nodes: hand-blocked}}"))
	runCommand(t, 1, []string{"not approved: NodeBlocked: "}, args...)
	runCommand(t, 1, []string{"this reason cannot be overridden"}, append(args, "--override=NodeBlocked")...)
	if state := csr.StateOf(reload(t, obj)); state != csr.Pending {
		t.Errorf("it is %s", state)
	}
}

// TestPrintedCommandsQuoteNames stores a request under a name that a shell would run.
func TestPrintedCommandsQuoteNames(t *testing.T) {
	unshared(t)
	create(t, admin(t), signingSecretOf(t))
	grant(t, "stranger", mayCreate)
	obj := nodeRequest(t, "hand-named")
	obj.GenerateName, obj.Name = "", "x $(reboot);\x1b[2K\nkubectl-reboot"
	obj = createRequest(t, as(t, "stranger"), obj)
	flags := handArgs(t)
	quoted := `'x $(reboot);\x1b[2K kubectl-reboot'`
	out := runCommand(t, 1, []string{quoted + "  not approved", "approve --override NotAuthorized " + quoted}, append(append([]string{"approve"}, flags...), obj.Name)...)
	out += runCommand(t, 0, []string{quoted}, append([]string{"pending"}, flags...)...)
	out += runCommand(t, 1, nil, append([]string{"check", "--node", "hand-named"}, flags...)...)
	out += runCommand(t, 0, nil, append(append([]string{"explain"}, flags...), obj.Name)...)
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "kubectl-reboot") || strings.Contains(line, "\x1b") {
			t.Errorf("a line of the requester: %q", line)
		}
	}
}

// TestPendingListsWhoWaits lets a manager refuse one request and stop before it sees another one.
func TestPendingListsWhoWaits(t *testing.T) {
	unshared(t)
	installRBAC(t)
	create(t, admin(t), signingSecretOf(t))
	grant(t, "stranger", mayCreate)
	flags := handArgs(t)
	p := startManager(t, managerConfig(t), append(flags[2:], "--leader-elect=false")...)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	told := createRequest(t, as(t, "stranger"), nodeRequest(t, "listed-a"))
	hasEvent(t, told, "NotAuthorized")
	checkStop(t, p)
	untold := createRequest(t, as(t, "stranger"), nodeRequest(t, "listed-a"))
	approvable := createRequest(t, admin(t), nodeRequest(t, "listed-b"))
	foreign := createRequest(t, admin(t), nodeRequest(t, "listed-c", func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }))
	denied := createRequest(t, admin(t), nodeRequest(t, "listed-d"))
	decide(t, denied, certificatesv1.CertificateDenied)

	out := runCommand(t, 0, []string{"NAME", "WAITS FOR", "(now): the manager has written no Event"}, append([]string{"pending"}, flags...)...)
	for obj, want := range map[*request]string{told: "approval NotAuthorized", untold: "approval NotAuthorized (now)", approvable: "approval can be approved (now)", foreign: "approval signer not configured (now)"} {
		if line := lineOf(out, obj.Name); !strings.HasSuffix(strings.Join(append(strings.Fields(line)[4:5], strings.Fields(line)[6:]...), " "), want) {
			t.Errorf("want %q in %q", want, line)
		}
	}
	if line := lineOf(out, denied.Name); line != "" {
		t.Errorf("denied, and listed: %q", line)
	}
	out = runCommand(t, 0, nil, append([]string{"pending", "--by-node"}, flags...)...)
	if fields := strings.Fields(lineOf(out, "listed-a")); len(fields) < 5 || fields[1] != "2" || fields[4] != "NotAuthorized" {
		t.Errorf("by node: %q", fields)
	}
	out = runCommand(t, 0, []string{`"reasonFrom": "rules"`, `"node": "listed-c"`}, append([]string{"pending", "-o", "json", "--signer", "example.com/foreign"}, flags...)...)
	if strings.Contains(out, told.Name) {
		t.Errorf("of another signer:\n%s", out)
	}
}

// lineOf returns the line of out that begins with name.
func lineOf(out, name string) string {
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] == name {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// TestExplainTimeline wants who has approved and who has signed, as the API server records it, and waits with --watch.
func TestExplainTimeline(t *testing.T) {
	unshared(t)
	installRBAC(t)
	create(t, admin(t), signingSecretOf(t))
	grant(t, "stranger", mayCreate)
	flags := handArgs(t)
	obj := createRequest(t, as(t, "stranger"), nodeRequest(t, "told"))
	explained := append([]string{"explain"}, append(flags, obj.Name)...)
	runCommand(t, 1, []string{"waits for approval, for at most 3s", "still waits for approval after 3s", "Next step\n"}, append(explained, "--watch", "--timeout=3s")...)
	p := startManager(t, managerConfig(t), append(flags[2:], "--leader-elect=false")...)
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	hasEvent(t, obj, "NotAuthorized")
	runCommand(t, 0, []string{"csr-approver said NotAuthorized", "kubectl create clusterrolebinding"}, explained...)
	grant(t, "stranger", "system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	out := runCommand(t, 0, []string{
		`"` + obj.Name + `": Issued`, "Nothing to do. The cleaner deletes the request in", `created   `, `, by "stranger"`,
		`approved  reason "AutoApproved", by field manager "csr-controller-manager"`, `signed    by field manager "csr-controller-manager"`,
		"deletion  due in ",
	}, append(explained, "--watch", "--timeout=2m")...)
	if strings.Contains(out, "not recorded") {
		t.Errorf("something is not recorded:\n%s", out)
	}
	runCommand(t, 0, []string{`"state": "Issued"`, `"what": "signed"`}, append(explained, "-o", "json")...)
	reaches(t, obj, csr.Issued)
}

// TestApproveByHandMeetsAnotherDecision denies a request after the command has checked it, and before the command writes
// its approval.
func TestApproveByHandMeetsAnotherDecision(t *testing.T) {
	unshared(t)
	create(t, admin(t), signingSecretOf(t))
	grant(t, "stranger", "cluster-admin")
	obj := createRequest(t, admin(t), nodeRequest(t, "hand-raced"))
	eventually(t, "the stranger may read requests", func(ctx context.Context) error {
		return as(t, "stranger").Get(ctx, client.ObjectKeyFromObject(obj), &request{})
	})
	proxy := newLedger(t)
	proxy.before = func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/approval") {
			decide(t, reload(t, obj), certificatesv1.CertificateDenied)
		}
	}
	kubeconfig, err := controlPlane(t).WriteKubeconfig("hand-raced", proxy.config(stranger(t)))
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"approve", "--kubeconfig", kubeconfig}, handArgs(t)[2:]...)
	runCommand(t, 1, []string{"the request was changed while the rules were checked; it is now Denied", "1 of 1 requests not approved"}, append(args, obj.Name)...)
	for _, condition := range reload(t, obj).Status.Conditions {
		if condition.Type == certificatesv1.CertificateApproved {
			t.Errorf("approved too: %+v", condition)
		}
	}
}
