package fairqueue

import (
	"context"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

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
