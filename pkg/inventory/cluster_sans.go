package inventory

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	netutils "k8s.io/utils/net"
)

func keys(sans []SAN) []string {
	all := make([]string, len(sans))
	for i, san := range sans {
		all[i] = san.String()
	}
	return all
}

func parse(texts ...string) []SAN {
	var all []SAN
	for _, text := range texts {
		if text != "" && text != corev1.ClusterIPNone {
			all = append(all, parseSloppy(text))
		}
	}
	return all
}

// parseSloppy is ParseSAN for what the API server stores: it takes 010.0.0.1 for an address, and it and kube-proxy read
// that as 10.0.0.1 (k8s.io/utils/net, ParseIPSloppy).
func parseSloppy(text string) SAN {
	if ip := netutils.ParseIPSloppy(text); ip != nil {
		return ipSAN(ip)
	}
	return ParseSAN(text)
}

func nodeSANs(obj any) []SAN {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	var all []SAN
	for _, address := range node.Status.Addresses {
		all = append(all, parse(address.Address)...)
	}
	return all
}

// serviceSANs has the names by which pods find a Service of their own and of another namespace, which the search path of
// their resolver completes (Kubernetes, "DNS for Services and Pods"). It leaves out where an ExternalName points, and the load balancer
// that somebody wishes for: whoever may make a Service could block any node with them.
func serviceSANs(obj any) []SAN {
	service, ok := obj.(*corev1.Service)
	if !ok {
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

func sliceSANs(obj any) []SAN {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return nil
	}
	var all []SAN
	for _, endpoint := range slice.Endpoints {
		all = append(all, parse(endpoint.Addresses...)...)
	}
	return all
}

// without are those of had that are not in has: a node may report tens of thousands.
func without(had, has []SAN) []SAN {
	kept := make(map[SAN]bool, len(has))
	for _, san := range has {
		kept[san] = true
	}
	var gone []SAN
	for _, san := range had {
		if !kept[san] {
			gone = append(gone, san)
		}
	}
	return gone
}
