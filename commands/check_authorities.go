package commands

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// authorities compares the signers that are served with those of the SigningAuthority of their Secret: a signer that no
// authority names is approved for, and never signed for.
func (c *checker) authorities(ctx context.Context) []check.Result {
	served := controllers.GuardedSigners(c.configuration)
	if len(served) == 0 {
		return nil
	}
	list := &v1alpha1.SigningAuthorityList{}
	if err := c.api.List(ctx, list); err != nil {
		if apierrors.IsForbidden(err) && !c.configuration.Enabled(config.RotationController) {
			return nil // a signer of its own may not, and need not
		}
		result := check.Result{Check: check.Authorities, Subject: "SigningAuthorities", Status: check.Unknown,
			Evidence: check.ReadError("list signingauthorities", err), NextStep: "ask as one who may list them, once the API server answers"}
		if meta.IsNoMatchError(err) {
			result.Status, result.Evidence = check.Failed, "the API server has no such objects, and rotation.enabled signs for nobody without them"
			result.NextStep = "kubectl apply -k config/rotation"
		}
		return []check.Result{result}
	}
	return compareAuthorities(served, list.Items)
}

// compareAuthorities returns a Result for each of served.
func compareAuthorities(served []controllers.GuardedSigner, authorities []v1alpha1.SigningAuthority) []check.Result {
	var results []check.Result
	for _, one := range served {
		result := check.Result{Check: check.Authorities, Subject: one.Signer, Status: check.Failed}
		var of []string // authorities of its Secret
		for i := range authorities {
			authority := &authorities[i]
			if (v1alpha1.SecretReference{Namespace: one.Secret.Namespace, Name: one.Secret.Name}) != authority.Spec.Secret {
				continue
			}
			of = append(of, authority.Name)
			if slices.Contains(authority.Spec.Signers, one.Signer) {
				result.Status, result.Evidence = check.OK, fmt.Sprintf("SigningAuthority %s of Secret %s names it", authority.Name, one.Secret)
			}
		}
		switch {
		case result.Status == check.OK:
		case len(of) == 0:
			result.Evidence = fmt.Sprintf("no SigningAuthority has its Secret %s: it is never signed for (CANotProven)", one.Secret)
			result.NextStep = "make one for that Secret, which names the signer in spec.signers: docs/ca-rotation.md"
		default:
			result.Evidence = fmt.Sprintf("SigningAuthority %s of Secret %s does not name it in spec.signers: it is never signed for (CANotProven)", strings.Join(of, ", "), one.Secret)
			result.NextStep = "make an authority with a Secret of its own and spec.from, as docs/ca-rotation.md says, or stop serving it"
			if one.Signer == certificatesv1.KubeAPIServerClientSignerName || one.Signer == certificatesv1.KubeAPIServerClientKubeletSignerName {
				result.NextStep = "add it to spec.signers: it is signed for at once if API servers verify another signer there"
			}
		}
		results = append(results, result)
	}
	return results
}
