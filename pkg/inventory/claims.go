package inventory

import (
	"fmt"
	"slices"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Claim says why a name or an address does not belong to a node. The zero value means that it belongs to the node.
type Claim struct {
	// NotOwned reports that the source that knows the node does not assign the value to it.
	NotOwned bool
	// NotReported reports that the source assigns the value to several nodes, and that this Node does not report it.
	NotReported bool
	// Owner describes the machine or the row to which a stronger source assigns the value alone.
	Owner string
	// Other is another Node that reports the value, the first by name. Named reports that the value is its name. Nodes is
	// the number of Nodes that report the value, this Node included.
	Other string
	Named bool
	Nodes int
}

// Owner describes the machine or the row to which a source that is stronger than that of found assigns value alone. The text
// is empty if there is none, or if found does not assign value to its node at all. The Node of the owner need not exist yet.
func (s Sources) Owner(found Found, value san.SAN) (string, error) {
	if !found.SelfReported && !found.Owns(value) {
		return "", nil
	}
	stronger := found.Rank
	if !found.lists(value) || found.Shared {
		stronger++ // the source of the node may assign the value to another node alone
	}
	for _, source := range s[:stronger] {
		owner, can := source.(Owner)
		if !can {
			continue
		}
		description, err := owner.Owner(value)
		if err != nil {
			return "", fmt.Errorf("ask %s: %w", source.Name(), err)
		}
		if description != "" {
			return description, nil
		}
	}
	return "", nil
}

// Claim decides whether value belongs to node, which has this entry. It looks at no other value, and does not ask when
// anything was created. owner is the result of Sources.Owner. holders are the Nodes that report value or have it as their
// name, in any order, without the Nodes whose reports do not count. The rules:
//
//  1. The source that knows the node must list the value, or cover it by a CIDR or a suffix.
//  2. If a stronger source assigns the value to another node alone, it belongs to that node.
//  3. If the source lists the value for this node alone, it belongs to the node.
//  4. A Node has its own name, whatever others report. An address is no name.
//  5. Otherwise the node must report the value itself. That is enough if the source lists it for several nodes.
//  6. In a CIDR, below a suffix, and by the reports of Nodes alone, no other Node may report it, or have it as its name.
func (e *Entry) Claim(node string, value san.SAN, holders []string, owner string) Claim {
	listed := e.lists(value)
	switch {
	case !e.SelfReported && !e.Owns(value):
		return Claim{NotOwned: true}
	case owner != "", listed && !e.Shared:
		return Claim{Owner: owner}
	case IsName(node, value):
		return Claim{}
	case !slices.Contains(holders, node):
		return Claim{NotOwned: e.SelfReported, NotReported: !e.SelfReported}
	case listed:
		return Claim{}
	}
	return contest(node, value, holders)
}

// contest returns the first of holders beside node. A Node that has value as its name comes before all others.
func contest(node string, value san.SAN, holders []string) Claim {
	claim := Claim{Nodes: len(holders)}
	for _, other := range holders {
		named := IsName(other, value)
		if other != node && (claim.Other == "" || named || !claim.Named && other < claim.Other) {
			claim.Other, claim.Named = other, named
		}
	}
	if claim.Other == "" {
		return Claim{}
	}
	return claim
}

// IsName reports whether value is the name of node. An address is no name, even if a Node is called so: otherwise a user
// who may create Nodes could take any address.
func IsName(node string, value san.SAN) bool { return value.Name != "" && value == san.Parse(node) }
