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

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"

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

// The indices of Nodes, Services and the API server's endpoints by their names and addresses.
const (
	bySAN       = "san"
	byPublished = "published"
)

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

var _ inventory.Source = &Source{}

// Source knows the objects in the API server: Nodes, and if it was created with them, Services and the API server's own
// endpoints. Each method is one lookup in an index, however many addresses an object has.
type Source struct {
	// Changed is called with the name of a Node that was created or deleted, or whose names or addresses have changed. It
	// is called with an empty name after all objects of a kind were read.
	Changed func(node string)
	// Freed is called with the values that a Node, a Service or the API server no longer has. Requests may wait for
	// them.
	Freed func([]san.SAN)

	nodes     *informer.Informer[*object]
	services  *informer.Informer[*object] // nil without Services, as are endpoints
	endpoints *informer.Informer[*discoveryv1.EndpointSlice]
	// endpointsChanged is called after an endpoint of the API server has changed.
	endpointsChanged func()
}

// New returns a Source that Start fills. services enables reading Services and the API server's endpoints.
func New(config *rest.Config, httpClient *http.Client, services bool, log logr.Logger) (*Source, error) {
	s := &Source{Changed: func(string) {}, Freed: func([]san.SAN) {}, endpointsChanged: func() {}}
	api, err := corev1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	slices, err := discoveryv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	s.nodes = s.newNodes(api, log)
	if services {
		s.services, s.endpoints = s.newServices(api, log), s.newEndpoints(slices, log)
	}
	return s, nil
}

func (s *Source) newNodes(api corev1client.NodesGetter, log logr.Logger) *informer.Informer[*object] {
	return &informer.Informer[*object]{
		Resource: informer.Of(corev1.SchemeGroupVersion.WithResource("nodes"), api.Nodes()),
		Convert:  s.convertNode, OnSync: s.sync, OnChange: s.nodeChanged,
		Indexers: map[string]func(*object) []string{
			bySAN: func(obj *object) []string { return inventory.Keys(append(obj.own(), obj.sans...)) },
		},
		GrantedBy: "config/kubelet-serving or config/node-identity", Log: log.WithValues("resource", "nodes"),
	}
}

func (s *Source) newServices(api corev1client.ServicesGetter, log logr.Logger) *informer.Informer[*object] {
	return &informer.Informer[*object]{
		Resource: informer.Of(corev1.SchemeGroupVersion.WithResource("services"), api.Services("")),
		Convert:  serviceObject, OnSync: s.sync, OnChange: s.serviceChanged,
		Indexers: map[string]func(*object) []string{
			bySAN:       func(obj *object) []string { return inventory.Keys(obj.sans) },
			byPublished: func(obj *object) []string { return inventory.Keys(obj.published) },
		},
		GrantedBy: "config/kubelet-serving", Log: log.WithValues("resource", "services"),
	}
}

