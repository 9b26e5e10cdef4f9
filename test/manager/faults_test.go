package manager

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// TestClockAnHourAhead runs the manager with a clock that is an hour ahead of the API server, by the Date headers.
// Approvals continue, nothing is signed, and nothing is deleted early. After the clocks agree, the waiting requests
// are handled.
func TestClockAnHourAhead(t *testing.T) {
	kit.Parallel(t)
	config := kit.Configure(t, "cleaning: {signers: [{name: example.com/short, retention: {denied: 59m}}]}\n")
	hour := faults.Rule{Do: faults.ShiftDate(-time.Hour)}
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t), hour)
	p := startAs(t, proxy.Config, config)

	denied := decided(t, certificatesv1.CertificateDenied, signerName("example.com/short"))
	obj := joins(t, "fresh")
	kit.Reaches(t, obj, csr.Approved)
	kit.HasEvent(t, obj, "ClockSkewed", "the manager's clock is 1h0m", "ahead of the API server's")
	p.Answers(t, p.Probes, "/readyz/clock", http.StatusInternalServerError)
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	skewed := regexp.MustCompile(`(?m)^csr_clock_skew_seconds 36\d\d$`)
	kit.Eventually(t, "metric", func(ctx context.Context) error {
		_, body := cluster.Get(ctx, p.Metrics, "/metrics")
		return kit.OrError(skewed.MatchString(body), "no match for %s", skewed)
	})
	kit.IsIn(t, obj, csr.Approved)
	kit.Reload(t, denied) // by the manager's clock it is due

	proxy.Use()
	kit.Within(t, 2*time.Minute, "the request is signed once the clocks agree", func(context.Context) error {
		got := csr.StateOf(kit.Reload(t, obj))
		return kit.OrError(got == csr.Issued, "it is %s", got)
	})
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Reload(t, denied)
}

// TestClockAnHourBehind deletes requests that are due by the API server's time.
func TestClockAnHourBehind(t *testing.T) {
	kit.Parallel(t)
	config := kit.Configure(t, "controllers: [cleaner]\ncleaning: {signers: [{name: example.com/short, retention: {denied: 59m}}]}\n")
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "cleaner"), faults.Rule{Do: faults.ShiftDate(time.Hour)})
	kit.StartManager(t, proxy.Config, "--leader-elect=false", config)
	kit.IsDeleted(t, decided(t, certificatesv1.CertificateDenied, signerName("example.com/short")))
}

// outcomeWrites are the resources with which the manager stores an approval, and a certificate or a Failed condition.
var outcomeWrites = []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"}

// TestAnswersAfterSixSeconds delays every call longer than clients wait that expect a fast API server.
func TestAnswersAfterSixSeconds(t *testing.T) {
	kit.Parallel(t)
	joinSlowly(t, 20, 6*time.Second, 40*time.Second)
}

// joinSlowly joins kubelets while each review and each write of approver and signer is delayed, as by a slow authorizer and
// a slow admission webhook. Each request needs three such calls. A review waits while four identical ones are in progress,
// and one requester gets half of the signer's 20 workers. So 20 requests take as long as five calls, and 10 as long as
// four. They would take longer if calls were cancelled, repeated or made one after the other.
func joinSlowly(t *testing.T, count int, delay, bound time.Duration) {
	t.Helper()
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	startJoinable(t, proxy.Config)
	proxy.Use(
		faults.Rule{Verbs: []string{"create"}, Resources: []string{"subjectaccessreviews"}, Do: faults.Delay(delay)},
		faults.Rule{Verbs: []string{"update"}, Resources: outcomeWrites, Do: faults.Delay(delay)},
	)
	if slowest := joinAll(t, kit.As(t, "joiner"), count).longest(t); slowest > bound {
		t.Errorf("the slowest request took %s", slowest)
	}
	writes := map[string]int{}
	for _, call := range proxy.Calls() {
		if call.Fault == "" || !slices.Contains(outcomeWrites, call.Resource) {
			continue
		}
		writes[call.Name+" "+call.Resource]++
		kit.Check(t, !call.Ended || call.Status == http.StatusOK, "the call %s %s ended with status %d", call.Verb, call.Path, call.Status)
	}
	for write, times := range writes {
		kit.Equal(t, "number of writes of "+write, times, 1)
	}
	kit.Equal(t, "number of writes", len(writes), 2*count)
}

