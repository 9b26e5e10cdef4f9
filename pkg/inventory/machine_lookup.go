package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Lookup implements Source: by the node that a machine has become, else by the name that its node will have.
func (m *Machine) Lookup(_ context.Context, node string, _ *csr.Request) (*Entry, error) {
	store, err := m.read()
	if err != nil {
		return nil, err
	}
	return lookupMachine(store, m.options.Kind, node)
}

// Owner implements Owner: a machine has its addresses whether or not it has become a node.
func (m *Machine) Owner(san SAN) (string, error) {
	store, err := m.read()
	if err != nil {
		return "", err
	}
	return ownerMachine(store, m.options.Kind, san)
}

func (m *Machine) read() (toolscache.Indexer, error) {
	store, err := m.view.read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.options.kind(), err)
	}
	return store, nil
}

func (o MachineOptions) kind() string { return strings.Trim(o.Kind+"."+o.Group, ".") }

// lookupMachine finds no machine that has become another node beside one that has become none: which node a machine is,
// its nodeRef alone says, once it has one.
func lookupMachine(machines toolscache.Indexer, kind, node string) (*Entry, error) {
	became, err := having(machines, byNodeRef, node)
	named, moreErr := having(machines, byName, node)
	if err := errors.Join(err, moreErr); err != nil {
		return nil, err
	}
	for _, found := range [][]*machine{became, leaveOut(named, (*machine).isBound)} {
		if len(found) > 1 {
			// One that is being deleted beside one that is not: that one has been made in its place.
			if stay := leaveOut(found, func(m *machine) bool { return m.leaving }); len(stay) > 0 {
				found = stay
			}
		}
		switch {
		case len(found) == 1:
			return found[0].entry(kind, node)
		case len(found) > 1:
			return nil, ambiguous(found, kind, node)
		}
	}
	if len(named) > 0 {
		return named[0].entry(kind, node)
	}
	return nil, nil
}

func (m *machine) isBound() bool { return m.node != "" }

// having returns the machines by what an index says of them, in order.
func having(machines toolscache.Indexer, index, key string) ([]*machine, error) {
	found, err := machines.ByIndex(index, key)
	all := make([]*machine, len(found))
	for i, obj := range found {
		all[i] = obj.(*machine)
	}
	slices.SortFunc(all, func(a, b *machine) int { return strings.Compare(a.describe(""), b.describe("")) })
	return all, err
}

func leaveOut(machines []*machine, is func(*machine) bool) []*machine {
	return slices.DeleteFunc(slices.Clone(machines), is)
}

// ambiguous names all of found: which of them is right, no source can guess.
func ambiguous(found []*machine, kind, node string) error {
	names := make([]string, len(found))
	for i, m := range found {
		names[i] = m.describe(kind)
	}
	return fmt.Errorf("node %s is claimed by %s: delete or rename all but one", node, strings.Join(names, " and by "))
}

// ownerMachine describes the machine that has san. One of which something else can't be read has what can be.
func ownerMachine(machines toolscache.Indexer, kind string, san SAN) (string, error) {
	found, err := having(machines, bySAN, san.String())
	if len(found) == 0 {
		return "", err
	}
	if owner := found[0]; owner.isBound() {
		return fmt.Sprintf("%s (node %s)", owner.describe(kind), owner.node), nil
	}
	return found[0].describe(kind), nil
}
