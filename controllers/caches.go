package controllers

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/informers"
)

// caches keeps the caches of the controllers filled on every replica: a controller that starts when its replica is
// elected fills its queue from there. It waits for what is missing, such as a CRD, and a replica is not ready before
// all is read.
type caches struct {
	cache cache.Cache
	kinds []client.Object
	log   logr.Logger

	mu    sync.Mutex
	state map[string]error // by kind: why it is not read; no entry when it is
}

// setupCaches adds the caches of what o runs to mgr, with a readiness check.
func (o Options) setupCaches(mgr manager.Manager) error {
	c := &caches{cache: mgr.GetCache(), log: mgr.GetLogger().WithName("caches"), state: map[string]error{}}
	c.kinds = append(c.kinds, &certificatesv1.CertificateSigningRequest{})
	if o.Rotation != nil {
		c.kinds = append(c.kinds, &v1alpha1.SigningAuthority{})
	}
	for _, kind := range c.kinds {
		c.state[kindName(kind)] = errNotReadYet
	}
	if err := mgr.AddReadyzCheck("caches", c.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(c)
}

var errNotReadYet = fmt.Errorf("not read yet")

func kindName(obj client.Object) string { return fmt.Sprintf("%T", obj) }

// NeedLeaderElection returns false: a standby is warm.
func (*caches) NeedLeaderElection() bool { return false }

// Start makes the informers, and waits for each until ctx ends.
func (c *caches) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, kind := range c.kinds {
		running.Go(func() { c.fill(ctx, kind) })
	}
	running.Wait()
	return nil
}

func (c *caches) fill(ctx context.Context, kind client.Object) {
	name := kindName(kind)
	informer, err := informers.Get(ctx, c.cache, kind, c.log.WithValues("kind", name), func(err error) {
		if err != nil {
			c.set(name, err)
		}
	})
	if err != nil {
		return // ctx has ended
	}
	c.set(name, errNotReadYet)
	select {
	case <-ctx.Done():
	case <-informer.HasSyncedChecker().Done():
		c.set(name, nil)
	}
}

func (c *caches) set(kind string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.state, kind)
		return
	}
	c.state[kind] = err
}

// ready names a kind that has not been read, and why.
func (c *caches) ready(*http.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, kind := range c.kinds {
		if err, unread := c.state[kindName(kind)]; unread {
			return fmt.Errorf("the cache of %s is not filled: %w", kindName(kind), err)
		}
	}
	return nil
}
