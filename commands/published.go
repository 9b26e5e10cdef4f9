package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// DefaultNamespace is the namespace of the manager in the manifests and the chart.
const DefaultNamespace = "csr-controller-manager-system"

// Setup is the configuration of the managers in a cluster, as a Source has found it.
type Setup struct {
	// Configuration holds, for each controller, the configuration of the manager that runs it.
	Configuration *config.Configuration
	// Managers are the managers that have published their configuration. It is empty if Configuration comes from flags or
	// from a file.
	Managers []Manager
	// Unpublished is why Configuration holds defaults instead of a published configuration, or nil.
	Unpublished error
	// AsManager reports that the command acts as the manager: the rights of its user are the manager's.
	AsManager bool

	unread bool // the ConfigMaps could not be listed
}

// Manager is one manager of a cluster.
type Manager struct {
	// Lease is the Lease that it holds.
	Lease types.NamespacedName
	// Configuration and Status are what it has published.
	Configuration *config.Configuration
	Status        controllers.PublishedStatus

	held    bool // the Lease has a holder
	renewed time.Time
}

// ReadPublished returns what the managers in namespace have published. It writes warnings to aside. If nothing is
// published, it returns the default configuration, and the reason in Unpublished.
func ReadPublished(ctx context.Context, api client.Reader, namespace string, aside io.Writer) *Setup {
	aside = ascii.LinesWriter(aside)
	managers, listed, err := readManagers(ctx, api, namespace, aside)
	if err != nil {
		_, _ = fmt.Fprintf(aside, "Warning: %v. The defaults are used instead.\n", err)
		return &Setup{Configuration: config.Default(), Unpublished: err, unread: !listed}
	}
	var all []*config.Configuration
	for _, manager := range managers {
		all = append(all, manager.Configuration)
	}
	merged := config.Merge(all)
	// These hold where the manager runs: its kubeconfig, its log and its audit log.
	merged.Kubeconfig, merged.Verbosity, merged.Audit.Path = "", 0, ""
	return &Setup{Configuration: merged, Managers: managers}
}

// readManagers returns the managers that have published their configuration. The one whose Lease was renewed last is
// first: if the installation has changed, the ConfigMap of an earlier manager may still exist. listed reports that the
// ConfigMaps could be listed.
func readManagers(
	ctx context.Context, api client.Reader, namespace string, aside io.Writer,
) (managers []Manager, listed bool, err error) {
	list := &corev1.ConfigMapList{}
	err = api.List(ctx, list, client.InNamespace(namespace),
		client.MatchingLabels{config.PublishedLabel: config.PublishedValue})
	if err != nil {
		return nil, false, fmt.Errorf("the configuration of the manager is unknown: list ConfigMaps in namespace %s: %w",
			namespace, err)
	}
	for i := range list.Items {
		obj := &list.Items[i]
		if obj.Data[config.PublishedKey] == "" {
			continue // as it is shipped: no manager has led yet
		}
		manager, unknown, err := readManager(obj)
		switch {
		case err != nil:
			_, _ = fmt.Fprintf(aside, "Warning: ConfigMap %s/%s is ignored: %v\n", namespace, obj.Name, err)
			continue
		case unknown != nil:
			_, _ = fmt.Fprintf(aside, "Warning: ConfigMap %s/%s: version %s has published settings that this version %s does "+
				"not know: %v\n", namespace, obj.Name, manager.Status.Version, VersionOrBuild(), unknown)
		}
		manager.readLease(ctx, api)
		managers = append(managers, manager)
	}
	if len(managers) == 0 {
		return nil, true, fmt.Errorf("no manager has published its configuration in namespace %s: if it runs in another "+
			"one, name that with -n; if it runs elsewhere, give its configuration with --config", namespace)
	}
	slices.SortStableFunc(managers, func(a, b Manager) int {
		return cmp.Or(b.rank()-a.rank(), b.renewed.Compare(a.renewed))
	})
	return ignoreReplaced(managers, aside), true, nil
}

func readManager(obj *corev1.ConfigMap) (manager Manager, unknown, err error) {
	manager.Lease.Name = strings.TrimSuffix(obj.Name, config.PublishedSuffix)
	manager.Configuration, unknown, err = config.ParsePublished([]byte(obj.Data[config.PublishedKey]))
	if err != nil {
		return manager, nil, err
	}
	manager.Lease.Namespace = cmp.Or(manager.Configuration.LeaderElection.ResourceNamespace, obj.Namespace)
	err = yaml.Unmarshal([]byte(obj.Data[controllers.StatusKey]), &manager.Status)
	return manager, unknown, err
}

// readLease notes whether the manager holds its Lease. What can't be read leaves it unknown.
func (m *Manager) readLease(ctx context.Context, api client.Reader) {
	lease := &coordinationv1.Lease{}
	if err := api.Get(ctx, m.Lease, lease); err != nil {
		m.held = !apierrors.IsNotFound(err)
		return
	}
	m.held = ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	if lease.Spec.RenewTime != nil {
		m.renewed = lease.Spec.RenewTime.Time
	}
}

func (m *Manager) rank() int {
	if m.held {
		return 1
	}
	return 0
}

// ignoreReplaced removes the managers without a holder of their Lease, if other managers run all of their controllers.
func ignoreReplaced(managers []Manager, aside io.Writer) []Manager {
	running := map[string]bool{}
	return slices.DeleteFunc(managers, func(manager Manager) bool {
		missing := slices.ContainsFunc(manager.Configuration.Controllers, func(name string) bool { return !running[name] })
		for _, name := range manager.Configuration.Controllers {
			running[name] = true
		}
		if manager.held || missing {
			return false
		}
		_, _ = fmt.Fprintf(aside, "Warning: ConfigMap %s%s is ignored: the Lease has no holder, and other managers run the "+
			"same controllers. If that manager is gone, delete the ConfigMap.\n", manager.Lease, config.PublishedSuffix)
		return true
	})
}

// ReadFile returns the Setup that a configuration file describes, and every mistake in the file.
func ReadFile(file string) (*Setup, error) {
	c, _, err := config.Load([]string{"--config", file}, &config.Command{})
	if err != nil {
		return nil, fmt.Errorf("bad configuration:\n%w", err)
	}
	c.Kubeconfig, c.Verbosity, c.Audit.Path = "", 0, ""
	return &Setup{Configuration: c}, nil
}
