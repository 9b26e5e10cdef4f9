package fairqueue

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"
	"sync"
)

var seed = maphash.MakeSeed()

// Digest returns a short digest of parts, which requesters may make long. Its seed is random in each process, so that
// a requester cannot choose two texts with the same digest.
func Digest(parts ...string) uint64 {
	var hash maphash.Hash
	hash.SetSeed(seed)
	for _, part := range parts {
		_, _ = hash.WriteString(strconv.Itoa(len(part)) + ":" + part) // it never fails
	}
	return hash.Sum64()
}

// Index holds the keys of requests that wait, so that a change can wake exactly those that wait for it. The zero value
// is empty. It is safe for concurrent use.
type Index struct {
	mu   sync.Mutex
	keys map[string]marked // by name
}

type marked struct {
	Key
	marks []uint64
}

// Put adds key in place of an earlier one of that name. marks are Digests of what the request waits for.
func (i *Index) Put(key Key, marks ...uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.keys == nil {
		i.keys = map[string]marked{}
	}
	i.keys[key.Name] = marked{key, marks}
}

// Remove removes the key of that name.
func (i *Index) Remove(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.keys, name)
}

// All returns all keys, in any order.
func (i *Index) All() []Key {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := make([]Key, 0, len(i.keys))
	for _, each := range i.keys {
		all = append(all, each.Key)
	}
	return all
}

// Marked returns the keys with any of marks: of each lane the newest ones, up to most. Its time grows with the marks of
// all keys, so callers gather changes before they call it.
func (i *Index) Marked(most int, marks map[uint64]bool) []Key {
	var found []Key
	i.mu.Lock()
	for _, each := range i.keys {
		if slices.ContainsFunc(each.marks, func(mark uint64) bool { return marks[mark] }) {
			found = append(found, each.Key)
		}
	}
	i.mu.Unlock()
	slices.SortFunc(found, func(a, b Key) int { return cmp.Compare(b.Created, a.Created) })
	lanes := map[uint64]int{}
	return slices.DeleteFunc(found, func(key Key) bool {
		lanes[key.Lane]++
		return lanes[key.Lane] > most
	})
}
