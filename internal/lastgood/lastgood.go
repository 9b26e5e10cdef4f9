// Package lastgood keeps the last good version of something that is read again and again: a signing CA, a block list, a
// list of nodes. A bad version never replaces a good one. It does no I/O.
package lastgood

import (
	"fmt"
	"sync"
)

// State is what is known of a Value.
type State[T any] struct {
	// Good is the last good version. It is zero unless Known is set.
	Good  T
	Known bool
	// Problem is why the newest version can't be used, or what is wrong with the version in use. It is nil if there is no
	// problem, or if nothing was read yet.
	Problem error
}

// Value holds the last good version of a T, and the problem with the newest version. The zero Value knows nothing. It
// is safe for concurrent use. Set the fields before its first use.
type Value[T any] struct {
	// Same reports whether two versions need no report. Nil means that every version is reported.
	Same func(a, b T) bool
	// Report, if set, is called after each change, in order. Another version, or a problem with another text, is a
	// change. Report must not call Use, Refuse or Forget.
	Report func(before, after State[T])

	changing sync.Mutex // held from a change to the end of its report

	mu          sync.Mutex
	state       State[T]
	subscribers []chan struct{}
}

// State returns what is known now.
func (v *Value[T]) State() State[T] {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state
}

// Use replaces the version in use. problem is what is wrong with it nevertheless, or nil. If the version is another, or
// if a problem has ended, Use notifies all subscribers.
func (v *Value[T]) Use(good T, problem error) {
	v.changing.Lock()
	defer v.changing.Unlock()
	before := v.State()
	same := before.Known && v.Same != nil && v.Same(before.Good, good)
	v.change(before, State[T]{Good: good, Known: true, Problem: problem}, same)
	if same && (before.Problem == nil || problem != nil) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, subscriber := range v.subscribers {
		select {
		case subscriber <- struct{}{}:
		default: // a notification is already pending
		}
	}
}

// Refuse records why the newest version can't be used. The last good version stays in use.
func (v *Value[T]) Refuse(problem error) {
	v.changing.Lock()
	defer v.changing.Unlock()
	before := v.State()
	v.change(before, State[T]{Good: before.Good, Known: before.Known, Problem: problem}, true)
}

// Forget drops the last good version because of problem.
func (v *Value[T]) Forget(problem error) {
	v.changing.Lock()
	defer v.changing.Unlock()
	before := v.State()
	v.change(before, State[T]{Problem: problem}, !before.Known)
}

// change stores after, and reports it unless the version and the problem are the same as before.
func (v *Value[T]) change(before, after State[T], same bool) {
	v.mu.Lock()
	v.state = after
	v.mu.Unlock()
	if v.Report != nil && (!same || fmt.Sprint(before.Problem) != fmt.Sprint(after.Problem)) {
		v.Report(before, after)
	}
}

// Subscribe returns a channel that receives a value after Use has put another version in use, or has ended a problem.
func (v *Value[T]) Subscribe() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	subscriber := make(chan struct{}, 1)
	v.subscribers = append(v.subscribers, subscriber)
	return subscriber
}
