package san

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Reserved lists the names and addresses that no node can have, whatever a source of the inventory reports. A node
// reports its own addresses, so it must never get an address of the API server or of a Service.
type Reserved struct {
	// ClusterDomain is the domain of Services, such as cluster.local.
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

// Why returns why value is reserved, or "".
func (r Reserved) Why(value SAN) string {
	if value.Name == "" {
		return r.whyAddress(value.Address)
	}
	return r.whyName(value.Name)
}

func (r Reserved) whyName(name string) string {
	switch {
	case strings.Contains(name, "*"):
		return "a wildcard"
	case inDomain(name, "localhost"), slices.Contains(loopbackNames, name):
		return "a name of the loopback address (RFC 6761)"
	case name == "kubernetes" || name == "kubernetes.default" || strings.HasPrefix(name, "kubernetes.default."):
		return "a name of the API server"
	case inDomain(name, "svc") || strings.Contains(name, ".svc."):
		return "a name of a Service"
	case inDomain(name, "pod"):
		return "a name of a Pod"
	case inDomain(name, r.ClusterDomain):
		return fmt.Sprintf("in the cluster's domain %s", r.ClusterDomain)
	case slices.Contains(r.Endpoints, SAN{Name: name}):
		return "a configured endpoint"
	}
	return ""
}

// inDomain reports whether name is domain or a name below it.
func inDomain(name, domain string) bool {
	return name == domain || strings.HasSuffix(name, "."+domain)
}

func (r Reserved) whyAddress(address netip.Addr) string {
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
	case slices.Contains(r.Endpoints, SAN{Address: address}):
		return "a configured endpoint"
	}
	for _, prefix := range r.Prefixes {
		if prefix.Contains(address) {
			return fmt.Sprintf("in the reserved range %s", prefix)
		}
	}
	return ""
}
