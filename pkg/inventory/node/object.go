package node

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// object holds the names and addresses of a Node or a Service, which are parsed once. A full Node holds kilobytes of
// images and conditions.
type object struct {
	metav1.ObjectMeta
	// sans are the values that a Node reports, or that only this Service has.
	sans []san.SAN
	// published are the values that a Service publishes, although they may be those of a Node.
	published []san.SAN
}

// has returns the values of a Node.
func (obj *object) has() []san.SAN { return inventory.Held(obj.Name, obj.sans) }

// metaOf returns the fields of meta that are used.
func metaOf(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
	}
}

// nodeObject returns the copy that is kept of a Node.
func nodeObject(obj runtime.Object) *object {
	node := obj.(*corev1.Node)
	return &object{ObjectMeta: metaOf(node.ObjectMeta), sans: inventory.NodeSANs(node)}
}

// serviceObject returns the copy that is kept of a Service.
func serviceObject(obj runtime.Object) *object {
	service := obj.(*corev1.Service)
	kept := &object{ObjectMeta: metaOf(service.ObjectMeta)}
	kept.sans, kept.published = inventory.ServiceSANs(service)
	return kept
}
