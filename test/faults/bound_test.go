package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/internal/apicall"
)

// bounded returns a fixture whose client is bounded like the manager's.
func bounded(t *testing.T, rules ...Rule) *fixture {
	t.Helper()
	f := setup(t, rules...)
	cfg := rest.CopyConfig(f.Config)
	cfg.QPS = -1
	apicall.Bound(cfg)
	var err error
	if f.client, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestBoundCallDoesNotSleepOnRetryAfter(t *testing.T) {
	f := bounded(t, Rule{Verbs: Writes, Do: Answer(429).RetryAfter(7 * time.Second)})
	start := time.Now()
	err := f.create(t.Context(), "object")
	if wait, asked := apicall.RetryAfter(err); wait != 7*time.Second || !asked || !apierrors.IsTooManyRequests(err) {
		t.Errorf("error %v, wait %s", err, wait)
	}
	if took := time.Since(start); took > time.Second || len(f.Calls()) != 1 {
		t.Errorf("%d calls took %s", len(f.Calls()), took)
	}
}

func TestBoundCallHasADeadline(t *testing.T) {
	f := bounded(t, Rule{Verbs: []string{"update", "delete", "get"}, Do: Hang()})
	if err := f.create(t.Context(), "object"); err != nil {
		t.Fatal(err)
	}
	maps := f.client.CoreV1().ConfigMaps(f.namespace)
	var group sync.WaitGroup
	for name, call := range map[string]func() error{
		"update": func() error {
			_, err := maps.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "object"}}, metav1.UpdateOptions{})
			return err
		},
		"delete": func() error { return maps.Delete(t.Context(), "object", metav1.DeleteOptions{}) },
		"get": func() error {
			_, err := maps.Get(t.Context(), "object", metav1.GetOptions{})
			return err
		},
	} {
		group.Go(func() {
			start := time.Now()
			err := call()
			if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took < 3*time.Second || took > 5*time.Second {
				t.Errorf("%s took %s: %v", name, took, err)
			}
		})
	}
	group.Wait()
}

func TestBoundUpdateIsRepeatedOnce(t *testing.T) {
	f := bounded(t, Rule{Verbs: []string{"update"}, Times: 1, Do: Answer(500)})
	if err := f.create(t.Context(), "object"); err != nil {
		t.Fatal(err)
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "object"}, Data: map[string]string{"key": "value"}}
	if _, err := f.client.CoreV1().ConfigMaps(f.namespace).Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

// TestBoundInformerOutlivesBrokenWatches breaks each watch after half a second, and three of ten attempts to open a
// watch. The pauses of a plain informer would double up to a minute. The informer of a bounded client sees all
// changes soon.
func TestBoundInformerOutlivesBrokenWatches(t *testing.T) {
	f := bounded(t,
		Rule{Verbs: Watch, Share: 0.3, Do: Answer(500)},
		Rule{Verbs: Watch, Do: Cut(500 * time.Millisecond)},
	)
	factory := informers.NewSharedInformerFactoryWithOptions(f.client, 0, informers.WithNamespace(f.namespace))
	seen := make(chan string, 100)
	informer := factory.Core().V1().ConfigMaps().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		seen <- obj.(*corev1.ConfigMap).Name
	}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); factory.Shutdown() }()
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer does not sync")
	}
	var slowest time.Duration
	for i := range 20 {
		name := fmt.Sprint("object-", i)
		if _, err := admin.CoreV1().ConfigMaps(f.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for last := ""; last != name; {
			select {
			case last = <-seen:
			case <-time.After(30 * time.Second):
				t.Fatalf("%s is not seen", name)
			}
		}
		slowest = max(slowest, time.Since(start))
		time.Sleep(300 * time.Millisecond)
	}
	t.Logf("slowest %s", slowest)
	if slowest > 5*time.Second {
		t.Errorf("an object was seen after %s only", slowest)
	}
}
