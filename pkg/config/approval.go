package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/webhook"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Approval configures the approver.
type Approval struct {
	// Denial is `Never`, or `Permanent`: deny [requests that can never become valid](reasons.md#what-may-be-denied).
	Denial string `json:"denial"`
	// NodeClient configures the approval of first certificates of nodes.
	NodeClient NodeClient `json:"nodeClient"`
	// KubeletServing configures the approval of serving certificates of kubelets.
	KubeletServing KubeletServing `json:"kubeletServing"`
	// Inventory configures the sources that know the nodes.
	Inventory Inventory `json:"inventory"`
	// Limit limits the approvals of each requester for each node and signer.
	Limit ApprovalLimit `json:"limit"`
	// Rules lists the [approval rules](approval-rules.md). They approve requests for signers that no other field approves for.
	Rules []rules.Rule `json:"rules,omitempty"`
	// Tests lists tests of the rules, for `csr-controller-manager rules test`.
	Tests []RuleTest `json:"tests,omitempty"`
}

func (a *Approval) validate(m *mistakes, path *field.Path) {
	oneOf(m, path.Child("denial"), a.Denial, "Never", "Permanent")
	a.NodeClient.validate(m, path.Child("nodeClient"), a.Inventory.Sources)
	limited := a.Limit.Burst > 0 && a.Limit.PerHour > 0
	m.unless(limited || a.Limit == ApprovalLimit{}, path.Child("limit"),
		fmt.Sprintf("burst %d, perHour %d", a.Limit.Burst, a.Limit.PerHour), "both must be positive, or both 0 for no limit")
	serving := path.Child("kubeletServing")
	for _, problem := range validation.IsDNS1123Subdomain(a.KubeletServing.ClusterDomain) {
		m.unless(false, serving.Child("clusterDomain"), a.KubeletServing.ClusterDomain, problem)
	}
	for i, text := range a.KubeletServing.Reserved {
		m.unless(isReservable(text), serving.Child("reserved").Index(i), text, "want a name, an address or a CIDR")
	}
	nodes := a.KubeletServing.APIServerNodes
	for i, name := range nodes {
		isName := len(validation.IsDNS1123Subdomain(name)) == 0
		m.unless(isName, serving.Child("apiServerNodes").Index(i), name, "want the name of a node")
	}
	m.unless(len(nodes) == 0 || a.NodeClient.Bound(), serving.Child("apiServerNodes"), strings.Join(nodes, ","),
		"every holder of a bootstrap token could become such a node: set nodeClient.inventory or "+
			"nodeClient.requireTokenBinding too")
	sources := path.Child("inventory", "sources")
	m.require(len(a.Inventory.Sources) > 0, sources, "list at least one source")
	for i, source := range a.Inventory.Sources {
		source.validate(m, sources.Index(i))
	}
}

// RuleTest is a test of the approval rules, which `csr-controller-manager rules test` runs.
type RuleTest struct {
	// Request is the name of a request in the files of the command.
	Request string `json:"request"`
	// Accepts lists the rules that accept the content of the request; if empty, none must.
	Accepts []string `json:"accepts,omitempty"`
}

// NewConditions returns the compiler of conditions for the limits of a configuration, such as cel.New of pkg/rules/cel. With nil,
// no rule may have conditions.
type NewConditions func(limits csr.Limits) (rules.Conditions, error)

// compileRules sets c.CompiledRules.
func (c *Configuration) compileRules(m *mistakes, newConditions NewConditions) {
	path, seen := field.NewPath("approval", "rules"), map[string]bool{}
	if len(c.Approval.Rules) == 0 {
		return
	}
	var conditions rules.Conditions
	if newConditions != nil {
		made, err := newConditions(c.RequestLimits)
		if err != nil {
			m.check(err, path, "")
			return
		}
		conditions = made
	}
	for _, rule := range c.Approval.Rules {
		at := path.Key(rule.Name)
		m.unique(seen, at, rule.Name)
		m.signerName(at.Child("signerName"), rule.SignerName)
		compiled, found := rules.Compile(rule, at, conditions)
		m.all, c.CompiledRules = append(m.all, found...), append(c.CompiledRules, compiled)
	}
	for i, test := range c.Approval.Tests {
		at := field.NewPath("approval", "tests").Index(i)
		m.require(test.Request != "", at.Child("request"), "name a request in the files of rules test")
		for j, name := range test.Accepts {
			m.unless(seen[name], at.Child("accepts").Index(j), name, "is not one of approval.rules")
		}
	}
}

