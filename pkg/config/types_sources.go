package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

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

// WebhookSource is a server that is asked by HTTPS.
type WebhookSource struct {
	URL string `json:"url"`
	// CAFile holds the only certificates that the server's may chain to; CertFile and KeyFile, if set, are shown to it.
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Timeout of one lookup; 0 is five seconds.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Options are those of the webhook.
func (w *WebhookSource) Options() inventory.WebhookOptions {
	return inventory.WebhookOptions{URL: w.URL, CAFile: w.CAFile, CertFile: w.CertFile, KeyFile: w.KeyFile, Timeout: w.Timeout.Duration}
}

// ConfigMapName splits ConfigMap into its halves; both are empty for anything but namespace/name.
func (s *StaticSource) ConfigMapName() (namespace, name string) { return splitName(s.ConfigMap) }
