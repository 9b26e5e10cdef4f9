//go:build nightly

package manager

import (
	"net/http"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestAnswersAfter25Seconds delays every call almost as long as an admission webhook may.
func TestAnswersAfter25Seconds(t *testing.T) {
	kit.Parallel(t)
	joinSlowly(t, 10, 25*time.Second, 115*time.Second)
}

// TestWritesThatARoleRefusesAreRepeated takes the roles of approver and signer for a while (403).
func TestWritesThatARoleRefusesAreRepeated(t *testing.T) {
	kit.Parallel(t)
	decidesAfter(t, refuseByRole, `csr_approver_errors_total{reason="Forbidden"}`, `csr_signer_errors_total{reason="Forbidden"}`)
}

// refuseByRole takes the roles of approver and signer from the manager. It must ask for reviews without success, too.
func refuseByRole(t *testing.T) (permit func()) {
	t.Helper()
	var give []func()
	for _, role := range []string{"csr-approver", "csr-signer"} {
		give = append(give, kit.TakeRole(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}}))
	}
	writesFail(t, apierrors.IsForbidden)
	return func() {
		for _, each := range give {
			each()
		}
	}
}

// TestIdentityOutlivesTheLeader revokes one of two tokens and replaces the leader before the machines appear.
func TestIdentityOutlivesTheLeader(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.InstallKind(t, kit.ClusterAPI)
	kit.InstallRBAC(t)
	forgetLeader(t)
	first := startIdentityManager(t, patient)
	leader := leaderAfter(t, "")
	good, bad := newToken(t, "stays1"), newToken(t, "leaves")
	waits, revoked := good.asks(t, "outlives-a"), bad.asks(t, "outlives-b")
	kit.HasEvent(t, waits, "NotExpected")
	kit.HasEvent(t, revoked, "NotExpected")
	second := startIdentityManager(t, patient)
	second.Answers(t, second.Probes, "/readyz", http.StatusOK)
	bad.revoke(t)
	if err := first.Stop(); err != nil {
		t.Error(err)
	}
	leaderAfter(t, leader)
	bad.signed(t, false)
	expect(t, "outlives-b")
	issuedSoon(t, waits, func() { expect(t, "outlives-a") })
	kit.HasEvent(t, revoked, "NotAuthorized", "leaves")
	isPending(t, revoked)
}

// TestBlockListOnAStandby checks that a standby knows the list when it takes over.
func TestBlockListOnAStandby(t *testing.T) {
	kit.Parallel(t)
	list := kit.BlockList(t, "standby-a")
	first := startBlockListManager(t, "--leader-elect=true")
	leader := leaderAfter(t, "")
	kit.HasEvent(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "standby-a")), "NodeBlocked")
	second := kit.StartManager(t, kit.ServiceAccountConfig(t), "--node-block-list="+kit.BlockListName)
	second.Answers(t, second.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1")
	block(t, list, "standby-a\nstandby-b")
	second.Answers(t, second.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 2")
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	leaderAfter(t, leader)
	blocked := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "standby-b"))
	kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "standby-c")), csr.Issued)
	kit.HasEvent(t, blocked, "NodeBlocked")
	checkStop(t, second)
}
