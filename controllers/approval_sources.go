package controllers

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// inventoryOf returns the sources in order: the Machines of a preset first, unless others are configured.
func inventoryOf(c config.Approval) *approver.Inventory {
	i := &approver.Inventory{}
	if options := presetMachines(c); options != nil {
		i.Sources = append(i.Sources, approver.MachineSource(*options, c.Inventory.Kubeconfig))
	}
	for _, source := range c.Inventory.Sources {
		i.Sources = append(i.Sources, sourceOf(source, c.Inventory.Kubeconfig))
	}
	return i
}

// presetMachines are those that a preset asks first, unless others are configured.
func presetMachines(c config.Approval) *inventory.MachineOptions {
	for _, source := range c.Inventory.Sources {
		if source.Machine != nil {
			return nil
		}
	}
	var options inventory.MachineOptions
	switch c.NodeClient.Inventory {
	case config.InventoryClusterAPI:
		options = inventory.ClusterAPI()
		namespace, name := c.NodeClient.Cluster()
		options.Namespace, options.Selector = namespace, inventory.ClusterNameLabel+"="+name
	case config.InventoryOpenShift:
		options = inventory.OpenShift()
	default:
		return nil
	}
	return &options
}

func sourceOf(c config.Source, kubeconfig string) approver.SourceBuilder {
	switch {
	case c.Machine != nil:
		return approver.MachineSource(inventory.MachineOptions{
			Group: c.Machine.Group, Version: c.Machine.Version, Kind: c.Machine.Kind, Namespace: c.Machine.Namespace, Selector: c.Machine.Selector,
			NodeRefPath: c.Machine.NodeRefPath, AddressesPath: c.Machine.AddressesPath,
			NamePath: c.Machine.NamePath, NameTypes: c.Machine.NameTypes, CreatedPath: c.Machine.CreatedPath,
		}, kubeconfig)
	case c.Static != nil && c.Static.ConfigMap != "":
		namespace, name := c.Static.ConfigMapName()
		return approver.ConfigMapSource(types.NamespacedName{Namespace: namespace, Name: name})
	case c.Static != nil:
		return approver.StaticSource(c.Static.Rows)
	case c.Webhook != nil:
		return approver.WebhookSource(c.Webhook.Options())
	default:
		return approver.NodeSource
	}
}

// openshiftBootstrapper is the ServiceAccount by which OpenShift's machines join.
const openshiftBootstrapper = "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"

func bootstrapPolicyOf(c config.NodeClient) approver.BootstrapPolicy {
	policy := approver.BootstrapPolicy{
		Expected:            c.Inventory != "",
		TokenBinding:        c.RequireTokenBinding,
		Users:               c.BootstrapUsers,
		Rejoin:              c.Rejoin,
		MaxRequestAge:       c.MaxRequestAge.Duration,
		Window:              approver.JoinWindow{Before: c.JoinWindow.Before.Duration, After: c.JoinWindow.After.Duration},
		CertificateLifetime: c.CertificateLifetime.Duration,
	}
	if c.Inventory == config.InventoryOpenShift {
		policy.Users = []string{openshiftBootstrapper}
	}
	return policy
}
