package controllers

import (
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// rotation are the rights to rotate the CAs that c names. Where their trust is published is not among them: only a
// SigningAuthority says that, and its condition Published what is missing.
func (r *rights) rotation(c *config.Configuration) error {
	const need = "rotation"
	signers, err := signersOf(c)
	if err != nil {
		return err
	}
	r.add(need, v1alpha1.GroupVersion.Group, "signingauthorities", "", "", "get", "list", "watch", "patch")
	r.add(need, v1alpha1.GroupVersion.Group, "signingauthorities/status", "", "", "update")
	r.add(need, certificatesv1.GroupName, requestsResource, "", "", "get", "list", "watch")
	r.add(need, certificatesv1.GroupName, "clustertrustbundles", "", "", "get", "list", "create", "update", "delete")
	for _, name := range slices.Sorted(maps.Keys(signers)) {
		r.granted(ofSigner(r.manifest, name), func() { r.add(need, certificatesv1.GroupName, "signers", "", name, "attest") })
	}
	r.add(need, discoveryv1.GroupName, "endpointslices", "", "", "list")
	r.add(need, "apiregistration.k8s.io", "apiservices", "", "", "list")
	r.add(need, "", "services", "", "", "get")
	r.add(need, "", "configmaps", trust.ExtensionNamespace, trust.ExtensionName, "get", "update")
	r.events(need, metav1.NamespaceDefault)
	for _, source := range append([]config.Signer{{CA: c.Signing.CA}}, c.Signing.Signers...) {
		namespace, name := source.SecretName()
		if name == "" {
			continue
		}
		r.granted(ofSecret(r.manifest, namespace, name), func() {
			r.add(need, "", "secrets", namespace, "", "create")
			r.add(need, "", "secrets", namespace, name, "get", "list", "watch", "update")
			r.add(need, "", "configmaps", namespace, "", "create")
			for _, each := range append(ledger.NodesNames(name), ledger.BookName(name)) {
				r.add(need, "", "configmaps", namespace, each, "get", "update")
			}
		})
	}
	return nil
}
