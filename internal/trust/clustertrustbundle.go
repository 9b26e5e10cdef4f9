package trust

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
)

// versions are the versions of ClusterTrustBundle (KEP-3257), the best first. Their fields are the same.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

const (
	bundleResource = "clustertrustbundles"
	bundleKind     = "ClusterTrustBundle"
	// managedBy is the label by which our bundles are found again after their signer was removed. self is our name there,
	// and as the field manager.
	managedBy, self = "app.kubernetes.io/managed-by", "csr-controller-manager"
)

// BundleName returns the name of the ClusterTrustBundle of a signer. It must begin with the signer's name
// (k8s.io/kubernetes/pkg/apis/core/validation, ValidateClusterTrustBundleName).
func BundleName(signerName, suffix string) string {
	return strings.ReplaceAll(signerName, "/", ":") + ":" + suffix
}

// bundles returns a change for each bundle: the bundles of all signers, and our bundles of signers that were removed. The error is
// about the latter. If no bundles are wanted, none are looked for without the right to list them.
func (p *Publisher) bundles(ctx context.Context, version string, wanted Wanted) (all []*Change, err error) {
	kind := schema.GroupVersionKind{Group: certificatesv1.GroupName, Version: version, Kind: bundleKind}
	for _, signer := range wanted.Signers {
		name := BundleName(signer, wanted.Suffix)
		one := newChange(kind, "", name, fmt.Sprintf("get, create and patch on clustertrustbundles.certificates.k8s.io %s, "+
			"and attest on signers.certificates.k8s.io %s", name, signer))
		one.object.SetLabels(map[string]string{managedBy: self})
		one.object.Object["spec"] = map[string]any{"signerName": signer, "trustBundle": string(wanted.Bundle)}
		all = append(all, one)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	if err := call.List(ctx, p.Live, list, client.MatchingLabels{managedBy: self}); err != nil {
		if apierrors.IsForbidden(err) && len(wanted.Signers) == 0 {
			err = nil
		}
		return all, err
	}
	for _, obj := range list.Items {
		signer, _, _ := unstructured.NestedString(obj.Object, "spec", "signerName") // a bundle without a signer is not ours
		if name := obj.GetName(); name == BundleName(signer, wanted.Suffix) && !slices.Contains(wanted.Signers, signer) {
			one := newChange(kind, "", name, "get and delete on clustertrustbundles.certificates.k8s.io "+name)
			one.remove = true
			all = append(all, one)
		}
	}
	return all, nil
}

// served returns the best version that the API server serves now, or "".
func (p *Publisher) served() (string, error) {
	for _, version := range versions {
		group := schema.GroupVersion{Group: certificatesv1.GroupName, Version: version}
		list, err := p.Discovery.ServerResourcesForGroupVersion(group.String())
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
