package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The role is for an approver of serving certificates.
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kubelet-serving,verbs=approve
// +kubebuilder:rbac:groups="",resources=nodes;services,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=get;list;watch

// bySAN is the index of Nodes, Services and the API server's endpoints by the names and addresses that they have.
const bySAN = "san"

// mostRechecked bounds the Nodes whose waiting requests are woken by one change of another Node.
const mostRechecked = 20

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

// Cluster is what the API server itself knows: its Nodes, as the weakest of sources since a node reports its own
// addresses, and what Services and the API server have.
type Cluster struct {
	// Changed, if set, is called after the Node of that name has changed in what it has, and with an empty name once all is
	// read.
	Changed func(node string)
	// Freed, if set, is called with what a Node, a Service or the API server has no more: others may wait for it.
	Freed func([]SAN)
	// Silence is how long watches of one resource may bring neither an event nor a bookmark before what was read is not
	// believed until it has been read again. Zero is three minutes. An API server sends a bookmark each minute.
	Silence time.Duration
	// Endpoints, if set, is called after an endpoint of the API server has changed.
	Endpoints func()

	nodes, services, endpoints *view // the last two are nil without services
}

var _ NodeReports = &Cluster{}

// NewCluster returns a Cluster that Start fills. httpClient may be nil. Without services it reads Nodes only, and Taken has
// no answer.
func NewCluster(config *rest.Config, httpClient *http.Client, services bool, log logr.Logger) (*Cluster, error) {
	clientset, err := protobufClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read Nodes and Services: %w", err)
	}
	c := &Cluster{}
	c.nodes = c.view(typedUpstream(clientset.CoreV1().RESTClient(), corev1.SchemeGroupVersion.WithResource("nodes"), "",
		&corev1.Node{}, &corev1.NodeList{}), nodeSANs, log)
	c.nodes.typed.trim = stripNode
	if services {
		c.services = c.view(typedUpstream(clientset.CoreV1().RESTClient(), corev1.SchemeGroupVersion.WithResource("services"), "",
			&corev1.Service{}, &corev1.ServiceList{}), serviceSANs, log)
		c.endpoints = c.view(typedUpstream(clientset.DiscoveryV1().RESTClient(), discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
			metav1.NamespaceDefault, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}), sliceSANs, log)
		c.endpoints.narrow = func(options *metav1.ListOptions) {
			options.LabelSelector = labels.Set{discoveryv1.LabelServiceName: apiServerService}.String()
		}
	}
	return c, nil
}

// view returns a view that finds objects by the names and addresses that they have.
func (c *Cluster) view(from *upstream, sans func(any) []SAN, log logr.Logger) *view {
	return &view{
		typed:    from,
		narrow:   func(*metav1.ListOptions) {},
		indexers: toolscache.Indexers{bySAN: func(obj any) ([]string, error) { return keys(sans(obj)), nil }},
		changed:  func(before, after metav1.Object) { c.tell(sans, before, after) },
		retry:    retryEvery,
		log:      log.WithValues("resource", from.resource.Resource),
		err:      errNotRead,
	}
}

// stripNode keeps what is looked at: a Node holds kilobytes of images and conditions.
func stripNode(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Status = nil, corev1.NodeStatus{Addresses: node.Status.Addresses}
	}
}

// NeedLeaderElection says no: a standby's view is to be warm.
func (*Cluster) NeedLeaderElection() bool { return false }

// Start reads until ctx ends.
func (c *Cluster) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, each := range c.views() {
		each.silence = c.Silence
		running.Go(func() { each.run(ctx) })
	}
	running.Wait()
	return nil
}

func (c *Cluster) views() []*view {
	all := []*view{c.nodes}
	if c.services != nil {
		all = append(all, c.services, c.endpoints)
	}
	return all
}

// unread returns why something is not known, or nil: then all that has been read is current. A right that is missing is named
// rather than what is read a moment later.
func (c *Cluster) unread() error {
	var first error
	for _, each := range c.views() {
		if _, err := each.read(); err != nil && (first == nil || IsUnread(first)) {
			first = err
		}
	}
	return first
}

// tell passes on what has changed: a Node by name, whether it has come, gone or got other addresses; that endpoints have;
// and the names and addresses for which other requests may wait. With neither object anything may have changed.
func (c *Cluster) tell(sans func(any) []SAN, before, after metav1.Object) {
	if c.unread() != nil {
		return // all is looked at when all has been read
	}
	if before == nil && after == nil {
		c.changed("")
		c.endpointsChanged()
		return
	}
	had, has := sans(before), sans(after)
	gone := without(had, has)
	switch obj := cmp.Or(after, before).(type) {
	case *corev1.Node:
		if before == nil || after == nil || !slices.Equal(had, has) {
			c.changed(obj.Name)
		}
		gone = append(gone, c.recheck(obj.Name, append(without(has, had), gone...))...)
	case *discoveryv1.EndpointSlice:
		c.endpointsChanged()
	}
	if len(gone) > 0 && c.Freed != nil {
		c.Freed(gone)
	}
}

func (c *Cluster) endpointsChanged() {
	if c.Endpoints != nil {
		c.Endpoints()
	}
}

