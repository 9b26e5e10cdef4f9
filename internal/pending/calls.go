package pending

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// nextCall bounds how long a question waits for an identical call that was sent before. A call that hangs then delays
// only the requests that share it.
const nextCall = 500 * time.Millisecond

// Question is a question that a request needs answered.
type Question[V any] struct {
	// Request names the request, and UID distinguishes it from others of that name.
	Request   string
	UID       types.UID
	Requester Digest
	// Text identifies the question. Requests with the same question share a call that has not been sent.
	Text string
	// Ask calls the service.
	Ask func(context.Context) (V, error)
}

// Waiting is the error of a question that has no answer yet.
type Waiting struct {
	// Since is when the question was asked.
	Since time.Time
}

func (*Waiting) Error() string { return "there is no answer yet" }

// Calls asks slow services on behalf of requests, so that no worker of a controller waits for them. A worker that
// gets no answer stops handling its request. Answered enqueues the request again once there is an answer. Requesters
// take turns. An answer is never older than its question. It is kept for the requests that asked, until Forget.
type Calls[V any] struct {
	// Limit bounds the concurrent calls, and PerRequester those of one requester among them.
	Limit, PerRequester int
	// Timeout bounds one call.
	Timeout time.Duration
	// MaxAge is the age at which an answer is requested again. Zero means no limit.
	MaxAge time.Duration
	Clock  clock.PassiveClock
	// Answered is called with the name of each request whose question has been answered.
	Answered func(request string)

	running sync.WaitGroup

	mu         sync.Mutex
	ctx        context.Context // of Start while it runs
	asked      map[types.UID]map[string]*call[V]
	unsent     map[string]*call[V]   // by question
	fresh      map[string]*call[V]   // by question: calls that were sent less than nextCall ago
	requesters []Digest              // with unsent calls, in turn
	queues     map[Digest]*list.List // of *call[V]
	underWay   map[Digest]int
	count      int // of concurrent calls
}

// call is a call that one or more requests need.
type call[V any] struct {
	Question[V]
	since    time.Time
	requests map[types.UID]string // names
	queued   *list.Element        // nil once it has been sent
	cancel   context.CancelFunc
	answered time.Time
	value    V
	err      error
}

// NeedLeaderElection returns false, because a standby that works early asks too. Without questions it makes no call.
func (*Calls[V]) NeedLeaderElection() bool { return false }

// Start makes calls until ctx ends.
func (c *Calls[V]) Start(ctx context.Context) error {
	c.mu.Lock()
	c.ctx = ctx
	c.send()
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	c.ctx = nil // no more calls are sent
	c.mu.Unlock()
	c.running.Wait()
	return nil
}

// Answer returns the answer to q. The error is a *Waiting if there is none yet.
func (c *Calls[V]) Answer(q Question[V]) (V, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked, found := c.asked[q.UID][q.Text]
	if found && !asked.answered.IsZero() && c.MaxAge > 0 && c.Clock.Since(asked.answered) > c.MaxAge {
		found = false
	}
	if !found {
		asked = c.ask(q)
		c.send()
	}
	if asked.answered.IsZero() {
		var none V
		return none, &Waiting{Since: asked.since}
	}
	return asked.value, asked.err
}

// Forget drops the questions of a request and their answers. It cancels a call that no other request needs.
func (c *Calls[V]) Forget(request types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, asked := range c.asked[request] {
		delete(asked.requests, request)
		switch {
		case len(asked.requests) > 0 || !asked.answered.IsZero():
		case asked.queued != nil:
			c.unqueue(asked)
		default:
			asked.cancel()
		}
	}
	delete(c.asked, request)
}

// ask records that a request needs the answer to q. It queues a call, unless an unsent call for the same question can
// be shared. The caller holds mu.
func (c *Calls[V]) ask(q Question[V]) *call[V] {
	if c.asked == nil {
		c.asked, c.queues, c.underWay = map[types.UID]map[string]*call[V]{}, map[Digest]*list.List{}, map[Digest]int{}
		c.unsent, c.fresh = map[string]*call[V]{}, map[string]*call[V]{}
	}
	next, found := c.unsent[q.Text]
	if !found {
		next = &call[V]{Question: q, since: c.Clock.Now(), requests: map[types.UID]string{}}
		c.unsent[q.Text] = next
		if c.queues[q.Requester] == nil {
			c.requesters = append(c.requesters, q.Requester)
			c.queues[q.Requester] = list.New()
		}
		next.queued = c.queues[q.Requester].PushBack(next)
	}
	next.requests[q.UID] = q.Request
	if c.asked[q.UID] == nil {
		c.asked[q.UID] = map[string]*call[V]{}
	}
	c.asked[q.UID][q.Text] = next
	return next
}

// send sends as many calls as Limit allows. The caller holds mu.
func (c *Calls[V]) send() {
	for c.ctx != nil && c.count < c.Limit {
		next := c.next()
		if next == nil {
			return
		}
		c.unqueue(next)
		c.count++
		c.underWay[next.Requester]++
		c.fresh[next.Text] = next
		var ctx context.Context
		ctx, next.cancel = context.WithTimeout(c.ctx, c.Timeout)
		stale := time.AfterFunc(nextCall, func() { c.stale(next) })
		c.running.Go(func() {
			value, err := next.make(ctx)
			next.cancel()
			stale.Stop()
			c.finish(next, value, err)
		})
	}
}

// next returns the call whose turn it is, or nil. It ends the turn of the call's requester. The caller holds mu.
func (c *Calls[V]) next() *call[V] {
	for i, requester := range c.requesters {
		if c.underWay[requester] >= c.PerRequester {
			continue
		}
		for at := c.queues[requester].Front(); at != nil; at = at.Next() {
			if queued := at.Value.(*call[V]); c.fresh[queued.Text] == nil {
				c.requesters = append(slices.Delete(c.requesters, i, i+1), requester)
				return queued
			}
		}
	}
	return nil
}

// unqueue removes an unsent call, so that no other request shares it. The caller holds mu.
func (c *Calls[V]) unqueue(queued *call[V]) {
	delete(c.unsent, queued.Text)
	queue := c.queues[queued.Requester]
	queue.Remove(queued.queued)
	queued.queued = nil
	if queue.Len() == 0 {
		delete(c.queues, queued.Requester)
		c.requesters = slices.DeleteFunc(c.requesters, func(other Digest) bool { return other == queued.Requester })
	}
}

// stale permits an identical call after sent, which has not returned.
func (c *Calls[V]) stale(sent *call[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh[sent.Text] == sent {
		delete(c.fresh, sent.Text)
		c.send()
	}
}

// finish records the answer to a call, and calls Answered for the requests that need it.
func (c *Calls[V]) finish(made *call[V], value V, err error) {
	c.mu.Lock()
	made.value, made.err, made.answered = value, err, c.Clock.Now()
	made.Ask = nil // it may hold the request, which is larger than the answer
	if c.fresh[made.Text] == made {
		delete(c.fresh, made.Text)
	}
	c.count--
	if c.underWay[made.Requester]--; c.underWay[made.Requester] == 0 {
		delete(c.underWay, made.Requester)
	}
	c.send()
	var requests []string
	for _, request := range made.requests {
		requests = append(requests, request)
	}
	c.mu.Unlock()
	for _, request := range requests {
		c.Answered(request)
	}
}

// make calls Ask, and returns a panic as an error, because this goroutine has no other recovery.
func (c *call[V]) make(ctx context.Context) (value V, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	return c.Ask(ctx)
}