// ApprovalLimit limits how often one requester is approved for one node and one signer. Zeros set no limit.
type ApprovalLimit struct {
	// Burst is the number of approvals in a burst for one requester, node and signer. Requests without a node share it. An
	// approval counts before it is written, and no longer if it certainly was not stored.
	Burst int `json:"burst"`
	// PerHour is the number per hour after that. Zeros: no limit.
	PerHour int `json:"perHour"`
}

// KubeletServing configures the [approval of kubelet serving certificates](kubelet-serving.md).
type KubeletServing struct {
	// Enabled switches it on.
	Enabled bool `json:"enabled"`
	// ClusterDomain is the domain of Services. No node gets a name in it.
	ClusterDomain string `json:"clusterDomain"`
	// Reserved lists names, addresses and CIDRs that no node gets: virtual addresses and load balancers of API servers,
	// and the Service CIDR.
	Reserved []string `json:"reserved,omitempty"`
	// APIServerNodes lists nodes with an API server whose endpoint has the node's address. It needs
	// `nodeClient.inventory` or `requireTokenBinding`.
	APIServerNodes []string `json:"apiServerNodes,omitempty"`
}

// isReservable reports whether text is a name, an address or a CIDR. An address with a mistake, such as 010.0.0.1, is
// none of them: as a name it would reserve nothing.
func isReservable(text string) bool {
	_, prefix := netip.ParsePrefix(text)
	_, address := netip.ParseAddr(text)
	return prefix == nil || address == nil || !san.IsNumeric(text) && len(validation.IsDNS1123Subdomain(strings.ToLower(text))) == 0
}

// Inventory configures what belongs to a node.
type Inventory struct {
	// Sources lists the sources, strongest first. The first source that knows a node decides alone.
	Sources []Source `json:"sources"`
	// Kubeconfig is the kubeconfig file of the cluster that holds the machines, if it is another one.
	Kubeconfig string `json:"kubeconfig,omitempty" flag:"inventory-kubeconfig" form:"file"`
}

// Source configures one source. The first one that knows a node decides alone. Set exactly one field. The default is
// `node`.
type Source struct {
	// Machine reads objects that describe machines, such as Machines of Cluster API.
	Machine *machine.Options `json:"machine,omitempty"`
	// Static reads a list that administrators write.
	Static *StaticSource `json:"static,omitempty"`
	// Webhook asks a server.
	Webhook *WebhookSource `json:"webhook,omitempty"`
	// Node uses what each Node reports of itself. It is `{}`.
	Node *NodeSource `json:"node,omitempty"`
}

func (s *Source) validate(m *mistakes, path *field.Path) {
	kinds := 0
	for _, set := range []bool{s.Machine != nil, s.Static != nil, s.Webhook != nil, s.Node != nil} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		m.require(false, path, "want exactly one kind of source")
	case s.Machine != nil:
		m.require(s.Machine.Kind != "", path.Child("machine", "kind"), "name the kind of the machine objects")
	case s.Static != nil:
		s.Static.validate(m, path.Child("static"))
	case s.Webhook != nil:
		if _, err := webhook.New(s.Webhook.Options()); err != nil {
			// The URL may hold a secret, and this message is logged.
			m.all = append(m.all, field.Invalid(path.Child("webhook"), field.OmitValueType{}, err.Error()))
		}
	}
}

// NodeSource uses the addresses that a Node reports of itself. It has no fields.
type NodeSource struct{}

// Values of NodeClient.Inventory.
const (
	// InventorySources asks approval.inventory.sources.
	InventorySources = "sources"
	// InventoryStatic asks approval.inventory.sources, too. At least one source must be static.
	InventoryStatic = "static"
	// InventoryClusterAPI and InventoryOpenShift first ask the Machines of Cluster API and of OpenShift.
	InventoryClusterAPI = "cluster-api"
	InventoryOpenShift  = "openshift"
)

