package fairqueue

import (
	"slices"
	"sort"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// chunk bounds how many requests one addition or removal moves.
const chunk = 512

// Newest holds requests by age. Of two of one age, the one that was added later counts as the newer one. Adding in any
// order is cheap: after a restart requests come in the order of their names. The zero value is empty. It is not safe for
// concurrent use.
type Newest struct {
	chunks [][]aged // none is empty
	count  int
}

type aged struct {
	key     reconcile.Request
	created time.Time
}

// Add adds a request.
func (n *Newest) Add(key reconcile.Request, created time.Time) {
	if n.count++; n.count == 1 {
		n.chunks = [][]aged{nil}
	}
	c := sort.Search(len(n.chunks)-1, func(c int) bool { return last(n.chunks[c]).created.After(created) })
	items := n.chunks[c]
	at := sort.Search(len(items), func(i int) bool { return items[i].created.After(created) })
	items = slices.Insert(items, at, aged{key, created})
	n.chunks[c] = items
	if len(items) > chunk {
		half := len(items) / 2
		n.chunks = slices.Insert(n.chunks, c+1, slices.Clone(items[half:]))
		n.chunks[c] = slices.Delete(items, half, len(items))
	}
}

// Remove removes a request, if it is there.
func (n *Newest) Remove(key reconcile.Request, created time.Time) {
	if c, at := n.find(key, created); c >= 0 {
		n.remove(c, at)
	}
}

func (n *Newest) remove(c, at int) {
	n.count--
	if n.chunks[c] = slices.Delete(n.chunks[c], at, at+1); len(n.chunks[c]) == 0 {
		n.chunks = slices.Delete(n.chunks, c, c+1)
	}
}

// find returns where the request of key is, or -1.
func (n *Newest) find(key reconcile.Request, created time.Time) (c, at int) {
	c = sort.Search(len(n.chunks), func(c int) bool { return !last(n.chunks[c]).created.Before(created) })
	for ; c < len(n.chunks); c++ {
		items := n.chunks[c]
		at = sort.Search(len(items), func(i int) bool { return !items[i].created.Before(created) })
		for ; at < len(items); at++ {
			switch {
			case !items[at].created.Equal(created):
				return -1, -1
			case items[at].key == key:
				return c, at
			}
		}
	}
	return -1, -1
}

// Index returns the number of requests that are older than the one of key, or -1 if that is not there.
func (n *Newest) Index(key reconcile.Request, created time.Time) int {
	c, at := n.find(key, created)
	for i := range max(c, 0) {
		at += len(n.chunks[i])
	}
	return at
}

// Len returns the number of requests.
func (n *Newest) Len() int { return n.count }

// Last returns the newest requests, at most so many, the oldest of them first.
func (n *Newest) Last(most int) []reconcile.Request {
	keys := make([]reconcile.Request, 0, min(most, n.count))
	for c := len(n.chunks) - 1; c >= 0 && len(keys) < most; c-- {
		items := n.chunks[c]
		for _, item := range slices.Backward(items[max(0, len(items)-most+len(keys)):]) {
			keys = append(keys, item.key)
		}
	}
	slices.Reverse(keys)
	return keys
}

// take removes the newest request and returns it.
func (n *Newest) take() reconcile.Request {
	c := len(n.chunks) - 1
	key := last(n.chunks[c]).key
	n.remove(c, len(n.chunks[c])-1)
	return key
}

func last(items []aged) aged { return items[len(items)-1] }
