package inventory

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Entry holds the facts that one source knows about one node.
type Entry struct {
	// Source names the origin in messages, such as `Machine default/a`.
	Source string
	// SANs are the names and addresses of the node.
	SANs []san.SAN
	// Suffixes are domains, without a leading dot. The node owns every name below them. Prefixes are the same for
	// addresses.
	Suffixes []string
	Prefixes []netip.Prefix
	// ShortNames reports that the node also owns the first label of each name.
	ShortNames bool
	// Shared reports that other nodes may own the same names and addresses.
	Shared bool
	// SelfReported reports that the entry is the Node's own report of itself. Then the reports of all Nodes decide, and SANs
	// is only for messages. Callers must not change SANs, because a cache holds it.
	SelfReported bool

	// Bound names the node that the machine has become, or is empty.
	Bound string
	// Leaving reports that the machine is being deleted. Its node keeps the names and addresses of the machine to the
	// end, but no new node is expected.
	Leaving bool
	// Created is when the machine was created or started. The join window counts from it. Zero means unknown.
	Created time.Time
	// AnyTime reports that the node may join at any time, because there is no time from which a join window could
	// count.
	AnyTime bool
}

// Owns reports whether the node owns value, as far as the source knows. It is false if only Nodes know (SelfReported).
func (e *Entry) Owns(value san.SAN) bool {
	return e.lists(value) ||
		slices.ContainsFunc(e.Prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(value.Address) }) ||
		slices.ContainsFunc(e.Suffixes, func(suffix string) bool { return strings.HasSuffix(value.Name, "."+suffix) })
}

// lists reports whether the entry names value itself, not only a CIDR or a suffix that covers it. What a Node reports of
// itself lists nothing.
func (e *Entry) lists(value san.SAN) bool {
	return !e.SelfReported && slices.ContainsFunc(e.SANs, func(own san.SAN) bool {
		first, _, long := strings.Cut(own.Name, ".")
		return own == value || e.ShortNames && long && first == value.Name
	})
}

// Empty reports whether the source knows the node, but none of its names and addresses yet.
func (e *Entry) Empty() bool { return len(e.SANs) == 0 && len(e.Suffixes) == 0 && len(e.Prefixes) == 0 }

// For returns e for node. If its machine has become another node, For removes the names and addresses of that node.
func (e *Entry) For(node string) *Entry {
	if e.Bound != "" && e.Bound != node {
		e.SANs, e.Suffixes, e.Prefixes = nil, nil, nil
	}
	return e
}

// String lists the first names and addresses of the node, for messages. A source may list tens of thousands.
func (e *Entry) String() string {
	const most = 12
	var all []string
	for _, own := range e.SANs[:min(most, len(e.SANs))] {
		all = append(all, own.String())
	}
	for _, prefix := range e.Prefixes[:min(most-len(all), len(e.Prefixes))] {
		all = append(all, prefix.String())
	}
	for _, suffix := range e.Suffixes[:min(most-len(all), len(e.Suffixes))] {
		all = append(all, "*."+suffix)
	}
	if more := len(e.SANs) + len(e.Prefixes) + len(e.Suffixes) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%q", all)
}

// AddName adds a DNS name as a person writes it. An error says why text is not a DNS name.
func (e *Entry) AddName(text string) error {
	name, err := parseName(text)
	if err == nil {
		e.SANs = append(e.SANs, name)
	}
	return err
}

// AddSuffix adds a domain, with or without a leading dot.
func (e *Entry) AddSuffix(text string) error {
	name, err := parseName(strings.TrimPrefix(text, "."))
	if err == nil {
		e.Suffixes = append(e.Suffixes, name.Name)
	}
	return err
}

func parseName(text string) (san.SAN, error) {
	value := san.Parse(text)
	if value.Address.IsValid() {
		return san.SAN{}, errors.New("is an address: list it as one")
	}
	if len(validation.IsDNS1123Subdomain(value.Name)) > 0 {
		return san.SAN{}, errors.New("is not a DNS name")
	}
	return value, nil
}

// widest is the length of the shortest prefix that one node may have: 10.0.0.0/8, or fd00::/8.
const widest = 8

// AddAddress adds an IP address or a CIDR.
func (e *Entry) AddAddress(text string) error {
	if !strings.Contains(text, "/") {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return errors.New("is not an IP address")
		}
		e.SANs = append(e.SANs, san.SAN{Address: address.Unmap()})
		return nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return errors.New("is not a CIDR")
	}
	prefix = san.UnmapPrefix(prefix)
	switch {
	case prefix.Bits() < widest:
		return fmt.Errorf("is too wide: /%d is the widest", widest)
	case prefix != prefix.Masked():
		return fmt.Errorf("has bits beyond the prefix: want %s", prefix.Masked())
	}
	e.Prefixes = append(e.Prefixes, prefix)
	return nil
}