// NodeClient configures which nodes get a [first certificate](../explanation/node-identity.md). By default, the
// requester's permission decides. `joinWindow` needs `inventory`; `maxRequestAge`, `rejoin` and `bootstrapUsers` need
// `inventory` or `requireTokenBinding`.
type NodeClient struct {
	// Inventory selects what must expect a node: `sources` (`approval.inventory`, not only `node`), `static` (the same,
	// with a static one), `cluster-api` or `openshift`. If empty, nothing must.
	Inventory string `json:"inventory"`
	// ClusterName is the `name` or `namespace/name` of this cluster's Cluster object (cluster.x-k8s.io), whose Machines
	// count. Required with `cluster-api`.
	ClusterName string `json:"clusterName,omitempty"`
	// JoinWindow is the time in which a new machine may ask. It needs `inventory`.
	JoinWindow JoinWindow `json:"joinWindow"`
	// MaxRequestAge is the age from which no request is approved.
	MaxRequestAge metav1.Duration `json:"maxRequestAge"`
	// Rejoin lets an expected machine join again if its Node is dead or gone.
	Rejoin bool `json:"rejoin"`
	// CertificateLifetime is the longest lifetime of a kubelet's client certificate, by any signer; 0 is unknown. It
	// needs `rejoin`: a node unseen for longer counts as dead.
	CertificateLifetime metav1.Duration `json:"certificateLifetime"`
	// RequireTokenBinding requires that [a bootstrap token is bound to the
	// node](../how-to/bind-nodes.md#make-a-bootstrap-token-for-one-node).
	RequireTokenBinding bool `json:"requireTokenBinding"`
	// BootstrapUsers lists the only users who may bootstrap nodes. If empty, their permission decides.
	BootstrapUsers []string `json:"bootstrapUsers,omitempty"`
}

// JoinWindow is the time in which a new machine may ask, relative to the creation of its object.
type JoinWindow struct {
	// Before is how long before the machine's creation a node may ask.
	Before metav1.Duration `json:"before"`
	// After is how long after the creation a node may ask; 0 is for ever.
	After metav1.Duration `json:"after"`
}

// Cluster splits ClusterName into its halves. The namespace is empty if ClusterName is a name alone.
func (n *NodeClient) Cluster() (namespace, name string) {
	if namespace, name, found := strings.Cut(n.ClusterName, "/"); found {
		return namespace, name
	}
	return "", n.ClusterName
}

// Bound reports whether a first certificate needs more than a permission.
func (n *NodeClient) Bound() bool { return n.Inventory != "" || n.RequireTokenBinding }

const useless = "has no effect without inventory or requireTokenBinding"

func (n *NodeClient) validate(m *mistakes, path *field.Path, sources []Source) {
	n.validateInventory(m, path.Child("inventory"), sources)
	n.validateCluster(m, path.Child("clusterName"), sources)
	before, after := n.JoinWindow.Before.Duration, n.JoinWindow.After.Duration
	m.unless(before >= 0, path.Child("joinWindow", "before"), before, "must not be negative")
	m.unless(after >= 0, path.Child("joinWindow", "after"), after, "must not be negative")
	age, lifetime := n.MaxRequestAge.Duration, n.CertificateLifetime.Duration
	m.unless(age > 0, path.Child("maxRequestAge"), age, "must be positive")
	m.unless(lifetime >= 0, path.Child("certificateLifetime"), lifetime, "must be positive, or 0 if it is not known")
	m.unless(lifetime <= 0 || n.Rejoin, path.Child("certificateLifetime"), lifetime, "has no effect without rejoin")
	// A time that differs from its default must have an effect.
	standard := Default().Approval.NodeClient
	m.unless(n.MaxRequestAge == standard.MaxRequestAge || n.Bound(), path.Child("maxRequestAge"), age, useless)
	m.unless(n.JoinWindow == standard.JoinWindow || n.Inventory != "", path.Child("joinWindow"),
		fmt.Sprintf("before %s, after %s", before, after),
		"has no effect without inventory: the creation of a machine is not known then")
	n.validateRules(m, path)
}

