package manager

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// refusedFor is how long every write is refused.
	refusedFor = 20 * time.Second
	// decidedWithin is the time to decide every request after that.
	decidedWithin = time.Minute
)

// TestWritesThatAPolicyRefusesAreRepeated has an admission policy that refuses every write for a while (422).
func TestWritesThatAPolicyRefusesAreRepeated(t *testing.T) {
	kit.Parallel(t)
	decidesAfter(t, refuseByPolicy,
		`csr_approver_decisions_total{reason="NotStored",rule="",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Wait"} 3`,
		`csr_signer_outcomes_total{outcome="Wait",reason="NotStored",signer="kubernetes.io/kube-apiserver-client-kubelet"} 4`)
}

// decidesAfter has requests that wait for an approval, for a certificate and for a Failed condition while refuse is in effect.
// Afterwards every request is decided, without a restart. The metrics show the refusals.
func decidesAfter(t *testing.T, refuse func(*testing.T) (permit func()), metrics ...string) {
	t.Helper()
	p := startJoinable(t, kit.ManagerConfig(t))
	kit.Grant(t, "stranger", kit.MayCreate)
	permit := refuse(t)
	start := time.Now()
	want := map[*kit.Request]csr.State{}
	for range 3 {
		want[kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "pending"))] = csr.Issued
		byHand := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "by-hand")) // the approver does not try to approve it
		kit.Approve(t, byHand)
		want[byHand] = csr.Issued
	}
	wrong := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "wrong", kit.WrongUsage))
	kit.Approve(t, wrong)
	want[wrong] = csr.Failed
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, metrics...)
	time.Sleep(refusedFor - time.Since(start)) // the pauses between attempts grow with this time
	for obj := range want {
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s although every write is refused", obj.Name, state)
		}
		kit.HasEvent(t, obj, "NotStored")
	}
	permit()
	kit.Within(t, decidedWithin, "every request is decided", func(ctx context.Context) error {
		for obj, state := range want {
			if err := kit.Admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				return err
			}
			if got := csr.StateOf(obj); got != state {
				return fmt.Errorf("%s is %s, want %s", obj.Name, got, state)
			}
		}
		return nil
	})
}

// refuseByPolicy refuses the writes of the manager by a ValidatingAdmissionPolicy.
func refuseByPolicy(t *testing.T) (permit func()) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "refuse-"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{certificatesv1.GroupName}, APIVersions: []string{"v1"}, Resources: outcomeWrites},
				},
			}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "manager", Expression: fmt.Sprintf("request.userInfo.username == %q", serviceaccount.MakeUsername(kit.SystemNamespace, kit.ManagerAccount)),
			}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "no request is decided now"}},
		},
	}
	kit.Create(t, kit.Admin(t), policy)
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	kit.Create(t, kit.Admin(t), binding)
	writesFail(t, apierrors.IsInvalid)
	return func() {
		if err := kit.Admin(t).Delete(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
}

// writesFail waits until the API server refuses both kinds of writes to the manager, with an error that is expected.
func writesFail(t *testing.T, expected func(error) bool) {
	t.Helper()
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "undecided", kit.WrongUsage))
	manager := kit.ClientOf(t, kit.ServiceAccountConfig(t))
	for _, write := range []string{"approval", "status"} {
		kit.Eventually(t, "the manager's writes to "+write+" are refused", func(ctx context.Context) error {
			if err := manager.SubResource(write).Update(ctx, obj.DeepCopy(), client.DryRunAll); !expected(err) {
				return fmt.Errorf("error %w", err)
			}
			return nil
		})
	}
}
