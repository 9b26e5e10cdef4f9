package rotation

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestSharing checks that API servers must refuse a retiring CA, unless they must trust it as a client CA for another
// authority.
func TestSharing(t *testing.T) {
	t.Parallel()
	made, _ := issued(t)
	noted := factsOf(made)
	leaving := sharing("leaving", made, certificatesv1.KubeAPIServerClientSignerName)
	leaving.Status.Phase, leaving.Status.Signing, leaving.Status.Retiring = v1alpha1.Completing, nil, noted
	retires := func(other *v1alpha1.SigningAuthority) { other.Status.Signing, other.Status.Retiring = nil, noted }
	for name, test := range map[string]struct {
		change func(other *v1alpha1.SigningAuthority)
		want   []string
	}{
		"it signs for others": {nil, []string{"other"}},
		"it signs for clients of a custom signer": {func(other *v1alpha1.SigningAuthority) {
			other.Spec.Signers = []string{"example.com/users"}
		}, []string{"other"}},
		"it signs for kubelets' servers alone": {func(other *v1alpha1.SigningAuthority) {
			other.Spec.Signers = []string{certificatesv1.KubeletServingSignerName}
		}, nil},
		"it retires there too": {retires, []string{"other"}},
		"it waits there to be trusted": {func(other *v1alpha1.SigningAuthority) {
			other.Status.Signing, other.Status.Candidate = nil, noted
		}, []string{"other"}},
		"it is published nowhere": {func(other *v1alpha1.SigningAuthority) {
			retires(other)
			other.Status.UnpublishedAt = &metav1.Time{Time: noon}
		}, nil},
	} {
		other := sharing("other", made, certificatesv1.KubeAPIServerClientKubeletSignerName)
		if test.change != nil {
			test.change(other)
		}
		s := &observation{}
		if err := reconciler(t, leaving.DeepCopy(), other).observeAuthorities(t.Context(), leaving, s); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, s.Sharing); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestASignerThatCameLater checks that certificates count as outstanding here if another authority with the same CA has
// issued them for a signer that was added here later.
func TestASignerThatCameLater(t *testing.T) {
	t.Parallel()
	made, _ := issued(t)
	until := noon.Add(8760 * time.Hour)
	other := sharing("other", made, certificatesv1.KubeAPIServerClientSignerName)
	leaving := sharing("leaving", made, certificatesv1.KubeletServingSignerName)
	leaving.Status.Phase, leaving.Status.Signing, leaving.Status.Retiring = v1alpha1.Prepared, nil, leaving.Status.Signing
	r := reconciler(t, other, leaving)
	for _, obj := range []*v1alpha1.SigningAuthority{other, leaving} {
		if err := r.recorder(obj).Book.Open(t.Context(), made.KeyID()); err != nil {
			t.Fatal(err)
		}
	}
	for _, signer := range []string{certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientSignerName} {
		if err := r.recorder(other).Book.Raise(t.Context(), made.KeyID(), signer, until); err != nil {
			t.Fatal(err)
		}
	}
	s := &observation{}
	if err := errors.Join(r.observeAuthorities(t.Context(), leaving, s), r.readLedger(t.Context(), leaving, s)); err != nil {
		t.Fatal(err)
	}
	if len(s.Outstanding) != 1 || s.Outstanding[0].Signer != certificatesv1.KubeletServingSignerName || !s.Outstanding[0].Until.Time.Equal(until) {
		t.Errorf("outstanding is %+v", s.Outstanding)
	}
}

// TestWhatHasEndedIsPublishedAlone checks that an expired CA is published only if there is no other. An empty bundle is
// not possible, and the removed CA would stay published.
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

// TestRefusedWriteIsNamed checks that a refused write of an object is reported in the place of how the object reads, and
// that nothing else is.
func TestRefusedWriteIsNamed(t *testing.T) {
	t.Parallel()
	const where = "ConfigMap a/b"
	resource := schema.GroupResource{Resource: "configmaps"}
	read := trust.Problem{Where: where, Why: "is not up to date"}
	refused := trust.Problem{Where: where, Why: "can't be brought up to date: grant it", Cause: apierrors.NewForbidden(resource, "b", nil)}
	for name, test := range map[string]struct {
		last any
		want trust.Problem
	}{
		"nothing was written": {nil, read},
		"the write succeeded": {[]trust.Problem(nil), read},
		"refused":             {[]trust.Problem{{Where: "ConfigMap a/a", Cause: refused.Cause}, refused}, refused},
		"another was refused": {[]trust.Problem{{Where: "ConfigMap a/c", Cause: refused.Cause}}, read},
		"another error":       {[]trust.Problem{{Where: where, Why: "x", Cause: apierrors.NewConflict(resource, "b", nil)}}, read},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, obj := &Reconciler{}, &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
			r.refusedWrites.Store("other", []trust.Problem{refused})
			if test.last != nil {
				r.refusedWrites.Store(obj.Name, test.last)
			}
			if got := r.whyUnpublished(obj, read); got.Error() != test.want.Error() {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
