package rotation

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// TestTrusted checks that a verifier that is not asked any more still counts as trusting the signing CA.
func TestTrusted(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		status v1alpha1.SigningAuthorityStatus
		want   metav1.ConditionStatus
	}{
		{"a candidate that is not proven", preparing(), metav1.ConditionFalse},
		{"one that signs, and is not recognised now", prepared(), metav1.ConditionFalse},
		{"nobody is asked about the new one while the old one leaves", completing(true), metav1.ConditionTrue},
		{"nobody is asked", completed(), metav1.ConditionTrue},
	} {
		obj := &v1alpha1.SigningAuthority{Status: row.status}
		obj.Spec.Signers = []string{certificatesv1.KubeAPIServerClientKubeletSignerName}
		describe(obj, Facts{Now: noon})
		if got := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionTrusted); got == nil || got.Status != row.want {
			t.Errorf("%s: %+v, want %s", row.name, got, row.want)
		}
	}
}

// TestRefused checks that the rotation does not wait for refusals if no verifier can be asked.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		signer string
		facts  Facts
		want   metav1.ConditionStatus
	}{
		{"all refuse it", certificatesv1.KubeAPIServerClientSignerName, Facts{Answers: Answers{RetiringRefused: Proof{Proven: true}}}, metav1.ConditionTrue},
		{"not all were asked", certificatesv1.KubeAPIServerClientSignerName, Facts{}, metav1.ConditionFalse},
		{"it is another authority's too", certificatesv1.KubeAPIServerClientSignerName, Facts{Sharing: []string{"other"}}, metav1.ConditionUnknown},
		{"those who verify can't be asked", certificatesv1.KubeletServingSignerName, Facts{}, metav1.ConditionUnknown},
		{"it was for clients before", certificatesv1.KubeletServingSignerName, Facts{RetiringSigners: []string{certificatesv1.KubeAPIServerClientSignerName}}, metav1.ConditionFalse},
	} {
		obj := &v1alpha1.SigningAuthority{Status: completing(true)}
		obj.Spec.Signers, row.facts.Now = []string{row.signer}, noon
		describe(obj, row.facts)
		if got := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionRefused); got == nil || got.Status != row.want {
			t.Errorf("%s: %+v, want %s", row.name, got, row.want)
		}
	}
}
