package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

func (a *Approval) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !slices.Contains([]string{"Never", "Permanent"}, a.Denial) {
		errs = append(errs, field.NotSupported(path.Child("denial"), a.Denial, []string{"Never", "Permanent"}))
	}
	errs = append(errs, a.NodeClient.validate(path.Child("nodeClient"), a.Inventory.Sources)...)
	if (a.Limit.Burst > 0) != (a.Limit.PerHour > 0) || a.Limit.Burst < 0 || a.Limit.PerHour < 0 {
		errs = append(errs, field.Invalid(path.Child("limit"), fmt.Sprintf("burst %d, perHour %d", a.Limit.Burst, a.Limit.PerHour), "both must be positive, or both 0 for no limit"))
	}
	errs = append(errs, a.KubeletServing.validate(path.Child("kubeletServing"))...)
	if len(a.KubeletServing.APIServerNodes) > 0 && !a.NodeClient.Bound() {
		errs = append(errs, field.Invalid(path.Child("kubeletServing", "apiServerNodes"), strings.Join(a.KubeletServing.APIServerNodes, ","),
			"whoever holds a bootstrap token could become such a node: set nodeClient.inventory or nodeClient.requireTokenBinding too"))
	}
	return append(errs, a.Inventory.validate(path.Child("inventory"))...)
}

func (k *KubeletServing) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, problem := range validation.IsDNS1123Subdomain(k.ClusterDomain) {
		errs = append(errs, field.Invalid(path.Child("clusterDomain"), k.ClusterDomain, problem))
	}
	for i, text := range k.Reserved {
		if !isReservable(text) {
			errs = append(errs, field.Invalid(path.Child("reserved").Index(i), text, "want a name, an address or a CIDR"))
		}
	}
	for i, name := range k.APIServerNodes {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			errs = append(errs, field.Invalid(path.Child("apiServerNodes").Index(i), name, "want the name of a node"))
		}
	}
	return errs
}

// isReservable leaves out what is meant as an address and is none, such as 010.0.0.1: as a name it would reserve
// nothing.
func isReservable(text string) bool {
	_, prefix := netip.ParsePrefix(text)
	_, address := netip.ParseAddr(text)
	isNumber := strings.Trim(text[strings.LastIndex(text, ".")+1:], "0123456789") == ""
	return prefix == nil || address == nil || !isNumber && len(validation.IsDNS1123Subdomain(strings.ToLower(text))) == 0
}

func (i *Inventory) validate(path *field.Path) field.ErrorList {
	path = path.Child("sources")
	if len(i.Sources) == 0 {
		return field.ErrorList{field.Required(path, "say who knows what belongs to a node")}
	}
	var errs field.ErrorList
	for n, source := range i.Sources {
		errs = append(errs, source.validate(path.Index(n))...)
	}
	return errs
}

const useless = "is of no use without inventory or requireTokenBinding"

func (n *NodeClient) validate(path *field.Path, sources []Source) field.ErrorList {
	errs := n.validateInventory(path.Child("inventory"), sources)
	errs = append(errs, n.validateCluster(path.Child("clusterName"), sources)...)
	for _, one := range []struct {
		name string
		set  metav1.Duration
	}{{"before", n.JoinWindow.Before}, {"after", n.JoinWindow.After}} {
		if one.set.Duration < 0 {
			errs = append(errs, field.Invalid(path.Child("joinWindow", one.name), one.set.Duration.String(), "must not be negative"))
		}
	}
	if n.MaxRequestAge.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("maxRequestAge"), n.MaxRequestAge.Duration.String(), "must be positive"))
	}
	if n.CertificateLifetime.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("certificateLifetime"), n.CertificateLifetime.Duration.String(), "must be positive, or 0 for not known"))
	}
	if n.CertificateLifetime.Duration > 0 && !n.Rejoin {
		errs = append(errs, field.Invalid(path.Child("certificateLifetime"), n.CertificateLifetime.Duration.String(), "is of no use without rejoin"))
	}
	errs = append(errs, n.validateTimes(path)...)
	return append(errs, n.validateRules(path)...)
}

// validateTimes finds times that differ from the defaults and bound nothing.
func (n *NodeClient) validateTimes(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	standard := Default().Approval.NodeClient
	if n.MaxRequestAge != standard.MaxRequestAge && !n.Bound() {
		errs = append(errs, field.Invalid(path.Child("maxRequestAge"), n.MaxRequestAge.Duration.String(), useless))
	}
	if n.JoinWindow != standard.JoinWindow && n.Inventory == "" {
		window := fmt.Sprintf("before %s, after %s", n.JoinWindow.Before.Duration, n.JoinWindow.After.Duration)
		errs = append(errs, field.Invalid(path.Child("joinWindow"), window, "is of no use without inventory: nothing says when a machine was created"))
	}
	return errs
}

