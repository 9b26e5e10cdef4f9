package controllers

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// inventory are the rights to look nodes up. Those for a kind of machine that is configured by hand are not among them:
// what the API server calls its resource is found out later.
func (r *rights) inventory(c config.Approval) {
	const need = "inventory"
	if c.KubeletServing.Enabled {
		r.granted("config/kubelet-serving", func() {
			r.add(need, "", "nodes", "", "", "get", "list", "watch")
			r.add(need, "", "services", "", "", "get", "list", "watch")
			r.add(need, discoveryv1.GroupName, "endpointslices", metav1.NamespaceDefault, "", "get", "list", "watch")
			r.optional(need, "", "configmaps", metav1.NamespacePublic, "cluster-info", "list", "watch")
		})
	}
	if c.NodeClient.Bound() {
		r.granted("config/node-identity", func() {
			r.add(need, "", "nodes", "", "", "get", "list", "watch")
			r.add(need, coordinationv1.GroupName, "leases", corev1.NamespaceNodeLease, "", "get", "list", "watch")
			r.add(need, "", "configmaps", metav1.NamespacePublic, "cluster-info", "get", "list", "watch")
			r.add(need, "", "serviceaccounts", "", "", "get")
		})
	}
	if options := presetMachines(c); options != nil && c.Inventory.Kubeconfig == "" { // another cluster's are its own matter
		r.granted("config/inventory-"+c.NodeClient.Inventory, func() {
			r.add(need, options.Group, "machines", options.Namespace, "", "list", "watch")
		})
	}
	for _, source := range c.Inventory.Sources {
		if source.Static == nil {
			continue
		}
		if namespace, name := source.Static.ConfigMapName(); name != "" {
			r.granted("", func() {
				r.add(need, "", "configmaps", namespace, name, "list", "watch")
				r.events(need, namespace)
			})
		}
	}
}
