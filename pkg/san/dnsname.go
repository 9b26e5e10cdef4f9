package san

import (
	"errors"
	"net/netip"
	"strings"
)

// maxDNSName is the longest DNS name, in bytes, without the trailing dot (RFC 1035 section 3.1).
const maxDNSName = 253

// CheckDNSName returns why a certificate can't have name as a dNSName, or nil. It permits names that crypto/x509 can
// match with a host, and IP addresses as clients write them. Verifiers then read what was judged, up to the case of
// letters and a trailing dot. A wildcard is permitted as the first label only, and only if wildcards is set.
func CheckDNSName(name string, wildcards bool) error {
	if address, err := netip.ParseAddr(name); err == nil {
		return checkAddressForm(name, address)
	}
	host, wildcard := strings.CutPrefix(name, "*.")
	if wildcard && !wildcards {
		return errors.New("is a wildcard, which this signer does not permit")
	}
	if len(strings.TrimSuffix(name, ".")) > maxDNSName {
		return errors.New("is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if label == "" || label[0] == '-' || strings.ContainsFunc(label, notInLabel) {
			return errors.New("is no DNS name: labels must be of letters, digits, - and _, and not begin with -")
		}
	}
	return nil
}

// checkAddressForm returns an error unless name is the canonical form of address.
func checkAddressForm(name string, address netip.Addr) error {
	if address.Zone() != "" || address.Is4In6() || address.String() != name {
		return errors.New("is an IP address in another form than the canonical one")
	}
	return nil
}

func notInLabel(char rune) bool {
	switch {
	case 'a' <= char && char <= 'z', 'A' <= char && char <= 'Z', '0' <= char && char <= '9', char == '-', char == '_':
		return false
	}
	return true
}
