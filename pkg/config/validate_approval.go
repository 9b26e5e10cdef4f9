package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
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

// isReservable leaves out what is meant as an address and is none, such as 010.0.0.1: as a name it would reserve nothing.
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
