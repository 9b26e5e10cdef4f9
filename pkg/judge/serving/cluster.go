package serving

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Cluster holds what a program with listers of its own has read from an API server. Nodes report their own names and
// addresses, so a Node that lies can block another Node's certificate, but not take its names.
type Cluster struct {
	// Nodes and Services are all of the cluster.
	Nodes    []*corev1.Node
	Services []*corev1.Service
	// EndpointSlices are those of the Service kubernetes in the namespace default.
	EndpointSlices []*discoveryv1.EndpointSlice
	// APIServerNames are the names and addresses in the serving certificates of the API servers.
	APIServerNames []string
}

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

// Facts returns the facts about req. It returns an error if the cluster lacks the Service kubernetes, its endpoints or the
// names of the API servers: a node could then get a certificate for the API server. It reads each object once, so its time
// grows with the cluster.
func (c Cluster) Facts(req *csr.Request) (Facts, error) {
	requested := map[san.SAN]*Name{}
	for _, value := range namesOf(req) {
		requested[value] = &Name{}
	}
	facts := Facts{Names: map[san.SAN]Name{}}
	for _, node := range c.Nodes {
		reported := inventory.NodeSANs(node)
		if node.Name == req.NodeName() {
			facts.Entry = inventory.NodeEntry(node.Name, reported, node.CreationTimestamp.Time)
		}
		for _, value := range inventory.Held(node.Name, reported) {
			if name := requested[value]; name != nil && !slices.Contains(name.Holders, node.Name) {
				name.Holders = append(name.Holders, node.Name)
			}
		}
	}
	known := false
	for _, service := range c.Services {
		known = known || service.Namespace == metav1.NamespaceDefault && service.Name == apiServerService
		c.readService(service, requested)
	}
	endpoints := c.readAPIServers(requested)
	if !known || endpoints == 0 || len(c.APIServerNames) == 0 {
		return Facts{}, errors.New("the Service kubernetes, its endpoints or the names of the API servers are not read yet")
	}
	for value, name := range requested {
		facts.Names[value] = *name
	}
	return facts, nil
}

// readService adds what service has or publishes to the requested values.
func (Cluster) readService(service *corev1.Service, requested map[san.SAN]*Name) {
	text := inventory.ServiceText(service.Namespace, service.Name)
	own, published := inventory.ServiceSANs(service)
	for value, name := range requested {
		namespace, called, may := inventory.ServiceOf(value)
		if may && namespace == service.Namespace && called == service.Name || slices.Contains(own, value) {
			name.Service = text
		}
		if slices.Contains(published, value) {
			name.Publisher = text
		}
	}
}

// readAPIServers adds what API servers have to the requested values, and returns the number of their endpoints.
func (c Cluster) readAPIServers(requested map[san.SAN]*Name) (endpoints int) {
	use := func(values []san.SAN, as string) {
		for _, value := range values {
			if name := requested[value]; name != nil {
				name.APIServer = as
			}
		}
	}
	use(inventory.ParseSANs(c.APIServerNames...), "in its serving certificate")
	for _, slice := range c.EndpointSlices {
		values := inventory.EndpointSANs(slice)
		use(values, "an endpoint")
		endpoints += len(values)
	}
	return endpoints
}
