// Package node is the inventory source that trusts the reports of Nodes about themselves, the weakest source. It also
// knows the names and addresses of Services and of the API servers, which no node may have.
package node

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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	netutils "k8s.io/utils/net"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// The role is for an approver of serving certificates.
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kubelet-serving,verbs=approve
// +kubebuilder:rbac:groups="",resources=nodes;services,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=list;watch

// bySAN is the index of Nodes, Services and the API server's endpoints by the names and addresses that they have.
const bySAN = "san"

// mostRechecked bounds the Nodes whose waiting requests are woken by one change of another Node.
const mostRechecked = 20

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

// Options configure a Source.
type Options struct {
	// Services enables reading Services and the API server's endpoints. Without them, Taken returns an error.
	Services bool
	// Silence is how long the watches of one resource may deliver neither an event nor a bookmark. After that, its
	// objects are not trusted until they have been read again. Zero means three minutes.
	Silence time.Duration
}

var _ inventory.NodeReports = &Source{}

// Source knows the objects in the API server: Nodes, Services and the API server's own endpoints. It answers only
// while its cache of all of them is current.
type Source struct {
	// Changed is called with the name of a Node whose names or addresses have changed. It is called with an empty
	// name once everything is read.
	Changed func(node string)
	// Freed is called with the values that a Node, a Service or the API server no longer has. Requests may wait for
	// them.
	Freed func([]san.SAN)

	nodes     *informer.Informer[*corev1.Node]
	services  *informer.Informer[*corev1.Service] // nil without Services, as are endpoints
	endpoints *informer.Informer[*discoveryv1.EndpointSlice]
	// endpointsChanged is called after an endpoint of the API server has changed.
	endpointsChanged func()
}

// New returns a Source that Start fills. httpClient may be nil.
func New(config *rest.Config, httpClient *http.Client, options Options, log logr.Logger) (*Source, error) {
	s := &Source{Changed: func(string) {}, Freed: func([]san.SAN) {}, endpointsChanged: func() {}}
	nodes, err := informer.Typed(config, httpClient, corev1.SchemeGroupVersion.WithResource("nodes"),
		&corev1.Node{}, &corev1.NodeList{})
	if err != nil {
		return nil, err
	}
	s.nodes = &informer.Informer[*corev1.Node]{
		Resource: nodes, Convert: stripNode, Indexers: indexBy(nodeSANs), OnSync: s.sync, OnChange: s.nodeChanged,
		GrantedBy: "config/kubelet-serving or config/node-identity", Silence: options.Silence,
		Log: log.WithValues("resource", "nodes"),
	}
	if !options.Services {
		return s, nil
	}
	services, err := informer.Typed(config, httpClient, corev1.SchemeGroupVersion.WithResource("services"),
		&corev1.Service{}, &corev1.ServiceList{})
	if err != nil {
		return nil, err
	}
	endpoints, err := informer.Typed(config, httpClient, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		&discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	if err != nil {
		return nil, err
	}
	s.services = &informer.Informer[*corev1.Service]{
		Resource: services, Indexers: indexBy(serviceSANs), OnSync: s.sync,
		OnChange:  func(before, after *corev1.Service) { s.free(serviceSANs(before), serviceSANs(after)) },
		GrantedBy: "config/kubelet-serving", Silence: options.Silence, Log: log.WithValues("resource", "services"),
	}
	s.endpoints = &informer.Informer[*discoveryv1.EndpointSlice]{
		Resource: endpoints, Namespace: metav1.NamespaceDefault,
		Selector: labels.Set{discoveryv1.LabelServiceName: apiServerService}.String(),
		Indexers: indexBy(sliceSANs), OnSync: s.sync,
		OnChange: func(before, after *discoveryv1.EndpointSlice) {
			if s.Err() == nil {
				s.endpointsChanged()
			}
			s.free(sliceSANs(before), sliceSANs(after))
		},
		GrantedBy: "config/kubelet-serving", Silence: options.Silence, Log: log.WithValues("resource", "endpointslices"),
	}
	return s, nil
}

// indexBy returns an index of objects by their names and addresses.
func indexBy[T any](sans func(T) []san.SAN) map[string]func(T) []string {
	return map[string]func(T) []string{bySAN: func(obj T) []string { return inventory.Keys(sans(obj)) }}
}

// stripNode keeps the fields of a Node that are used. A full Node holds kilobytes of images and conditions.
func stripNode(obj runtime.Object) *corev1.Node {
	node := obj.(*corev1.Node)
	node.ManagedFields, node.Status = nil, corev1.NodeStatus{Addresses: node.Status.Addresses}
	return node
}

// NeedLeaderElection returns false, so that the cache of a standby is current.
func (*Source) NeedLeaderElection() bool { return false }

// reader is the interface of the informers of all kinds.
type reader interface {
	Start(context.Context) error
	Err() error
}

func (s *Source) readers() []reader {
	if s.services == nil {
		return []reader{s.nodes}
	}
	return []reader{s.nodes, s.services, s.endpoints}
}

// Start runs the informers until ctx ends.
func (s *Source) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, each := range s.readers() {
		running.Go(func() { _ = each.Start(ctx) }) // it returns no error
	}
	running.Wait()
	return nil
}

