// Package informertest gives an Informer an API server that a test controls.
package informertest

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

// Read starts i, and returns once i has read objects. The returned watch sends further events. i runs until the test ends,
// or until another Read or Fail.
func Read[T metav1.Object](t testing.TB, i *informer.Informer[T], objects ...runtime.Object) (events *watch.FakeWatcher) {
	t.Helper()
	from := server{objects: objects, events: watch.NewFake(), opened: make(chan struct{})}
	start(t, i, from, func() { t.Error("the Informer has failed") })
	<-from.opened
	return from.events
}

// Fail starts i, and returns once the API server has refused a list with err, such as status 403. i runs until the test ends,
// or until another Read or Fail.
func Fail[T metav1.Object](t testing.TB, i *informer.Informer[T], err error) {
	t.Helper()
	failed := make(chan struct{})
	start(t, i, server{err: err}, func() { close(failed) })
	<-failed
}

// running holds the function that stops an Informer, for each that runs.
var running sync.Map

// start starts i with from as its API server. It stops i first, if i runs. i calls failed after its OnFailure.
func start[T metav1.Object](t testing.TB, i *informer.Informer[T], from server, failed func()) {
	stop := func() {
		if stop, runs := running.LoadAndDelete(i); runs {
			stop.(func())()
		}
	}
	stop()
	t.Cleanup(stop)
	ctx, cancel := context.WithCancel(t.Context())
	report, ended := i.OnFailure, make(chan struct{})
	running.Store(i, func() {
		cancel()
		<-ended
		i.OnFailure = report
	})
	i.Find, i.Resource = nil, informer.Of(i.Resource.GroupVersionResource, from)
	i.OnFailure = func(err error) {
		if report != nil {
			report(err)
		}
		failed()
	}
	go func() {
		defer close(ended)
		_ = i.Start(ctx) // it returns no error
	}()
}

// server is the API of one resource. It serves objects, or refuses with err.
type server struct {
	err     error
	objects []runtime.Object
	events  *watch.FakeWatcher
	opened  chan struct{} // closed once events are watched
}

// List implements informer.API.
func (s server) List(context.Context, metav1.ListOptions) (*corev1.List, error) {
	list := &corev1.List{}
	if s.err != nil {
		return nil, s.err
	}
	return list, meta.SetList(list, s.objects)
}

// Watch implements informer.API.
func (s server) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	close(s.opened)
	return s.events, nil
}
