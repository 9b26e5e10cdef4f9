package fairqueue

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Places holds the Place of each request that may be in a Queue. A place is found out once, before the request is queued,
// because a Queue must not wait for it. Its owner drops the place of a request that no longer needs one, so there are never
// more places than requests. The zero value is empty. It is safe for concurrent use.
type Places struct {
	mu     sync.Mutex
	places map[string]placeOf
}

type placeOf struct {
	Place
	uid types.UID
}

// Keep calls read for obj, and keeps the result until Drop. It does nothing for an object that has a place already.
func (p *Places) Keep(obj metav1.Object, read func() Place) {
	p.mu.Lock()
	known, found := p.places[obj.GetName()]
	p.mu.Unlock()
	if found && known.uid == obj.GetUID() {
		return
	}
	place := placeOf{read(), obj.GetUID()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.places == nil {
		p.places = map[string]placeOf{}
	}
	p.places[obj.GetName()] = place
}

// Drop forgets the place of the request of that name.
func (p *Places) Drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.places, name)
}

// Of returns the place of a request, or the zero Place if none is kept.
func (p *Places) Of(key reconcile.Request) Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.places[key.Name].Place
}
