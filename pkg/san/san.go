// Package san has the rules for subject alternative names (SANs): how names and addresses are parsed and compared,
// which DNS names a certificate may have, and which names no node can have. Only this package handles IPv4-mapped
// addresses, upper case and trailing dots. It imports the standard library only and does no I/O.
//
// The package does not know the owner of a name. inventory/node knows the names and addresses of Services (such as
// SERVICE.NAMESPACE) and Nodes. inventory.Sources know which names belong to a node.
package san

import (
	"errors"
	"net"
	"net/netip"
	"strings"
)

// SAN is a name or an address in the form in which it is compared. A name is in lower case and without a trailing dot
// (RFC 4343). A name that looks like an address is an address. The zero value is neither.
type SAN struct {
	Name    string // empty for an address
	Address netip.Addr
}

// String returns the name or the address.
func (s SAN) String() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Address.String()
}

// Parse parses a name or an address. An address with a zone is a name: a zone has a meaning on one host only, and a
// comparison of addresses would ignore it.
func Parse(text string) SAN {
	if address, err := netip.ParseAddr(strings.TrimSuffix(text, ".")); err == nil && address.Zone() == "" {
		return SAN{Address: address.Unmap()} // an IPv4-mapped address is the IPv4 address (RFC 4291 section 2.5.5.2)
	}
	return SAN{Name: CanonicalName(text)}
}

// CanonicalName returns the DNS name without a trailing dot and with ASCII letters in lower case, as DNS compares names
// (RFC 4343).
func CanonicalName(name string) string {
	name = strings.TrimSuffix(name, ".")
	if !strings.ContainsFunc(name, isUpper) {
		return name
	}
	lower := []byte(name) // strings.Map would make all bytes that are not UTF-8 equal
	for i, char := range lower {
		if isUpper(rune(char)) {
			lower[i] += 'a' - 'A'
		}
	}
	return string(lower)
}

func isUpper(char rune) bool { return 'A' <= char && char <= 'Z' }

// FromIP returns ip as a SAN. If crypto/x509 would not have parsed ip, the SAN is the zero value, which no node owns.
func FromIP(ip net.IP) SAN {
	address, _ := netip.AddrFromSlice(ip)
	return SAN{Address: address.Unmap()}
}

// Of returns the names and addresses of a request, each once, in order.
func Of(dnsNames []string, addresses []net.IP) []SAN {
	var all []SAN
	seen := map[SAN]bool{}
	add := func(san SAN) {
		if !seen[san] {
			seen[san] = true
			all = append(all, san)
		}
	}
	for _, name := range dnsNames {
		add(Parse(name))
	}
	for _, ip := range addresses {
		add(FromIP(ip))
	}
	return all
}

// UnmapPrefix returns the IPv4 prefix for an IPv4-mapped IPv6 prefix, and any other prefix as it is.
func UnmapPrefix(prefix netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before the IPv4 address
	if prefix.Addr().Is4In6() && prefix.Bits() >= mapped {
		return netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-mapped)
	}
	return prefix
}

// inLabel holds the characters of a label.
const inLabel = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// maxDNSName is the longest DNS name, in bytes, without the trailing dot (RFC 1035 section 3.1).
const maxDNSName = 253

// CheckDNSName returns why a certificate can't have name as a dNSName, or nil. It permits names that crypto/x509 can
// match with a host, and IP addresses as clients write them. Verifiers then read the name that was judged, apart from
// the case of letters and a trailing dot. A wildcard is permitted as the first label only, and only if wildcards is
// set.
func CheckDNSName(name string, wildcards bool) error {
	if address, err := netip.ParseAddr(name); err == nil {
		if address.Zone() != "" || address.Is4In6() || address.String() != name {
			return errors.New("is an IP address that is not in canonical form")
		}
		return nil
	}
	host, wildcard := strings.CutPrefix(name, "*.")
	if wildcard && !wildcards {
		return errors.New("is a wildcard, which is not permitted")
	}
	if len(strings.TrimSuffix(name, ".")) > maxDNSName {
		return errors.New("is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if label == "" || label[0] == '-' || strings.Trim(label, inLabel) != "" {
			return errors.New("is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -")
		}
	}
	return nil
}

// IsNumeric reports whether all labels of name are numbers, with digits or with 0x and hex digits. C programs read such a
// name as an IPv4 address and do not ask DNS: 127.1, 0x7f000001 and 2130706433 are 127.0.0.1 (POSIX inet_addr).
func IsNumeric(name string) bool {
	for label := range strings.SplitSeq(CanonicalName(name), ".") {
		digits := "0123456789"
		if strings.HasPrefix(label, "0x") {
			label, digits = label[2:], digits+"abcdef"
		}
		if strings.Trim(label, digits) != "" {
			return false
		}
	}
	return true
}
