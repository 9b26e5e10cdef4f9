package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
	// Unpublished says why Configuration holds defaults instead of a published configuration, or is nil.
	Unpublished error
	// Incomplete says which part of the published configuration is missing from Configuration, or is nil.
	Incomplete error
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
// published, it returns the default configuration, and the reason in Unpublished. If namespace is empty, it reads
// DefaultNamespace. If nothing is published there, it reads kube-system, where static Pods and managers outside of a Pod
// publish.
func ReadPublished(ctx context.Context, api client.Reader, namespace string, aside io.Writer) *Setup {
	setup := &Setup{Configuration: config.Default()}
	warn := func(format string, args ...any) error {
		text := oneLine(csr.ShortenTo(fmt.Sprintf(format, args...), maxWarning))
		_, _ = fmt.Fprintf(aside, "Warning: %s\n", text)
		return errors.New(text)
	}
	found, namespaces, err := listPublished(ctx, api, namespace)
	if err != nil {
		setup.unread = true
		setup.Unpublished = fmt.Errorf("the configuration of the manager is unknown: %w", err)
	}
	for i := range found {
		obj := &found[i]
		manager, unknown, err := readManager(obj)
		switch {
		case err != nil:
			setup.Incomplete = warn("ConfigMap %s/%s is ignored: %v", obj.Namespace, obj.Name, err)
			continue
		case unknown != nil:
			setup.Incomplete = warn("ConfigMap %s/%s: version %s has published settings that this version %s does not know: %v",
				obj.Namespace, obj.Name, manager.Status.Version, VersionOrBuild(), unknown)
		}
		manager.readLease(ctx, api)
		setup.Managers = append(setup.Managers, manager)
	}
	if len(setup.Managers) == 0 {
		setup.Unpublished = cmp.Or(setup.Unpublished, fmt.Errorf("no manager has published its configuration in namespace "+
			"%s: if it runs in another one, name that with -n; if it runs elsewhere, give its configuration with --config",
			strings.Join(namespaces, " or ")))
		_ = warn("%v. The defaults are used instead.", setup.Unpublished)
		return setup
	}
	setup.merge(warn)
	return setup
}

// listPublished returns the published ConfigMaps, and the namespaces in which it has looked for them.
func listPublished(
	ctx context.Context, api client.Reader, namespace string,
) (found []corev1.ConfigMap, namespaces []string, err error) {
	all := []string{namespace}
	if namespace == "" {
		all = []string{DefaultNamespace, metav1.NamespaceSystem}
	}
	for i, each := range all {
		list := &corev1.ConfigMapList{}
		err := api.List(ctx, list, client.InNamespace(each),
			client.MatchingLabels{config.PublishedLabel: config.PublishedValue})
		switch {
		case err != nil && i > 0: // most users may not read kube-system, where most clusters have no manager
			return nil, namespaces, nil
		case err != nil:
			return nil, nil, fmt.Errorf("list ConfigMaps in namespace %s: %w", each, err)
		}
		namespaces = append(namespaces, each)
		shipped := func(obj corev1.ConfigMap) bool { return obj.Data[config.PublishedKey] == "" } // no manager has led yet
		if found = slices.DeleteFunc(list.Items, shipped); len(found) > 0 {
			break
		}
	}
	return found, namespaces, nil
}

// maxWarning bounds a warning, in bytes: a ConfigMap may hold anything.
const maxWarning = 1024

// readManager returns the manager that has published obj. unknown describes settings that this version does not know.
func readManager(obj *corev1.ConfigMap) (manager Manager, unknown, err error) {
	// The Lease is beside the ConfigMap, whatever the configuration says: others may write Leases of other namespaces.
	manager.Lease = types.NamespacedName{
		Namespace: obj.Namespace, Name: strings.TrimSuffix(obj.Name, config.PublishedSuffix),
	}
	manager.Configuration, unknown, err = config.ParsePublished([]byte(obj.Data[config.PublishedKey]))
	if err != nil {
		return manager, nil, err
	}
	err = yaml.Unmarshal([]byte(obj.Data[controllers.StatusKey]), &manager.Status)
	manager.Status.Version = oneLine(csr.Shorten(manager.Status.Version))
	return manager, unknown, err
}

// readLease notes whether the manager holds its Lease. If the Lease cannot be read, this stays unknown.
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

// merge sets the configuration to that of the managers. The one whose Lease was renewed last counts first. A manager
// without a holder of its Lease is removed if other managers run all of its controllers: if the installation has
// changed, the ConfigMap of an earlier manager may still exist.
func (s *Setup) merge(warn func(format string, args ...any) error) {
	slices.SortStableFunc(s.Managers, func(a, b Manager) int {
		return cmp.Or(b.rank()-a.rank(), b.renewed.Compare(a.renewed))
	})
	running := map[string]bool{}
	s.Managers = slices.DeleteFunc(s.Managers, func(manager Manager) bool {
		missing := slices.ContainsFunc(manager.Configuration.Controllers, func(name string) bool { return !running[name] })
		for _, name := range manager.Configuration.Controllers {
			running[name] = true
		}
		if manager.held || missing {
			return false
		}
		_ = warn("ConfigMap %s%s is ignored: the Lease has no holder, and other managers run the same controllers. If that "+
			"manager is gone, delete the ConfigMap.", manager.Lease, config.PublishedSuffix)
		return true
	})
	var all []*config.Configuration
	for _, manager := range s.Managers {
		all = append(all, manager.Configuration)
	}
	s.Configuration = config.Merge(all)
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
