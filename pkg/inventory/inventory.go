// Package inventory knows nodes: the names and addresses that belong to a node, and whether the node is expected.
// Sources are asked in order, strongest first. The first source that knows the node answers alone.
//
// This package holds the parts that all sources share: Source, Entry, Background for slow sources, and Ownership,
// which decides who owns a name that several Nodes report. It does no I/O, and does not import the packages below it.
//
// These packages hold the sources. node trusts the reports of Nodes, and knows the names of the API server itself.
// machine reads the Machines of Cluster API and others. static has rows that an administrator wrote. webhook asks a
// server.
package inventory

import (
	"context"
	"errors"
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
	// Lookup returns the entry for node, or nil if the source does not know node. req is the request that needs it.
	// An error means that the source can't answer, never that it does not know node.
	Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error)
}

// Owner is a Source that knows the owner of a name or an address without a lookup of the node.
type Owner interface {
	Source
	// Owner describes the node or the machine that alone has value, such as `Machine default/a`, or returns an empty
	// text. A value that several nodes may have, such as an address in a CIDR, has no owner. An error means that the
	// source can't answer.
	Owner(value san.SAN) (string, error)
}

// NodeReports is the Source that trusts the reports of Nodes about themselves.
type NodeReports interface {
	Source
	// Reported returns the names and addresses that a Node reports. An error means that they are unknown.
	Reported(node string) ([]san.SAN, error)
}

// ErrElsewhere is the error of a source that only the manager can ask.
var ErrElsewhere = errors.New("only the manager can ask it, with the files and the network of its machine")

// Elsewhere is the name of a source that only the manager can ask. It stands in for that source in another process.
type Elsewhere string

var _ Owner = Elsewhere("")

// Name implements Source.
func (e Elsewhere) Name() string { return string(e) }

// Lookup implements Source.
func (Elsewhere) Lookup(context.Context, string, *csr.Request) (*Entry, error) {
	return nil, ErrElsewhere
}

// Owner implements Owner.
func (Elsewhere) Owner(san.SAN) (string, error) { return "", ErrElsewhere }

// Sources asks each Source in order, the strongest first.
type Sources []Source

// Found is an Entry with the rank of its source. A lower rank is stronger.
type Found struct {
	*Entry
	Rank int
}

// Unavailable reports that a source can't answer. Answers of weaker sources do not count then: a node's own report
// must not replace that of a Machine.
type Unavailable struct {
	Source string
	Cause  error
}

func (u *Unavailable) Error() string { return fmt.Sprintf("ask %s: %v", u.Source, u.Cause) }

// Unwrap returns the cause.
func (u *Unavailable) Unwrap() error { return u.Cause }

// Lookup returns the answer of the first source that knows node. The Entry is nil if no source does. An error is
// always an *Unavailable.
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

// Owner describes the node or machine to which one of the first stronger sources assigns value. Only sources that
// implement Owner count. The Node of the owner need not exist yet. The text is empty if there is no owner. An error
// is always an *Unavailable.
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

// Claimant is Lookup in the first sources only, for a Node that reports a value that another node requests. If the
// Node itself is the source, the Entry does not repeat its report, which may have tens of thousands of values.
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

// NamesOwners reports whether Owner knows every value that the first sources assign to one node alone.
func (s Sources) NamesOwners(first int) bool {
	for _, source := range s[:first] {
		_, owner := source.(Owner)
		if _, reports := source.(NodeReports); !owner && !reports {
			return false
		}
	}
	return true
}

// Keys returns the keys of names and addresses in an index.
func Keys(sans []san.SAN) []string {
	all := make([]string, len(sans))
	for i, each := range sans {
		all[i] = each.String()
	}
	return all
}

// MaxLookupTime bounds how long one lookup in a Slow source may take.
const MaxLookupTime = 30 * time.Second

// Slow is a Source that waits for another server. A controller asks it through a Background.
type Slow interface {
	Source
	// Concurrency returns the maximum number of concurrent lookups.
	Concurrency() int
}

// Background asks a Slow source in its own goroutines, so that no worker of a controller waits for the source.
// Requesters take turns, and one requester uses at most half of all lookups.
type Background struct {
	Slow
	calls pending.Calls[*Entry]
}

// NewBackground returns a Background that works while Start runs. It calls answered with the name of each request
// whose lookup has returned. From then on, Lookup returns the answer.
func NewBackground(source Slow, passed clock.PassiveClock, answered func(request string)) *Background {
	return &Background{source, pending.Calls[*Entry]{
		Limit: source.Concurrency(), PerRequester: max(1, source.Concurrency()/2),
		Timeout: MaxLookupTime, Clock: passed, Answered: answered,
	}}
}

// NeedLeaderElection returns false, because a standby that works early asks too. Without questions it makes no call.
func (*Background) NeedLeaderElection() bool { return false }

// Start runs lookups until ctx ends.
func (b *Background) Start(ctx context.Context) error { return b.calls.Start(ctx) }

// Lookup implements Source. Its error is a *pending.Waiting until the source has answered.
func (b *Background) Lookup(_ context.Context, node string, req *csr.Request) (*Entry, error) {
	return b.calls.Answer(pending.Question[*Entry]{
		Request: req.Name, UID: req.UID, Requester: pending.DigestOf(req.Requester.Username),
		Text: fmt.Sprintf("%s %s", req.UID, node), // a source may answer each request differently
		Ask:  func(ctx context.Context) (*Entry, error) { return b.Slow.Lookup(ctx, node, req) },
	})
}

// Forget drops the answers for a request that was decided or will be judged again.
func (b *Background) Forget(request types.UID) { b.calls.Forget(request) }
