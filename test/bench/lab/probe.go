package lab

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// others is a user whose requests the API server limits as it limits those of any user.
var others = user{"bench:other", []string{othersGroup}}

// Probe calls the API server as another user would: it writes and reads a ConfigMap, fifty times a second. The
// returned function ends the probe and returns how long the calls took.
func (l *Lab) Probe(ctx context.Context) (end func() ([]time.Duration, error), err error) {
	ctx = as(ctx, others)
	maps := l.users.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: l.prefix()}}
	obj, err = maps.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ConfigMap: %w", err)
	}
	var (
		mu     sync.Mutex
		took   []time.Duration
		failed error
		calls  sync.WaitGroup
	)
	call := func(i int) {
		start := time.Now()
		var err error
		if i%2 == 0 {
			_, err = maps.Get(ctx, obj.Name, metav1.GetOptions{})
		} else {
			changed := obj.DeepCopy()
			changed.ResourceVersion, changed.Data = "", map[string]string{"call": fmt.Sprint(i)}
			_, err = maps.Update(ctx, changed, metav1.UpdateOptions{})
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(start))
		if err != nil {
			failed = fmt.Errorf("call as another user: %w", err)
		}
	}
	stopped := make(chan struct{})
	calls.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ticker.C:
				calls.Go(func() { call(i) })
			case <-stopped:
				return
			}
		}
	})
	return func() ([]time.Duration, error) {
		close(stopped)
		calls.Wait()
		return took, failed
	}, nil
}
