// Package machine is the inventory source that reads machines: the Machines of Cluster API or OpenShift, or objects
// of any kind that hold the names and addresses of a node.
package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Options selects the objects that describe machines. Paths are written as for `kubectl get -o jsonpath`, such as
// `.status.addresses`.
type Options struct {
	// Group is the API group.
	Group string `json:"group"`
	// Version is the API version. The default is the preferred one.
	Version string `json:"version,omitempty"`
	// Kind is the kind of the objects.
	Kind string `json:"kind"`
	// Namespace is the namespace of the objects. If empty, all count. In a management cluster, select this cluster's
	// machines by it or by `selector`.
	Namespace string `json:"namespace,omitempty"`
	// Selector is a label selector for the objects.
	Selector string `json:"selector,omitempty"`
	// NodeRefPath leads to the name of the Node that the machine became.
	NodeRefPath string `json:"nodeRefPath,omitempty"`
	// AddressesPath leads to addresses `{type, address}` as in a Node's status, or to plain addresses and names.
	AddressesPath string `json:"addressesPath,omitempty"`
	// NamePath leads to the name of the future Node, if `nameTypes` do not give it.
	NamePath string `json:"namePath,omitempty"`
	// NameTypes lists the types of addresses that give the name of the node.
	NameTypes []string `json:"nameTypes,omitempty"`
	// CreatedPath leads to the start of the join window. The default is the creation of the object.
	CreatedPath string `json:"createdPath,omitempty"`
}

// ClusterNameLabel is on each Machine of Cluster API. Cluster API keeps it equal to spec.clusterName.
const ClusterNameLabel = "cluster.x-k8s.io/cluster-name"

// ClusterAPI returns the options for cluster.x-k8s.io, in any version since v1alpha3, because all have these fields.
// They select the Machines of all clusters. Select those of one cluster by ClusterNameLabel.
func ClusterAPI() Options {
	return Options{
		Group: "cluster.x-k8s.io", Kind: "Machine",
		NodeRefPath: ".status.nodeRef.name", AddressesPath: ".status.addresses",
		// Infrastructure providers name a node after its host or after their own machine.
		NamePath:  ".spec.infrastructureRef.name",
		NameTypes: []string{string(corev1.NodeHostName), string(corev1.NodeInternalDNS)},
	}
}

// OpenShift returns the options for machine.openshift.io. A node has one of its machine's internal DNS names.
func OpenShift() Options {
	return Options{
		Group: "machine.openshift.io", Version: "v1beta1", Kind: "Machine", Namespace: "openshift-machine-api",
		NodeRefPath: ".status.nodeRef.name", AddressesPath: ".status.addresses",
		NameTypes: []string{string(corev1.NodeInternalDNS)},
	}
}

// discoveryTimeout bounds each discovery call.
const discoveryTimeout = 10 * time.Second

var _ inventory.Owner = &Source{}

// Source is the inventory source that reads machines.
type Source struct {
	// Changed is called with each node that a changed machine described before or after the change.
	Changed inventory.Changed

	options   Options
	client    dynamic.Interface
	newMapper func() (meta.RESTMapper, error) // discovers which kinds are installed
	machines  *informer.Informer[*machine]
}

// The indices of machines.
const (
	byNodeRef = "nodeRef"
	byName    = "name"
	bySAN     = "san"
)

// New returns a Source that reads from the cluster of config. It may be another cluster than that of the nodes.
func New(config *rest.Config, options Options, log logr.Logger) (*Source, error) {
	if options.Kind == "" {
		return nil, errors.New("kind: set the kind of the machine objects")
	}
	selector, err := labels.Parse(options.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	paths, err := parsePaths(options)
	if err != nil {
		return nil, err
	}
	s := &Source{Changed: func(string, ...san.SAN) {}, options: options}
	if s.client, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("read machines: %w", err)
	}
	impatient := rest.CopyConfig(config)
	impatient.Timeout = discoveryTimeout
	httpClient, err := rest.HTTPClientFor(impatient)
	if err != nil {
		return nil, fmt.Errorf("read machines: %w", err)
	}
	s.newMapper = func() (meta.RESTMapper, error) { return apiutil.NewDynamicRESTMapper(impatient, httpClient) }
	s.machines = &informer.Informer[*machine]{
		Find: s.find, Selector: selector.String(), Convert: paths.read,
		Indexers: map[string]func(*machine) []string{
			byNodeRef: func(m *machine) []string {
				if m.node == "" {
					return nil
				}
				return []string{m.node}
			},
			byName: func(m *machine) []string { return m.names },
			bySAN:  func(m *machine) []string { return ca.Texts(m.sans) },
		},
		OnSync: func() { s.Changed("") }, OnChange: s.machineChanged,
		GrantedBy: map[string]string{
			"cluster.x-k8s.io": "config/inventory-cluster-api", "machine.openshift.io": "config/inventory-openshift",
		}[options.Group],
		Log: log.WithValues("kind", options.Kind, "group", options.Group),
	}
	return s, nil
}

// Start reads the machines until ctx ends.
func (s *Source) Start(ctx context.Context) error { return s.machines.Start(ctx) }

