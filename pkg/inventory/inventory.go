// Package inventory knows nodes: the names and addresses that belong to a node, and whether the node is expected.
// Sources are asked in order, strongest first. The first source that knows the node decides.
//
// This package holds the parts that all sources share: Source, Entry, Limited for slow sources, and Entry.Claim, which
// decides who owns a name or an address. It does no I/O, and does not import the packages below it.
//
// These packages hold the sources. node trusts the reports of Nodes, and knows the names of the API server itself.
// machine reads the Machines of Cluster API and others. static has rows that an administrator wrote. webhook asks a
// server.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"

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

// Changed is called by a source with the name of each node whose entry has changed, and with names and addresses that
// this node had, because other nodes may wait for them. An empty node means that the entry of any node may have changed.
type Changed func(node string, had ...san.SAN)

// Sources asks each Source in order, the strongest first.
type Sources []Source

// Found is an Entry with the rank of its source. A lower rank is stronger.
type Found struct {
	*Entry
	Rank int
}

// Lookup returns the answer of the first source that knows node. The Entry is nil if no source does. If a source can't
// answer, the answers of weaker sources do not count: a node's own report must not replace that of a Machine.
func (s Sources) Lookup(ctx context.Context, node string, req *csr.Request) (Found, error) {
	for rank, source := range s {
		entry, err := source.Lookup(ctx, node, req)
		if err != nil {
			return Found{}, fmt.Errorf("ask %s: %w", source.Name(), err)
		}
		if entry != nil {
			return Found{Entry: entry, Rank: rank}, nil
		}
	}
	return Found{}, nil
}

// Slow is a Source that waits for another server. It bounds the time of a Lookup itself.
type Slow interface {
	Source
	// Concurrency returns how many lookups the server may get at once.
	Concurrency() int
}

// ErrBusy is the error of a Limited source while all its slots are taken.
var ErrBusy = errors.New("too many requests wait for its answer")

// Limited returns source with a limit of concurrent lookups, so that a source that does not answer takes no more than
// that many workers. One requester gets at most half of the slots. Lookup never waits for a slot: its error is then
// ErrBusy.
func Limited(source Slow, slots int) Source {
	return &limited{Slow: source, slots: max(1, min(slots, source.Concurrency())), held: map[string]int{}}
}

type limited struct {
	Slow
	slots int

	mu    sync.Mutex
	taken int
	held  map[string]int // slots by requester
}

// Lookup implements Source.
func (l *limited) Lookup(ctx context.Context, node string, req *csr.Request) (*Entry, error) {
	requester := req.Requester.Username
	l.mu.Lock()
	if l.taken >= l.slots || l.held[requester] >= max(1, l.slots/2) {
		l.mu.Unlock()
		return nil, ErrBusy
	}
	l.taken++
	l.held[requester]++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.taken--
		if l.held[requester]--; l.held[requester] == 0 {
			delete(l.held, requester)
		}
	}()
	return l.Slow.Lookup(ctx, node, req)
}
