package inventory

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
)

// MachineOptions say which objects are machines, and where in them to look. Paths are those of kubectl get -o jsonpath,
// such as .status.addresses.
type MachineOptions struct {
	Group string
	// Version may be empty: the one that the API server prefers among those that it serves.
	Version string
	Kind    string
	// Namespace and Selector narrow down which objects count. A cluster that manages others has the machines of all.
	Namespace string
	Selector  string

	// NodeRefPath leads to the name of the node that the machine has become.
	NodeRefPath string
	// AddressesPath leads to {type, address} as in a Node's status, or to plain addresses and names.
	AddressesPath string
	// NamePath leads to the name that the node will have, as far as NameTypes, types of addresses, do not say.
	NamePath  string
	NameTypes []string
	// CreatedPath leads to the time from which a join window counts. Empty is the creation of the object.
	CreatedPath string

	// Retry is the longest wait between attempts to read a resource that can't be read; 0 is ten seconds.
	Retry time.Duration
}

// ClusterNameLabel is on each Machine of Cluster API, which keeps it equal to spec.clusterName.
const ClusterNameLabel = "cluster.x-k8s.io/cluster-name"

// ClusterAPI are the options for cluster.x-k8s.io, in any version since v1alpha3: all have these fields. They select the
// Machines of all clusters: narrow them down by ClusterNameLabel.
func ClusterAPI() MachineOptions {
	return MachineOptions{
		Group: "cluster.x-k8s.io", Kind: "Machine",
		NodeRefPath: ".status.nodeRef.name", AddressesPath: ".status.addresses",
		// Infrastructure providers call a node by its host's name or after their own machine.
		NamePath: ".spec.infrastructureRef.name", NameTypes: []string{string(corev1.NodeHostName), string(corev1.NodeInternalDNS)},
	}
}

// OpenShift are the options for machine.openshift.io: a node is called as one of its machine's internal DNS names.
func OpenShift() MachineOptions {
	return MachineOptions{
		Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine", Namespace: "openshift-machine-api",
		NodeRefPath: ".status.nodeRef.name", AddressesPath: ".status.addresses",
		NameTypes: []string{string(corev1.NodeInternalDNS)},
	}
}

// Machine knows nodes by the machines that become them.
type Machine struct {
	// Changed, if set, is called with the names of nodes after what is known of them has changed.
	Changed func(node string)
	// Freed, if set, is called with what a machine had, after what is known of it has: others may wait for it.
	Freed func([]SAN)

	options   MachineOptions
	paths     machinePaths
	discovery discovery.DiscoveryInterface
	view      view
}

// Indices of machines.
const (
	byNodeRef = "nodeRef"
	byName    = "name"
)

// NewMachine reads from the cluster of cfg, which may be another than that of the nodes.
func NewMachine(cfg *rest.Config, options MachineOptions, log logr.Logger) (*Machine, error) {
	if options.Kind == "" {
		return nil, errors.New("kind: say of which kind machines are")
	}
	selector, err := labels.Parse(options.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	if options.Retry == 0 {
		options.Retry = retryEvery
	}
	m := &Machine{options: options}
	if m.paths, err = parsePaths(options); err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("read machines: %w", err)
	}
	impatient := rest.CopyConfig(cfg)
	impatient.Timeout = retryEvery
	if m.discovery, err = discovery.NewDiscoveryClientForConfig(impatient); err != nil {
		return nil, fmt.Errorf("read machines: %w", err)
	}
	m.view = view{
		client: client, find: m.find, namespace: options.Namespace,
		narrow:    func(list *metav1.ListOptions) { list.LabelSelector = selector.String() },
		transform: m.paths.read,
		indexers:  machineIndexers,
		changed:   m.changed,
		retry:     options.Retry, log: log.WithValues("kind", options.Kind, "group", options.Group), err: errNotRead,
	}
	return m, nil
}

var machineIndexers = toolscache.Indexers{
	byNodeRef: func(obj any) ([]string, error) { return nonEmpty(obj.(*machine).node), nil },
	byName:    func(obj any) ([]string, error) { return obj.(*machine).names, nil },
	bySAN:     func(obj any) ([]string, error) { return keys(obj.(*machine).sans), nil },
}

func nonEmpty(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// Start follows the machines until ctx ends.
func (m *Machine) Start(ctx context.Context) error {
	m.view.run(ctx)
	return nil
}

// NeedLeaderElection is false: a standby is warm.
func (m *Machine) NeedLeaderElection() bool { return false }

// Name implements Source.
func (m *Machine) Name() string { return "machine" }

// changed tells of all nodes that the machine was or is about.
func (m *Machine) changed(before, after metav1.Object) {
	if m.Changed == nil {
		return
	}
	if before == nil && after == nil {
		m.Changed("")
		return
	}
	old, _ := before.(*machine)
	obj, _ := after.(*machine)
	if old != nil && obj != nil && reflect.DeepEqual(old.known, obj.known) {
		return
	}
	for _, node := range nodesOf(old, obj) {
		m.Changed(node)
	}
	if old != nil && m.Freed != nil {
		m.Freed(old.sans)
	}
}

// nodesOf returns the names that machines are known by, each once.
func nodesOf(machines ...*machine) []string {
	var all []string
	for _, m := range machines {
		if m != nil {
			all = append(append(all, nonEmpty(m.node)...), m.names...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
