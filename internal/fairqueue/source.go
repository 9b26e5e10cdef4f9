package fairqueue

import (
	"context"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Events returns a handler that calls observe for each new or changed request, and forget for each deleted one.
func Events(
	observe func(*certificatesv1.CertificateSigningRequest, workqueue.TypedRateLimitingInterface[Key]),
	forget func(*certificatesv1.CertificateSigningRequest),
) handler.TypedEventHandler[*certificatesv1.CertificateSigningRequest, Key] {
	type object = *certificatesv1.CertificateSigningRequest
	type queue = workqueue.TypedRateLimitingInterface[Key]
	return handler.TypedFuncs[object, Key]{
		CreateFunc: func(_ context.Context, created event.TypedCreateEvent[object], to queue) { observe(created.Object, to) },
		UpdateFunc: func(_ context.Context, updated event.TypedUpdateEvent[object], to queue) {
			observe(updated.ObjectNew, to)
		},
		DeleteFunc: func(_ context.Context, deleted event.TypedDeleteEvent[object], _ queue) { forget(deleted.Object) },
	}
}

// LogConstructor returns the logger for each attempt of a controller, which names the request.
func LogConstructor(log logr.Logger, controller string) func(*Key) logr.Logger {
	log = log.WithValues("controller", controller)
	return func(key *Key) logr.Logger {
		if key == nil {
			return log
		}
		return log.WithValues("name", key.Name)
	}
}

// Wake returns a source that queues the keys of waiting each time that changed signals. If ready is set, the controller
// starts after ready has returned.
func Wake(
	changed <-chan struct{}, ready func(context.Context) error, waiting func() []Key,
) source.TypedSyncingSource[Key] {
	return wake{changed, ready, waiting}
}

type wake struct {
	changed <-chan struct{}
	ready   func(context.Context) error
	waiting func() []Key
}

// Start implements source.TypedSource.
func (w wake) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[Key]) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.changed:
				for _, key := range w.waiting() {
					queue.Add(key)
				}
			}
		}
	}()
	return nil
}

// WaitForSync implements source.TypedSyncingSource.
func (w wake) WaitForSync(ctx context.Context) error {
	if w.ready == nil {
		return nil
	}
	return w.ready(ctx)
}
