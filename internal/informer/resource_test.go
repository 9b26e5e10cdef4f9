package informer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// resetting is a cache whose first discoveries fail.
type resetting struct {
	cache.Informers
	failures int
}

func (r *resetting) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	if r.failures > 0 {
		r.failures--
		return nil, errors.New("connection reset by peer")
	}
	return nil, nil
}

// TestFromCacheTriesAgain checks that FromCache retries while discovery fails.
func TestFromCacheTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, failures := time.Now(), 0
		_, err := FromCache(t.Context(), &resetting{failures: 5}, &corev1.Secret{}, logr.Discard(), func(error) { failures++ })
		if took := time.Since(start); err != nil || took != (1+2+4+8+10)*time.Second || failures != 5 {
			t.Errorf("after %s: error %v, %d failures", took, err, failures)
		}
	})
}

func TestFromCacheEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := FromCache(ctx, &resetting{failures: 1000}, &corev1.Secret{}, logr.Discard(), nil)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}
