package config

import "github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"

// MachineSource says which objects are machines, and where in them to look, by paths as in kubectl get -o jsonpath.
type MachineSource struct {
	Group string `json:"group"`
	// Version is the one that the API server prefers when empty.
	Version       string   `json:"version,omitempty"`
	Kind          string   `json:"kind"`
	Namespace     string   `json:"namespace,omitempty"`
	Selector      string   `json:"selector,omitempty"`
	NodeRefPath   string   `json:"nodeRefPath,omitempty"`
	AddressesPath string   `json:"addressesPath,omitempty"`
	NamePath      string   `json:"namePath,omitempty"`
	NameTypes     []string `json:"nameTypes,omitempty"`
	CreatedPath   string   `json:"createdPath,omitempty"`
}

// StaticSource is a list that somebody keeps: in a ConfigMap, or here.
type StaticSource struct {
	// ConfigMap is namespace/name; the rows are under the key nodes.yaml.
	ConfigMap string          `json:"configMap,omitempty"`
	Rows      []inventory.Row `json:"rows,omitempty"`
}

// ConfigMapName splits ConfigMap into its halves; both are empty for anything but namespace/name.
func (s *StaticSource) ConfigMapName() (namespace, name string) { return splitName(s.ConfigMap) }
