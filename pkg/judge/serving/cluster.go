package serving

import (
	"crypto/x509"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Cluster holds what a program with listers of its own has read from an API server. The listers must have synced: an address is
// approved for one Node only if the other Nodes are known. Nodes report their own names and addresses. So a Node that lies can
// block another Node's certificate and get a name that no object of the cluster has, but not take what another one has.
type Cluster struct {
	// Nodes and Services are all of the cluster.
	Nodes    []*corev1.Node
	Services []*corev1.Service
	// EndpointSlices include those of the Service kubernetes in the namespace default. Others do not count.
	EndpointSlices []*discoveryv1.EndpointSlice
	// APIServerCertificates are the serving certificates of the API servers. Their wildcards reserve nothing.
	APIServerCertificates []*x509.Certificate
	// APIServerHosts are the names and addresses by which clients reach the API servers, such as that of a kubeconfig. A
	// wildcard of a certificate may cover them.
	APIServerHosts []string
}

// apiServerService is the Service by which clients in the cluster reach the API server.
const apiServerService = "kubernetes"

// Facts returns the facts about req. It returns an error if the cluster lacks the Service kubernetes, its endpoints, or a
// certificate or host of the API servers: a node could then get a certificate for the API server. It reads each object once, so
// its time grows with the cluster.
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
	known := c.readServices(requested)
	endpoints := c.readAPIServers(requested)
	if !known || endpoints == 0 || len(c.APIServerCertificates) == 0 || len(c.APIServerHosts) == 0 {
		return Facts{}, errors.New("the Service kubernetes, its endpoints, or the certificates or hosts of the API servers are not known")
	}
	for value, name := range requested {
		facts.Names[value] = *name
	}
	return facts, nil
}

// readServices adds what Services have or publish to the requested values, the first of them by name. It reports whether the
// Service kubernetes is among them.
func (c Cluster) readServices(requested map[san.SAN]*Name) (known bool) {
	byKey := map[[2]string][]*Name{} // the requested names that may be those of a Service
	for value, name := range requested {
		if namespace, service, may := inventory.ServiceOf(value); may {
			byKey[[2]string{namespace, service}] = append(byKey[[2]string{namespace, service}], name)
		}
	}
	for _, service := range c.Services {
		known = known || service.Namespace == metav1.NamespaceDefault && service.Name == apiServerService
		text := inventory.ServiceText(service.Namespace, service.Name)
		first := func(has *string) {
			if *has == "" || text < *has {
				*has = text
			}
		}
		own, published := inventory.ServiceSANs(service)
		for _, name := range byKey[[2]string{service.Namespace, service.Name}] {
			first(&name.Service)
		}
		for _, value := range own {
			if name := requested[value]; name != nil {
				first(&name.Service)
			}
		}
		for _, value := range published {
			if name := requested[value]; name != nil {
				first(&name.Publisher)
			}
		}
	}
	return known
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
	use(inventory.ParseSANs(c.APIServerHosts...), "a host of it")
	for _, cert := range c.APIServerCertificates {
		use(san.Of(cert.DNSNames, cert.IPAddresses), "in its serving certificate")
	}
	for _, slice := range c.EndpointSlices {
		if slice.Namespace != metav1.NamespaceDefault || slice.Labels[discoveryv1.LabelServiceName] != apiServerService {
			continue
		}
		values := inventory.EndpointSANs(slice)
		use(values, "an endpoint")
		endpoints += len(values)
	}
	return endpoints
}
