// Package node is the inventory source that trusts the reports of Nodes about themselves, the weakest source. It also
// knows the names and addresses of Services and of the API servers, which no node may have.
package node

import (
	"context"
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
	"k8s.io/apimachinery/pkg/util/sets"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
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
	// Changed is called after a Node was created or deleted, or its names or addresses have changed.
	Changed inventory.Changed

	nodes, services *informer.Informer[*object]
	endpoints       *informer.Informer[*discoveryv1.EndpointSlice]
	// endpointsChanged is called after an endpoint of the API server has changed.
	endpointsChanged func()
	watches          []func(context.Context) error // those that Start runs: the others are never read
}

// New returns a Source that Start fills. services enables reading Services and the API server's endpoints.
func New(config *rest.Config, httpClient *http.Client, services bool, log logr.Logger) (*Source, error) {
	s := &Source{Changed: func(string, ...san.SAN) {}, endpointsChanged: func() {}}
	api, err := corev1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	discovered, err := discoveryv1client.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	everything := func() { s.Changed("") }
	s.nodes = &informer.Informer[*object]{
		Resource: informer.Of(corev1.SchemeGroupVersion.WithResource("nodes"), api.Nodes()),
		Convert:  nodeObject, OnSync: everything, OnChange: s.nodeChanged,
		Indexers: map[string]func(*object) []string{
			bySAN: func(obj *object) []string { return ca.Texts(obj.has()) },
		},
		GrantedBy: "config/kubelet-serving or config/node-identity", Log: log.WithValues("resource", "nodes"),
	}
	s.services = &informer.Informer[*object]{
		Resource: informer.Of(corev1.SchemeGroupVersion.WithResource("services"), api.Services("")),
		Convert:  serviceObject, OnSync: everything,
		OnChange: func(before, after *object) {
			if after == nil { // requests may wait for what the deleted Service had
				s.Changed(before.Name, append([]san.SAN{san.Parse(before.Name + "." + before.Namespace)}, before.sans...)...)
			}
		},
		Indexers: map[string]func(*object) []string{
			bySAN:       func(obj *object) []string { return ca.Texts(obj.sans) },
			byPublished: func(obj *object) []string { return ca.Texts(obj.published) },
		},
		GrantedBy: "config/kubelet-serving", Log: log.WithValues("resource", "services"),
	}
	s.endpoints = &informer.Informer[*discoveryv1.EndpointSlice]{
		Resource: informer.Of(discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), discovered.EndpointSlices(metav1.NamespaceDefault)),
		Selector: labels.Set{discoveryv1.LabelServiceName: apiServerService}.String(),
		OnSync:   func() { s.endpointsChanged(); everything() },
		OnChange: func(_, _ *discoveryv1.EndpointSlice) { s.endpointsChanged() },
		Indexers: map[string]func(*discoveryv1.EndpointSlice) []string{
			bySAN: func(slice *discoveryv1.EndpointSlice) []string { return ca.Texts(inventory.EndpointSANs(slice)) },
		},
		GrantedBy: "config/kubelet-serving", Log: log.WithValues("resource", "endpointslices"),
	}
	s.watches = []func(context.Context) error{s.nodes.Start}
	if services {
		s.watches = append(s.watches, s.services.Start, s.endpoints.Start)
	}
	return s, nil
}

// NeedLeaderElection returns false, so that the cache of a standby is current.
func (*Source) NeedLeaderElection() bool { return false }

// Start runs the informers until ctx ends.
func (s *Source) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, watch := range s.watches {
		running.Go(func() { _ = watch(ctx) }) // it returns no error
	}
	running.Wait()
	return nil
}

// nodeChanged reports a Node that was created or deleted, or whose names or addresses changed, with what it no longer has.
func (s *Source) nodeChanged(before, after *object) {
	switch {
	case before == nil:
		s.Changed(after.Name)
	case after == nil:
		s.Changed(before.Name, before.has()...)
	case !slices.Equal(before.sans, after.sans): // otherwise it is a heartbeat
		kept := sets.New(after.has()...)
		s.Changed(before.Name, slices.DeleteFunc(slices.Clone(before.has()), kept.Has)...)
	}
}

// Name implements inventory.Source.
func (*Source) Name() string { return "node" }

// Lookup implements inventory.Source. It returns nil if no Node has that name. Holders knows what the Node reports.
func (s *Source) Lookup(_ context.Context, name string, _ *csr.Request) (*inventory.Entry, error) {
	node, found, err := s.nodes.Get("", name)
	if !found || err != nil {
		return nil, err
	}
	return inventory.NodeEntry(name, node.sans, node.CreationTimestamp.Time), nil
}

// Holders returns the names of the Nodes that report value or have it as their name (inventory.IsName), in any order.
func (s *Source) Holders(value san.SAN) ([]string, error) {
	nodes, err := s.nodes.ByIndex(bySAN, value.String())
	names := make([]string, len(nodes))
	for i, node := range nodes {
		names[i] = node.Name
	}
	return names, err
}

// Service returns the Service that has value as its cluster address, or as a name by which pods find it or one of its hosts
// (inventory.ServiceOf). The text is empty if there is none.
func (s *Source) Service(value san.SAN) (string, error) {
	if namespace, name, may := inventory.ServiceOf(value); may {
		if _, exists, err := s.services.Get(namespace, name); exists || err != nil {
			return inventory.ServiceText(namespace, name), err
		}
	}
	return first(s.services.ByIndex(bySAN, value.String()))
}

// Publisher returns the Service that publishes value as an external address, or as the address or name of its load
// balancer. The text is empty if there is none.
func (s *Source) Publisher(value san.SAN) (string, error) {
	return first(s.services.ByIndex(byPublished, value.String()))
}

// Endpoint reports whether value is the address of an endpoint of the Service kubernetes.
func (s *Source) Endpoint(value san.SAN) (bool, error) {
	found, err := s.endpoints.ByIndex(bySAN, value.String())
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

// first describes the first of services by name, so that the result is the same for any order.
func first(services []*object, err error) (string, error) {
	if len(services) == 0 || err != nil {
		return "", err
	}
	text := func(service *object) string { return inventory.ServiceText(service.Namespace, service.Name) }
	return text(slices.MinFunc(services, func(a, b *object) int { return strings.Compare(text(a), text(b)) })), nil
}

// object holds the names and addresses of a Node or a Service, which are parsed once. A full Node holds kilobytes of
// images and conditions.
type object struct {
	metav1.ObjectMeta
	// sans are the values that a Node reports, or that only this Service has.
	sans []san.SAN
	// published are the values that a Service publishes, although they may be those of a Node.
	published []san.SAN
}

// has returns the values of a Node.
func (obj *object) has() []san.SAN { return inventory.Held(obj.Name, obj.sans) }

// metaOf returns the fields of meta that are used.
func metaOf(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
	}
}

// nodeObject returns the copy that is kept of a Node.
func nodeObject(obj runtime.Object) *object {
	node := obj.(*corev1.Node)
	return &object{ObjectMeta: metaOf(node.ObjectMeta), sans: inventory.NodeSANs(node)}
}

// serviceObject returns the copy that is kept of a Service.
func serviceObject(obj runtime.Object) *object {
	service := obj.(*corev1.Service)
	kept := &object{ObjectMeta: metaOf(service.ObjectMeta)}
	kept.sans, kept.published = inventory.ServiceSANs(service)
	return kept
}
