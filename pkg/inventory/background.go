package inventory

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

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
