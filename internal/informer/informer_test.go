package informer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func node(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"dropped": ""}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
	}
}

// show describes a Node, or none.
func show(obj *corev1.Node) string {
	if obj == nil {
		return "none"
	}
	return obj.Name + "=" + obj.Status.Addresses[0].Address
}

// staged is an API server of Nodes that the test controls. Call change to set fields while an Informer runs.
type staged struct {
	mu       sync.Mutex
	watchers chan *watch.FakeWatcher
	nodes    []corev1.Node
	fault    map[string]error // of lists and watches
	lists    int
}

// errHangs is the fault of a call that never returns.
var errHangs = errors.New("hangs")

func newStaged(nodes ...corev1.Node) *staged {
	return &staged{watchers: make(chan *watch.FakeWatcher, 100), nodes: nodes}
}

func (s *staged) change(list, watch error, nodes ...corev1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = map[string]error{"list": list, "watch": watch}
	if len(nodes) > 0 {
		s.nodes = nodes
	}
}

// answer returns the error of a call.
func (s *staged) answer(ctx context.Context, verb string) error {
	s.mu.Lock()
	err := s.fault[verb]
	s.mu.Unlock()
	if errors.Is(err, errHangs) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

func (s *staged) resource() Resource {
	return Resource{
		GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"),
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			if options.ResourceVersion != "" {
				return nil, fmt.Errorf("list at version %q, want the newest", options.ResourceVersion)
			}
			err := s.answer(ctx, "list")
			s.mu.Lock()
			defer s.mu.Unlock()
			s.lists++
			return &corev1.NodeList{Items: slices.Clone(s.nodes)}, err
		},
		watch: func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			if err := s.answer(ctx, "watch"); err != nil {
				return nil, err
			}
			watcher := watch.NewFake()
			s.watchers <- watcher
			return watcher, nil
		},
	}
}

// observed is a running Informer whose calls are recorded.
type observed struct {
	*Informer[*corev1.Node]
	mu     sync.Mutex
	events []string
}

func (o *observed) note(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, fmt.Sprintf(format, args...))
}

// take returns the calls since the last time.
func (o *observed) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.events
	o.events = nil
	return taken
}

// expect checks what o knows, or its error, and its calls since the last check.
func (o *observed) expect(t *testing.T, known string, want ...string) {
	t.Helper()
	synctest.Wait()
	all, err := o.List()
	slices.SortFunc(all, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	got := ""
	for _, obj := range all {
		got += show(obj) + " "
	}
	if err != nil {
		got = err.Error()
	}
	expect.Equal(t, "it knows", got, known)
	expect.Equal(t, "calls", o.take(), want)
}

// inform calls test in a bubble, with a running Informer of a source that has read Node a with the address 1.
func inform(t *testing.T, test func(*testing.T, *staged, *observed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		source, o := newStaged(*node("a", "1")), &observed{}
		o.Informer = &Informer[*corev1.Node]{
			Resource: source.resource(), GrantedBy: "config/x", Log: logr.Discard(),
			Convert: func(obj runtime.Object) *corev1.Node {
				obj.(*corev1.Node).Labels = nil
				return obj.(*corev1.Node)
			},
			Indexers: map[string]func(*corev1.Node) []string{
				"address": func(obj *corev1.Node) []string { return []string{obj.Status.Addresses[0].Address} },
			},
			OnSync:    func() { o.note("sync") },
			OnChange:  func(before, after *corev1.Node) { o.note("%s -> %s", show(before), show(after)) },
			OnFailure: func(err error) { o.note("failed: %v", err) },
		}
		o.expect(t, "not read yet")
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- o.Start(ctx) }()
		o.expect(t, "a=1 ", "sync")
		test(t, source, o)
		stop()
		if err := <-ended; err != nil || o.Err() == nil {
			t.Errorf("it ended with %v; answers after its end: %t", err, o.Err() == nil)
		}
	})
}

// TestInformerFollowsChanges checks what is known and what is called after events, after a watch that is resumed, and after
// one that can't be.
func TestInformerFollowsChanges(t *testing.T) {
	t.Parallel()
	inform(t, func(t *testing.T, source *staged, o *observed) {
		watcher := <-source.watchers
		watcher.Add(node("b", "2"))
		watcher.Modify(node("a", "3"))
		watcher.Add(node("c", "4"))
		watcher.Delete(node("b", "2"))
		watcher.Delete(node("unknown", "2"))
		o.expect(t, "a=3 c=4 ", "none -> b=2", "a=1 -> a=3", "none -> c=4", "b=2 -> none")
		found, err := o.ByIndex("address", "3")
		expect.True(t, err == nil && len(found) == 1 && found[0].Name == "a" && found[0].Labels == nil, "by index: %v, error %v", found, err)
		for _, name := range []string{"a", "b"} {
			if obj, found, err := o.Get("", name); err != nil || found != (name == "a") || found && obj.Name != name {
				t.Errorf("get %s: %v, found %t, error %v", name, obj, found, err)
			}
		}

		time.Sleep(5 * time.Minute)
		watcher.Stop()
		o.expect(t, "a=3 c=4 ") // the watch is resumed
		watcher = <-source.watchers
		watcher.Add(node("a", "5")) // some API servers repeat objects
		o.expect(t, "a=5 c=4 ", "a=3 -> a=5")
		expect.Equal(t, "lists", source.lists, 1)
		watcher.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
		time.Sleep(time.Second)
		o.expect(t, "a=1 ", "sync")
	})
}

