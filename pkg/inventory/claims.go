package inventory

import (
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

// Claim decides whether value belongs to node, which is known by found. It looks at no other value, and does not ask
// when anything was created. holders are the Nodes that report value or have it as their name, in any order, without
// the Nodes whose reports do not count. The rules:
//
//   - If a stronger source assigns the value to another node alone, it belongs to that node.
//   - If the source that knows the node lists the value, it belongs to the node. If the source lists it for several
//     nodes, it belongs to each of them that reports it.
//   - In a CIDR, below a suffix, and by the reports of Nodes alone, a Node has its own name, whatever others report. It
//     has what it reports itself, unless another Node reports that too, or has it as its name. An address is no name.
func (s Sources) Claim(found Found, node string, value san.SAN, holders []string) (Claim, error) {
	if !found.OwnWord && !found.Owns(value) {
		return Claim{NotOwned: true}, nil
	}
	listed := found.lists(value)
	alone, stronger := listed && !found.Shared, found.Rank
	if !alone {
		stronger++ // the source of the node may assign the value to another node alone
	}
	owner, err := s.owner(value, stronger)
	if alone || owner != "" || err != nil {
		return Claim{Owner: owner}, err
	}
	switch {
	case IsName(node, value):
		return Claim{}, nil
	case !slices.Contains(holders, node):
		return Claim{NotOwned: found.OwnWord, NotReported: !found.OwnWord}, nil
	case listed:
		return Claim{}, nil
	}
	return contest(node, value, holders), nil
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
