package pending

import (
	"sync"
	"time"
)

// Index holds requests by name, and those of each Key in the order of their creation. Its owner removes a request
// that no longer waits, so it never holds more requests than there are. The zero value is empty. It is safe for
// concurrent use.
type Index struct {
	mu       sync.Mutex
	requests map[string]Request
	ordered  map[Key]*ordered
}

// Put adds r, and replaces a request of the same name.
func (i *Index) Put(r Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, found := i.requests[r.Name]; found {
		if known == r {
			return
		}
		i.remove(known)
	}
	if i.requests == nil {
		i.requests, i.ordered = map[string]Request{}, map[Key]*ordered{}
	}
	i.requests[r.Name] = r
	if i.ordered[r.Key] == nil {
		i.ordered[r.Key] = &ordered{}
	}
	i.ordered[r.Key].add(r.Name, r.Created)
}

// Remove removes the request of that name, if there is one.
func (i *Index) Remove(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if known, found := i.requests[name]; found {
		i.remove(known)
	}
}

// remove removes r, which is there. The caller holds mu.
func (i *Index) remove(r Request) {
	delete(i.requests, r.Name)
	i.ordered[r.Key].remove(r.Name, r.Created)
	if i.ordered[r.Key].count == 0 {
		delete(i.ordered, r.Key)
	}
}

// Get returns the request of that name.
func (i *Index) Get(name string) (Request, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, found := i.requests[name]
	return r, found
}

// Len returns the number of requests.
func (i *Index) Len() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.requests)
}

// Next returns the oldest request of key that is newer than created. The API server stores creation in whole seconds,
// so neither of two requests of one second is newer.
func (i *Index) Next(key Key, created time.Time) (Request, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ordered[key] == nil {
		return Request{}, false
	}
	name, found := i.ordered[key].after(created)
	return i.requests[name], found
}

// Newer returns how many requests of the same Key are newer than the one of that name. Of two requests of one second,
// the one that was put later is newer.
func (i *Index) Newer(name string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	r, found := i.requests[name]
	if !found {
		return 0
	}
	all := i.ordered[r.Key]
	return all.count - 1 - all.index(name, r.Created)
}

// Newest returns the newest requests of each Key, at most n.
func (i *Index) Newest(n int) []Request {
	i.mu.Lock()
	defer i.mu.Unlock()
	var newest []Request
	for _, all := range i.ordered {
		for _, name := range all.last(n) {
			newest = append(newest, i.requests[name])
		}
	}
	return newest
}
