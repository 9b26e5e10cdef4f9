package san

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Reserved lists the names and addresses that no node can have, whatever a source of the inventory reports. A node
// reports its own addresses, so it must never get an address of the API server or of a Service.
type Reserved struct {
	// ClusterDomain is the domain of Services. The default is cluster.local.
	ClusterDomain string
	// Endpoints are more names and addresses, such as those of load balancers in front of the API servers.
	Endpoints []SAN
	// Prefixes are more addresses, such as the Service CIDR.
	Prefixes []netip.Prefix
}

// loopbackNames are the names of the loopback addresses in hosts files, besides localhost (Debian's and Fedora's
// /etc/hosts).
var loopbackNames = []string{
	"localhost.localdomain", "localhost4", "localhost4.localdomain4", "localhost6", "localhost6.localdomain6",
	"ip6-localhost", "ip6-loopback",
}

// Why returns why value is reserved, or "". Set own if value is the name of the requesting Node. configured reports that
// the fields of r reserve the value.
//
// Own names are the Node's, with the exceptions of whyOwn. Other names come from reports, and a Node reports what it
// likes. So they are also reserved if they would be names of Services in a cluster with a domain other than ClusterDomain,
// which may be set wrong.
func (r Reserved) Why(value SAN, own bool) (why string, configured bool) {
	r.ClusterDomain = CanonicalName(cmp.Or(r.ClusterDomain, "cluster.local"))
	name, fixed := value.Name, r.whyOwn(value.Name)
	if name == "" {
		fixed = whyAddress(value.Address)
	}
	service, _, inService := strings.Cut(name, ".svc.")
	within := func(prefix netip.Prefix) bool { return prefix.Contains(value.Address) }
	switch i := slices.IndexFunc(r.Prefixes, within); {
	case fixed != "":
		return fixed, false
	case slices.Contains(r.Endpoints, value):
		return "a configured endpoint", true
	case i >= 0:
		return fmt.Sprintf("in the reserved range %s", r.Prefixes[i]), true
	case own || name == "":
		return "", false
	case strings.Contains(name, "*"):
		return "a wildcard", false
	case inService && strings.Contains(service, "."):
		return "a name of a Service", false
	case inDomain(name, r.ClusterDomain):
		return fmt.Sprintf("in the cluster's domain %s", r.ClusterDomain), true
	}
	return "", false
}

// whyOwn returns why not even a Node that is called name gets it, or "". Each reason is a threat by a user who can choose
// the name of a Node, for example with a bootstrap token:
//
//   - Each host connects to itself by a name of the loopback address. The Node could pose as a program of any host.
//   - Pods reach the API server by the names kubernetes and kubernetes.default.
//   - Pods reach a Service by NAME.NAMESPACE.svc, and a Pod by ADDRESS.NAMESPACE.pod, also below the cluster's domain. The
//     Node could pose as a Service or a Pod that another user creates later. Services of several clusters are below
//     clusterset.local (KEP-1645).
func (r Reserved) whyOwn(name string) string {
	labels := strings.Split(name, ".")
	last, long := labels[len(labels)-1], len(labels) > 2
	switch {
	case inDomain(name, "localhost"), slices.Contains(loopbackNames, name):
		return "a name of the loopback address (RFC 6761)"
	case name == "kubernetes", name == "kubernetes.default":
		return "a name of the API server"
	case last == "svc" && long, inDomain(name, "svc."+r.ClusterDomain), inDomain(name, "svc.clusterset.local"):
		return "a name of a Service"
	case last == "pod" && long && isPodAddress(labels[0]), inDomain(name, "pod."+r.ClusterDomain):
		return "a name of a Pod"
	}
	return ""
}

// isPodAddress reports whether label is an address with dashes, as in names of Pods (Kubernetes DNS specification 2.3).
func isPodAddress(label string) bool {
	_, four := netip.ParseAddr(strings.ReplaceAll(label, "-", "."))
	_, six := netip.ParseAddr(strings.ReplaceAll(label, "-", ":"))
	return four == nil || six == nil
}

// inDomain reports whether name is domain or a name below it.
func inDomain(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

func whyAddress(address netip.Addr) string {
	switch {
	case !address.IsValid():
		return "not an address"
	case address.IsLoopback():
		return "a loopback address"
	case address.IsUnspecified():
		return "the unspecified address"
	case address.IsLinkLocalUnicast():
		return "a link-local address"
	case address.IsMulticast():
		return "a multicast address"
	case address == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	}
	return ""
}
