// Package unanswered remembers writes that got no answer, so that the API server may have stored them.
package unanswered

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// most bounds the writes that are remembered at a time. This many writes fail only while the API server stores
// nothing.
const most = 1000

// Writes holds the last write to each object that got no certain answer. Each controller enqueues its objects again
// after such a write, and drops the write of a deleted object. The zero value is empty. Writes is safe for concurrent
// use.
type Writes[T any] struct {
	mu     sync.Mutex
	writes map[string]write[T]
}

type write[T any] struct {
	uid   types.UID
	about T
}

// Keep remembers a write to obj, and reports whether there was room for it.
func (w *Writes[T]) Keep(obj metav1.Object, about T) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.writes[obj.GetName()]; !known && len(w.writes) >= most {
		return false
	}
	if w.writes == nil {
		w.writes = map[string]write[T]{}
	}
	w.writes[obj.GetName()] = write[T]{obj.GetUID(), about}
	return true
}

// Of returns the write to obj. It drops a write to an older object of the same name.
func (w *Writes[T]) Of(obj metav1.Object) (about T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.writes[obj.GetName()]
	if known && last.uid != obj.GetUID() {
		delete(w.writes, obj.GetName())
		return about, false
	}
	return last.about, known
}

// Drop drops the write to the object of that name.
func (w *Writes[T]) Drop(name string) { w.Take(name) }

// Take drops the write to the object of that name, and returns it.
func (w *Writes[T]) Take(name string) (about T, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, known := w.writes[name]
	delete(w.writes, name)
	return last.about, known
}
