package manager

import (
	"context"
	"net/http"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestDryRun goes through every outcome with the rights of config/dry-run, and proves with a proxy that only Events and reviews were written.
func TestDryRun(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-dry-run"}}
	kit.Create(t, kit.Admin(t), account)
	kit.ApplyAll(t, kit.BoundTo(t, account.Name, kit.Rendered(t, "overlays/dry-run")))
	cfg := kit.TokenOf(t, account)
	kit.Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		return kit.ClientOf(t, cfg).List(ctx, &certificatesv1.CertificateSigningRequestList{})
	})
	proxy := kit.ThroughFaults(t, cfg)
	p := startAs(t, proxy.Config, "--dry-run=*", kit.Configure(t, "cleaning: {retention: {denied: 1s}}\n"))
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	// tells waits for an Event about obj.
	tells := func(obj *kit.Request, kind, reason string, parts ...string) {
		t.Helper()
		kit.AnEvent(t, obj, reason, func(event *eventsv1.Event) bool { return event.Type == kind && kit.Notes(event, parts...) })
	}

	agreed := joins(t, "dry-a")
	tells(agreed, "Normal", "WouldApprove", "AutoApproved: Auto approving kubelet client certificate after SubjectAccessReview.")
	kit.Approve(t, agreed)
	tells(agreed, "Normal", "WouldIssue", "would sign the request")

	differs := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-b"))
	tells(differs, "Warning", "WouldWait", "NotAuthorized: ", `user "stranger"`)
	kit.Approve(t, differs)
	tells(differs, "Normal", "WouldIssue", "would sign the request")
	given := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-c"))
	tells(given, "Warning", "WouldWait", "NotAuthorized")
	broken := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)
	tells(broken, "Warning", "WouldFail", "SignerValidationFailure: ")
	due := decided(t, certificatesv1.CertificateDenied, signerName("example.com/foreign"))
	tells(due, "Normal", "WouldDelete", "Due: the request is Denied and due for deletion since ")

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
