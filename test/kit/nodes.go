package kit

import (
	"context"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// NewNode creates a Node that reports addresses.
func NewNode(t *testing.T, name string, addresses ...string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	Create(t, Admin(t), node)
	if len(addresses) > 0 {
		Publish(t, node, addresses...)
	}
	return node
}

// Publish sets the addresses that node reports.
func Publish(t *testing.T, node *corev1.Node, addresses ...string) {
	t.Helper()
	node.Status.Addresses = nil
	for _, address := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(address) == nil {
			kind = corev1.NodeInternalDNS
		}
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	NoError(t, Admin(t).Status().Update(t.Context(), node))
}

// BlockListName is the namespace and the name of the block list.
const BlockListName = SystemNamespace + "/csr-node-block-list"

// BlockList creates the ConfigMap.
func BlockList(t *testing.T, text string) *corev1.ConfigMap {
	t.Helper()
	InstallRBAC(t)
	name := metav1.ObjectMeta{Namespace: SystemNamespace, Name: "csr-node-block-list"}
	obj := &corev1.ConfigMap{ObjectMeta: name, Data: map[string]string{"nodes": text}}
	Create(t, Admin(t), obj)
	return obj
}

// NewNamespace creates a namespace if it does not exist. The kit removes it after the test.
func NewNamespace(t *testing.T, name string) {
	t.Helper()
	obj := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	NoError(t, client.IgnoreAlreadyExists(Admin(t).Create(t.Context(), obj)))
}

// The API groups of the Machines of Cluster API and of OpenShift.
const (
	ClusterAPI = "cluster.x-k8s.io"
	Openshift  = "machine.openshift.io"
)

// InstallKind installs a kind Machine in group, and returns once it is served.
func InstallKind(t *testing.T, group string) *unstructured.Unstructured {
	t.Helper()
	return InstallKindOf(t, group, "v1beta1", "Machine", "")
}

// InstallKindOf installs a kind in a version of group, and returns once it is served. Its spec has only the field, or any if it is empty.
func InstallKindOf(t *testing.T, group, version, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	if spec == "" {
		spec = "x-kubernetes-preserve-unknown-fields: true"
	}
	name := strings.ToLower(kind)
	crd := Object(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+name+`s.`+group+`, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: `+group+`
  scope: Namespaced
  names: {kind: `+kind+`, plural: `+name+`s, singular: `+name+`, listKind: `+kind+`List}
  versions:
  - name: `+version+`
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, `+spec+`}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}`)
	Create(t, Admin(t), crd)
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind + "List"})
	Eventually(t, group+" is served", func(ctx context.Context) error { return Admin(t).List(ctx, list) })
	return crd
}

// Put creates or replaces an object in YAML, with its status.
func Put(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := Object(t, text)
	status, hasStatus := obj.Object["status"]
	current := obj.DeepCopy()
	if err := Admin(t).Get(t.Context(), client.ObjectKeyFromObject(obj), current); err == nil {
		obj.SetResourceVersion(current.GetResourceVersion())
		Update(t, obj)
	} else {
		NoError(t, Admin(t).Create(t.Context(), obj))
	}
	if hasStatus {
		obj.Object["status"] = status
		NoError(t, Admin(t).Status().Update(t.Context(), obj))
	}
	return obj
}

// Object parses an object in YAML.
func Object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	NoError(t, yaml.Unmarshal([]byte(text), &obj.Object))
	return obj
}
