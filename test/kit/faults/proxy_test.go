//go:build nightly

package faults_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

func TestMain(m *testing.M) { kit.Main(m, 1) }

// setup returns a proxy, and an administrator's client through it that does not retry.
func setup(t *testing.T, rules ...faults.Rule) (*faults.Proxy, kubernetes.Interface) {
	t.Helper()
	proxy := kit.ThroughFaults(t, kit.ControlPlane(t).Config, rules...)
	return proxy, kubernetes.NewForConfigOrDie(proxy.Config)
}

func create(ctx context.Context, c kubernetes.Interface, name string) error {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.CoreV1().ConfigMaps(kit.SystemNamespace).Create(ctx, obj, metav1.CreateOptions{})
	return err
}

// TestFaultsOfAWrite has the faults for which no manager's test counts the calls. TestRecordsAreRightWhenAnswersAreLost in test/loop has the
// others, TestClockAnHourAhead in test/manager shifted clocks, and TestWritesThatAPolicyRefusesAreRepeated there the user of a call.
func TestFaultsOfAWrite(t *testing.T) {
	kit.Alone(t)
	gaveUp := func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }
	// The kernel reports a reset once. If the client's write gets it, its read gets the end of the connection.
	connectionReset := func(err error) bool { return utilnet.IsConnectionReset(err) || errors.Is(err, io.ErrUnexpectedEOF) }
	for name, test := range map[string]struct {
		do     faults.Action
		want   func(error) bool
		stored bool
	}{
		"hang":             {do: faults.Hang(), want: gaveUp},
		"hang-landed":      {do: faults.Hang().Landed(), want: gaveUp, stored: true},
		"connection-reset": {do: faults.ResetConnection(), want: connectionReset},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, through := setup(t, faults.Rule{Verbs: []string{"create"}, Resources: []string{"configmaps"}, Do: test.do})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := create(ctx, through, name); !test.want(err) {
				t.Errorf("error %v (%T)", err, err)
			}
			err := kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: name}, &corev1.ConfigMap{})
			if client.IgnoreNotFound(err) != nil || (err == nil) != test.stored {
				t.Errorf("stored: %v, want %t", err, test.stored)
			}
			want := []faults.Call{{Verb: "create", Resource: "configmaps", Fault: test.do.String()}}
			kit.Equal(t, "calls", proxy.Calls(), want, cmpopts.IgnoreFields(faults.Call{}, "Name", "Path", "Start", "Status", "Ended"))
		})
	}
}

func TestWatchIsCutOrStalls(t *testing.T) {
	kit.Alone(t)
	for name, test := range map[string]struct {
		rule       faults.Rule
		use        bool // other rules, which ends watches
		shows, end bool
	}{
		"cut":   {faults.Rule{Verbs: faults.Watch, Do: faults.Cut(time.Second)}, false, true, true},
		"stall": {faults.Rule{Verbs: faults.Watch, Do: faults.Stall()}, false, false, false},
		"use":   {faults.Rule{}, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			proxy, through := setup(t, test.rule)
			only := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
			watcher := kit.Must(through.CoreV1().ConfigMaps(kit.SystemNamespace).Watch(t.Context(), only))(t)
			defer watcher.Stop()
			kit.NoError(t, create(t.Context(), through, name)) // other requests continue
			if event, _ := next(watcher); (event.Type == watch.Added) != test.shows {
				t.Errorf("first event %+v", event)
			}
			if test.use {
				proxy.Use()
			}
			if event, timedOut := next(watcher); event.Type == watch.Added || timedOut == test.end {
				t.Errorf("then: %+v, nothing came: %t", event, timedOut)
			}
		})
	}
}

// next returns the next event, or the zero event at the end of the watch.
func next(watcher watch.Interface) (event watch.Event, timedOut bool) {
	select {
	case event := <-watcher.ResultChan():
		return event, false
	case <-time.After(2 * time.Second):
		return watch.Event{}, true
	}
}
