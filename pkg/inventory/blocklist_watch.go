package inventory

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
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
	if b.view, err = viewConfigMap(mgr.GetConfig(), b.name, readConfigMap, b.look, b.log); err != nil {
		return err
	}
	b.view.failed = b.fail
	if err := mgr.AddReadyzCheck("block-list", func(*http.Request) error { return b.ready() }); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(b)
}

// NeedLeaderElection says no: a standby's list is to be the newest too.
func (*BlockList) NeedLeaderElection() bool { return false }

// Start follows the ConfigMap until ctx ends.
func (b *BlockList) Start(ctx context.Context) error {
	b.view.run(ctx)
	return nil
}

func readConfigMap(raw *unstructured.Unstructured) metav1.Object {
	obj := &corev1.ConfigMap{}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(raw.Object, obj) // no API server sends what does not fit
	return obj
}

// look takes the ConfigMap as it is now, whatever has changed.
func (b *BlockList) look(_, _ metav1.Object) {
	store, err := b.view.read()
	if err != nil {
		return // told by fail
	}
	if obj, found, _ := store.GetByKey(b.name.String()); found {
		b.offer(obj.(*corev1.ConfigMap))
	} else {
		b.offer(nil)
	}
}

// fail reports a missing right. An API server that is away is noticed elsewhere too, and comes back.
func (b *BlockList) fail(err error) {
	if apierrors.IsForbidden(err) {
		b.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
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
