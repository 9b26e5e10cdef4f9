package trust

import (
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// versions are the versions of ClusterTrustBundle (KEP-3257), the best first. Their fields are the same.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

const (
	bundleResource = "clustertrustbundles"
	bundleKind     = "ClusterTrustBundle"
	// self is our name as the field manager, and in the label app.kubernetes.io/managed-by.
	self = "csr-controller-manager"
)

// BundleName returns the name of the ClusterTrustBundle of a signer. It must begin with the signer's name
// (k8s.io/kubernetes/pkg/apis/core/validation, ValidateClusterTrustBundleName).
func BundleName(signerName, suffix string) string {
	return strings.ReplaceAll(signerName, "/", ":") + ":" + suffix
}

// bundles returns the targets: the bundles of all signers, and those of removed signers, which must not exist.
func bundles(version string, wanted Wanted) []target {
	resource := schema.GroupVersionResource{Group: certificatesv1.GroupName, Version: version, Resource: bundleResource}
	var targets []target
	for _, signer := range wanted.Signers {
		targets = append(targets, target{
			resource: resource, kind: bundleKind, name: BundleName(signer, wanted.Suffix),
			grant: fmt.Sprintf("get, create and patch on clustertrustbundles.certificates.k8s.io %s, "+
				"and attest on signers.certificates.k8s.io %s", BundleName(signer, wanted.Suffix), signer),
			fields: map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app.kubernetes.io/managed-by": self}},
				"spec":     map[string]any{"signerName": signer, "trustBundle": string(wanted.Bundle)},
			},
			manager: wanted.manager(),
		})
	}
	for _, signer := range wanted.Removed {
		if !slices.Contains(wanted.Signers, signer) {
			name := BundleName(signer, wanted.Suffix)
			targets = append(targets, target{
				resource: resource, kind: bundleKind, name: name,
				grant: "get and delete on clustertrustbundles.certificates.k8s.io " + name,
			})
		}
	}
	return targets
}

// served returns the best version that the API server serves now, or "".
func (p *Publisher) served() (string, error) {
	for _, version := range versions {
		group := schema.GroupVersion{Group: certificatesv1.GroupName, Version: version}
		list, err := p.discovery.ServerResourcesForGroupVersion(group.String())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("discover %s: %w", group, err)
		}
		if slices.ContainsFunc(list.APIResources, func(one metav1.APIResource) bool { return one.Name == bundleResource }) {
			return version, nil
		}
	}
	return "", nil
}
