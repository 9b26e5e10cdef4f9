package node

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

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