func (n *NodeClient) validateInventory(path *field.Path, sources []Source) field.ErrorList {
	all := []string{"", InventorySources, InventoryStatic, InventoryClusterAPI, InventoryOpenShift}
	hasStatic := slices.ContainsFunc(sources, func(s Source) bool { return s.Static != nil })
	hasOther := slices.ContainsFunc(sources, func(s Source) bool { return s.Node == nil })
	switch {
	case !slices.Contains(all, n.Inventory):
		return field.ErrorList{field.NotSupported(path, n.Inventory, all)}
	case n.Inventory == InventoryStatic && !hasStatic:
		return field.ErrorList{field.Invalid(path, n.Inventory, "there is no static source among approval.inventory.sources")}
	case n.Inventory == InventorySources && !hasOther:
		return field.ErrorList{field.Invalid(path, n.Inventory, "there is no source among approval.inventory.sources but what nodes say of themselves")}
	case n.Inventory == InventoryOpenShift && hasOther:
		return field.ErrorList{field.Invalid(path, n.Inventory, "only OpenShift's Machines expect a node then: leave approval.inventory.sources at node, or choose sources")}
	}
	return nil
}

// validateCluster requires clusterName where the Machines of Cluster API are asked, and only there.
func (n *NodeClient) validateCluster(path *field.Path, sources []Source) field.ErrorList {
	hasMachines := slices.ContainsFunc(sources, func(s Source) bool { return s.Machine != nil })
	switch used := n.Inventory == InventoryClusterAPI && !hasMachines; {
	case used && n.ClusterName == "":
		return field.ErrorList{field.Required(path, "name the Cluster whose Machines are this cluster's nodes, as name or namespace/name: "+
			"the Machines of other clusters are none of them")}
	case !used && n.ClusterName != "":
		return field.ErrorList{field.Invalid(path, n.ClusterName, "is only for the inventory cluster-api, without a machine source of your own")}
	case !used:
		return nil
	}
	namespace, name := n.Cluster()
	invalid := len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsValidLabelValue(name)) > 0
	if strings.Contains(n.ClusterName, "/") {
		invalid = invalid || len(validation.IsDNS1123Label(namespace)) > 0
	}
	if invalid {
		return field.ErrorList{field.Invalid(path, n.ClusterName, "want name or namespace/name")}
	}
	return nil
}

// validateRules finds settings that would not have their effect, or that contradict a preset.
func (n *NodeClient) validateRules(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	var why string
	switch {
	case n.Inventory == InventoryOpenShift:
		why = "the inventory openshift has rules of its own: choose cluster-api or sources to have others"
		if n.RequireTokenBinding {
			errs = append(errs, field.Invalid(path.Child("requireTokenBinding"), true, why))
		}
	case !n.Bound():
		why = useless
	default:
		return nil
	}
	if n.Rejoin {
		errs = append(errs, field.Invalid(path.Child("rejoin"), true, why))
	}
	if len(n.BootstrapUsers) > 0 {
		errs = append(errs, field.Invalid(path.Child("bootstrapUsers"), n.BootstrapUsers, why))
	}
	return errs
}

func (s *Source) validate(path *field.Path) field.ErrorList {
	kinds := 0
	for _, set := range []bool{s.Machine != nil, s.Static != nil, s.Webhook != nil, s.Node != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return field.ErrorList{field.Required(path, "want exactly one kind of source")}
	}
	switch {
	case s.Machine != nil && s.Machine.Kind == "":
		return field.ErrorList{field.Required(path.Child("machine", "kind"), "say of which kind machines are")}
	case s.Static != nil:
		return s.Static.validate(path.Child("static"))
	case s.Webhook != nil:
		if _, err := inventory.NewWebhook(s.Webhook.Options()); err != nil {
			return field.ErrorList{field.Invalid(path.Child("webhook"), s.Webhook.URL, err.Error())}
		}
	}
	return nil
}

func (s *StaticSource) validate(path *field.Path) field.ErrorList {
	if (s.ConfigMap == "") == (s.Rows == nil) {
		return field.ErrorList{field.Required(path, "want configMap or rows")}
	}
	if _, name := s.ConfigMapName(); s.ConfigMap != "" && name == "" {
		return field.ErrorList{field.Invalid(path.Child("configMap"), s.ConfigMap, "want namespace/name")}
	}
	if _, err := inventory.NewStatic(s.Rows); err != nil {
		return field.ErrorList{field.Invalid(path.Child("rows"), len(s.Rows), err.Error())}
	}
	return nil
}
