package rotation

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRotationAdmission requests every operation, and some invalid ones, in every phase. The policy in
// config/rotation/admission must decide as api/v1alpha1 does.
func TestRotationAdmission(t *testing.T) {
	kit.Parallel(t)
	api := kit.Admin(t)
	kit.Apply(t, "rotation/admission")
	t.Cleanup(func() { unapplyAdmission(t) })
	obj := newAuthority(t, api, "rotation-admission", v1alpha1.SigningAuthorityStatus{})
	ask := func(ctx context.Context, operation v1alpha1.Operation, opts ...client.PatchOption) error {
		patch := client.MergeFrom(obj.DeepCopy())
		changed := obj.DeepCopy()
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.OperationAnnotation, string(operation))
		return api.Patch(ctx, changed, patch, opts...)
	}
	kit.Eventually(t, "the policy holds", func(ctx context.Context) error {
		if ask(ctx, "nonsense", client.DryRunAll) == nil {
			return errors.New("nothing is refused")
		}
		return nil
	})
	operations := []v1alpha1.Operation{
		v1alpha1.OperationStart, v1alpha1.OperationComplete, v1alpha1.OperationRollback, v1alpha1.OperationConfirm, v1alpha1.OperationAccept,
		v1alpha1.OperationAttest, "nonsense", "Rotate-Start", " start",
	}
	for _, phase := range []v1alpha1.Phase{v1alpha1.New, v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed} {
		setStatus(t, api, obj, v1alpha1.SigningAuthorityStatus{Phase: phase})
		for _, operation := range operations {
			err := ask(t.Context(), operation, client.DryRunAll)
			allowed := slices.Contains(v1alpha1.Allowed(phase), operation)
			text := operation.Command() + " is refused: the phase is " + cmp.Or(string(phase), "New") + "; allowed now: " + v1alpha1.AllowedText(phase)
			if allowed && err != nil || !allowed && (err == nil || !strings.Contains(err.Error(), text)) {
				t.Errorf("%s in phase %q: error %v, want none: %t, or %q", operation, phase, err, allowed, text)
			}
		}
	}

	// An operation that was requested in time blocks nothing, and may be removed.
	if err := ask(t.Context(), v1alpha1.OperationStart); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
		t.Fatal(err)
	}
	setStatus(t, api, obj, v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing})
	for _, change := range []func(){
		func() { obj.Labels = map[string]string{"a": "b"} },
		func() { obj.Annotations[v1alpha1.OperationAnnotation] = "" },
		func() { delete(obj.Annotations, v1alpha1.OperationAnnotation) },
	} {
		patch := client.MergeFrom(obj.DeepCopy())
		change()
		if err := api.Patch(t.Context(), obj, patch); err != nil {
			t.Error(err)
		}
	}

	// A new object has no operation, whatever status it has.
	made := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: "rotation-admission-new", Annotations: map[string]string{v1alpha1.OperationAnnotation: "start"}},
		Spec:       obj.Spec, Status: v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed},
	}
	if err := api.Create(t.Context(), made, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "rotation start is refused: the phase is New") {
		t.Errorf("created with an operation: %v", err)
	}
	made.Annotations = nil
	if err := api.Create(t.Context(), made, client.DryRunAll); err != nil {
		t.Errorf("created without one: %v", err)
	}
}

// unapplyAdmission removes the policy, so that it does not affect other tests.
func unapplyAdmission(t *testing.T) {
	for _, kind := range []string{"ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"} {
		obj := &unstructured.Unstructured{}
		obj.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kind})
		obj.SetName("csr-rotation-operations")
		if err := kit.Admin(t).Delete(context.Background(), obj); err != nil {
			t.Error(err)
		}
	}
}
