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

// superseded returns when obj becomes due because a newer request supersedes it, and the newer request. If there is no
// newer request, it returns when to check again. For a request that cannot be superseded it returns zero. A newer
// request that is made later makes obj due only after another SupersededAfter, so it need not wake obj.
func (r *Reconciler) superseded(
	obj *certificatesv1.CertificateSigningRequest, now time.Time,
) (at time.Time, newer pending.Request) {
	if r.SupersededAfter <= 0 || csr.StateOf(obj) != csr.Pending {
		return time.Time{}, newer
	}
	created := obj.CreationTimestamp.Time
	if first := created.Add(r.SupersededAfter); !now.After(first) {
		return first, newer
	}
	if !r.pending.complete.Load() {
		return now.Add(time.Second), newer
	}
	known, found := r.pending.Get(obj.Name)
	if !found || known.UID != obj.UID { // it is no node's request
		return time.Time{}, newer
	}
	if newer, found = r.pending.Next(known.Key, created); !found {
		return now.Add(r.SupersededAfter), newer
	}
	return newer.Created.Add(r.SupersededAfter), newer
}

// stillPending reports whether the cache still holds the pending request that the index returned as newer.
func (r *Reconciler) stillPending(ctx context.Context, newer pending.Request) (bool, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	// This is the cache's own object, and must not be changed.
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
	complete atomic.Bool // the index holds every request of the cache
}

// observe adds, keeps or removes obj, according to its state. It parses each request once.
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

// indexer keeps the index of a Reconciler in step with the cache. It runs on standbys too, so a new leader has a
// complete index.
type indexer struct {
	reconciler *Reconciler
	cache      cache.Informers
	log        logr.Logger
}

// NeedLeaderElection returns false, because a standby keeps an index too.
func (*indexer) NeedLeaderElection() bool { return false }

// Start updates the index from the cache until ctx ends.
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
		return nil // the informer has stopped because ctx has ended
	}
	if toolscache.WaitForCacheSync(ctx.Done(), events.HasSynced) {
		index.complete.Store(true)
	}
	<-ctx.Done()
	return nil
}
