package controllers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// informerRetry is the pause after an attempt to make an informer that failed, as when an API server drops a connection.
const informerRetry = time.Second

// standby keeps the cache of requests filled on replicas that do not lead: a controller that starts there fills its queue
// from the cache, without a list of its own.
type standby struct {
	cache cache.Cache
	log   logr.Logger
}

// NeedLeaderElection returns false: the leader's controllers keep the cache themselves.
func (*standby) NeedLeaderElection() bool { return false }

// Start makes the informer, and tries again until it can or ctx ends.
func (s *standby) Start(ctx context.Context) error {
	for {
		_, err := s.cache.GetInformer(ctx, &certificatesv1.CertificateSigningRequest{}, cache.BlockUntilSynced(false))
		if err == nil || ctx.Err() != nil {
			return nil
		}
		s.log.Error(err, "Watch CertificateSigningRequests; trying again", "after", informerRetry)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(informerRetry):
		}
	}
}