func (s *Source) newEndpoints(
	api discoveryv1client.EndpointSlicesGetter, log logr.Logger,
) *informer.Informer[*discoveryv1.EndpointSlice] {
	resource := discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	return &informer.Informer[*discoveryv1.EndpointSlice]{
		Resource: informer.Of(resource, api.EndpointSlices(metav1.NamespaceDefault)),
		Selector: labels.Set{discoveryv1.LabelServiceName: apiServerService}.String(),
		Indexers: map[string]func(*discoveryv1.EndpointSlice) []string{
			bySAN: func(slice *discoveryv1.EndpointSlice) []string { return inventory.Keys(sliceSANs(slice)) },
		},
		OnSync: func() { s.endpointsChanged(); s.sync() },
		OnChange: func(before, after *discoveryv1.EndpointSlice) {
			s.endpointsChanged()
			s.free(without(sliceSANs(before), sliceSANs(after)))
		},
		GrantedBy: "config/kubelet-serving", Log: log.WithValues("resource", "endpointslices"),
	}
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

// Err returns why some resource is unknown, or nil.
func (s *Source) Err() error {
	var errs []error
	for _, each := range s.readers() {
		errs = append(errs, each.Err())
	}
	return errors.Join(errs...)
}

// sync reports that all objects of a kind were read: any of them may have changed.
func (s *Source) sync() { s.Changed("") }

func (s *Source) free(gone []san.SAN) {
	if len(gone) > 0 {
		s.Freed(gone)
	}
}

// convertNode returns the copy that is kept of a Node, which is the last copy after a heartbeat.
func (s *Source) convertNode(obj runtime.Object) *object {
	before, _, _ := s.nodes.Get("", obj.(*corev1.Node).Name) // nil if there is none
	return nodeObject(obj, before)
}

// nodeChanged reports a Node that was created or deleted, or whose names or addresses changed. A value that it no longer
// has may become free for another Node.
func (s *Source) nodeChanged(before, after *object) {
	if before != nil && after != nil && slices.Equal(before.sans, after.sans) {
		return // a heartbeat
	}
	s.Changed(cmp.Or(after, before).Name)
	gone := without(before.has(), after.has())
	if after == nil {
		gone = append(gone, before.own()...)
	}
	s.free(gone)
}

func (s *Source) serviceChanged(before, after *object) {
	gone := without(before.has(), after.has())
	if after == nil {
		gone = append(gone, san.Parse(before.Name+"."+before.Namespace))
	}
	s.free(gone)
}

// Name implements inventory.Source.
func (*Source) Name() string { return "node" }

// Lookup implements inventory.Source. It returns nil if no Node has that name. Holders knows what the Node reports.
func (s *Source) Lookup(_ context.Context, name string, _ *csr.Request) (*inventory.Entry, error) {
	node, found, err := s.nodes.Get("", name)
	if !found || err != nil {
		return nil, err
	}
	return &inventory.Entry{
		Source: fmt.Sprintf("Node %s", name), SANs: node.sans, OwnWord: true, Bound: name, Created: node.CreationTimestamp.Time,
	}, nil
}

// Exists reports whether a Node has that name.
func (s *Source) Exists(name string) (bool, error) {
	_, found, err := s.nodes.Get("", name)
	return found, err
}

// Holders returns the names of the Nodes that report value or have it as their name (inventory.IsName), in any order.
func (s *Source) Holders(value san.SAN) ([]string, error) {
	return s.nodes.KeysByIndex(bySAN, value.String())
}

// errNoServices is the error of a Source that was created without Services.
var errNoServices = errors.New("no watch of Services is set up")

// Service returns the Service that has value as its cluster address, or as a name by which pods find it or one of its
// hosts: SERVICE, SERVICE.NAMESPACE or HOST.SERVICE.NAMESPACE (Kubernetes, "DNS for Services and Pods"). The text is
// empty if there is none.
func (s *Source) Service(value san.SAN) (string, error) {
	if s.services == nil {
		return "", errNoServices
	}
	if rest, namespace, found := cutLast(value.Name); found && strings.Count(rest, ".") <= 1 {
		name := rest[strings.LastIndex(rest, ".")+1:]
		if _, exists, err := s.services.Get(namespace, name); exists || err != nil {
			return fmt.Sprintf("Service %s/%s", namespace, name), err
		}
	}
	return first(s.services.KeysByIndex(bySAN, value.String()))
}

// Publisher returns the Service that publishes value as an external address, or as the address or name of its load
// balancer. The text is empty if there is none.
func (s *Source) Publisher(value san.SAN) (string, error) {
	if s.services == nil {
		return "", errNoServices
	}
	return first(s.services.KeysByIndex(byPublished, value.String()))
}

// Endpoint reports whether value is the address of an endpoint of the Service kubernetes.
func (s *Source) Endpoint(value san.SAN) (bool, error) {
	if s.endpoints == nil {
		return false, errNoServices
	}
	found, err := s.endpoints.KeysByIndex(bySAN, value.String())
	return len(found) > 0, err
}

// apiServers returns host:port of each endpoint of the API server.
func (s *Source) apiServers() ([]string, error) {
	found, err := s.endpoints.List()
	if err != nil {
		return nil, err
	}
	all := make([]discoveryv1.EndpointSlice, len(found))
	for i, slice := range found {
		all[i] = *slice
	}
	return probe.EndpointsOf(all)
}

// first returns the Service with the first of keys, so that the result is the same for any order.
func first(keys []string, err error) (string, error) {
	if len(keys) == 0 || err != nil {
		return "", err
	}
	return "Service " + slices.Min(keys), nil
}

// cutLast splits name before its last label.
func cutLast(name string) (rest, last string, found bool) {
	at := strings.LastIndex(name, ".")
	if at < 0 {
		return "", "", false
	}
	return name[:at], name[at+1:], true
}
