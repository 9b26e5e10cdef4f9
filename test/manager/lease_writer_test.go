package manager

import (
	"context"
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// The Lease does not end within the test, and the leader does not give up.
	args := []string{"--leader-elect-renew-deadline=5m", "--leader-elect-lease-duration=10m", kit.Configure(t, "approval: {denial: Permanent}\n")}
	p := startPair(t, args...)
	w := startLeaseWriter(t)
	l := newLoad(t, client.MatchingLabels{"joins": "during-attack"})
	stop := l.start(t)
	endAttack := every(t, time.Second/10, func(i int) error {
		_, err := w.change(t.Context(), func(lease *coordinationv1.Lease) error {
			switch i % 5 {
			case 0:
				hold(lease, "intruder")
			case 1:
				hold(lease, p.holder)
			case 2:
				return w.Delete(t.Context(), lease)
			default: // twice, so that the standby has time to take the Lease
				hold(lease, "")
			}
			return w.Update(t.Context(), lease)
		})
		return err
	})
	hasLed := func(replica *kit.Process) bool {
		return strings.Contains(replica.Output(t), "Successfully acquired lease")
	} // client-go's text
	kit.Eventually(t, "the standby leads", func(context.Context) error { return kit.OrError(hasLed(p.all[1]), "it does not") })
	wrong := map[*kit.Request]csr.State{}
	for range 5 { // both lead while requests arrive
		l.gets(t, 4)
		wrong[kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "waits"))] = csr.Pending
		wrong[kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "denied", kit.WrongUsage))] = csr.Denied
		wrong[decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)] = csr.Failed
	}
	endAttack()
	kit.Eventually(t, "the user holds the Lease", func(ctx context.Context) error {
		changed, err := w.change(ctx, func(lease *coordinationv1.Lease) error {
			hold(lease, "intruder")
			return w.Update(ctx, lease)
		})
		return errors.Join(err, kit.OrError(changed, "it has changed, or there is none"))
	})
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

	p.all[0].Kill()
	p.all[1].Kill()
	next := p.start(t, args...)
	after := joins(t, "after")
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-v")
	if !regexp.MustCompile(`(?m)^manager-running.*held by intruder`).MatchString(out) {
		t.Errorf("check does not say who holds the Lease:\n%s", out)
	}
	if kit.IsIn(t, after, csr.Pending); hasLed(next) {
		t.Error("a replica leads that does not hold the Lease")
	}
	kit.Remove(t, leaderAfter(t, ""))
	leaderAfter(t, "intruder")
	kit.Reaches(t, after, csr.Issued)
}

// leaseWriter is a client of the user who may write ConfigMaps and Leases.
type leaseWriter struct{ client.Client }

// startLeaseWriter creates the user, and waits until the role is in effect.
func startLeaseWriter(t *testing.T) leaseWriter {
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
	w := leaseWriter{kit.ClientOf(t, kit.TokenOf(t, account))}
	kit.Eventually(t, "the role is in effect", func(ctx context.Context) error {
		_, err := w.change(ctx, func(*coordinationv1.Lease) error { return nil })
		return err
	})
	return w
}

// hold makes holder the holder of lease for 68 years. An empty holder releases it.
func hold(lease *coordinationv1.Lease, holder string) {
	lease.Spec.HolderIdentity, lease.Spec.RenewTime = &holder, new(metav1.NowMicro())
	lease.Spec.LeaseDurationSeconds = new(int32(math.MaxInt32))
}

// change calls do with the Lease, and reports whether do succeeded. There may be no Lease, and a replica may write at the same time.
func (w leaseWriter) change(ctx context.Context, do func(*coordinationv1.Lease) error) (bool, error) {
	lease := &coordinationv1.Lease{}
	err := w.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
	if err == nil {
		err = do(lease)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
