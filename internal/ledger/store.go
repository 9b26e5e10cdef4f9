package ledger

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// timeout bounds one change, with all its retries.
const timeout = 10 * time.Second

// store is one ConfigMap that is changed by compare-and-swap. It keeps what it saw last, so that a change costs one
// request unless somebody else wrote meanwhile.
type store struct {
	writer client.Client
	reader client.Reader // past any cache
	name   types.NamespacedName

	mu   sync.Mutex // held during a change
	last *corev1.ConfigMap
}

// get reads what is stored; a ConfigMap that does not exist is one without a resourceVersion.
func (s *store) get(ctx context.Context) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	if err := s.reader.Get(ctx, s.name, obj); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", s.name, err)
	} else if err != nil {
		obj = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}}
	}
	return obj, nil
}

// update has change work on the data that is stored, and stores that, unless there is nothing to change. change is
// called again with newer data when somebody else wrote, or when it failed or found nothing to do in data that may be
// old.
func (s *store) update(ctx context.Context, change func(data map[string]string) (changed bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	retries := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 8}
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, retries, func(ctx context.Context) (done bool, err error) {
		remembered := s.last != nil
		done, err = s.once(ctx, change)
		if outdated(err) && remembered { // somebody else has written since
			done, err = s.once(ctx, change)
		}
		if outdated(err) {
			last, err = err, nil
		}
		return done, err
	})
	if wait.Interrupted(err) && last != nil {
		return fmt.Errorf("write ConfigMap %s: %w", s.name, last)
	}
	return err
}

// outdated says whether a write was refused because something else is stored than was known.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

func (s *store) once(ctx context.Context, change func(map[string]string) (bool, error)) (done bool, err error) {
	known := s.last
	s.last = nil // until it is known again
	fresh := known == nil
	if fresh {
		if known, err = s.get(ctx); err != nil {
			return false, err
		}
	}
	obj := known.DeepCopy()
	if obj.Data == nil {
		obj.Data = map[string]string{}
	}
	changed, err := change(obj.Data)
	switch {
	case (err != nil || !changed) && !fresh:
		return s.once(ctx, change)
	case err != nil:
		return false, err
	case !changed:
		s.last = known
		return true, nil
	case obj.ResourceVersion == "":
		err = s.writer.Create(ctx, obj)
	default:
		err = s.writer.Update(ctx, obj)
	}
	if err != nil {
		return false, err
	}
	s.last = obj
	return true, nil
}
