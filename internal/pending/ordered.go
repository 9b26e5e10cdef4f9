package pending

import (
	"slices"
	"sort"
	"time"
)

// chunk bounds how many requests one addition or removal moves.
const chunk = 512

// ordered holds the names of requests in the order of their creation. Of two requests of the same second, the one
// that was added later is newer. An addition is cheap in any order: after a restart, requests arrive in the order of
// their names. The zero value is empty. It is not safe for concurrent use.
type ordered struct {
	chunks [][]item // none is empty
	count  int
}

type item struct {
	name    string
	created time.Time
}

func (o *ordered) add(name string, created time.Time) {
	if o.count++; o.count == 1 {
		o.chunks = [][]item{nil}
	}
	c := sort.Search(len(o.chunks)-1, func(c int) bool { return newest(o.chunks[c]).created.After(created) })
	items := o.chunks[c]
	at := sort.Search(len(items), func(i int) bool { return items[i].created.After(created) })
	items = slices.Insert(items, at, item{name, created})
	o.chunks[c] = items
	if len(items) > chunk {
		half := len(items) / 2
		o.chunks = slices.Insert(o.chunks, c+1, slices.Clone(items[half:]))
		o.chunks[c] = slices.Delete(items, half, len(items))
	}
}

// remove removes a request, if it is present.
func (o *ordered) remove(name string, created time.Time) {
	if c, at := o.find(name, created); c >= 0 {
		o.removeAt(c, at)
	}
}

func (o *ordered) removeAt(c, at int) {
	o.count--
	if o.chunks[c] = slices.Delete(o.chunks[c], at, at+1); len(o.chunks[c]) == 0 {
		o.chunks = slices.Delete(o.chunks, c, c+1)
	}
}

// find returns the chunk of a request and its index in the chunk, or -1.
func (o *ordered) find(name string, created time.Time) (c, at int) {
	c = sort.Search(len(o.chunks), func(c int) bool { return !newest(o.chunks[c]).created.Before(created) })
	for ; c < len(o.chunks); c++ {
		items := o.chunks[c]
		at = sort.Search(len(items), func(i int) bool { return !items[i].created.Before(created) })
		for ; at < len(items); at++ {
			switch {
			case !items[at].created.Equal(created):
				return -1, -1
			case items[at].name == name:
				return c, at
			}
		}
	}
	return -1, -1
}

// index returns how many requests are older than the request of that name, or -1 if it is not present.
func (o *ordered) index(name string, created time.Time) int {
	c, at := o.find(name, created)
	for i := range max(c, 0) {
		at += len(o.chunks[i])
	}
	return at
}

// after returns the oldest request that is newer than created.
func (o *ordered) after(created time.Time) (name string, found bool) {
	c := sort.Search(len(o.chunks), func(c int) bool { return newest(o.chunks[c]).created.After(created) })
	if c == len(o.chunks) {
		return "", false
	}
	items := o.chunks[c]
	return items[sort.Search(len(items), func(i int) bool { return items[i].created.After(created) })].name, true
}

// last returns the newest n requests, the oldest of them first.
func (o *ordered) last(n int) []string {
	names := make([]string, 0, min(n, o.count))
	for c := len(o.chunks) - 1; c >= 0 && len(names) < n; c-- {
		items := o.chunks[c]
		for _, item := range slices.Backward(items[max(0, len(items)-n+len(names)):]) {
			names = append(names, item.name)
		}
	}
	slices.Reverse(names)
	return names
}

// takeNewest removes the newest request and returns it.
func (o *ordered) takeNewest() string {
	c := len(o.chunks) - 1
	name := newest(o.chunks[c]).name
	o.removeAt(c, len(o.chunks[c])-1)
	return name
}

func newest(items []item) item { return items[len(items)-1] }