func (c *Cluster) changed(node string) {
	if c.Changed != nil {
		c.Changed(node)
	}
}

// Name is the source's.
func (*Cluster) Name() string { return "node" }

// Lookup answers with the addresses that the Node reports, and knows no node that has no Node.
func (c *Cluster) Lookup(ctx context.Context, name string, _ *csr.Request) (*Entry, error) {
	node, err := c.Node(ctx, name)
	if node == nil || err != nil {
		return nil, err
	}
	return &Entry{Source: fmt.Sprintf("Node %s", name), SANs: nodeSANs(node), OwnWord: true, Bound: name, Created: node.CreationTimestamp.Time}, nil
}

// Node returns the Node of that name, or nil when there is none. It is the cache's own, to be read only: a node may report
// tens of thousands of addresses, and a copy for each look would cost seconds.
func (c *Cluster) Node(_ context.Context, name string) (*corev1.Node, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	nodes, err := c.nodes.read()
	if err != nil {
		return nil, err
	}
	obj, found, err := nodes.GetByKey(name)
	if err != nil || !found {
		return nil, err
	}
	return obj.(*corev1.Node), nil
}

// Reported returns what the Node of that name reports.
func (c *Cluster) Reported(node string) ([]SAN, error) {
	obj, err := c.Node(context.Background(), node) //nolint:forbidigo // nothing is waited for: it is in memory
	if obj == nil || err != nil {
		return nil, err
	}
	return nodeSANs(obj), nil
}

// recheck returns what other Nodes report that share a value that node has got or given up: that may show which of two
// others is left out of the comparison, so requests for these values are looked at again.
func (c *Cluster) recheck(node string, changed []SAN) []SAN {
	var sans []SAN
	seen := map[string]bool{node: true}
	for _, san := range changed {
		holders, err := c.Holders(san)
		if err != nil || len(holders) > 3 { // such a value shows nothing
			continue
		}
		for _, other := range holders {
			if !seen[other] && len(seen) <= mostRechecked {
				seen[other] = true
				reported, _ := c.Reported(other) // if it is not known, all is looked at once it is
				sans = append(sans, reported...)
			}
		}
	}
	return sans
}

// Holders returns the names of the Nodes that report san, in any order. It copies no Node and costs no more than a lookup
// in a map: the values of one Node are compared with those of all others.
func (c *Cluster) Holders(san SAN) ([]string, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	nodes, err := c.nodes.read()
	if err != nil {
		return nil, err
	}
	return nodes.IndexKeys(bySAN, san.String())
}

// Nodes returns the names of all Nodes, in any order.
func (c *Cluster) Nodes() ([]string, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	nodes, err := c.nodes.read()
	if err != nil {
		return nil, err
	}
	return nodes.ListKeys(), nil
}

// apiServers returns host:port of each endpoint of the API server.
func (c *Cluster) apiServers() ([]string, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	store, err := c.endpoints.read()
	if err != nil {
		return nil, err
	}
	var all []discoveryv1.EndpointSlice
	for _, obj := range store.List() {
		all = append(all, *obj.(*discoveryv1.EndpointSlice))
	}
	return probe.EndpointsOf(all)
}

// Taken says which Service, or which endpoint of the API server, has san; both are empty when none has.
func (c *Cluster) Taken(_ context.Context, san SAN) (service, endpoint string, err error) {
	if c.services == nil {
		return "", "", errors.New("no watch of Services is set up")
	}
	services, err := c.having(c.services, san)
	if err != nil {
		return "", "", err
	}
	above, err := c.servicesAbove(san)
	if err != nil {
		return "", "", err
	}
	endpoints, err := c.having(c.endpoints, san)
	if err != nil {
		return "", "", err
	}
	for _, obj := range slices.Concat(services, above) { // always the same of several
		if name := fmt.Sprintf("Service %s", client.ObjectKeyFromObject(obj.(*corev1.Service))); service == "" || name < service {
			service = name
		}
	}
	if len(endpoints) > 0 {
		endpoint = "an endpoint"
	}
	return service, endpoint, nil
}

// servicesAbove returns the Service of which san names a host: pods of any namespace resolve HOST.SERVICE.NAMESPACE, as they do
// SERVICE.NAMESPACE.
func (c *Cluster) servicesAbove(san SAN) ([]any, error) {
	labels := strings.Split(san.Name, ".")
	if len(labels) < 3 {
		return nil, nil
	}
	service := client.ObjectKey{Namespace: labels[len(labels)-1], Name: labels[len(labels)-2]}
	found, err := c.having(c.services, SAN{Name: service.Name + "." + service.Namespace})
	return slices.DeleteFunc(found, func(obj any) bool { // it may be a host name of a load balancer
		return client.ObjectKeyFromObject(obj.(*corev1.Service)) != service
	}), err
}

// having lists, without copies, the objects of from that have san.
func (c *Cluster) having(from *view, san SAN) ([]any, error) {
	if err := c.unread(); err != nil {
		return nil, err
	}
	store, err := from.read()
	if err != nil {
		return nil, err
	}
	return store.ByIndex(bySAN, san.String())
}
