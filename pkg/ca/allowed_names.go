package ca

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// AllowedNames lists the names and addresses that server certificates may hold. The zero value allows no name.
type AllowedNames struct {
	dns      []string // lower case; a leading "*." allows every name below the rest
	prefixes []netip.Prefix
	others   []string // URIs and e-mail addresses; a trailing * matches any suffix
}

// NewAllowedNames parses entries. An entry is a DNS name, *.suffix for every name below suffix, an IP address, a
// CIDR, a URI or an e-mail address. A URI or an e-mail address may end with *.
func NewAllowedNames(entries []string) (AllowedNames, error) {
	var names AllowedNames
	for _, entry := range entries {
		prefix, isPrefix := parsePrefix(entry)
		switch {
		case isPrefix:
			names.prefixes = append(names.prefixes, prefix)
		case strings.Contains(entry, "://"), strings.Contains(entry, "@"):
			if strings.Contains(strings.TrimSuffix(entry, "*"), "*") {
				return AllowedNames{}, fmt.Errorf(
					"%q is not an allowed name: a URI or an e-mail address may contain one *, at the end", entry)
			}
			names.others = append(names.others, entry)
		case san.CheckDNSName(entry, true) == nil:
			names.dns = append(names.dns, san.CanonicalName(entry))
		default:
			return AllowedNames{}, fmt.Errorf("%q is not an allowed name: "+
				"want a DNS name, *.suffix, an IP address, a CIDR, a URI or an e-mail address", entry)
		}
	}
	return names, nil
}

// Empty reports whether n allows no name.
func (n AllowedNames) Empty() bool { return len(n.dns)+len(n.prefixes)+len(n.others) == 0 }

// Refused returns the first name of req that is not allowed, or "". If req has no DNS name, its common name is
// checked as a DNS name, because old clients match it with the host.
func (n AllowedNames) Refused(req Request) string {
	dns := req.DNSNames
	if len(dns) == 0 && req.Subject.CommonName != "" {
		dns = []string{req.Subject.CommonName}
	}
	for _, name := range dns {
		if !n.allowsDNS(name) {
			return name
		}
	}
	for _, ip := range req.IPAddresses {
		if address, ok := netip.AddrFromSlice(ip); !ok || !n.allowsIP(address) {
			return ip.String()
		}
	}
	for _, name := range slices.Concat(req.EmailAddresses, Texts(req.URIs)) {
		if !slices.ContainsFunc(n.others, func(pattern string) bool { return matches(pattern, name) }) {
			return name
		}
	}
	return ""
}

// allowsDNS reports whether name is allowed. Verifiers read a name that looks like an IP address as that address.
func (n AllowedNames) allowsDNS(name string) bool {
	if address, err := netip.ParseAddr(name); err == nil {
		return n.allowsIP(address)
	}
	name = san.CanonicalName(name)
	return slices.ContainsFunc(n.dns, func(allowed string) bool {
		suffix, below := strings.CutPrefix(allowed, "*")
		return name == allowed || below && len(name) > len(suffix) && strings.HasSuffix(name, suffix)
	})
}

func (n AllowedNames) allowsIP(address netip.Addr) bool {
	address = address.Unmap()
	return address.Zone() == "" && slices.ContainsFunc(n.prefixes,
		func(prefix netip.Prefix) bool { return prefix.Contains(address) })
}

// matches reports whether value is pattern, or begins with it if pattern ends with *.
func matches(pattern, value string) bool {
	prefix, open := strings.CutSuffix(pattern, "*")
	return value == pattern || open && strings.HasPrefix(value, prefix)
}

// parsePrefix parses an IP address or a CIDR.
func parsePrefix(text string) (netip.Prefix, bool) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), true
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err == nil && !prefix.Addr().Is4In6()
}
