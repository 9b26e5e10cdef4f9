package fairqueue

import (
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Newest holds requests by age. Of two of one age, the one that was added later counts as the newer one. The zero value is
// empty. It is not safe for concurrent use.
type Newest struct{ items []aged }

type aged struct {
	key     reconcile.Request
	created time.Time
}

// Add adds a request.
func (n *Newest) Add(key reconcile.Request, created time.Time) {
	at, _ := slices.BinarySearchFunc(n.items, created, func(item aged, created time.Time) int {
		if item.created.After(created) {
			return 1
		}
		return -1
	})
	n.items = slices.Insert(n.items, at, aged{key, created})
}

// Remove removes a request, if it is there.
func (n *Newest) Remove(key reconcile.Request, created time.Time) {
	if at := n.Index(key, created); at >= 0 {
		n.items = slices.Delete(n.items, at, at+1)
	}
}

// Index returns the number of requests that are older than the one of key, or -1 if that is not there.
func (n *Newest) Index(key reconcile.Request, created time.Time) int {
	at, _ := slices.BinarySearchFunc(n.items, created, func(item aged, created time.Time) int { return item.created.Compare(created) })
	for ; at < len(n.items) && n.items[at].created.Equal(created); at++ {
		if n.items[at].key == key {
			return at
		}
	}
	return -1
}

// Len returns the number of requests.
func (n *Newest) Len() int { return len(n.items) }

// Last returns the newest requests, at most so many, the oldest of them first.
func (n *Newest) Last(most int) []reconcile.Request {
	items := n.items[max(0, len(n.items)-most):]
	keys := make([]reconcile.Request, len(items))
	for i, item := range items {
		keys[i] = item.key
	}
	return keys
}

// take removes the newest request and returns it.
func (n *Newest) take() reconcile.Request {
	last := len(n.items) - 1
	key := n.items[last].key
	n.items = n.items[:last]
	return key
}
