// Package inventory answers what is known of a node: which names and addresses belong to it, and whether it is
// expected. Sources are asked in order, strongest first, and the first one that knows the node answers alone.
//
// This package holds what all sources have in common: Source, Entry, Background for sources that are slow, and who
// owns a name that several Nodes report (Ownership). It does no I/O, and does not import the packages below it. They
// hold the sources: node believes what Nodes report and knows what the API server itself has, machine reads the
// Machines of Cluster API and others, static has rows that an administrator wrote, and webhook asks a server.
package inventory

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// Source knows nodes by name.
type Source interface {
	// Name returns the name of the source in metrics and messages.
	Name() string
	// Lookup returns what is known of node, or nil if nothing is. req is the request that needs it. An error means that
	// the source can't answer, never that it knows nothing.
	Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error)
}

// Owner is a Source that knows the owner of a name or an address without being asked about a node.
type Owner interface {
	Source
	// Owner describes the node or the machine that alone has value, such as `Machine default/a`, or returns an empty text.
	// What several may have, as an address in a CIDR, has no owner. An error means that the source can't answer.
	Owner(value san.SAN) (string, error)
}

// NodeReports is the Source that believes what Nodes report of themselves.
type NodeReports interface {
	Source
	// Reported returns what the Node of that name reports. An error means that the Nodes are not known.
	Reported(node string) ([]san.SAN, error)
}

// Sources asks each Source in order, the strongest first.
type Sources []Source

// Found is an Entry with the place of its source in the order: the lower, the stronger.
type Found struct {
	*Entry
	Rank int
}

// Unavailable says that a source can't answer. Answers of weaker sources do not count then: a node's own word must not
// stand in for a Machine's.
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

// Owner describes the node or machine to which one of the first stronger sources gives value, as far as they implement
// Owner. Its Node need not exist yet. The text is empty if they know no owner. An error is always an *Unavailable.
func (s Sources) Owner(value san.SAN, stronger int) (string, error) {
	for _, source := range s[:stronger] {
		owner, can := source.(Owner)
		if !can {
			continue
		}
		description, err := owner.Owner(value)
		if err != nil {
			return "", &Unavailable{Source: source.Name(), Cause: err}
		}
		if description != "" {
			return description, nil
		}
	}
	return "", nil
}

// Claimant is Lookup in the first sources only, for a Node that reports a value that another node asks for. What the
// Node reports itself is not repeated in the Entry: there may be tens of thousands of values.
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

// Keys returns the texts by which an index finds names and addresses.
func Keys(sans []san.SAN) []string {
	all := make([]string, len(sans))
	for i, each := range sans {
		all[i] = each.String()
	}
	return all
}

// MaxLookupTime bounds how long one lookup in a Slow source may take.
const MaxLookupTime = 30 * time.Second

// Slow is a Source that waits for another server when it is asked. A controller asks it through a Background.
type Slow interface {
	Source
	// Concurrency is how many lookups may be under way.
	Concurrency() int
}

// Background asks a Slow source in goroutines of its own, so that no worker of a controller waits for it. Requesters
// take turns, and one requester has half of all lookups at most.
type Background struct {
	Slow
	calls pending.Calls[*Entry]
}

// NewBackground returns a Background that runs between Start and its end. It calls answered with the name of each
// request whose lookup has returned: then Lookup has the answer for it.
func NewBackground(source Slow, passed clock.PassiveClock, answered func(request string)) *Background {
	return &Background{source, pending.Calls[*Entry]{
		Limit: source.Concurrency(), PerRequester: max(1, source.Concurrency()/2),
		Timeout: MaxLookupTime, Clock: passed, Answered: answered,
	}}
}

// Start looks up until ctx ends.
func (b *Background) Start(ctx context.Context) error { return b.calls.Start(ctx) }

// Lookup implements Source. Its error is a *pending.Waiting until the source has answered.
func (b *Background) Lookup(_ context.Context, node string, req *csr.Request) (*Entry, error) {
	return b.calls.Answer(pending.Question[*Entry]{
		Request: req.Name, UID: req.UID, Requester: pending.DigestOf(req.Requester.Username),
		Text: fmt.Sprintf("%s %s", req.UID, node), // a source may answer each request as it likes
		Ask:  func(ctx context.Context) (*Entry, error) { return b.Slow.Lookup(ctx, node, req) },
	})
}

// Forget drops the answers for a request, which has been decided or is to be judged anew.
func (b *Background) Forget(request types.UID) { b.calls.Forget(request) }
