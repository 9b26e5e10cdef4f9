package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// tracker records when each request got its certificate, with its own watch.
type tracker struct {
	informer cache.SharedIndexInformer

	mu      sync.Mutex
	issued  map[string]time.Time
	changed chan struct{} // closed and replaced at each change
}

func newTracker(ctx context.Context, admin kubernetes.Interface) (*tracker, error) {
	factory := informers.NewSharedInformerFactory(admin, 0)
	t := &tracker{
		informer: factory.Certificates().V1().CertificateSigningRequests().Informer(),
		issued:   map[string]time.Time{},
		changed:  make(chan struct{}),
	}
	_, err := t.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    t.see,
		UpdateFunc: func(_, obj any) { t.see(obj) },
		DeleteFunc: func(any) { t.wake() },
	})
	if err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), t.informer.HasSynced) {
		return nil, fmt.Errorf("watch requests: %w", context.Cause(ctx))
	}
	return t, nil
}

func (t *tracker) see(obj any) {
	request := obj.(*certificatesv1.CertificateSigningRequest)
	if len(request.Status.Certificate) == 0 {
		return
	}
	t.mu.Lock()
	if _, known := t.issued[request.Name]; !known {
		t.issued[request.Name] = time.Now()
	}
	t.mu.Unlock()
	t.wake()
}

func (t *tracker) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.changed)
	t.changed = make(chan struct{})
}

// wait waits until count requests whose names start with prefix have certificates, and returns the times.
func (t *tracker) wait(ctx context.Context, prefix string, count int) (map[string]time.Time, error) {
	for {
		t.mu.Lock()
		changed, enough := t.changed, len(t.issued) >= count
		times := map[string]time.Time{}
		if enough {
			for name, at := range t.issued {
				if strings.HasPrefix(name, prefix+"-") {
					times[name] = at
				}
			}
		}
		t.mu.Unlock()
		if enough && len(times) == count {
			return times, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("%d requests %s-… are not all issued: %w", count, prefix, context.Cause(ctx))
		}
	}
}

// clear deletes all requests, and returns once the watch has seen that, so that rounds do not mix.
func (t *tracker) clear(ctx context.Context, admin kubernetes.Interface) error {
	if err := admin.CertificatesV1().CertificateSigningRequests().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete requests: %w", err)
	}
	for {
		t.mu.Lock()
		changed := t.changed
		t.mu.Unlock()
		if len(t.informer.GetStore().ListKeys()) == 0 {
			break
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("requests are not gone: %w", context.Cause(ctx))
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.issued)
	return nil
}
