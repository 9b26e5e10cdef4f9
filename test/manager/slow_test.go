package manager

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

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
	took := joinAll(t, "slow", count)
	slices.Sort(took)
	t.Logf("the fastest took %s, the slowest %s", took[0], took[len(took)-1])
	if slowest := took[len(took)-1]; slowest > bound {
		t.Errorf("the slowest request took %s", slowest)
	}
	writes := map[string]int{}
	for _, call := range proxy.Calls() {
		if call.Fault == "" || !slices.Contains(outcomeWrites, call.Resource) {
			continue
		}
		writes[call.Name+" "+call.Resource]++
		if call.Ended && call.Status != http.StatusOK {
			t.Errorf("the call %s %s ended with status %d", call.Verb, call.Path, call.Status)
		}
	}
	for write, times := range writes {
		if times != 1 {
			t.Errorf("%s was written %d times", write, times)
		}
	}
	if len(writes) != 2*count {
		t.Errorf("%d writes, want %d", len(writes), 2*count)
	}
}

// startJoinable starts a manager as cfg's user, and a joiner who may join. It returns once both work.
func startJoinable(t *testing.T, cfg *rest.Config, args ...string) *kit.Process {
	t.Helper()
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	p := kit.StartManager(t, cfg, append([]string{"--leader-elect=false"}, args...)...)
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "first")), csr.Issued)
	return p
}
