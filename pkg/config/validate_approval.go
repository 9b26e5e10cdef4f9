package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/webhook"
)

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

// isReservable reports whether text is a name, an address or a CIDR. An address with a mistake, such as 010.0.0.1, is
// none of them: as a name it would reserve nothing.
func isReservable(text string) bool {
	_, prefix := netip.ParsePrefix(text)
	_, address := netip.ParseAddr(text)
	isNumber := strings.Trim(text[strings.LastIndex(text, ".")+1:], "0123456789") == ""
	return prefix == nil || address == nil || !isNumber && len(validation.IsDNS1123Subdomain(strings.ToLower(text))) == 0
}

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

func (s *StaticSource) validate(m *mistakes, path *field.Path) {
	if (s.ConfigMap == "") == (s.Rows == nil) {
		m.require(false, path, "want configMap or rows")
		return
	}
	m.namespacedName(path.Child("configMap"), s.ConfigMap)
	_, invalid := static.New(path.Child("rows"), s.Rows)
	m.all = append(m.all, invalid...)
}
