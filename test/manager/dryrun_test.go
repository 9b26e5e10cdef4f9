package manager

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// readOnly returns the configuration of a ServiceAccount with exactly the rights of docs/how-to/dry-run.md.
func readOnly(t *testing.T) *rest.Config {
	t.Helper()
	name := "csr-dry-run"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: name}}
	kit.Create(t, kit.Admin(t), account)
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: kit.SystemNamespace, Name: name}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	events := rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}
	for namespace, rules := range map[string][]rbacv1.PolicyRule{
		metav1.NamespaceDefault:  {events},
		trust.ExtensionNamespace: {{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{trust.ExtensionName, "kube-root-ca.crt"}, Verbs: []string{"get"}}},
		kit.SystemNamespace:      {events, {APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"csr-signer"}, Verbs: []string{"list", "watch"}}},
	} {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		kit.Create(t, kit.Admin(t), &rbacv1.Role{ObjectMeta: meta, Rules: rules})
		kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{ObjectMeta: *meta.DeepCopy(), Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
	}
	return kit.TokenOf(t, account)
}

// tells waits for an Event about obj.
func tells(t *testing.T, obj client.Object, kind, reason string, parts ...string) {
	t.Helper()
	kit.AnEvent(t, obj, reason, func(event *eventsv1.Event) bool {
		return event.Type == kind && !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(event.Note, part) })
	})
}

// TestDryRun goes through every outcome, and proves with a proxy that only Events and reviews were written.
func TestDryRun(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	proxy := kit.ThroughFaults(t, readOnly(t))
	p := startAs(t, proxy.Config, "--dry-run=*", kit.Configure(t, "dryRun: [approver, signer]\ncleaning: {retention: {denied: 1s}}\n"))
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	agreed := joins(t, "dry-a")
	tells(t, agreed, "Normal", "WouldApprove", "AutoApproved: Auto approving kubelet client certificate after SubjectAccessReview.")
	kit.Approve(t, agreed)
	tells(t, agreed, "Normal", "WouldIssue", "would sign the request")

	differs := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-b"))
	tells(t, differs, "Warning", "WouldWait", "NotAuthorized: ", `user "stranger"`)
	kit.Approve(t, differs)
	tells(t, differs, "Normal", "WouldIssue", "would sign the request")

	given := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-c"))
	tells(t, given, "Warning", "WouldWait", "NotAuthorized")

	broken := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)
	tells(t, broken, "Warning", "WouldFail", "SignerValidationFailure: ")

	due := decided(t, certificatesv1.CertificateDenied, signerName("example.com/foreign"))
	tells(t, due, "Normal", "WouldDelete", "Due: the request is Denied and due for deletion since ")

	const signer = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_dry_run_total{reason="AutoApproved",`+signer+`,verdict="Approve"} 1`,
		`csr_approver_dry_run_total{reason="NotAuthorized",`+signer+`,verdict="Wait"} 2`,
		`csr_signer_dry_run_total{outcome="Issued",reason="",`+signer+`} 2`,
		`csr_signer_dry_run_total{outcome="Failed",reason="SignerValidationFailure",signer="kubernetes.io/kube-apiserver-client"} 1`,
		`csr_cleaner_dry_run_total{reason="Due",state="Denied"} 1`)
	// Only now: an attempt that overlaps the deletion would report and count the outcome again.
	kit.Remove(t, given)
	for _, obj := range []*kit.Request{agreed, differs, broken, due} {
		before := obj.ResourceVersion
		if kit.Reload(t, obj).ResourceVersion != before || len(obj.Status.Certificate) > 0 {
			t.Errorf("%s was written: %+v", obj.Name, obj.Status)
		}
	}
	besides(t, p, signer)
	checkStop(t, p) // the log shows that no forbidden call was attempted
	writes := map[string]int{}
	for _, call := range proxy.Calls() {
		if !slices.Contains([]string{"get", "list", "watch"}, call.Verb) {
			writes[call.Verb+" "+call.Resource]++
		}
	}
	for what, times := range writes {
		if !slices.Contains([]string{"create subjectaccessreviews", "create selfsubjectaccessreviews", "create events", "patch events"}, what) {
			t.Errorf("%d times %s", times, what)
		}
	}
	if writes["create events"] < 6 || writes["create subjectaccessreviews"] == 0 {
		t.Errorf("the proxy has only seen %v", writes)
	}
}

// besides runs a manager that approves and signs next to the dry run. Often it is faster. The dry run judges each request
// nevertheless, without an Event for each.
func besides(t *testing.T, dry *kit.Process, signer string) {
	t.Helper()
	const many = 40
	live := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "--controllers=approver,signer", "--self-check-interval=0")
	var all []*kit.Request
	for i := range many {
		all = append(all, joins(t, fmt.Sprintf("dry-%d", i)))
	}
	for _, obj := range all {
		kit.Reaches(t, obj, csr.Issued)
	}
	dry.Answers(t, dry.Metrics, "/metrics", http.StatusOK,
		fmt.Sprintf(`csr_approver_dry_run_total{reason="AutoApproved",%s,verdict="Approve"} %d`, signer, many+1),
		fmt.Sprintf(`csr_signer_dry_run_total{outcome="Issued",reason="",%s} %d`, signer, many+2))
	stops(t, live)
	told := 0
	for _, obj := range all {
		for _, event := range kit.EventsOf(t.Context(), t, obj) {
			if event.Reason == "WouldApprove" || event.Reason == "WouldIssue" {
				told++
			}
		}
	}
	if told > 22 { // ten at once for each of the two controllers, and one a minute
		t.Errorf("%d Events about %d successes", told, many)
	}
}
