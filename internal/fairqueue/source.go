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

type (
	object = *certificatesv1.CertificateSigningRequest
	queue  = workqueue.TypedRateLimitingInterface[Key]
)

// Events returns a handler that calls observe for each new or changed request, and forget for each deleted one.
func Events(observe func(object, queue), forget func(object)) handler.TypedEventHandler[object, Key] {
	return handler.TypedFuncs[object, Key]{
		CreateFunc: func(_ context.Context, made event.TypedCreateEvent[object], to queue) { observe(made.Object, to) },
		UpdateFunc: func(_ context.Context, changed event.TypedUpdateEvent[object], to queue) {
			observe(changed.ObjectNew, to)
		},
		DeleteFunc: func(_ context.Context, gone event.TypedDeleteEvent[object], _ queue) { forget(gone.Object) },
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
func Wake(changed <-chan struct{}, ready func(context.Context) error, waiting func() []Key) source.TypedSource[Key] {
	return source.TypedFunc[Key](func(ctx context.Context, to queue) error {
		go func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
					for _, key := range waiting() {
						to.Add(key)
					}
				}
			}
		}()
		if ready == nil {
			return nil
		}
		return ready(ctx)
	})
}
