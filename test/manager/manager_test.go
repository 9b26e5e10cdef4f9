package manager

import (
	"context"
	"crypto/fips140"
	"debug/buildinfo"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestManager runs the whole manager with the shipped manifests and roles: without a CA, with a CA, with a bad CA.
func TestManager(t *testing.T) {
	kit.Parallel(t)
	kit.GrantJoining(t, "joiner")
	p := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "-v", "10")

	// No CA yet: the manager runs, and reports that.
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "signing-ca")
	waiting := joins(t, "one")
	kit.Reaches(t, waiting, csr.Approved)
	kit.HasEvent(t, waiting, "CAMissing", "Secret csr-controller-manager-system/csr-signer does not exist")

	// The CA appears: waiting requests are signed at once.
	secret := signingSecret(t)
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Equal(t, "common name", kit.Leaf(t, waiting).Subject.CommonName, "system:node:one")

	// A bad CA leaves the last good one in use, and is reported.
	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	kit.Update(t, secret)
	kit.HasEvent(t, secret, "CAInvalid", "no PEM block of type CERTIFICATE", "the last good CA stays in use")
	kit.Reaches(t, joins(t, "two"), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	// A forbidden request waits.
	kit.Grant(t, "stranger", kit.MayCreate)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "three"))
	kit.HasEvent(t, refused, "NotAuthorized", `user "stranger"`, "create certificatesigningrequests/nodeclient")
	kit.IsIn(t, refused, csr.Pending)
	const kubelet = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="AutoApproved",rule="nodeclient",`+kubelet+`,verdict="Approve"} 2`,
		`csr_approver_decisions_total{reason="NotAuthorized",rule="",`+kubelet+`,verdict="Wait"} 1`,
		`csr_signer_outcomes_total{outcome="Issued",reason="",`+kubelet+`} 2`,
		`csr_signer_ca_reloads_total{result="rejected"} 2`,
		`csr_signer_ca_expiration_timestamp_seconds{signer="kubernetes.io/kubelet-serving"}`,
		`csr_signer_lifetime_seconds{signer="kubernetes.io/kubelet-serving"} 3.1536e+07`,
		`csr_approver_created_to_approved_seconds_count{`+kubelet+`} 2`,
		`csr_signer_created_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_signer_approved_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_approver_review_seconds_count{result="allowed"} 2`,
		`csr_approver_review_seconds_count{result="refused"}`)
	checkStop(t, p)
}

// TestManagerCleans deletes requests that are due when the manager starts, and requests that become due while it
// runs.
func TestManagerCleans(t *testing.T) {
	kit.Parallel(t)
	old, fresh := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "old")), kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "fresh"))
	age(t, old, 25*time.Hour)
	short := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeletServingSignerName))
	kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", kit.Configure(t, `controllers: [cleaner]
cleaning: {signers: [{name: kubernetes.io/kubelet-serving, retention: {approved: 2s}}]}
`))
	kit.IsDeleted(t, old)
	kit.IsDeleted(t, short)
	kit.Reload(t, fresh)
}

func TestManagerRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Manager())(t), "--controllers=foo")
	out, _ := command.CombinedOutput()
	kit.Says(t, string(out), command.ProcessState.ExitCode(), 1, "--controllers: ")
}

// TestFIPS checks that these tests and the manager that they start use the FIPS 140-3 module that GOFIPS140 selects, as
// the part test-fips of `make nightly` does, and else none.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	want := module != "" && module != "off"
	kit.Equal(t, "FIPS mode with GOFIPS140="+module, fips140.Enabled(), want)
	var got string
	for _, setting := range kit.Must(buildinfo.ReadFile(kit.Must(cluster.Manager())(t)))(t).Settings {
		if setting.Key == "GOFIPS140" {
			got = setting.Value
		}
	}
	// The go command records the version with the hash of the module, such as v1.0.0-c2097c7c.
	if has := got != "" && got != "off"; has != want || want && !strings.HasPrefix(got, module) {
		t.Errorf("the manager has the module %q, want %q", got, module)
	}
}

// TestRotationWithoutItsCRDHoldsUpNothingElse enables rotation without its CRD. Until the CRD is installed, the
// approver works, and the replica reports what it waits for.
func TestRotationWithoutItsCRDHoldsUpNothingElse(t *testing.T) {
	kit.Parallel(t)
	kit.ApplyAll(t, slices.DeleteFunc(kit.Rendered(t, "rotation"), func(obj *unstructured.Unstructured) bool {
		return !strings.Contains(obj.GetKind(), "Role") // above all not the CRD
	}))
	p := start(t, kit.Configure(t, "rotation: {enabled: true}\n"))
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusInternalServerError)
	kit.Reaches(t, joins(t, "joins"), csr.Approved)
	kit.Eventually(t, "the log says what is missing", func(context.Context) error {
		log := p.Output(t)
		says := strings.Contains(log, "Waiting for a resource that can't be watched yet") && strings.Contains(log, "SigningAuthority")
		return kit.OrError(says, "it does not yet")
	})
	options := envtest.CRDInstallOptions{Paths: []string{"../../config/crd"}, ErrorIfPathMissing: true}
	_, err := envtest.InstallCRDs(kit.ControlPlane(t).Config, options)
	kit.NoError(t, err)
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusOK)
}

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
