// Package inventory answers what is known of a node: which names and addresses belong to it, and whether somebody expects
// it. Sources are asked in order, strongest first, and the first one that knows the node answers alone.
package inventory

import (
	"net"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// SAN is a name or an address in the form in which it is compared.
type SAN = san.SAN

// ParseSAN reads a name or an address, as san.Parse does.
func ParseSAN(text string) SAN { return san.Parse(text) }

func ipSAN(ip net.IP) SAN { return san.FromIP(ip) }
