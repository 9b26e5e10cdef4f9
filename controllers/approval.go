package controllers

import (
	"net/netip"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// approverOf returns the approver with the rules that are switched on.
func approverOf(c config.Approval) *approver.Reconciler {
	r := &approver.Reconciler{Rules: []approver.Rule{approver.NodeClient()}, Denial: approver.Denial(c.Denial)}
	if c.KubeletServing.Enabled {
		r.Inventory = inventoryOf(c.Inventory)
		r.Rules = append(r.Rules, approver.KubeletServing(approver.Serving{
			Inventory:      r.Inventory,
			Reserved:       reservedOf(c.KubeletServing),
			APIServerNodes: c.KubeletServing.APIServerNodes,
		}))
	}
	return r
}

func inventoryOf(c config.Inventory) *approver.Inventory {
	sources := &approver.Inventory{}
	for _, source := range c.Sources {
		if source.Node != nil {
			sources.Sources = append(sources.Sources, approver.NodeSource)
		}
	}
	return sources
}

func reservedOf(c config.KubeletServing) inventory.Reserved {
	reserved := inventory.Reserved{ClusterDomain: c.ClusterDomain}
	for _, text := range c.Reserved {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			reserved.Prefixes = append(reserved.Prefixes, prefix)
		} else {
			reserved.Endpoints = append(reserved.Endpoints, inventory.ParseSAN(text))
		}
	}
	return reserved
}
