package commands

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestCompareAuthorities checks that a served signer is reported if no authority of its Secret names it.
func TestCompareAuthorities(t *testing.T) {
	t.Parallel()
	const serving, users, custom = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client", "example.com/a"
	authority := func(name, secret string, signers ...string) v1alpha1.SigningAuthority {
		return v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.SigningAuthoritySpec{Secret: v1alpha1.SecretReference{Namespace: "ns", Name: secret}, Signers: signers}}
	}
	served := func(name string) controllers.GuardedSigner {
		return controllers.GuardedSigner{Signer: name, Secret: types.NamespacedName{Namespace: "ns", Name: "csr-signer"}}
	}
	for name, test := range map[string]struct {
		authorities []v1alpha1.SigningAuthority
		signer      string
		want        check.Status
		evidence    string
		next        string
	}{
		"named":                      {[]v1alpha1.SigningAuthority{authority("cluster", "csr-signer", users, serving)}, serving, check.OK, "SigningAuthority cluster", ""},
		"no authority":               {nil, serving, check.Failed, "no SigningAuthority has its Secret ns/csr-signer", "create one for that Secret"},
		"an authority of another":    {[]v1alpha1.SigningAuthority{authority("other", "other", serving)}, serving, check.Failed, "no SigningAuthority has its Secret", "create one"},
		"not named":                  {[]v1alpha1.SigningAuthority{authority("cluster", "csr-signer", users)}, serving, check.Failed, "SigningAuthority cluster of Secret ns/csr-signer does not name it", "spec.from"},
		"not named, of API servers":  {[]v1alpha1.SigningAuthority{authority("cluster", "csr-signer", "kubernetes.io/kube-apiserver-client-kubelet")}, users, check.Failed, "does not name it", "add it to spec.signers"},
		"a custom one, without name": {[]v1alpha1.SigningAuthority{authority("cluster", "csr-signer", users)}, custom, check.Failed, "CANotProven", "spec.from"},
	} {
		got := compareAuthorities(served(test.signer), test.authorities)
		if got.Status != test.want || !strings.Contains(got.Evidence, test.evidence) || !strings.Contains(got.NextStep, test.next) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestGuardedSigners checks which signers are guarded: with rotation, those that are served from Secrets.
func TestGuardedSigners(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Signing.Secret = "ns/csr-signer"
	c.Signing.Signers = []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "ns/a"}}, {Name: "kubernetes.io/kubelet-serving"}}
	if got := controllers.GuardedSigners(c); len(got) != 0 {
		t.Errorf("without rotation %v", got)
	}
	c.Rotation.Enabled = true
	var got []string
	for _, one := range controllers.GuardedSigners(c) {
		got = append(got, one.Signer+" "+one.Secret.String())
	}
	want := []string{"example.com/a ns/a"}
	for _, name := range csr.BuiltinSigners() {
		want = append(want, name+" ns/csr-signer")
	}
	slices.Sort(want)
	if !slices.Equal(want, got) {
		t.Errorf("got %q, want %q", got, want)
	}
}
