package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

func node(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"dropped": ""}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
	}
}

// TestInformer follows an API server that stops, returns with other objects, and withdraws the right.
func TestInformer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &staged{watchers: make(chan *watch.FakeWatcher, 10), nodes: []corev1.Node{*node("a", "1"), *node("b", "2")}}
		var mu sync.Mutex
		var events []string
		note := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, fmt.Sprintf(format, args...))
		}
		name := func(obj *corev1.Node) string {
			if obj == nil {
				return "none"
			}
			return obj.Name + "=" + obj.Status.Addresses[0].Address
		}
		i := &Informer[*corev1.Node]{
			Resource: source.resource(), GrantedBy: "config/x", Log: logr.Discard(),
			Convert: func(obj runtime.Object) *corev1.Node {
				obj.(*corev1.Node).Labels = nil
				return obj.(*corev1.Node)
			},
			Indexers: map[string]func(*corev1.Node) []string{
				"address": func(obj *corev1.Node) []string { return []string{obj.Status.Addresses[0].Address} },
			},
			OnSync:    func() { note("sync") },
			OnChange:  func(before, after *corev1.Node) { note("%s -> %s", name(before), name(after)) },
			OnFailure: func(err error) { note("failed: %v", err) },
		}
		if err := i.Err(); !errors.Is(err, ErrNotRead) {
			t.Errorf("before Start: %v", err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- i.Start(ctx) }()
		expect := func(known string, want ...string) {
			t.Helper()
			time.Sleep(firstRetry / 2) // client-go checks every 100 ms whether its informer has synced
			synctest.Wait()
			got := ""
			all, err := i.List()
			slices.SortFunc(all, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
			for _, obj := range all {
				got += name(obj) + " "
			}
			if err != nil {
				got = err.Error()
			}
			if got != known {
				t.Errorf("it knows %q, want %q", got, known)
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			events = nil
		}

		expect("a=1 b=2 ", "sync")
		watcher := <-source.watchers
		watcher.Modify(node("a", "3"))
		watcher.Add(node("c", "4"))
		watcher.Delete(node("b", "2"))
		expect("a=3 c=4 ", "a=1 -> a=3", "none -> c=4", "b=2 -> none")
		found, err := i.ByIndex("address", "3")
		keys, keysErr := i.KeysByIndex("address", "3")
		if err != nil || keysErr != nil || len(found) != 1 || found[0].Labels != nil || !slices.Equal(keys, []string{"a"}) {
			t.Errorf("by index: %v, error %v; %q, error %v", found, err, keys, keysErr)
		}
		for _, name := range []string{"a", "b"} {
			if obj, found, err := i.Get("", name); err != nil || found != (name == "a") || found && obj.Name != name {
				t.Errorf("get %s: %v, found %t, error %v", name, obj, found, err)
			}
		}

		source.become(errors.New("connection refused"))
		watcher.Stop()
		time.Sleep(time.Minute)
		expect("list nodes: connection refused", "failed: watch nodes: connection refused", "failed: list nodes: connection refused")
		for _, err := range []error{i.Err(), second(i.ByIndex("address", "3")), second(i.KeysByIndex("address", "3"))} {
			if err == nil {
				t.Error("answers while the API server is away")
			}
		}
		if _, found, err := i.Get("", "a"); found || err == nil {
			t.Error("answers while the API server is away")
		}

		source.become(nil, *node("d", "5"))
		time.Sleep(lastRetry)
		expect("d=5 ", "sync")
		source.become(apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no")))
		(<-source.watchers).Stop()
		time.Sleep(time.Second)
		const forbidden = "grant list and watch on nodes (config/x): nodes is forbidden: no"
		expect(forbidden, "failed: "+forbidden)
		source.become(apierrors.NewNotFound(corev1.Resource("nodes"), ""))
		time.Sleep(lastRetry)
		const missing = "nodes in version v1 is not installed yet"
		expect(missing, "failed: "+missing)
		stop()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// TestInformerFindsItsResource checks that Find is called before each attempt.
func TestInformerFindsItsResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &staged{watchers: make(chan *watch.FakeWatcher, 10)}
		var attempts atomic.Int32
		i := &Informer[*corev1.Node]{
			Find: func() (Resource, error) {
				if attempts.Add(1) < 4 {
					return Resource{}, errors.New("not installed")
				}
				return source.resource(), nil
			},
			Log: logr.Discard(), Retry: 2 * time.Second,
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = i.Start(ctx) }()
		for _, want := range []int32{1, 2, 2, 3, 3, 4, 4} { // after 0, 1, 3 and 5 seconds
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if err := i.Err(); attempts.Load() != want || (err == nil) != (want == 4) {
				t.Errorf("%d attempts, want %d: error %v", attempts.Load(), want, err)
			}
			time.Sleep(500 * time.Millisecond)
		}
	})
}

// TestInformerReportsDeletionsThatItMissed checks that OnChange reports them, and that OnSync reports the first list.
func TestInformerReportsDeletionsThatItMissed(t *testing.T) {
	t.Parallel()
	var deleted []string
	i := &Informer[*corev1.Node]{OnChange: func(before, after *corev1.Node) {
		if after != nil {
			t.Errorf("reported %s", after.Name)
			return
		}
		deleted = append(deleted, before.Name)
	}}
	handler := i.handler()
	handler.OnAdd(node("a", "1"), true)
	handler.OnDelete(node("b", "2"))
	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "c", Obj: node("c", "3")})
	if !slices.Equal(deleted, []string{"b", "c"}) {
		t.Errorf("deleted %q", deleted)
	}
}
