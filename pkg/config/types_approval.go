package config

// Approval configures the approver.
type Approval struct {
	// Denial is Never or Permanent: whether what can never become valid is denied.
	Denial         string         `json:"denial"`
	NodeClient     NodeClient     `json:"nodeClient"`
	KubeletServing KubeletServing `json:"kubeletServing"`
	// Inventory is what is known of nodes.
	Inventory Inventory `json:"inventory"`
	// Limit bounds the approvals of each requester for each node and signer; zero is no limit.
	Limit ApprovalLimit `json:"limit"`
}

// ApprovalLimit is a number at once, and one for each hour after that.
type ApprovalLimit struct {
	Burst   int `json:"burst"`
	PerHour int `json:"perHour"`
}

// KubeletServing switches the approval of kubelet serving certificates on.
type KubeletServing struct {
	Enabled bool `json:"enabled"`
	// ClusterDomain is the domain of Services: no node gets a name in it.
	ClusterDomain string `json:"clusterDomain"`
	// Reserved are names, addresses and CIDRs that no node gets, beside those that the manager knows itself: virtual
	// addresses and load balancers before the API servers, the Service CIDR.
	Reserved []string `json:"reserved,omitempty"`
	// APIServerNodes are the nodes on which an API server runs, whose endpoint is the node's own address.
	APIServerNodes []string `json:"apiServerNodes,omitempty"`
}

// Inventory is where is known what belongs to a node.
type Inventory struct {
	// Sources in order, strongest first: the first one that knows a node answers alone.
	Sources []Source `json:"sources"`
	// Kubeconfig is a file to reach the cluster with that holds the machines, if it is another one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Source is one source: exactly one field is set.
type Source struct {
	Machine *MachineSource `json:"machine,omitempty"`
	Static  *StaticSource  `json:"static,omitempty"`
	Webhook *WebhookSource `json:"webhook,omitempty"`
	Node    *NodeSource    `json:"node,omitempty"`
}

// NodeSource believes the addresses that a Node reports of itself.
type NodeSource struct{}