const forbidden = "grant list and watch on nodes (config/x): nodes is forbidden: no"

// TestInformerDropsACopyThatMayBeWrong checks how long the copy stays in use while nothing can be listed or watched, and
// that the reason is reported once. A missing right to watch counts too, although every list succeeds.
func TestInformerDropsACopyThatMayBeWrong(t *testing.T) {
	t.Parallel()
	nodes := corev1.Resource("nodes")
	noRight := apierrors.NewForbidden(nodes, "", errors.New("no"))
	for name, test := range map[string]struct {
		err   error
		lists bool // all the same
		stays bool // for up to 20 seconds
		want  string
	}{
		"the API server is unreachable":    {errors.New("connection refused"), false, true, "list nodes: connection refused"},
		"the API server is overloaded":     {apierrors.NewTooManyRequests("later", 1), false, true, "list nodes: later"},
		"an expired version":               {apierrors.NewResourceExpired("too old"), false, true, "list nodes: too old"},
		"the right was withdrawn":          {noRight, false, false, forbidden},
		"the right to watch was withdrawn": {noRight, true, false, forbidden},
		"the credentials are not accepted": {apierrors.NewUnauthorized("who"), false, false, "list nodes: who"},
		"the kind was removed": {
			apierrors.NewNotFound(nodes, ""), false, false, `nodes in version v1 is not installed yet: nodes "" not found`},
		"the kind can't be watched": {
			apierrors.NewMethodNotSupported(nodes, "list"), false, false, `list nodes: list is not supported on resources of kind "nodes"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inform(t, func(t *testing.T, source *staged, o *observed) {
				list := test.err
				if test.lists {
					list = nil
				}
				source.change(list, test.err)
				(<-source.watchers).Stop()
				time.Sleep(15 * time.Second)
				if test.stays {
					o.expect(t, "a=1 ")
					time.Sleep(20 * time.Second)
				}
				time.Sleep(time.Hour) // without another report
				synctest.Wait()
				calls := slices.DeleteFunc(o.take(), func(call string) bool { return call == "sync" && test.lists })
				expect.True(t, len(calls) != 0 && calls[len(calls)-1] == "failed: "+test.want && len(calls) <= 2,
					"calls %q, want one failure at the end: %s", calls, test.want)
				_, _, getErr := o.Get("", "a")
				_, listErr := o.List()
				_, indexErr := o.ByIndex("address", "1")
				for _, err := range []error{o.Err(), getErr, listErr, indexErr} {
					expect.Error(t, name, err, test.want)
				}
				source.change(nil, nil, *node("b", "2"))
				time.Sleep(10 * time.Second)
				o.expect(t, "b=2 ", "sync")
			})
		})
	}
}

// TestInformerAfterAShortFailure checks that failures that end in time add up to nothing.
func TestInformerAfterAShortFailure(t *testing.T) {
	t.Parallel()
	inform(t, func(t *testing.T, source *staged, o *observed) {
		for range 5 {
			source.change(errors.New("connection refused"), errors.New("connection refused"))
			(<-source.watchers).Stop()
			time.Sleep(15 * time.Second)
			o.expect(t, "a=1 ")
			source.change(nil, nil)
			time.Sleep(10 * time.Second)
			o.expect(t, "a=1 ", "sync")
		}
	})
}

// TestInformerFindsItsResource checks that Find is called before each attempt: after 0, 1, 3 and 7 seconds.
func TestInformerFindsItsResource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var attempts []time.Duration
		start := time.Now()
		i := &Informer[*corev1.Node]{Log: logr.Discard(), Find: func() (Resource, error) {
			if attempts = append(attempts, time.Since(start)/time.Second); len(attempts) < 4 {
				return Resource{}, errors.New("not installed")
			}
			return newStaged().resource(), nil
		}}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		i.OnSync = stop
		_ = i.Start(ctx)
		expect.Equal(t, "the attempts, in seconds", attempts, []time.Duration{0, 1, 3, 7})
	})
}

// TestCopyEndsWhileACallHangs checks that a copy is not used for longer than 20 seconds although no attempt has failed yet,
// because a list hangs, or because a watch does not open: client-go repeats a call that is answered 429.
func TestCopyEndsWhileACallHangs(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string][2]error{"list": {errHangs, errors.New("connection reset")}, "watch": {nil, errHangs}} {
		inform(t, func(t *testing.T, source *staged, o *observed) {
			source.change(faults[0], faults[1])
			(<-source.watchers).Stop()
			time.Sleep(20*time.Second - time.Second)
			synctest.Wait()
			expect.Error(t, fmt.Sprintf("%s: after %s", name, 20*time.Second-time.Second), o.Err(), "")
			time.Sleep(2 * time.Second)
			err := o.Err()
			expect.True(t, errors.Is(err, errGap), "%s: after %s: %v, want that the copy is too old", name, 20*time.Second+time.Second, err)
			source.change(nil, nil)
			time.Sleep(time.Minute + 20*time.Second)          // longer than a list may last, and the pause after it
			if err := o.Err(); err != nil && name == "list" { // nothing bounds a watch that does not open
				t.Errorf("%s: when the API server answers again: %v", name, err)
			}
		})
	}
}
