// Package inventory answers what is known of a node: which names and addresses belong to it, and whether somebody expects
// it. Sources are asked in order, strongest first, and the first one that knows the node answers alone.
package inventory

import (
	"net"
	"net/netip"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// SAN is a name or an address in the form in which it is compared: a name in lower case and without a trailing dot
// (RFC 4343), an address by its value. A name that looks like an address is one.
type SAN struct {
	Name    string // empty for an address
	Address netip.Addr
}

// String is what a person calls it.
func (s SAN) String() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Address.String()
}

// ParseSAN reads a name or an address. An address with a zone is a name: a zone means something on one host only, and
// whatever follows the percent sign would be left out of the comparison.
func ParseSAN(text string) SAN {
	text = strings.TrimSuffix(text, ".")
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return SAN{Address: address.Unmap()} // an IPv4-mapped address is the IPv4 one (RFC 4291 section 2.5.5.2)
	}
	return SAN{Name: strings.Map(lower, text)}
}

// lower returns the lower case of ASCII letters only, as DNS compares names (RFC 4343).
func lower(char rune) rune {
	if 'A' <= char && char <= 'Z' {
		return char + 'a' - 'A'
	}
	return char
}

// SANs are those of req, each once, in order.
func SANs(req ca.Request) []SAN {
	var all []SAN
	seen := map[SAN]bool{}
	add := func(san SAN) {
		if !seen[san] {
			seen[san] = true
			all = append(all, san)
		}
	}
	for _, name := range req.DNSNames {
		add(ParseSAN(name))
	}
	for _, ip := range req.IPAddresses {
		add(ipSAN(ip))
	}
	return all
}

// ipSAN is the invalid address for what crypto/x509 would not have parsed: nobody owns that.
func ipSAN(ip net.IP) SAN {
	address, _ := netip.AddrFromSlice(ip)
	return SAN{Address: address.Unmap()}
}

// PlainPrefix takes the IPv4 prefix out of an IPv4-mapped IPv6 one, as SAN does with addresses.
func PlainPrefix(prefix netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before the IPv4 address
	if address := prefix.Addr().Unmap(); address.Is4() && prefix.Addr().Is4In6() && prefix.Bits() >= mapped {
		return netip.PrefixFrom(address, prefix.Bits()-mapped)
	}
	return prefix
}
