// Package v1alpha1 is the API of csr-controller-manager.io: an administrator sees and controls the rotation of a signing
// CA with it.
//
// +kubebuilder:object:generate=true
// +groupName=csr-controller-manager.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: "csr-controller-manager.io", Version: "v1alpha1"}

// AddToScheme adds the types of this package to scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SigningAuthority{}, &SigningAuthorityList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
