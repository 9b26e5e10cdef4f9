package controllers

import (
	"net/netip"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// approverOf returns the approver with the rules that are switched on.
func approverOf(c config.Approval) *approver.Reconciler {
	r := &approver.Reconciler{Denial: approver.Denial(c.Denial), Limit: approver.Limit(c.Limit)}
	if c.NodeClient.Bound() || c.KubeletServing.Enabled {
		r.Inventory = inventoryOf(c)
	}
	if c.NodeClient.Bound() {
		r.Rules = append(r.Rules, approver.BoundNodeClient(approver.Bootstrap{Inventory: r.Inventory, Policy: bootstrapPolicyOf(c.NodeClient)}))
	} else {
		r.Rules = append(r.Rules, approver.NodeClient())
	}
	if c.KubeletServing.Enabled {
		r.Rules = append(r.Rules, approver.KubeletServing(approver.Serving{
			Inventory:      r.Inventory,
			Reserved:       reservedOf(c.KubeletServing),
			APIServerNodes: c.KubeletServing.APIServerNodes,
		}))
	}
	return r
}

func reservedOf(c config.KubeletServing) inventory.Reserved {
	reserved := inventory.Reserved{ClusterDomain: c.ClusterDomain}
	for _, text := range c.Reserved {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			reserved.Prefixes = append(reserved.Prefixes, inventory.PlainPrefix(prefix))
		} else {
			reserved.Endpoints = append(reserved.Endpoints, inventory.ParseSAN(text))
		}
	}
	return reserved
}
