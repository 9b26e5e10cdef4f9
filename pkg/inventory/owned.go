package inventory

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// widest is the shortest prefix that may be one node's: 10.0.0.0/8, or fd00::/8.
const widest = 8

// owned collects names and addresses as a person writes them.
type owned struct {
	sans     []SAN
	suffixes []string
	prefixes []netip.Prefix
}

func (o *owned) addName(text string) error {
	san := ParseSAN(text)
	if san.Address.IsValid() {
		return errors.New("is an address: list it as one")
	}
	if len(validation.IsDNS1123Subdomain(san.Name)) > 0 {
		return errors.New("is no DNS name")
	}
	o.sans = append(o.sans, san)
	return nil
}

func (o *owned) addSuffix(text string) error {
	name := new(owned)
	if err := name.addName(strings.TrimPrefix(text, ".")); err != nil {
		return err
	}
	o.suffixes = append(o.suffixes, name.sans[0].Name)
	return nil
}

// addAddress adds an IP address or a CIDR.
func (o *owned) addAddress(text string) error {
	if strings.Contains(text, "/") {
		return o.addPrefix(text)
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return errors.New("is no IP address")
	}
	o.sans = append(o.sans, SAN{Address: address.Unmap()})
	return nil
}

func (o *owned) addPrefix(text string) error {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("is no CIDR")
	}
	if prefix.Addr().Is4In6() {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	switch {
	case prefix.Bits() < widest:
		return fmt.Errorf("is too wide: /%d is the widest", widest)
	case prefix != prefix.Masked():
		return fmt.Errorf("has bits beyond the prefix: want %s", prefix.Masked())
	}
	o.prefixes = append(o.prefixes, prefix)
	return nil
}