// refusals is how often the write for each request is refused, at least. The pauses between these attempts double from a second.
const refusals = 3

// TestWritesThatAPolicyRefusesAreRepeated has requests that wait for an approval, for a certificate and for a Failed
// condition while an admission policy refuses every write of the manager (422). Afterwards every request is decided, without
// a restart. The metrics show the refusals. TestApprovalRulesWithoutARight has a write that a role refuses (403).
func TestWritesThatAPolicyRefusesAreRepeated(t *testing.T) {
	kit.Parallel(t)
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	p := startJoinable(t, proxy.Config)
	kit.Grant(t, "stranger", kit.MayCreate)
	permit, before := refuseByPolicy(t), len(proxy.Calls())
	want := map[*kit.Request]csr.State{}
	for range 3 {
		want[joins(t, "pending")] = csr.Issued
		// The approver does not try to approve it.
		want[kit.Approve(t, kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "by-hand")))] = csr.Issued
	}
	want[decided(t, certificatesv1.CertificateApproved, kit.WrongUsage)] = csr.Failed
	kit.Eventually(t, "every write is refused", func(context.Context) error {
		attempts := map[string]int{}
		for _, call := range proxy.Calls()[before:] {
			if slices.Contains(outcomeWrites, call.Resource) && call.Status == http.StatusUnprocessableEntity {
				attempts[call.Name]++
			}
		}
		for obj := range want {
			if attempts[obj.Name] < refusals {
				return fmt.Errorf("of %s %d times", obj.Name, attempts[obj.Name])
			}
		}
		return nil
	})
	const kubelet = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="NotStored",rule="",`+kubelet+`,verdict="Wait"} 3`,
		`csr_signer_outcomes_total{outcome="Wait",reason="NotStored",`+kubelet+`} 4`)
	for obj := range want {
		kit.HasEvent(t, obj, "NotStored", "refuses to store")
	}
	permit()
	for obj, state := range want {
		kit.Reaches(t, obj, state)
	}
}

// refuseByPolicy refuses the writes of the manager by a ValidatingAdmissionPolicy, until permit is called.
func refuseByPolicy(t *testing.T) (permit func()) {
	t.Helper()
	policy := kit.Object(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: refuse}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [certificates.k8s.io], apiVersions: [v1], operations: [UPDATE], resources: [`+strings.Join(outcomeWrites, ", ")+`]}
  matchConditions:
  - {name: manager, expression: "request.userInfo.username == '`+serviceaccount.MakeUsername(kit.SystemNamespace, kit.ManagerAccount)+`'"}
  validations: [{expression: "false", message: no request is decided now}]`)
	binding := kit.Object(t, `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: refuse}
spec: {policyName: refuse, validationActions: [Deny]}`)
	kit.Create(t, kit.Admin(t), policy)
	kit.Create(t, kit.Admin(t), binding)
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "undecided", kit.WrongUsage))
	manager := kit.ClientOf(t, kit.ServiceAccountConfig(t))
	for _, write := range []string{"approval", "status"} {
		kit.Eventually(t, "the manager's writes to "+write+" are refused", func(ctx context.Context) error {
			err := manager.SubResource(write).Update(ctx, obj.DeepCopy(), client.DryRunAll)
			return kit.OrError(apierrors.IsInvalid(err), "error %w", err)
		})
	}
	return func() { kit.Remove(t, binding) }
}

// TestDiscoveryThatFailsAtTheStartEndsNothing aborts the first discoveries.
func TestDiscoveryThatFailsAtTheStartEndsNothing(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "kubelet-serving")
	kit.Apply(t, "node-identity")
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t),
		faults.Rule{Path: regexp.MustCompile(`^/apis?(/[^/]+(/[^/]+)?)?$`), Times: 4, Do: faults.Reset()})
	p := startAs(t, proxy.Config, kit.Configure(t, "approval: {nodeClient: {requireTokenBinding: true}, kubeletServing: {enabled: true}}\n"))
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Check(t, proxy.Applied()[0] != 0, "no discovery was broken off")
	kit.NewNode(t, "starts", "192.0.2.61")
	kit.Reaches(t, asksFor(t, "starts", "192.0.2.61"), csr.Issued)
	kit.NoError(t, p.Stop())
}
