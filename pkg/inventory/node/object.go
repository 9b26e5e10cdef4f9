package node

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	netutils "k8s.io/utils/net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// object holds the names and addresses of a Node or a Service, which are parsed once. A full Node holds kilobytes of
// images and conditions.
type object struct {
	metav1.ObjectMeta
	// sans are the values that a Node reports, or that only this Service has.
	sans []san.SAN
	// published are the values that a Service publishes, although they may be those of a Node.
	published []san.SAN
}

// has returns the values of a Node: what it reports, and its name, which is its own whether or not it reports the name.
// An address is no name.
func (obj *object) has() []san.SAN {
	if name := san.Parse(obj.Name); name.Name != "" {
		return append(obj.sans[:len(obj.sans):len(obj.sans)], name)
	}
	return obj.sans
}

// metaOf returns the fields of meta that are used.
func metaOf(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: meta.Namespace, Name: meta.Name, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
	}
}

// nodeObject returns the copy that is kept of a Node. A Node may report tens of thousands of addresses: only the first
// count, as many as a request may name.
func nodeObject(obj runtime.Object) *object {
	node := obj.(*corev1.Node)
	kept := &object{ObjectMeta: metaOf(node.ObjectMeta)}
	for _, each := range node.Status.Addresses[:min(len(node.Status.Addresses), csr.DefaultLimits.Names)] {
		kept.sans = append(kept.sans, parse(each.Address)...)
	}
	return kept
}

// serviceObject returns the copy that is kept of a Service. Its own values are the name by which pods of its namespace
// find it, and its cluster addresses, which the API server assigns. External addresses and those of load balancers may
// be the addresses of Nodes: a user may write any, and some load balancers publish those of Nodes. The target of an
// ExternalName and the requested address of a load balancer are left out, because the Service does not have them.
func serviceObject(obj runtime.Object) *object {
	service := obj.(*corev1.Service)
	kept := &object{ObjectMeta: metaOf(service.ObjectMeta), sans: parse(service.Name, service.Spec.ClusterIP)}
	kept.sans = append(kept.sans, parse(service.Spec.ClusterIPs...)...)
	kept.published = parse(service.Spec.ExternalIPs...)
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		kept.published = append(kept.published, parse(ingress.IP, ingress.Hostname)...)
	}
	return kept
}

// sliceSANs returns the addresses of the endpoints in slice.
func sliceSANs(slice *discoveryv1.EndpointSlice) []san.SAN {
	var all []san.SAN
	for _, endpoint := range slice.Endpoints {
		all = append(all, parse(endpoint.Addresses...)...)
	}
	return all
}

// parse parses texts that the API server stores to names and addresses, and skips those that stand for none. The API server
// accepts 010.0.0.1 as an address. It and kube-proxy read that as 10.0.0.1 (k8s.io/utils/net, ParseIPSloppy).
func parse(texts ...string) []san.SAN {
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
