package inventory

import (
	"context"
	"errors"
	"fmt"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Source knows nodes by name.
type Source interface {
	// Name is the source's in metrics and messages.
	Name() string
	// Lookup returns what is known of node, or nil when nothing is. req is the request that it is asked for. An error
	// means that the source can't say, never that there is nothing.
	Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error)
}

// Owner is a Source that can say whose a name or an address is without being asked for a node.
type Owner interface {
	Source
	// Owner describes the node or the machine that has san for itself, such as `Machine default/a`, or is empty. What
	// several may have, as an address in a CIDR, is nobody's. An error means that the source can't say.
	Owner(san SAN) (string, error)
}

// NodeReports is the Source that believes what Nodes report of themselves.
type NodeReports interface {
	Source
	// Reported returns what the Node of that name reports. An error means that the Nodes are not known.
	Reported(node string) ([]SAN, error)
}

// IsUnread says whether err is that what runs has not tried to read yet.
func IsUnread(err error) bool { return errors.Is(err, errNotRead) }

// Sources asks each Source in order, the strongest first.
type Sources []Source

// Found is an Entry with the place of its source in the order: the lower, the stronger.
type Found struct {
	*Entry
	Rank int
}

// Unavailable is that a source can't say. What weaker ones say then does not count: a node's own word must not stand in
// for a Machine's.
type Unavailable struct {
	Source string
	Cause  error
}

func (u *Unavailable) Error() string { return fmt.Sprintf("ask %s: %v", u.Source, u.Cause) }

// Unwrap returns the cause.
func (u *Unavailable) Unwrap() error { return u.Cause }

// Lookup returns the answer of the first source that knows node. The Entry is nil when none does. An error is always an
// *Unavailable.
func (s Sources) Lookup(ctx context.Context, node string, req *csr.Request) (Found, error) {
	for rank, source := range s {
		entry, err := source.Lookup(ctx, node, req)
		if err != nil {
			return Found{}, &Unavailable{Source: source.Name(), Cause: err}
		}
		if entry != nil {
			return Found{Entry: entry, Rank: rank}, nil
		}
	}
	return Found{}, nil
}

// Owner describes whom the first stronger of the sources give san to, as far as they can be asked for that: there need be
// no Node of it yet. It is empty when they know nobody. An error is always an *Unavailable.
func (s Sources) Owner(san SAN, stronger int) (string, error) {
	for _, source := range s[:stronger] {
		owner, can := source.(Owner)
		if !can {
			continue
		}
		who, err := owner.Owner(san)
		if err != nil {
			return "", &Unavailable{Source: source.Name(), Cause: err}
		}
		if who != "" {
			return who, nil
		}
	}
	return "", nil
}

// Claimant is Lookup in the first sources only, for a Node that reports a value that another node asks for. What the Node
// reports itself is not repeated in the Entry: there may be tens of thousands of values.
func (s Sources) Claimant(ctx context.Context, node string, first int, req *csr.Request) (Found, error) {
	for rank, source := range s[:first] {
		if _, reports := source.(NodeReports); reports {
			return Found{Entry: &Entry{Source: "Node " + node, OwnWord: true, Bound: node}, Rank: rank}, nil
		}
		found, err := s[rank:rank+1].Lookup(ctx, node, req)
		if err != nil {
			return Found{}, err
		}
		if found.Entry != nil {
			return Found{Entry: found.Entry, Rank: rank}, nil
		}
	}
	return Found{}, nil
}

// NamesOwners reports whether Owner knows everything that the first sources give to one node alone.
func (s Sources) NamesOwners(first int) bool {
	for _, source := range s[:first] {
		_, owner := source.(Owner)
		if _, reports := source.(NodeReports); !owner && !reports {
			return false
		}
	}
	return true
}
