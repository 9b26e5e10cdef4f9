package approver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// MachineSource knows nodes by the machines of the cluster that kubeconfig leads to, or of the manager's if it is empty.
func MachineSource(options inventory.MachineOptions, kubeconfig string) SourceBuilder {
	return func(mgr manager.Manager, _ *inventory.Cluster, changed func(string)) (inventory.Source, error) {
		cluster := mgr.GetConfig()
		if kubeconfig != "" {
			var err error
			if cluster, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
				return nil, fmt.Errorf("--inventory-kubeconfig: %w", err)
			}
		}
		source, err := inventory.NewMachine(cluster, options, mgr.GetLogger().WithName("inventory"))
		if err != nil {
			return nil, fmt.Errorf("inventory of machines: %w", err)
		}
		source.Changed = changed
		return source, run(mgr, source)
	}
}

// StaticSource knows nodes by rows.
func StaticSource(rows []inventory.Row) SourceBuilder {
	return func(manager.Manager, *inventory.Cluster, func(string)) (inventory.Source, error) {
		source, err := inventory.NewStatic(rows)
		if err != nil {
			return nil, fmt.Errorf("static inventory: %w", err)
		}
		return source, nil
	}
}

// ConfigMapSource knows nodes by the rows of a ConfigMap of the manager's cluster.
func ConfigMapSource(name types.NamespacedName) SourceBuilder {
	return func(mgr manager.Manager, _ *inventory.Cluster, changed func(string)) (inventory.Source, error) {
		source, err := inventory.NewStaticConfigMap(mgr.GetConfig(), name, mgr.GetLogger().WithName("inventory"))
		if err != nil {
			return nil, fmt.Errorf("static inventory: %w", err)
		}
		source.Changed, source.Reporter = changed, report.New(mgr.GetEventRecorder("csr-static-inventory"), clock.RealClock{})
		return source, run(mgr, source)
	}
}

// WebhookSource knows nodes by asking a server. Nothing wakes requests when it changes: they are asked about again within
// a minute.
func WebhookSource(options inventory.WebhookOptions) SourceBuilder {
	return func(manager.Manager, *inventory.Cluster, func(string)) (inventory.Source, error) {
		source, err := inventory.NewWebhook(options)
		if err != nil {
			return nil, fmt.Errorf("inventory by webhook: %w", err)
		}
		return source, nil
	}
}

func run(mgr manager.Manager, source interface{ Start(context.Context) error }) error {
	if err := mgr.Add(source); err != nil {
		return fmt.Errorf("run the inventory: %w", err)
	}
	return nil
}