// Err returns why some resource is unknown, or nil if the cache of all resources is current. A missing right takes
// precedence over a resource that was not read yet.
func (s *Source) Err() error {
	var first error
	for _, each := range s.readers() {
		if err := each.Err(); err != nil && (first == nil || errors.Is(first, informer.ErrNotRead)) {
			first = err
		}
	}
	return first
}

// sync reports that everything has been read.
func (s *Source) sync() {
	if s.Err() == nil {
		s.Changed("")
		s.endpointsChanged()
	}
}

// free reports the values that an object no longer has. Before everything is read it reports nothing, because sync
// reports everything then.
func (s *Source) free(had, has []san.SAN) {
	if gone := without(had, has); len(gone) > 0 && s.Err() == nil {
		s.Freed(gone)
	}
}

// nodeChanged reports a Node that was created or deleted, or whose addresses changed. The values that it shares with
// other Nodes may become free or contested.
func (s *Source) nodeChanged(before, after *corev1.Node) {
	if s.Err() != nil {
		return // sync reports everything
	}
	name, had, has := cmp.Or(after, before).Name, nodeSANs(before), nodeSANs(after)
	if before == nil || after == nil || !slices.Equal(had, has) {
		s.Changed(name)
	}
	gone := without(had, has)
	if gone = append(gone, s.recheck(name, append(without(has, had), gone...))...); len(gone) > 0 {
		s.Freed(gone)
	}
}

// recheck returns the values that other Nodes report, if they share a value that node has got or given up. That
// change may show which of two other Nodes is left out of the comparison, so requests for these values are judged
// again.
func (s *Source) recheck(node string, changed []san.SAN) []san.SAN {
	var sans []san.SAN
	seen := map[string]bool{node: true}
	for _, value := range changed {
		holders, err := s.Holders(value)
		if err != nil || len(holders) > 3 { // such a value is no evidence
			continue
		}
		for _, other := range holders {
			if !seen[other] && len(seen) <= mostRechecked {
				seen[other] = true
				reported, _ := s.Reported(other) // if they are unknown, sync reports everything later
				sans = append(sans, reported...)
			}
		}
	}
	return sans
}

// Name implements inventory.Source.
func (*Source) Name() string { return "node" }

// Lookup implements inventory.Source. It returns nil if no Node has that name.
func (s *Source) Lookup(_ context.Context, name string, _ *csr.Request) (*inventory.Entry, error) {
	node, err := s.Node(name)
	if node == nil || err != nil {
		return nil, err
	}
	return &inventory.Entry{
		Source: fmt.Sprintf("Node %s", name), SANs: nodeSANs(node), OwnWord: true, Bound: name,
		Created: node.CreationTimestamp.Time,
	}, nil
}

// Node returns the Node of that name, or nil if it does not exist. Callers must not change the Node, because the
// cache holds it. A node may report tens of thousands of addresses, and a copy for each lookup would cost seconds.
func (s *Source) Node(name string) (*corev1.Node, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	node, _, err := s.nodes.Get("", name)
	return node, err
}

// Nodes returns the names of all Nodes, in any order.
func (s *Source) Nodes() ([]string, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	nodes, err := s.nodes.List()
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name
	}
	return names, err
}

// Reported implements inventory.NodeReports.
func (s *Source) Reported(name string) ([]san.SAN, error) {
	node, err := s.Node(name)
	return nodeSANs(node), err
}

