package inventory

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// settleTimeout bounds how long requests wait, at the start, for the first answer about the block list: after that they
// are told that there is none yet.
const settleTimeout = 10 * time.Second

// SetupWithManager has mgr follow the ConfigMap, by name, so that a role for that one is enough; on a standby too. The
// manager is not ready before there has been a list.
func (b *BlockList) SetupWithManager(mgr manager.Manager) error {
	b.log = mgr.GetLogger().WithName("block-list")
	b.reporter = report.New(mgr.GetEventRecorder("csr-block-list"), clock.RealClock{})
	var err error
	b.maps, err = cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(),
		Scheme:     mgr.GetScheme(),
		Mapper:     mgr.GetRESTMapper(),
		DefaultWatchErrorHandler: func(ctx context.Context, reflector *toolscache.Reflector, err error) {
			if apierrors.IsForbidden(err) {
				b.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
			}
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		},
		ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{b.name.Namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", b.name.Name),
		}},
	})
	if err != nil {
		return fmt.Errorf("watch block list ConfigMap %s: %w", b.name, err)
	}
	if err := mgr.AddReadyzCheck("block-list", func(*http.Request) error { return b.ready() }); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(b)
}

// NeedLeaderElection says no: a standby's list is to be the newest too.
func (*BlockList) NeedLeaderElection() bool { return false }

// Start follows the ConfigMap until ctx ends.
func (b *BlockList) Start(ctx context.Context) error {
	informer, err := b.maps.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch block list ConfigMap %s: %w", b.name, err)
	}
	look := make(chan struct{}, 1)
	wake := func(any) {
		select {
		case look <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, obj any) { wake(obj) }, DeleteFunc: wake,
	}); err != nil {
		return fmt.Errorf("watch block list ConfigMap %s: %w", b.name, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- b.maps.Start(ctx) }()
	// A ConfigMap that is not there causes no event, so look once when the informer knows.
	toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced)
	for {
		if ctx.Err() == nil {
			_ = b.ReadOnce(ctx, b.maps) // reported
		}
		select {
		case err := <-stopped:
			return err
		case <-look:
		}
	}
}

// ReadOnce reads the list from reader.
func (b *BlockList) ReadOnce(ctx context.Context, reader client.Reader) error {
	obj := &corev1.ConfigMap{}
	err := reader.Get(ctx, b.name, obj)
	switch {
	case apierrors.IsNotFound(err):
		b.offer(nil)
		return nil
	case err != nil:
		b.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
		return err
	}
	b.offer(obj)
	return nil
}

// Wakes is the source of a controller that is woken each time that the list has changed, and does not begin before it is
// known whether there is one.
func (b *BlockList) Wakes(enqueue func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request])) source.SyncingSource {
	changed := make(chan struct{}, 1)
	b.mu.Lock()
	b.changed = append(b.changed, changed)
	b.mu.Unlock()
	return blockListSource{list: b, changed: changed, enqueue: enqueue}
}

type blockListSource struct {
	list    *BlockList
	changed <-chan struct{}
	enqueue func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request])
}

// Start implements source.Source.
func (s blockListSource) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.changed:
				s.enqueue(ctx, queue)
			}
		}
	}()
	return nil
}

// WaitForSync implements source.SyncingSource. It gives up in time, as an error would end the manager.
func (s blockListSource) WaitForSync(ctx context.Context) error {
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.list.settled:
	}
	return nil
}

// String is what the controller's log says of it.
func (blockListSource) String() string { return "block list" }
