package kit

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
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
	if err := Admin(t).Create(t.Context(), obj); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// The API groups of the Machines of Cluster API and of OpenShift.
const (
	ClusterAPI = "cluster.x-k8s.io"
	Openshift  = "machine.openshift.io"
)

// Installer is a client of a cluster's administrator.
type Installer struct{ client.Client }

// Administrator returns the administrator of the control plane of cfg.
func Administrator(t *testing.T, cfg *rest.Config) Installer {
	t.Helper()
	return Installer{ClientOf(t, cfg)}
}

// InstallKind is InstallMachines after the kind of an earlier test is removed.
func InstallKind(t *testing.T, group string) Installer {
	t.Helper()
	c := Administrator(t, ControlPlane(t).Config)
	crd := Object(t, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: machines."+group+"}")
	Eventually(t, "no machines of "+group, func(ctx context.Context) error {
		err := c.Get(ctx, client.ObjectKeyFromObject(crd), crd)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("they are there: %w", err)
	})
	c.InstallMachines(t, group, "v1beta1")
	return c
}

// InstallMachines installs a kind Machine in group, and returns once it is served.
func (c Installer) InstallMachines(t *testing.T, group string, served ...string) *unstructured.Unstructured {
	t.Helper()
	var versions strings.Builder
	for i, version := range []string{"v1beta1", "v1beta2"} {
		fmt.Fprintf(&versions, `
  - name: %s
    served: %t
    storage: %t
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}`, version, slices.Contains(served, version), i == 0)
	}
	crd := Object(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.`+group+`, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: `+group+`
  scope: Namespaced
  names: {kind: Machine, plural: machines, singular: machine, listKind: MachineList}
  versions:`+versions.String())
	NoError(t, c.Create(t.Context(), crd))
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(c.Delete(context.Background(), crd)); err != nil {
			t.Error(err)
		}
	})
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: served[0], Kind: "MachineList"})
	Eventually(t, group+" is served", func(ctx context.Context) error { return c.List(ctx, list) })
	return crd
}

// Apply creates or replaces obj, with its status.
func (c Installer) Apply(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := Object(t, text)
	status, hasStatus := obj.Object["status"]
	current := obj.DeepCopy()
	switch err := c.Get(t.Context(), client.ObjectKeyFromObject(obj), current); {
	case apierrors.IsNotFound(err):
		NoError(t, c.Create(t.Context(), obj))
		t.Cleanup(func() { // deleting a CRD deletes its objects
			_ = c.Delete(context.Background(), obj)
		})
	case err != nil:
		t.Fatal(err)
	default:
		obj.SetResourceVersion(current.GetResourceVersion())
		NoError(t, c.Update(t.Context(), obj))
	}
	if hasStatus {
		obj.Object["status"] = status
		NoError(t, c.Status().Update(t.Context(), obj))
	}
	return obj
}

// Remove deletes obj.
func (c Installer) Remove(t *testing.T, obj client.Object) {
	t.Helper()
	NoError(t, c.Delete(t.Context(), obj))
}

// Object parses an object in YAML.
func Object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	NoError(t, yaml.Unmarshal([]byte(text), &obj.Object))
	return obj
}
