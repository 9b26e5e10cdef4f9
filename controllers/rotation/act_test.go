package rotation

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestALostAccountIsClosed only where nobody asks what was in it.
func TestALostAccountIsClosed(t *testing.T) {
	t.Parallel()
	alive, over := noted("old"), noted("old")
	over.NotAfter.Time = noon
	if mayCloseEmpty(alive, noon) || !mayCloseEmpty(over, noon) || !mayCloseEmpty(accepted(prepared()).Retiring, noon.Add(-time.Hour)) {
		t.Error("got it wrong")
	}
}

// TestAChangeInterrupts what is under way, unless it is one of annotations only: they may change all the time.
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

// TestWhatHasEndedIsPublishedAlone: beside another it is left out, and for want of one what has left would stay.
func TestWhatHasEndedIsPublishedAlone(t *testing.T) {
	t.Parallel()
	short, _, err := ca.New(ca.NewOptions{CommonName: "short", Lifetime: 24 * time.Hour}, noon)
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := ca.New(ca.NewOptions{CommonName: "long", Lifetime: 1000 * time.Hour}, noon)
	if err != nil {
		t.Fatal(err)
	}
	obj := &v1alpha1.SigningAuthority{}
	for _, want := range []string{string(short.CertificatePEM()), string(long.CertificatePEM())} {
		obj.Status.Candidate, obj.Status.Signing = obj.Status.Signing, &v1alpha1.CAStatus{Certificate: want}
		got, err := bundleOf(obj, noon.Add(100*time.Hour))
		if err != nil || string(got.Bundle) != want {
			t.Errorf("got %q, %v", got.Bundle, err)
		}
	}
}
