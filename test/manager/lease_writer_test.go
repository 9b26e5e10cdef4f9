package manager

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestWriterOfConfigMapsAndLeases plays a user who may only write ConfigMaps and Leases, in the manager's namespace. While
// requests arrive, ten times a second this user takes, releases or deletes the Lease. So both replicas work at the same time. Each request that must get a certificate gets one, and no other
// does.
//
// At the end the user holds a Lease that lasts for years. A new replica waits for it, and check says who holds the
// Lease. Once the Lease is deleted, the replica leads.
func TestWriterOfConfigMapsAndLeases(t *testing.T) {
	kit.Parallel(t)
	args := append(leadsFor(5*time.Minute), kit.Configure(t, "approval: {denial: Permanent}\n"))
	p := startPair(t, args...)
	w := &leaseWriter{Client: kit.ClientOf(t, leaseWriterConfig(t)), replica: leaderAfter(t, "")}
	l := startJoining(t)
	endRefusals := l.refuse(t)
	endAttack := every(t, time.Second/10, func(i int) error { return w.attack(t.Context(), i) })
	p.standbyLeads(t)
	l.gets(t, 20) // both lead while requests arrive
	endRefusals()
	endAttack()
	w.keep(t)
	l.longest(t)
	stored, discarded := p.checkRecords(t, l)
	p.checkRefused(t, l)
	if stored[1] == 0 || discarded[0]+discarded[1] == 0 {
		t.Errorf("leader and standby stored %v certificates and discarded %v: the attack had no effect", stored, discarded)
	}

	p.leader.Kill()
	p.standby.Kill()
	next := p.start(t, kit.ServiceAccountConfig(t), args)
	next.Answers(t, next.Probes, "/readyz", 200)
	after := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "after"))
	out, _, _ := kit.Plugin(t, kit.ControlPlane(t).Config, "check", "-v")
	row(t, out, "manager-running", "held by intruder")
	if got := csr.StateOf(kit.Reload(t, after)); got != csr.Pending || next.HasLed(t) {
		t.Errorf("a replica that does not lead made the request %s", got)
	}
	forgetLeader(t)
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

// refusal is a request that must not get a certificate.
type refusal struct {
	*kit.Request
	want string // conditions, and all recorded verdicts
}

// refuse creates four requests a second that must not get a certificate, until the returned function is called. One
// kind is denied, one waits for a permission, and one is approved by a person and can't be signed.
func (l *joining) refuse(t *testing.T) func() {
	t.Helper()
	kit.Grant(t, "stranger", kit.MayCreate)
	joiner, stranger := kit.As(t, "joiner"), kit.As(t, "stranger")
	wrongUsage := func(obj *kit.Request) { obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth) }
	kinds := []func(*kit.Request) (string, error){
		func(obj *kit.Request) (string, error) {
			wrongUsage(obj)
			return "Denied ShapeMismatch; Decided Deny", joiner.Create(t.Context(), obj)
		},
		func(obj *kit.Request) (string, error) {
			return "; Decided Wait", stranger.Create(t.Context(), obj)
		},
		func(obj *kit.Request) (string, error) {
			wrongUsage(obj)
			obj.Spec.SignerName = certificatesv1.KubeAPIServerClientSignerName
			if err := kit.Admin(t).Create(t.Context(), obj); err != nil {
				return "", err
			}
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", time.Time{})
			return "Approved ByHand, Failed SignerValidationFailure; NotSigned Failed", kit.Admin(t).SubResource("approval").Update(t.Context(), obj)
		},
	}
	return every(t, time.Second/4, func(i int) error {
		obj := kit.NodeRequest(t, fmt.Sprint("refused-", i))
		obj.Labels = joins
		want, err := kinds[i%len(kinds)](obj)
		if err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.wrong[obj.UID] = &refusal{obj, want}
		return nil
	})
}

// checkRefused checks the condition of each refused request, and all verdicts about it in the audit logs.
func (p *pair) checkRefused(t *testing.T, l *joining) {
	t.Helper()
	kit.Eventually(t, "the requests are refused", func(ctx context.Context) error {
		verdicts := map[types.UID][]string{}
		for _, file := range p.audits {
			denied := map[types.UID]bool{}
			for _, record := range kit.ReadAudit(t, file) {
				if record.Verdict == "Deny" {
					if denied[record.UID] {
						t.Fatalf("a second record: %+v", record)
					}
					denied[record.UID] = true
				}
				verdicts[record.UID] = append(verdicts[record.UID], strings.TrimSpace(fmt.Sprint(record.Event, " ", record.Verdict)))
			}
		}
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := kit.Admin(t).List(ctx, list, joins); err != nil {
			return err
		}
		found := 0
		for _, obj := range list.Items {
			one := l.wrong[obj.UID]
			if one == nil {
				continue
			}
			found++
			var conditions []string
			for _, condition := range obj.Status.Conditions {
				conditions = append(conditions, fmt.Sprint(condition.Type, " ", condition.Reason))
			}
			slices.Sort(verdicts[obj.UID])
			got := strings.Join(conditions, ", ") + "; " + strings.Join(slices.Compact(verdicts[obj.UID]), ", ")
			if got != one.want || len(obj.Status.Certificate) > 0 {
				return fmt.Errorf("%s: %q, want %q", obj.Name, got, one.want)
			}
		}
		if found != len(l.wrong) || found == 0 {
			return fmt.Errorf("%d of %d exist", found, len(l.wrong))
		}
		return nil
	})
	t.Logf("%d requests were refused", len(l.wrong))
}
