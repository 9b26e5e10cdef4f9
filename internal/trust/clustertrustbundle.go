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
)

// versions are the versions of ClusterTrustBundle (KEP-3257), the best first. Their fields are the same.
var versions = []string{"v1", "v1beta1", "v1alpha1"}

const (
	bundleResource = "clustertrustbundles"
	bundleKind     = "ClusterTrustBundle"
	// managedBy is the label by which our bundles are found again after their signer was removed.
	managedBy, self = "app.kubernetes.io/managed-by", "csr-controller-manager"
)

// BundleName returns the name of the ClusterTrustBundle of a signer. It must begin with the signer's name
// (k8s.io/kubernetes/pkg/apis/core/validation, ValidateClusterTrustBundleName).
func BundleName(signerName, authority string) string {
	return strings.ReplaceAll(signerName, "/", ":") + ":" + authority
}

// clusterTrustBundles returns the targets: the bundles of all signers, and the bundles of signers that were removed.
func (p *Publisher) clusterTrustBundles(ctx context.Context, wanted Wanted) ([]target, State) {
	version, err := p.served()
	if err != nil {
		return nil, State{Problems: []Problem{{Where: bundleKind + "s", Why: fmt.Sprintf("can't be discovered: %v", err)}}}
	}
	state := State{Served: version}
	if version == "" {
		return nil, state
	}
	resource := schema.GroupVersionResource{Group: certificatesv1.GroupName, Version: version, Resource: bundleResource}
	var targets []target
	for _, signer := range wanted.Signers {
		targets = append(targets, clusterTrustBundle(resource, signer, wanted))
	}
	left, err := p.left(ctx, resource, wanted)
	switch {
	// if no bundles are wanted, no right is needed
	case err == nil, apierrors.IsForbidden(err) && len(wanted.Signers) == 0:
	case apierrors.IsForbidden(err):
		state.Problems = append(state.Problems, Problem{Where: bundleKind + "s",
			Why: fmt.Sprintf("of removed signers can't be found: "+
				"grant the manager list on clustertrustbundles.certificates.k8s.io (%v)", err)})
	default:
		state.Problems = append(state.Problems, Problem{Where: bundleKind + "s",
			Why: fmt.Sprintf("of removed signers can't be found: %v", err)})
	}
	return append(targets, left...), state
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

func clusterTrustBundle(resource schema.GroupVersionResource, signer string, wanted Wanted) target {
	return target{
		resource: resource, kind: bundleKind, name: BundleName(signer, wanted.Authority),
		grant: fmt.Sprintf("get, create and update on clustertrustbundles.certificates.k8s.io, "+
			"and attest on signers.certificates.k8s.io %s", signer),
		set: func(obj *unstructured.Unstructured) (bool, error) {
			changed := obj.GetLabels()[managedBy] != self
			if changed {
				labels := obj.GetLabels()
				if labels == nil {
					labels = map[string]string{}
				}
				labels[managedBy] = self
				obj.SetLabels(labels)
			}
			for path, text := range map[string]string{"signerName": signer, "trustBundle": string(wanted.Bundle)} {
				set, err := setText(obj, text, "spec", path)
				if err != nil {
					return false, err
				}
				changed = changed || set
			}
			return changed, nil
		},
	}
}

// left returns our bundles of the authority for signers that it no longer serves.
func (p *Publisher) left(ctx context.Context, resource schema.GroupVersionResource, wanted Wanted) ([]target, error) {
	list, err := p.objects.Resource(resource).List(ctx, metav1.ListOptions{LabelSelector: managedBy + "=" + self})
	if err != nil {
		return nil, err
	}
	var targets []target
	for _, obj := range list.Items {
		signer, _, _ := unstructured.NestedString(obj.Object, "spec", "signerName") // a bundle without a signer is not ours
		if obj.GetName() == BundleName(signer, wanted.Authority) && !slices.Contains(wanted.Signers, signer) {
			targets = append(targets, target{resource: resource, kind: bundleKind, name: obj.GetName(), gone: true,
				grant: "delete on clustertrustbundles.certificates.k8s.io"})
		}
	}
	return targets, nil
}