// NeedLeaderElection returns false, because a standby reads too.
func (*Source) NeedLeaderElection() bool { return false }

// Name implements inventory.Source.
func (*Source) Name() string { return "machine" }

// find returns the resource of the machines in the version that the API server prefers. It may not be installed yet.
func (s *Source) find() (informer.Resource, error) {
	mapper, err := s.newMapper() // because a version that an earlier one knows may be gone
	if err != nil {
		return informer.Resource{}, fmt.Errorf("discover: %w", err)
	}
	var versions []string // all
	if s.options.Version != "" {
		versions = []string{s.options.Version}
	}
	found, err := mapper.RESTMapping(schema.GroupKind{Group: s.options.Group, Kind: s.options.Kind}, versions...)
	if err != nil {
		return informer.Resource{}, fmt.Errorf("%s is not installed yet, or can't be discovered: %w",
			strings.TrimSpace(s.kind()+" "+s.options.Version), err)
	}
	return informer.Of(found.Resource, s.client.Resource(found.Resource).Namespace(s.options.Namespace)), nil
}

// kind returns the kind with its group, for messages.
func (s *Source) kind() string { return strings.Trim(s.options.Kind+"."+s.options.Group, ".") }

// machineChanged reports all nodes that a machine described before or after a change, with what the machine had. The name of a
// machine stands for a node that is not known yet.
func (s *Source) machineChanged(before, after *machine) {
	before, after = cmp.Or(before, &machine{}), cmp.Or(after, &machine{})
	if reflect.DeepEqual(before.known, after.known) {
		return
	}
	nodes := slices.Concat([]string{before.node, after.node}, before.names, after.names)
	nodes = slices.DeleteFunc(nodes, func(node string) bool { return node == "" })
	if len(nodes) == 0 { // requests of other nodes may wait for what it had
		nodes = []string{cmp.Or(before.Name, after.Name)}
	}
	for _, node := range nodes {
		s.Changed(node, before.sans...)
	}
}

// Lookup implements inventory.Source. It returns the machine that has become the node, or else the machine whose node
// will have that name. A machine that has become another node counts only if there is no machine without a node: once
// a machine has a nodeRef, that alone says which node it is. What several machines list belongs to none of them.
func (s *Source) Lookup(_ context.Context, node string, _ *csr.Request) (*inventory.Entry, error) {
	became, err := s.having(byNodeRef, node)
	if err != nil {
		return nil, err
	}
	named, err := s.having(byName, node)
	if err != nil {
		return nil, err
	}
	unbound := slices.DeleteFunc(slices.Clone(named), func(m *machine) bool { return m.node != "" })
	for _, found := range [][]*machine{became, unbound} {
		// A machine that is being deleted is replaced by a machine that is not.
		if stay := slices.DeleteFunc(slices.Clone(found), func(m *machine) bool { return m.leaving }); len(stay) > 0 {
			found = stay
		}
		switch len(found) {
		case 0:
		case 1:
			return s.entry(found[0], node)
		default: // no source can decide which of them is right
			names := make([]string, len(found))
			for i, m := range found {
				names[i] = m.describe(s.options.Kind)
			}
			return nil, fmt.Errorf("node %s is claimed by %s: delete or rename all but one",
				node, strings.Join(names, " and by "))
		}
	}
	if len(named) > 0 {
		return named[0].entry(s.options.Kind, node)
	}
	return nil, nil
}

// entry returns the entry for node that m describes, without what another machine lists too. A machine that is being
// deleted takes nothing from one that stays.
func (s *Source) entry(m *machine, node string) (*inventory.Entry, error) {
	entry, err := m.entry(s.options.Kind, node)
	if err != nil {
		return nil, err
	}
	var own []san.SAN
	shared := &inventory.Entry{}
	for _, value := range entry.SANs {
		all, err := s.having(bySAN, value.String())
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other *machine) bool {
			return (!other.leaving || m.leaving) && other.describe("") != m.describe("")
		}) {
			shared.SANs = append(shared.SANs, value)
		} else {
			own = append(own, value)
		}
	}
	if entry.SANs = own; !shared.Empty() {
		entry.Source += fmt.Sprintf(", without what other machines list too (%s)", shared)
	}
	return entry, nil
}

// Owner implements inventory.Owner. A machine has its addresses whether or not it has become a node. If some of its
// fields can't be read, the other fields count.
func (s *Source) Owner(value san.SAN) (string, error) {
	found, err := s.having(bySAN, value.String())
	if err != nil || len(found) == 0 {
		return "", err
	}
	owner := found[0].describe(s.options.Kind)
	if found[0].node != "" {
		owner += fmt.Sprintf(" (node %s)", found[0].node)
	}
	return owner, nil
}

// having returns the machines that have key in an index, in order.
func (s *Source) having(index, key string) ([]*machine, error) {
	found, err := s.machines.ByIndex(index, key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.kind(), err)
	}
	slices.SortFunc(found, func(a, b *machine) int { return strings.Compare(a.describe(""), b.describe("")) })
	return found, nil
}
