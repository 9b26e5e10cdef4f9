package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The role is for an approver of serving certificates.
// +kubebuilder:rbac:groups=certificates.k8s.io,resources=signers,resourceNames=kubernetes.io/kubelet-serving,verbs=approve
// +kubebuilder:rbac:groups="",resources=nodes;services,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,namespace=default,verbs=get;list;watch

// bySAN is the index of Nodes, Services and the API server's endpoints by the names and addresses that they have.
const bySAN = "san"

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

	cache    cache.Cache
	services bool
	synced   atomic.Bool
	faults   faults
}

var _ Source = &Cluster{}

// NewCluster returns a Cluster with a cache of its own; Start fills it. httpClient may be nil. Without services it reads
// Nodes only, and Taken has no answer.
func NewCluster(config *rest.Config, httpClient *http.Client, services bool) (*Cluster, error) {
	c := &Cluster{services: services}
	var err error
	c.cache, err = cache.New(config, cache.Options{
		HTTPClient:       httpClient,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:    {Transform: stripNode},
			&corev1.Service{}: {},
			&discoveryv1.EndpointSlice{}: {
				Namespaces: map[string]cache.Config{"default": {}},
				Label:      labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: apiServerService}),
			},
		},
		DefaultWatchErrorHandler: func(ctx context.Context, r *toolscache.Reflector, err error) {
			c.faults.note(r.TypeDescription(), err)
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("read Nodes and Services: %w", err)
	}
	return c, nil
}

// stripNode keeps what is looked at: a Node holds kilobytes of images and conditions.
func stripNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Status = nil, corev1.NodeStatus{Addresses: node.Status.Addresses}
	}
	return obj, nil
}

// NeedLeaderElection says no: a standby's view is to be warm.
func (*Cluster) NeedLeaderElection() bool { return false }

// Start reads until ctx ends.
func (c *Cluster) Start(ctx context.Context) error {
	type kind struct {
		object client.Object
		sans   func(any) []SAN
		named  bool
	}
	kinds := []kind{{&corev1.Node{}, nodeSANs, true}}
	if c.services {
		kinds = append(kinds, kind{&corev1.Service{}, serviceSANs, false}, kind{&discoveryv1.EndpointSlice{}, sliceSANs, false})
	}
	for _, each := range kinds {
		if err := c.cache.IndexField(ctx, each.object, bySAN, func(obj client.Object) []string { return keys(each.sans(obj)) }); err != nil {
			return fmt.Errorf("index by name and address: %w", err)
		}
		informer, err := c.cache.GetInformer(ctx, each.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		go func() {
			if toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				c.faults.note(fmt.Sprintf("%T", each.object), nil)
			}
		}()
		if _, err := informer.AddEventHandler(c.handler(each.sans, each.named)); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	go func() {
		if c.cache.WaitForCacheSync(ctx) {
			c.synced.Store(true)
			c.changed("")
		}
	}()
	return c.cache.Start(ctx)
}

// handler tells what has changed: a Node by name, whether it has come, gone or got other addresses, and whatever has left a name or an address.
func (c *Cluster) handler(sans func(any) []SAN, named bool) toolscache.ResourceEventHandler {
	tell := func(before, after any) {
		had, has := sans(before), sans(after)
		if node, ok := cmp.Or(after, before).(*corev1.Node); ok && named && (before == nil || after == nil || !slices.Equal(had, has)) {
			c.changed(node.Name)
		}
		if freed := without(had, has); len(freed) > 0 && c.Freed != nil && c.synced.Load() {
			c.Freed(freed)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(after any) { tell(nil, after) },
		UpdateFunc: tell,
		DeleteFunc: func(before any) {
			if gone, ok := before.(toolscache.DeletedFinalStateUnknown); ok {
				before = gone.Obj
			}
			tell(before, nil)
		},
	}
}

func (c *Cluster) changed(node string) {
	if c.Changed != nil && c.synced.Load() {
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
	return &Entry{Source: fmt.Sprintf("Node %s", name), SANs: nodeSANs(node), Bound: name, Created: node.CreationTimestamp.Time}, nil
}

// Node returns the Node of that name, or nil when there is none. It is the cache's own, to be read only: a node may report
// tens of thousands of addresses, and a copy for each look would cost seconds.
func (c *Cluster) Node(ctx context.Context, name string) (*corev1.Node, error) {
	if !c.synced.Load() {
		return nil, c.faults.unread()
	}
	node := &corev1.Node{}
	if err := c.cache.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return node, nil
}

// Reported is what the Node of that name reports, as far as it is known.
func (c *Cluster) Reported(node string) []SAN {
	obj, err := c.Node(context.Background(), node) //nolint:forbidigo // nothing is waited for: it is in memory
	if obj == nil || err != nil {
		return nil
	}
	return nodeSANs(obj)
}

// Holders returns the Nodes that report san, by name, to be read only like Node.
func (c *Cluster) Holders(ctx context.Context, san SAN) ([]corev1.Node, error) {
	nodes := &corev1.NodeList{}
	err := c.having(ctx, san, nodes)
	slices.SortFunc(nodes.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes.Items, err
}

// Taken says which Service, or which endpoint of the API server, has san; both are empty when none has.
func (c *Cluster) Taken(ctx context.Context, san SAN) (service, endpoint string, err error) {
	services, endpoints := &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}
	if err := errors.Join(c.having(ctx, san, services), c.having(ctx, san, endpoints)); err != nil {
		return "", "", err
	}
	for i := range services.Items { // always the same of several
		if name := fmt.Sprintf("Service %s", client.ObjectKeyFromObject(&services.Items[i])); service == "" || name < service {
			service = name
		}
	}
	if len(endpoints.Items) > 0 {
		endpoint = "the API server"
	}
	return service, endpoint, nil
}

// having lists, without copies, what has san.
func (c *Cluster) having(ctx context.Context, san SAN, list client.ObjectList) error {
	if !c.synced.Load() {
		return c.faults.unread()
	}
	return c.cache.List(ctx, list, client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector(bySAN, san.String())}, client.UnsafeDisableDeepCopy)
}
