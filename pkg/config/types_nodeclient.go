package config

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Values of NodeClient.Inventory.
const (
	// InventorySources asks approval.inventory.sources.
	InventorySources = "sources"
	// InventoryStatic is InventorySources, of which one at least must be static.
	InventoryStatic = "static"
	// InventoryClusterAPI and InventoryOpenShift ask the Machines of Cluster API and of OpenShift first.
	InventoryClusterAPI = "cluster-api"
	InventoryOpenShift  = "openshift"
)

// NodeClient says which nodes may get a first certificate. By default that is up to the requester's permission alone, as
// with kube-controller-manager. Renewals are not its matter.
type NodeClient struct {
	// Inventory is who must expect a node: sources, static, cluster-api or openshift; empty is nobody.
	Inventory string `json:"inventory"`
	// ClusterName is the Cluster of cluster.x-k8s.io that this cluster is, as name or namespace/name. A management cluster
	// holds the Machines of all its clusters, and cluster-api counts only those of this one.
	ClusterName string `json:"clusterName,omitempty"`
	// JoinWindow is when a machine may ask, counted from its creation.
	JoinWindow JoinWindow `json:"joinWindow"`
	// MaxRequestAge is the age at which a request is not approved any more.
	MaxRequestAge metav1.Duration `json:"maxRequestAge"`
	// Rejoin lets an expected machine come back whose Node is dead or gone.
	Rejoin bool `json:"rejoin"`
	// CertificateLifetime is the longest that a kubelet's client certificate lives in this cluster, whoever signed it:
	// with rejoin, a node that has not been seen for longer is dead. Zero is not known.
	CertificateLifetime metav1.Duration `json:"certificateLifetime"`
	// RequireTokenBinding wants a bootstrap token to be bound to the node.
	RequireTokenBinding bool `json:"requireTokenBinding"`
	// BootstrapUsers, if any, are the only ones who may bootstrap.
	BootstrapUsers []string `json:"bootstrapUsers,omitempty"`
}

// JoinWindow is from Before a machine's creation to After it. Zero for After is no window.
type JoinWindow struct {
	Before metav1.Duration `json:"before"`
	After  metav1.Duration `json:"after"`
}

// Cluster splits ClusterName into its halves. The namespace is empty if ClusterName is a name alone.
func (n *NodeClient) Cluster() (namespace, name string) {
	if namespace, name, found := strings.Cut(n.ClusterName, "/"); found {
		return namespace, name
	}
	return "", n.ClusterName
}

// Bound says whether more than a permission is asked for.
func (n *NodeClient) Bound() bool { return n.Inventory != "" || n.RequireTokenBinding }
