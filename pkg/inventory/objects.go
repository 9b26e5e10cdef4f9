package inventory

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// NodeSANs returns the names and addresses that a Node reports. A Node may report tens of thousands: only the first count,
// as many as a request may name.
func NodeSANs(node *corev1.Node) []san.SAN {
	var all []san.SAN
	for _, each := range node.Status.Addresses[:min(len(node.Status.Addresses), csr.DefaultLimits.Names)] {
		all = append(all, ParseSANs(each.Address)...)
	}
	return all
}

// Held returns the values of the Node of that name: what it reports, and its name, which is its own whether or not it reports
// the name. An address is no name.
func Held(name string, reported []san.SAN) []san.SAN {
	if own := san.Parse(name); own.Name != "" {
		return append(reported[:len(reported):len(reported)], own)
	}
	return reported
}

// NodeEntry returns the entry of the Node of that name by its own report.
func NodeEntry(name string, reported []san.SAN, created time.Time) *Entry {
	return &Entry{Source: "Node " + name, SANs: reported, SelfReported: true, Bound: name, Created: created}
}

// ServiceText describes a Service in messages.
func ServiceText(namespace, name string) string { return "Service " + namespace + "/" + name }

// ServiceSANs returns the names and addresses of a Service. own are the name by which pods of its namespace find it, and its
// cluster addresses, which the API server assigns. published are external addresses and those of load balancers. They may be
// the addresses of Nodes: a user may write any, and some load balancers publish those of Nodes. The target of an ExternalName
// and the requested address of a load balancer are left out, because the Service does not have them.
func ServiceSANs(service *corev1.Service) (own, published []san.SAN) {
	own = append(ParseSANs(service.Name, service.Spec.ClusterIP), ParseSANs(service.Spec.ClusterIPs...)...)
	published = ParseSANs(service.Spec.ExternalIPs...)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		published = append(published, ParseSANs(ingress.IP, ingress.Hostname)...)
	}
	return own, published
}

// ServiceOf returns the Service that value names for pods of any namespace, if there is one: SERVICE.NAMESPACE, or
// HOST.SERVICE.NAMESPACE for one of its hosts (Kubernetes, "DNS for Services and Pods"). may is false for any other value.
func ServiceOf(value san.SAN) (namespace, name string, may bool) {
	labels := strings.Split(value.Name, ".")
	if len(labels) != 2 && len(labels) != 3 {
		return "", "", false
	}
	return labels[len(labels)-1], labels[len(labels)-2], true
}

// EndpointSANs returns the addresses of the endpoints in slice.
func EndpointSANs(slice *discoveryv1.EndpointSlice) []san.SAN {
	var all []san.SAN
	for _, endpoint := range slice.Endpoints {
		all = append(all, ParseSANs(endpoint.Addresses...)...)
	}
	return all
}

// ParseSANs parses texts that the API server stores to names and addresses, and skips those that stand for none. The API
// server accepts 010.0.0.1 as an address. It and kube-proxy read that as 10.0.0.1 (k8s.io/utils/net, ParseIPSloppy).
func ParseSANs(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		if ip := netutils.ParseIPSloppy(text); ip != nil {
			all = append(all, san.FromIP(ip))
		} else if text != "" && text != corev1.ClusterIPNone {
			all = append(all, san.Parse(text))
		}
	}
	return all
}
