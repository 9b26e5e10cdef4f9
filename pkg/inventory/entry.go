package inventory

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Entry is what one source knows of one node.
type Entry struct {
	// Source says in messages where it comes from, such as `Machine default/a`.
	Source string
	// SANs are the names and addresses of the node.
	SANs []SAN
	// Suffixes are domains below which every name is the node's, without a leading dot; Prefixes the same for addresses.
	Suffixes []string
	Prefixes []netip.Prefix
	// ShortNames makes the first label of each of the names the node's too.
	ShortNames bool
	// Shared reports that other nodes may own the same names and addresses.
	Shared bool
	// OwnWord reports that all this is what the Node says of itself.
	OwnWord bool

	// Bound names the node that the machine has become, if it has.
	Bound string
	// Leaving is that the machine is being deleted: what it has is its node's to the end, but no new node is expected.
	Leaving bool
	// Created is when the machine was created or started: the join window counts from it. Zero is unknown.
	Created time.Time
	// AnyTime is that the node is expected whenever it comes: there is nothing that a join window could count from.
	AnyTime bool
}

// Owns says whether san belongs to the node, as far as the source can tell.
func (e *Entry) Owns(san SAN) bool { return e.lists(san) || e.spans(san) }

// Shares says whether san, which the node owns, may as well be another's: one in a CIDR or below a suffix, or of an entry
// that is shared. Whose it is then shows only in what their Nodes report.
func (e *Entry) Shares(san SAN) bool { return e.Shared || !e.lists(san) }

func (e *Entry) lists(san SAN) bool {
	for _, own := range e.SANs {
		if own == san || e.ShortNames && isShort(san.Name, own.Name) {
			return true
		}
	}
	return false
}

func (e *Entry) spans(san SAN) bool {
	for _, prefix := range e.Prefixes {
		if prefix.Contains(san.Address) {
			return true
		}
	}
	for _, suffix := range e.Suffixes {
		if strings.HasSuffix(san.Name, "."+suffix) {
			return true
		}
	}
	return false
}

func isShort(short, name string) bool {
	first, _, found := strings.Cut(name, ".")
	return found && short == first
}

// Empty says whether the source knows the node, but no name and no address of it yet.
func (e *Entry) Empty() bool { return len(e.SANs) == 0 && len(e.Suffixes) == 0 && len(e.Prefixes) == 0 }

// String lists what the node has, for messages.
func (e *Entry) String() string {
	const most = 12
	var all []string
	for _, own := range e.SANs {
		all = append(all, own.String())
	}
	for _, prefix := range e.Prefixes {
		all = append(all, prefix.String())
	}
	for _, suffix := range e.Suffixes {
		all = append(all, "*."+suffix)
	}
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("%q", all)
}