// Holders returns the names of the Nodes that report value, in any order. It copies no Node and costs no more than a
// lookup in a map, because the values of one Node are compared with those of all others.
func (s *Source) Holders(value san.SAN) ([]string, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	return s.nodes.KeysByIndex(bySAN, value.String())
}

// Taken returns the Service or the endpoint of the API server that has value. Both are empty if neither has it.
func (s *Source) Taken(value san.SAN) (service, endpoint string, err error) {
	if s.services == nil {
		return "", "", errors.New("no watch of Services is set up")
	}
	if err := s.Err(); err != nil {
		return "", "", err
	}
	services, err := s.services.ByIndex(bySAN, value.String())
	endpoints, endpointsErr := s.endpoints.ByIndex(bySAN, value.String())
	// Pods of any namespace resolve HOST.SERVICE.NAMESPACE, as they do SERVICE.NAMESPACE.
	if labels := strings.Split(value.Name, "."); len(labels) > 2 {
		above, exists, aboveErr := s.services.Get(labels[len(labels)-1], labels[len(labels)-2])
		if exists {
			services = append(services, above)
		}
		err = errors.Join(err, aboveErr)
	}
	if err := errors.Join(err, endpointsErr); err != nil {
		return "", "", err
	}
	var names []string
	for _, obj := range services {
		names = append(names, fmt.Sprintf("Service %s", client.ObjectKeyFromObject(obj)))
	}
	if len(names) > 0 {
		service = slices.Min(names) // the same result for any order
	}
	if len(endpoints) > 0 {
		endpoint = "an endpoint"
	}
	return service, endpoint, nil
}

// apiServers returns host:port of each endpoint of the API server.
func (s *Source) apiServers() ([]string, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	slices, err := s.endpoints.List()
	all := make([]discoveryv1.EndpointSlice, len(slices))
	for i, slice := range slices {
		all[i] = *slice
	}
	if err != nil {
		return nil, err
	}
	return probe.EndpointsOf(all)
}

// parse parses texts to names and addresses, and skips empty texts.
func parse(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		if text != "" && text != corev1.ClusterIPNone {
			all = append(all, parseSloppy(text))
		}
	}
	return all
}

// parseSloppy is san.Parse for texts that the API server stores. The API server accepts 010.0.0.1 as an address. It
// and kube-proxy read that as 10.0.0.1 (k8s.io/utils/net, ParseIPSloppy).
func parseSloppy(text string) san.SAN {
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		return san.FromIP(ip)
	}
	return san.Parse(text)
}

// nodeSANs returns the names and addresses that a Node reports. node may be nil.
func nodeSANs(node *corev1.Node) []san.SAN {
	if node == nil {
		return nil
	}
	var all []san.SAN
	for _, address := range node.Status.Addresses {
		all = append(all, parse(address.Address)...)
	}
	return all
}

// serviceSANs returns the names and addresses of a Service. They include the names by which pods of its own and of
// another namespace find it, which the search path of their resolver completes (Kubernetes, "DNS for Services and
// Pods"). They exclude the target of an ExternalName and the requested address of a load balancer: a user who may
// create a Service could block any node with them.
func serviceSANs(service *corev1.Service) []san.SAN {
	if service == nil {
		return nil
	}
	all := parse(service.Name, service.Name+"."+service.Namespace, service.Spec.ClusterIP)
	all = append(all, parse(service.Spec.ClusterIPs...)...)
	all = append(all, parse(service.Spec.ExternalIPs...)...)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		all = append(all, parse(ingress.IP, ingress.Hostname)...)
	}
	return all
}

// sliceSANs returns the addresses of the endpoints in slice.
func sliceSANs(slice *discoveryv1.EndpointSlice) []san.SAN {
	if slice == nil {
		return nil
	}
	var all []san.SAN
	for _, endpoint := range slice.Endpoints {
		all = append(all, parse(endpoint.Addresses...)...)
	}
	return all
}

// without returns the values of had that are not in has. It uses a map, because a node may report tens of thousands.
func without(had, has []san.SAN) []san.SAN {
	kept := make(map[san.SAN]bool, len(has))
	for _, value := range has {
		kept[value] = true
	}
	var gone []san.SAN
	for _, value := range had {
		if !kept[value] {
			gone = append(gone, value)
		}
	}
	return gone
}
