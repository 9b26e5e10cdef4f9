package static

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// TestBadRowsAreReported checks that mistakes are reported: in an Event of bounded length about the
// ConfigMap, and as a number.
func TestBadRowsAreReported(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	api := dynamicfake.NewSimpleDynamicClient(scheme)
	var logged atomic.Int32
	source, err := NewConfigMap(&rest.Config{}, types.NamespacedName{Namespace: "ns", Name: "nodes"}, funcr.New(func(_, line string) {
		if strings.Contains(line, "Refused static inventory") {
			logged.Add(1)
		}
	}, funcr.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	changed, recorder := make(chan string, 100), events.NewFakeRecorder(100)
	source.configMap.Resource = informer.Of(maps, api.Resource(maps).Namespace("ns"))
	source.configMap.Convert = func(raw runtime.Object) *corev1.ConfigMap {
		obj := &corev1.ConfigMap{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw.(*unstructured.Unstructured).Object, obj); err != nil {
			t.Error(err)
		}
		return obj
	}
	source.Changed = func(node string, _ ...san.SAN) { changed <- node }
	source.Reporter = report.New(recorder, clock.RealClock{})
	before := gauge(t, "csr_approver_static_rows_refused")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = source.Start(ctx) })
	defer running.Wait()
	defer cancel()
	many := ""
	for i := range 300 {
		many += fmt.Sprintf("- name: %s%d\n", strings.Repeat("X", 300), i)
	}
	const refused = "Warning StaticListInvalid the list is rejected, and "
	for i, step := range []struct {
		text   string
		number float64
		event  string // the prefix of the Event; empty if there is none
	}{
		{"", 1, "Warning StaticListMissing the list is rejected, and no row is in use: ConfigMap ns/nodes does not exist: create it"},
		{"oops", 1, refused + "no row is in use: nodes.yaml: line 1: cannot unmarshal !!str `oops` into []static.Row"},
		{"oops # again", 1, ""}, // the same mistake in a new version
		{"- name: A\n- name: b\n  addresses: [x]\n", 2, refused + `no row is in use: nodes.yaml[0].name: Invalid value: "A": is not a valid Node name; nodes.yaml[1].addresses[0]: Invalid value: "x": is not an IP address`},
		{"- name: a\n", 0, "Normal StaticListRead all rows are in use"},
		{"- name: a\n- name: b\n", 0, ""},
		{many, 300, refused + "the last good version stays in use: nodes.yaml[0].name: Invalid value: "},
		{"[]", 0, "Normal StaticListRead all rows are in use"},
	} {
		obj := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"namespace": "ns", "name": "nodes", "uid": "1", "resourceVersion": fmt.Sprint(i)},
			"data": map[string]any{nodesKey: step.text},
		}}
		switch {
		case i == 1:
			err = api.Tracker().Create(maps, obj, "ns")
		case i > 1:
			err = api.Tracker().Update(maps, obj, "ns")
		}
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("step %d: nobody is told", i)
		}
		told := ""
		if len(recorder.Events) > 0 {
			told = <-recorder.Events
		}
		if !strings.HasPrefix(told, step.event) || step.event == "" && told != "" || len(told) > 1100 {
			t.Errorf("step %d: Event of %d bytes %q, want %q", i, len(told), told, step.event)
		}
		if got := logged.Swap(0) == 1; got != strings.HasPrefix(step.event, "Warning") {
			t.Errorf("step %d: the mistakes are logged: %t, want it if they are in an Event", i, got)
		}
		if diff := cmp.Diff(step.number, gauge(t, "csr_approver_static_rows_refused")-before); diff != "" {
			t.Errorf("step %d: number (-want +got):\n%s", i, diff)
		}
	}
}

// TestGoodListIsNoNews checks that there is no Event about a list that had no mistake.
func TestGoodListIsNoNews(t *testing.T) {
	source, err := NewConfigMap(&rest.Config{}, types.NamespacedName{Namespace: "ns", Name: "nodes"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(1)
	source.Reporter = report.New(recorder, clock.RealClock{})
	source.configMap.Fake(nil, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nodes"}, Data: map[string]string{nodesKey: "[{name: a}]"},
	})
	source.configMap.OnSync()
	if len(recorder.Events) > 0 {
		t.Errorf("Event %q", <-recorder.Events)
	}
}

// TestLastGoodListStaysInUse checks when the last good version answers, and when no version does.
func TestLastGoodListStaysInUse(t *testing.T) {
	t.Parallel()
	source, err := NewConfigMap(&rest.Config{}, types.NamespacedName{Namespace: "ns", Name: "nodes"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	source.Reporter = report.New(recorder, clock.RealClock{})
	version := func(uid types.UID, text string) func() {
		return func() {
			source.configMap.Fake(nil, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nodes", UID: uid}, Data: map[string]string{nodesKey: text},
			})
			source.configMap.OnSync()
		}
	}
	fails := func(err error) func() { return func() { source.configMap.Fake(err) } }
	forbidden := apierrors.NewForbidden(corev1.Resource("configmaps"), "nodes", errors.New("no"))
	const (
		none = "the list is rejected, and no row is in use: "
		kept = "the list is rejected, and the last good version stays in use: "
	)
	for _, step := range []struct {
		what  string
		do    func()
		want  string // the error of a lookup; empty if the row answers
		event string // the prefix of the Event; empty if there is none
	}{
		{"not read", func() {}, "ConfigMap ns/nodes: not read yet", ""},
		{"good", version("1", "[{name: a}]"), "", ""},
		{"bad", version("1", "oops"), "", "Warning StaticListInvalid " + kept},
		{"good again", version("1", "[{name: a}]"), "", "Normal StaticListRead "},
		{"unreachable", fails(errors.New("down")), "ConfigMap ns/nodes: down", ""},
		{"forbidden", fails(forbidden), `ConfigMap ns/nodes: configmaps "nodes" is forbidden: no`, "Warning StaticListMissing " + none + "it can't be read: "},
		{"bad when it can be read again", version("1", "oops"), "", "Warning StaticListInvalid " + kept},
		{"another ConfigMap, which is bad", version("2", "oops"), "ConfigMap ns/nodes: nodes.yaml: line 1: cannot unmarshal !!str `oops` into []static.Row", "Warning StaticListInvalid " + none},
		{"good once more", version("2", "[{name: a}]"), "", "Normal StaticListRead "},
		{"deleted", func() { source.configMap.Fake(nil); source.configMap.OnSync() }, "ConfigMap ns/nodes does not exist: create it with a list of rows under nodes.yaml", "Warning StaticListMissing " + none},
		{"bad after it was deleted", version("2", "oops"), "ConfigMap ns/nodes: nodes.yaml: line 1: cannot unmarshal !!str `oops` into []static.Row", "Warning StaticListInvalid " + none},
	} {
		step.do()
		got := ""
		entry, err := source.Lookup(t.Context(), "a", nil)
		if err != nil {
			got = err.Error()
		}
		if got != step.want || (entry == nil) != (step.want != "") {
			t.Errorf("%s: entry %v, error %q, want %q", step.what, entry, got, step.want)
		}
		told := ""
		if len(recorder.Events) > 0 {
			told = <-recorder.Events
		}
		if !strings.HasPrefix(told, step.event) || step.event == "" && told != "" {
			t.Errorf("%s: Event %q, want %q", step.what, told, step.event)
		}
	}
}

// gauge returns the value of a metric without labels.
func gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
