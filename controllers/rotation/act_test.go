package rotation

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// TestSealOfALostAccount checks that a lost account is replaced by a closed, empty one only if nothing depends on its
// content.
func TestSealOfALostAccount(t *testing.T) {
	t.Parallel()
	ended := noted("old")
	ended.NotAfter.Time = noon
	for name, test := range map[string]struct {
		retiring *v1alpha1.CAStatus
		sealed   bool
	}{
		"certificates may live":            {noted("old"), false},
		"the CA has ended":                 {ended, true},
		"the owner accepts what may break": {accepted(prepared()).Retiring, true},
	} {
		obj := sharing("cluster", nil)
		obj.Status.Retiring = test.retiring
		r := reconciler(t)
		r.Clock = testingclock.NewFakePassiveClock(noon)
		if err := r.seal(t.Context(), obj); (err == nil) != test.sealed || err != nil && !errors.Is(err, ledger.ErrNoAccount) {
			t.Errorf("%s: %v", name, err)
		}
		accounts, err := r.recorder(obj).Book.Read(t.Context())
		if err != nil || accounts["old"].Sealed != test.sealed {
			t.Errorf("%s: the ledger has %v, %v", name, accounts, err)
		}
	}
}

// TestAChangeInterrupts checks that a change of the authority stops the step under way, except a change of annotations
// only: these may change at any time.
func TestAChangeInterrupts(t *testing.T) {
	t.Parallel()
	seen := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "1", Generation: 1}}
	for name, test := range map[string]struct {
		change     func(*v1alpha1.SigningAuthority)
		interrupts bool
	}{
		"nothing": {func(*v1alpha1.SigningAuthority) {}, false},
		"annotation": {func(a *v1alpha1.SigningAuthority) {
			a.Annotations = map[string]string{v1alpha1.OperationAnnotation: "rotate-complete"}
		}, false},
		"spec":    {func(a *v1alpha1.SigningAuthority) { a.Generation = 2 }, true},
		"status":  {func(a *v1alpha1.SigningAuthority) { a.Status.Phase = v1alpha1.Prepared }, true},
		"another": {func(a *v1alpha1.SigningAuthority) { a.UID = "2" }, true},
	} {
		latest := seen.DeepCopy()
		test.change(latest)
		latest.ResourceVersion = "7"
		if err := reconciler(t, latest).current(t.Context(), seen); apierrors.IsConflict(err) != test.interrupts || err != nil != test.interrupts {
			t.Errorf("%s: %v", name, err)
		}
	}
}