func (n *NodeClient) validateInventory(m *mistakes, path *field.Path, sources []Source) {
	oneOf(m, path, n.Inventory, "", InventorySources, InventoryStatic, InventoryClusterAPI, InventoryOpenShift)
	hasStatic := slices.ContainsFunc(sources, func(s Source) bool { return s.Static != nil })
	hasOther := slices.ContainsFunc(sources, func(s Source) bool { return s.Node == nil })
	m.unless(n.Inventory != InventoryStatic || hasStatic, path, n.Inventory,
		"approval.inventory.sources has no static source")
	m.unless(n.Inventory != InventorySources || hasOther, path, n.Inventory,
		"approval.inventory.sources has no source other than node")
	m.unless(n.Inventory != InventoryOpenShift || !hasOther, path, n.Inventory,
		"excludes sources other than OpenShift's Machines: leave approval.inventory.sources at node, or set sources")
}

// validateCluster requires clusterName if the Machines of Cluster API are asked, and forbids it otherwise.
func (n *NodeClient) validateCluster(m *mistakes, path *field.Path, sources []Source) {
	hasMachines := slices.ContainsFunc(sources, func(s Source) bool { return s.Machine != nil })
	used := n.Inventory == InventoryClusterAPI && !hasMachines
	m.require(!used || n.ClusterName != "", path, "name the Cluster whose Machines are this cluster's nodes, as name or "+
		"namespace/name: the Machines of other clusters are none of them")
	m.unless(used || n.ClusterName == "", path, n.ClusterName,
		"has an effect only with the inventory cluster-api, and without a machine source")
	if !used || n.ClusterName == "" {
		return
	}
	namespace, name := n.Cluster()
	valid := len(validation.IsDNS1123Subdomain(name)) == 0 && len(validation.IsValidLabelValue(name)) == 0
	if strings.Contains(n.ClusterName, "/") {
		valid = valid && len(validation.IsDNS1123Label(namespace)) == 0
	}
	m.unless(valid, path, n.ClusterName, "want name or namespace/name")
}

// validateRules finds settings that would not have their effect, or that contradict a preset.
func (n *NodeClient) validateRules(m *mistakes, path *field.Path) {
	var why string
	switch {
	case n.Inventory == InventoryOpenShift:
		why = "the inventory openshift has fixed rules: set cluster-api or sources to use this field"
		m.unless(!n.RequireTokenBinding, path.Child("requireTokenBinding"), true, why)
	case !n.Bound():
		why = useless
	default:
		return
	}
	m.unless(!n.Rejoin, path.Child("rejoin"), true, why)
	m.unless(len(n.BootstrapUsers) == 0, path.Child("bootstrapUsers"), n.BootstrapUsers, why)
}

// StaticSource is a list of nodes: in a ConfigMap, or in this file.
type StaticSource struct {
	// ConfigMap is the `namespace/name` of a ConfigMap whose key `nodes.yaml` holds the rows.
	ConfigMap string `json:"configMap,omitempty" form:"namespace/name"`
	// Rows holds the rows themselves. It excludes `configMap`.
	Rows []static.Row `json:"rows,omitempty"`
}

// ConfigMapName splits ConfigMap into its halves; both are empty for anything but namespace/name.
func (s *StaticSource) ConfigMapName() (namespace, name string) { return splitName(s.ConfigMap) }

func (s *StaticSource) validate(m *mistakes, path *field.Path) {
	if (s.ConfigMap == "") == (s.Rows == nil) {
		m.require(false, path, "want configMap or rows")
		return
	}
	m.tags(s, path.String())
	_, invalid := static.New(path.Child("rows"), s.Rows)
	m.all = append(m.all, invalid...)
}

// WebhookSource configures a [server that is asked by HTTPS](inventory-webhook.md).
type WebhookSource struct {
	// URL is the address of the server.
	URL string `json:"url"`
	// CAFile holds the only CAs that the server's certificate may chain to.
	CAFile string `json:"caFile"`
	// CertFile is the manager's client certificate, if the server asks for one.
	CertFile string `json:"certFile,omitempty"`
	// KeyFile is its key.
	KeyFile string `json:"keyFile,omitempty"`
	// Timeout limits one lookup. The default is 5s.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Options returns the options of the webhook.
func (w *WebhookSource) Options() webhook.Options {
	return webhook.Options{
		URL: w.URL, CAFile: w.CAFile, CertFile: w.CertFile, KeyFile: w.KeyFile, Timeout: w.Timeout.Duration,
	}
}
