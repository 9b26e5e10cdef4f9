package rotation

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// newAuthority creates a SigningAuthority with that status.
func newAuthority(t *testing.T, api client.Client, name string, status v1alpha1.SigningAuthorityStatus) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:  v1alpha1.SecretReference{Namespace: "default", Name: name},
			Signers: []string{"kubernetes.io/kube-apiserver-client-kubelet"},
		},
	}
	if err := api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(api.Delete(context.Background(), obj)); err != nil {
			t.Error(err)
		}
	})
	setStatus(t, api, obj, status)
	return obj
}

func setStatus(t *testing.T, api client.Client, obj *v1alpha1.SigningAuthority, status v1alpha1.SigningAuthorityStatus) {
	t.Helper()
	obj.Status = status
	if err := api.Status().Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// answer is a manager's reaction to an operation: the following phases, or a refusal. before is called first.
type answer struct {
	statuses []v1alpha1.SigningAuthorityStatus
	refusal  string
	before   func()
}

// plays simulates a manager that answers operations on the authority of that name, until stop is called.
func plays(t *testing.T, api client.Client, name string, answers map[v1alpha1.Operation]answer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			obj := &v1alpha1.SigningAuthority{}
			if err := api.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
				return false, client.IgnoreNotFound(err)
			}
			operation := v1alpha1.Operation(obj.Annotations[v1alpha1.OperationAnnotation])
			if operation == "" {
				return false, nil
			}
			return false, answers[operation].play(ctx, api, obj, operation)
		})
		if ctx.Err() == nil {
			t.Errorf("the manager ended: %v", err)
		}
	}()
	return func() { cancel(); <-done }
}

// play does the steps of the reconciler: record the result, remove the annotation, and continue.
func (a answer) play(ctx context.Context, api client.Client, obj *v1alpha1.SigningAuthority, operation v1alpha1.Operation) error {
	if a.before != nil {
		a.before()
	}
	last := &v1alpha1.OperationStatus{Name: operation, Time: metav1.NowMicro(), Result: v1alpha1.Accepted, Annotated: true}
	if a.refusal != "" {
		last.Result, last.Message = v1alpha1.Refused, a.refusal
	}
	if len(a.statuses) > 0 {
		obj.Status = a.statuses[0]
	}
	obj.Status.LastOperation = last
	if err := api.Status().Update(ctx, obj); err != nil {
		return err
	}
	patch := client.MergeFrom(obj.DeepCopy())
	delete(obj.Annotations, v1alpha1.OperationAnnotation)
	if err := api.Patch(ctx, obj, patch); err != nil {
		return err
	}
	last.Annotated = false
	for _, status := range append([]v1alpha1.SigningAuthorityStatus{obj.Status}, a.statuses...) {
		obj.Status = status
		obj.Status.LastOperation = last
		if err := api.Status().Update(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}
