package cleaner

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// superseded returns when obj is due because a newer request supersedes it. If none does, it returns the instant at
// which to check again. It returns zero for a request that can't be superseded. A newer request that is made from now
// on makes nothing due before SupersededAfter has passed again, so nothing has to wake obj.
func (r *Reconciler) superseded(
	ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time,
) (time.Time, error) {
	if r.SupersededAfter <= 0 {
		return time.Time{}, nil
	}
	created := obj.CreationTimestamp.Time
	if first := created.Add(r.SupersededAfter); !now.After(first) && csr.StateOf(obj) == csr.Pending {
		return first, nil
	}
	req, ok := r.RequestLimits.Supersedable(obj)
	if !ok {
		return time.Time{}, nil
	}
	soon := now.Add(time.Second)
	if !r.pending.complete.Load() {
		return soon, nil
	}
	newer, found := r.pending.Next(pending.KeyOf(req), created)
	if !found {
		return now.Add(r.SupersededAfter), nil
	}
	due := newer.Created.Add(r.SupersededAfter)
	if !now.After(due) {
		return due, nil
	}
	// The cache may be ahead of the index.
	if current, err := r.stillPending(ctx, newer); err != nil || !current {
		return soon, err
	}
	return due, nil
}

// stillPending reports whether the cache holds the request that the index knows as newer.
func (r *Reconciler) stillPending(ctx context.Context, newer pending.Request) (bool, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// The cache's own object: nothing of it is changed.
	if err := r.Client.Get(ctx, types.NamespacedName{Name: newer.Name}, obj, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("read the newer request %s for the same node: %w", newer.Name, err)
	}
	req, ok := r.RequestLimits.Supersedable(obj)
	return ok && pending.KeyOf(req) == newer.Key && obj.CreationTimestamp.Time.Equal(newer.Created), nil
}

// supersedable indexes the requests that can supersede each other.
type supersedable struct {
	pending.Index
	complete atomic.Bool // all requests of the cache have been observed
}

// observe adds, keeps or removes obj, as its state says. It parses each request once.
func (s *supersedable) observe(obj *certificatesv1.CertificateSigningRequest, limits csr.Limits) {
	if known, found := s.Get(obj.Name); found && known.UID == obj.UID && csr.StateOf(obj) == csr.Pending {
		return
	}
	if req, ok := limits.Supersedable(obj); ok {
		s.Put(pending.Of(obj, req))
		return
	}
	s.Remove(obj.Name)
}

// indexer keeps the index of a Reconciler in step with the cache. It runs on a standby too, so that a new leader has an
// index.
type indexer struct {
	reconciler *Reconciler
	cache      cache.Informers
	log        logr.Logger
}

// NeedLeaderElection returns false.
func (*indexer) NeedLeaderElection() bool { return false }

// Start follows the cache until ctx ends.
func (i *indexer) Start(ctx context.Context) error {
	requests, err := informer.FromCache(ctx, i.cache, &certificatesv1.CertificateSigningRequest{}, i.log, nil)
	if err != nil {
		return nil // ctx has ended
	}
	index := &i.reconciler.pending
	observe := func(obj any) {
		if request, ok := obj.(*certificatesv1.CertificateSigningRequest); ok {
			index.observe(request, i.reconciler.RequestLimits)
		}
	}
	events, err := requests.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, obj any) { observe(obj) },
		DeleteFunc: func(obj any) {
			if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				index.Remove(name)
			}
		},
	})
	if err != nil {
		return nil // the informer has stopped, as ctx has ended
	}
	if toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
		index.complete.Store(true)
	}
	<-ctx.Done()
	return nil
}
