package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// leaderAfter waits for a holder of the Lease other than before.
func leaderAfter(t *testing.T, before string) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	kit.Eventually(t, "a new leader", func(ctx context.Context) error {
		err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" || *holder == before {
			return errors.New("there is none")
		}
		return nil
	})
	return *lease.Spec.HolderIdentity
}

// TestStandbyQueuesNothing creates and deletes requests while another replica leads. The queues of the standby stay
// empty. When it becomes the leader, it finds the waiting request in its cache.
func TestStandbyQueuesNothing(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	lease := leaseOf(t, "another")
	p := kit.StartManager(t, kit.ServiceAccountConfig(t))
	waiting := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "waits"))
	for i := range 20 {
		if err := kit.Admin(t).Delete(t.Context(), kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, fmt.Sprint("gone-", i)))); err != nil {
			t.Fatal(err)
		}
	}
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, // the cache of the standby is filled
		`csr_requests{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} 1`)
	status, metrics := cluster.Get(t.Context(), p.Metrics, "/metrics")
	if status != http.StatusOK {
		t.Errorf("status %d: %s", status, metrics)
	}
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, `workqueue_adds_total{controller="csr-`) && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			t.Errorf("the standby queues requests: %s", line)
		}
	}
	if err := kit.Admin(t).Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `workqueue_queue_duration_seconds_count{controller="csr-approver",name="csr-approver"} 1`)
}

// leaseOf creates the Lease of the managers, held by a replica that does not exist. It is renewed until it is deleted.
func leaseOf(t *testing.T, holder string) *coordinationv1.Lease {
	t.Helper()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: &now, AcquireTime: &now,
		},
	}
	if err := client.IgnoreNotFound(kit.Admin(t).Delete(t.Context(), lease.DeepCopy())); err != nil {
		t.Fatal(err)
	}
	kit.Create(t, kit.Admin(t), lease)
	renewed, c := lease.DeepCopy(), kit.Admin(t)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	go func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			now := metav1.NowMicro()
			renewed.Spec.RenewTime = &now
			if err := c.Update(ctx, renewed); err != nil {
				stop()
			}
		}, 500*time.Millisecond)
	}()
	return lease
}
