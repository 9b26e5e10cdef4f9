// Package v1alpha1 is the API of csr-controller-manager.io: how an owner sees and steers the life of a signing CA.
//
// +kubebuilder:object:generate=true
// +groupName=csr-controller-manager.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of this package.
var GroupVersion = schema.GroupVersion{Group: "csr-controller-manager.io", Version: "v1alpha1"}

// AddToScheme makes scheme know this package.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SigningAuthority{}, &SigningAuthorityList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
