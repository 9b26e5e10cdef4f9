package blocklist

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// settleTimeout bounds how long requests wait, at the start, for the first answer about the block list. After that they
// are told that no list was read yet.
const settleTimeout = 10 * time.Second

// SetupWithManager makes mgr, a standby too, watch the ConfigMap by its name, so that a role for that name is enough.
// The manager is not ready before a list was read.
func (l *List) SetupWithManager(mgr manager.Manager) error {
	l.log = mgr.GetLogger().WithName("block-list")
	l.reporter = report.New(mgr.GetEventRecorder("csr-block-list"), clock.RealClock{})
	configMaps, err := informer.ConfigMaps(mgr.GetConfig(), nil)
	if err != nil {
		return err
	}
	l.watch(configMaps)
	if err := mgr.AddReadyzCheck("block-list", func(*http.Request) error { return l.ready() }); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(l.configMap)
}

// watch makes the informer that keeps l up to date while it runs.
func (l *List) watch(configMaps informer.Resource) {
	reload := func() {
		l.loading.Lock()
		defer l.loading.Unlock()
		if obj, _, err := l.configMap.Get(l.name.Namespace, l.name.Name); err == nil {
			l.offer(obj)
		}
	}
	l.configMap = &informer.Informer[*corev1.ConfigMap]{
		Resource: configMaps, Namespace: l.name.Namespace, Name: l.name.Name,
		Log:    l.log.WithValues("configMap", l.name.String()),
		OnSync: reload, OnChange: func(_, _ *corev1.ConfigMap) { reload() },
		OnFailure: func(err error) {
			if apierrors.IsForbidden(err) { // readiness checks report an API server that is away
				l.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
			}
		},
	}
}

// ReadOnce reads the list from reader.
func (l *List) ReadOnce(ctx context.Context, reader client.Reader) error {
	obj := &corev1.ConfigMap{}
	err := reader.Get(ctx, l.name, obj)
	switch {
	case apierrors.IsNotFound(err):
		l.offer(nil)
		return nil
	case err != nil:
		l.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
		return err
	}
	l.offer(obj)
	return nil
}

// requestQueue is the work queue of a controller.
type requestQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Source returns a source for a controller. It calls enqueue each time that the list has changed. The controller does
// not start before it is known whether a list exists.
func (l *List) Source(enqueue func(context.Context, requestQueue)) source.SyncingSource {
	return listSource{list: l, enqueue: enqueue}
}

type listSource struct {
	list    *List
	enqueue func(context.Context, requestQueue)
}

// Start implements source.Source.
func (s listSource) Start(ctx context.Context, queue requestQueue) error {
	s.list.mu.Lock()
	defer s.list.mu.Unlock()
	s.list.onChange = append(s.list.onChange, func() {
		if ctx.Err() == nil {
			s.enqueue(ctx, queue)
		}
	})
	return nil
}

// WaitForSync implements source.SyncingSource. It gives up in time, as an error would end the manager.
func (s listSource) WaitForSync(ctx context.Context) error {
	timer := time.NewTimer(settleTimeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.list.settled:
	}
	return nil
}

// String names the source in the controller's log.
func (listSource) String() string { return "block list" }
