package informers

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

// Discovery that fails for a while ends nothing.
func TestGetTriesAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start, told := time.Now(), []error{}
		_, err := Get(t.Context(), &resetting{failures: 5}, &corev1.Secret{}, logr.Discard(), func(err error) { told = append(told, err) })
		if took := time.Since(start); err != nil || took != (1+2+4+8+10)*time.Second || len(told) != 6 || told[0] == nil || told[5] != nil {
			t.Errorf("after %s: error %v, told %v", took, err, told)
		}
	})
}

func TestGetEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := Get(ctx, &resetting{failures: 1000}, &corev1.Secret{}, logr.Discard(), func(error) {}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}
