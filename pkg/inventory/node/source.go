// Package node knows nodes by what they report of themselves, which is the weakest of sources. It also knows what
// else the API server has: the names and addresses of Services, and of the API servers, which no node may have.
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
// +kubebuilder:rbac:groups="",resources=nodes;services,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=get;list;watch

// bySAN is the index of Nodes, Services and the API server's endpoints by the names and addresses that they have.
const bySAN = "san"

// mostRechecked bounds the Nodes whose waiting requests are woken by one change of another Node.
const mostRechecked = 20

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

// Options say what a Source reads.
type Options struct {
	// Services makes it read Services and the API server's endpoints too. Without them, Taken has no answer.
	Services bool
	// Silence is how long watches of one resource may bring neither an event nor a bookmark before what was read is not
	// believed until it has been read again. Zero is three minutes.
	Silence time.Duration
}

var _ inventory.NodeReports = &Source{}

// Source knows what is in the API server: Nodes, Services and its own endpoints. It answers only while its copy of
// all of them is current.
type Source struct {
	// Changed is called with the name of a Node that has changed in what it has, and with an empty name once all is read.
	Changed func(node string)
	// Freed is called with what a Node, a Service or the API server has no more: others may wait for it.
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

// indexBy returns an index by the names and addresses of objects.
func indexBy[T any](sans func(T) []san.SAN) map[string]func(T) []string {
	return map[string]func(T) []string{bySAN: func(obj T) []string { return inventory.Keys(sans(obj)) }}
}

// stripNode keeps what is used of a Node, which holds kilobytes of images and conditions.
func stripNode(obj runtime.Object) *corev1.Node {
	node := obj.(*corev1.Node)
	node.ManagedFields, node.Status = nil, corev1.NodeStatus{Addresses: node.Status.Addresses}
	return node
}

// NeedLeaderElection returns false: a standby is warm.
func (*Source) NeedLeaderElection() bool { return false }

// reader is what the informers of all kinds have in common.
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

// Start reads until ctx ends.
func (s *Source) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, each := range s.readers() {
		running.Go(func() { _ = each.Start(ctx) }) // it returns no error
	}
	running.Wait()
	return nil
}

// Err returns why something is not known, or nil: then all that has been read is current. It prefers a missing right
// to a resource that was not read yet.
func (s *Source) Err() error {
	var first error
	for _, each := range s.readers() {
		if err := each.Err(); err != nil && (first == nil || errors.Is(first, informer.ErrNotRead)) {
			first = err
		}
	}
	return first
}

// sync reports that all has been read.
func (s *Source) sync() {
	if s.Err() == nil {
		s.Changed("")
		s.endpointsChanged()
	}
}

// free reports what an object has no more. Until all is read it reports nothing, as sync reports all then.
func (s *Source) free(had, has []san.SAN) {
	if gone := without(had, has); len(gone) > 0 && s.Err() == nil {
		s.Freed(gone)
	}
}

// nodeChanged reports a Node that was created, deleted, or got other addresses. With it, other Nodes may get or lose
// what they share with it.
func (s *Source) nodeChanged(before, after *corev1.Node) {
	if s.Err() != nil {
		return // sync reports all
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

// recheck returns what those other Nodes report that share a value which node has got or given up. That change may show
// which of two other Nodes is left out of the comparison, so requests for these values are judged again.
func (s *Source) recheck(node string, changed []san.SAN) []san.SAN {
	var sans []san.SAN
	seen := map[string]bool{node: true}
	for _, value := range changed {
		holders, err := s.Holders(value)
		if err != nil || len(holders) > 3 { // such a value shows nothing
			continue
		}
		for _, other := range holders {
			if !seen[other] && len(seen) <= mostRechecked {
				seen[other] = true
				reported, _ := s.Reported(other) // if it is not known, sync reports all once it is
				sans = append(sans, reported...)
			}
		}
	}
	return sans
}

// Name implements inventory.Source.
func (*Source) Name() string { return "node" }

// Lookup implements inventory.Source. It knows no node without a Node.
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

// Node returns the Node of that name, or nil if it does not exist. It is the cache's own, to be read only: a node may
// report tens of thousands of addresses, and a copy for each lookup would cost seconds.
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
// lookup in a map: the values of one Node are compared with those of all others.
func (s *Source) Holders(value san.SAN) ([]string, error) {
	if err := s.Err(); err != nil {
		return nil, err
	}
	return s.nodes.KeysByIndex(bySAN, value.String())
}

// Taken returns which Service, or which endpoint of the API server, has value. Both are empty if none has.
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
	for _, obj := range services { // always the same of several
		if name := fmt.Sprintf("Service %s", client.ObjectKeyFromObject(obj)); service == "" || name < service {
			service = name
		}
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

// parse returns the names and addresses in texts, without empty ones.
func parse(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		if text != "" && text != corev1.ClusterIPNone {
			all = append(all, parseSloppy(text))
		}
	}
	return all
}

// parseSloppy is inventory.ParseSAN for what the API server stores. It accepts 010.0.0.1 as an address, and it and
// kube-proxy read that as 10.0.0.1 (k8s.io/utils/net, ParseIPSloppy).
func parseSloppy(text string) san.SAN {
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		return san.FromIP(ip)
	}
	return san.Parse(text)
}

// nodeSANs returns what a Node, which may be nil, reports.
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

// serviceSANs returns what a Service has, with the names by which pods find a Service of their own and of another
// namespace, which the search path of their resolver completes (Kubernetes, "DNS for Services and Pods"). It leaves
// out the target of an ExternalName and the requested address of a load balancer: a person who may create a Service
// could block any node with them.
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

// without returns those of had that are not in has: a node may report tens of thousands.
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
