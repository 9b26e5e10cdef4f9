package integration

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// refusedFor is how long every write is refused.
	refusedFor = 20 * time.Second
	// decidedWithin is the time to decide every request after that.
	decidedWithin = time.Minute
)

// TestWritesThatAPolicyRefusesAreRepeated has an admission policy that refuses every write for a while (422).
func TestWritesThatAPolicyRefusesAreRepeated(t *testing.T) {
	parallel(t)
	decidesAfter(t, refuseByPolicy,
		`csr_approver_decisions_total{reason="NotStored",rule="",signer="kubernetes.io/kube-apiserver-client-kubelet",verdict="Wait"} 3`,
		`csr_signer_outcomes_total{outcome="Wait",reason="NotStored",signer="kubernetes.io/kube-apiserver-client-kubelet"} 4`)
}

// TestWritesThatARoleRefusesAreRepeated takes the roles of approver and signer for a while (403).
func TestWritesThatARoleRefusesAreRepeated(t *testing.T) {
	parallel(t)
	decidesAfter(t, refuseByRole, `csr_approver_errors_total{reason="Forbidden"}`, `csr_signer_errors_total{reason="Forbidden"}`)
}

// decidesAfter has requests that wait for an approval, for a certificate and for a Failed condition while refuse is in effect.
// Afterwards every request is decided, without a restart. The metrics show the refusals.
func decidesAfter(t *testing.T, refuse func(*testing.T) (permit func()), metrics ...string) {
	t.Helper()
	p := startJoinable(t, managerConfig(t))
	grant(t, "stranger", mayCreate)
	permit := refuse(t)
	start := time.Now()
	want := map[*request]csr.State{}
	for range 3 {
		want[createRequest(t, as(t, "joiner"), nodeRequest(t, "pending"))] = csr.Issued
		byHand := createRequest(t, as(t, "stranger"), nodeRequest(t, "by-hand")) // the approver does not try to approve it
		approve(t, byHand)
		want[byHand] = csr.Issued
	}
	wrong := createRequest(t, as(t, "joiner"), nodeRequest(t, "wrong", wrongUsage))
	approve(t, wrong)
	want[wrong] = csr.Failed
	p.answers(t, p.metrics, "/metrics", http.StatusOK, metrics...)
	time.Sleep(refusedFor - time.Since(start)) // the pauses between attempts grow with this time
	for obj := range want {
		if state := csr.StateOf(reload(t, obj)); state != csr.Pending && state != csr.Approved {
			t.Errorf("%s is %s although every write is refused", obj.Name, state)
		}
	}
	permit()
	within(t, decidedWithin, "every request is decided", func(ctx context.Context) error {
		for obj, state := range want {
			if err := admin(t).Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
				return err
			}
			if got := csr.StateOf(obj); got != state {
				return fmt.Errorf("%s is %s, want %s", obj.Name, got, state)
			}
		}
		return nil
	})
}

// wrongUsage makes a request that the approver does not approve, and that the signer marks as Failed.
func wrongUsage(obj *request) {
	obj.Spec.Usages = append(obj.Spec.Usages, certificatesv1.UsageServerAuth)
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
				Name: "manager", Expression: fmt.Sprintf("request.userInfo.username == %q", serviceaccount.MakeUsername(systemNamespace, managerAccount)),
			}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "no request is decided now"}},
		},
	}
	create(t, admin(t), policy)
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	create(t, admin(t), binding)
	writesFail(t, apierrors.IsInvalid)
	return func() {
		if err := admin(t).Delete(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
	}
}

// refuseByRole takes the roles of approver and signer from the manager. It must ask for reviews without success, too.
func refuseByRole(t *testing.T) (permit func()) {
	t.Helper()
	var give []func()
	for _, role := range []string{"csr-approver", "csr-signer"} {
		give = append(give, takeRole(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}}))
	}
	writesFail(t, apierrors.IsForbidden)
	return func() {
		for _, each := range give {
			each()
		}
	}
}

// writesFail waits until the API server refuses both kinds of writes to the manager, with an error that is expected.
func writesFail(t *testing.T, expected func(error) bool) {
	t.Helper()
	obj := createRequest(t, admin(t), nodeRequest(t, "undecided", wrongUsage))
	manager := clientOf(t, serviceAccountConfig(t))
	for _, write := range []string{"approval", "status"} {
		eventually(t, "the manager's writes to "+write+" are refused", func(ctx context.Context) error {
			if err := manager.SubResource(write).Update(ctx, obj.DeepCopy(), client.DryRunAll); !expected(err) {
				return fmt.Errorf("error %w", err)
			}
			return nil
		})
	}
}

// takeRole deletes binding, a RoleBinding or a ClusterRoleBinding of which only the name is set. The returned function creates it
// again.
func takeRole(t *testing.T, binding client.Object) (giveBack func()) {
	t.Helper()
	if err := admin(t).Get(t.Context(), client.ObjectKeyFromObject(binding), binding); err != nil {
		t.Fatal(err)
	}
	if err := admin(t).Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	return func() {
		binding.SetResourceVersion("")
		binding.SetUID("")
		create(t, admin(t), binding)
	}
}
