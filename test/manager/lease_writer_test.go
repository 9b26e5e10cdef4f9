package manager

import (
	"context"
	"errors"
	"math"
	"net/http"
	"regexp"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestWriterOfConfigMapsAndLeases plays a user who may only write ConfigMaps and Leases, in the manager's namespace. While
// requests arrive, ten times a second this user takes, releases or deletes the Lease. So both replicas work at the same time.
// Each request that must get a certificate gets one, and no other does.
//
// At the end the user holds a Lease that lasts for years. A new replica waits for it, and check says who holds the
// Lease. Once the Lease is deleted, the replica leads.
func TestWriterOfConfigMapsAndLeases(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	args := append(leadsFor(5*time.Minute), kit.Configure(t, "approval: {denial: Permanent}\n"))
	p := startPair(t, args...)
	w := &leaseWriter{Client: kit.ClientOf(t, leaseWriterConfig(t)), replica: p.holder}
	l, stop := startLoad(t)
	endAttack := every(t, time.Second/10, func(i int) error { return w.attack(t.Context(), i) })
	kit.Eventually(t, "the standby leads", func(context.Context) error {
		if !p.standby.HasLed(t) {
			return errors.New("it does not")
		}
		return nil
	})
	wrong := map[*kit.Request]csr.State{}
	for range 5 { // both lead while requests arrive
		l.gets(t, 4)
		wrong[kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "waits"))] = csr.Pending
		wrong[kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "denied", kit.WrongUsage))] = csr.Denied
		wrong[decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)] = csr.Failed
	}
	endAttack()
	w.keep(t)
	stop()
	l.longest(t)
	stored, discarded := p.checkRecords(t, l)
	if stored[1] == 0 || discarded[0]+discarded[1] == 0 {
		t.Errorf("leader and standby stored %v certificates and discarded %v: the attack had no effect", stored, discarded)
	}
	for obj, state := range wrong {
		if kit.Reaches(t, obj, state); len(obj.Status.Certificate) > 0 || len(obj.Status.Conditions) > 2 {
			t.Errorf("%s: %+v", obj.Name, obj.Status)
		}
	}

	p.leader.Kill()
	p.standby.Kill()
	next := p.start(t, args)
	next.Answers(t, next.Probes, "/readyz", http.StatusOK)
	after := joins(t, "after")
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-v")
	if !regexp.MustCompile(`(?m)^manager-running.*held by intruder`).MatchString(out) {
		t.Errorf("check does not say who holds the Lease:\n%s", out)
	}
	if isPending(t, after); next.HasLed(t) {
		t.Error("a replica leads that does not hold the Lease")
	}
	kit.Remove(t, leaderAfter(t, ""))
	leaderAfter(t, "intruder")
	kit.Reaches(t, after, csr.Issued)
}

// leaseWriter is a client of the user who may write ConfigMaps and Leases.
type leaseWriter struct {
	client.Client
	replica string // a holder of the Lease
}

func leaseWriterConfig(t *testing.T) *rest.Config {
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
	cfg := kit.TokenOf(t, account)
	kit.Eventually(t, "the role is in effect", func(ctx context.Context) error {
		return kit.ClientOf(t, cfg).Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, &coordinationv1.Lease{})
	})
	return cfg
}

// attack changes or deletes the Lease in one of four ways.
func (w *leaseWriter) attack(ctx context.Context, i int) error {
	return w.changeLease(ctx, func(lease *coordinationv1.Lease) error {
		switch i % 5 {
		case 0:
			hold(lease, "intruder")
		case 1:
			hold(lease, w.replica)
		case 2:
			return w.Delete(ctx, lease)
		default: // twice, so that the standby has time to take the Lease
			hold(lease, "")
		}
		return w.Update(ctx, lease)
	})
}

// hold makes holder the holder of lease for 68 years. An empty holder releases it.
func hold(lease *coordinationv1.Lease, holder string) {
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, ptr.To(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = ptr.To[int32](math.MaxInt32)
}

// changeLease calls change with the Lease, if there is one. A replica may write at the same time.
func (w *leaseWriter) changeLease(ctx context.Context, change func(*coordinationv1.Lease) error) error {
	lease := &coordinationv1.Lease{}
	err := w.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
	if err == nil {
		err = change(lease)
	}
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}

// keep makes the user the holder of the Lease, until it is deleted.
func (w *leaseWriter) keep(t *testing.T) {
	t.Helper()
	kit.Eventually(t, "the Lease is taken", func(ctx context.Context) error {
		held := errors.New("it has changed, or there is none")
		err := w.changeLease(ctx, func(lease *coordinationv1.Lease) error {
			hold(lease, "intruder")
			err := w.Update(ctx, lease)
			if err == nil {
				held = nil
			}
			return err
		})
		return errors.Join(err, held)
	})
}

// leadsFor returns flags for a Lease that does not end within that time. Neither does the leader give up.
func leadsFor(long time.Duration) []string {
	return []string{"--leader-elect-renew-deadline", long.String(), "--leader-elect-lease-duration", (2 * long).String()}
}
