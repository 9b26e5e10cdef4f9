package requestcache

import (
	"context"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
)

// Deletions returns a Runnable that drops deleted requests, on standbys too. The informer also strips the last version of
// a deleted request, so c holds that version until then.
func (c *Cache) Deletions(from cache.Informers, log logr.Logger) manager.Runnable {
	return &deletions{c, from, log}
}

type deletions struct {
	cache *Cache
	from  cache.Informers
	log   logr.Logger
}

// NeedLeaderElection returns false, because a standby holds requests too.
func (*deletions) NeedLeaderElection() bool { return false }

// Start drops deleted requests until ctx ends.
func (d *deletions) Start(ctx context.Context) error {
	requests, err := informer.FromCache(ctx, d.from, &certificatesv1.CertificateSigningRequest{}, d.log, nil)
	if err == nil {
		_, err = requests.AddEventHandler(d.cache.handler())
	}
	if err != nil {
		return nil // ctx has ended
	}
	<-ctx.Done()
	return nil
}

func (c *Cache) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) { // with another UID if the watch has skipped a deletion
			old, ok := before.(*certificatesv1.CertificateSigningRequest)
			obj, okay := after.(*certificatesv1.CertificateSigningRequest)
			if ok && okay && old.UID != obj.UID {
				c.Drop(old.UID)
			}
		},
		DeleteFunc: func(gone any) {
			if unknown, ok := gone.(toolscache.DeletedFinalStateUnknown); ok {
				gone = unknown.Obj
			}
			if obj, ok := gone.(*certificatesv1.CertificateSigningRequest); ok {
				c.Drop(obj.UID)
			}
		},
	}
}
