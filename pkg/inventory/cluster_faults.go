package inventory

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// faults are why kinds of objects can't be read yet. The zero value is ready; it is safe for concurrent use.
type faults struct {
	mu   sync.Mutex
	last map[string]error // by kind
}

// note is why kind could not be read, or nil when it has been.
func (f *faults) note(kind string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		f.last = map[string]error{}
	}
	if err == nil {
		delete(f.last, kind)
		return
	}
	if apierrors.IsForbidden(err) {
		err = fmt.Errorf("grant list and watch: %w", err)
	}
	f.last[kind] = err
}

// unread is the answer while not everything has been read: what stands in the way, the same of several.
func (f *faults) unread() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.last) == 0 {
		return errNotRead
	}
	return f.last[slices.Min(slices.Collect(maps.Keys(f.last)))]
}
