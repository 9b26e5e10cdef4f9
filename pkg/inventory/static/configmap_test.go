package static

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// step is a change of a ConfigMap, and what follows from it.
type step struct {
	what     string
	do       func(*ConfigMap)
	lookup   string // the prefix of a lookup's error; empty if the row answers
	event    string // the prefix of the Event; empty if there is none
	mistakes float64
}

// version has the source read a version of the ConfigMap. Without a UID there is no ConfigMap.
func version(uid types.UID, text string) func(*ConfigMap) {
	return func(source *ConfigMap) {
		var objs []*corev1.ConfigMap
		if uid != "" {
			meta := metav1.ObjectMeta{Namespace: "ns", Name: "nodes", UID: uid}
			objs = append(objs, &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{nodesKey: text}})
		}
		source.configMap.Fake(nil, objs...)
		if uid == "" {
			source.configMap.OnSync()
		} else {
			source.configMap.OnChange(nil, nil)
		}
	}
}

// fails has the source fail to read the ConfigMap.
func fails(err error) func(*ConfigMap) {
	return func(source *ConfigMap) { source.configMap.Fake(err) }
}

// TestLastGoodListStaysInUse checks when the last good version answers, and when no version does. Mistakes are reported
// once: in an Event of bounded length about the ConfigMap, in the log, and as a number. A good list is no news.
func TestLastGoodListStaysInUse(t *testing.T) { // not in parallel, because it reads a metric of the whole process
	const (
		good    = "[{name: a}]"
		oops    = "ConfigMap ns/nodes: nodes.yaml: line 1: cannot unmarshal !!str `oops` into []static.Row"
		missing = "ConfigMap ns/nodes does not exist: create it with a list of rows under nodes.yaml"
		invalid = "Warning StaticListInvalid the list is rejected, and "
		gone    = "Warning StaticListMissing the list is rejected, and no row is in use: "
		none    = invalid + "no row is in use: nodes.yaml"
		kept    = invalid + "the last good version stays in use: nodes.yaml"
		fine    = "Normal StaticListRead all rows are in use"
	)
	two := `[0].name: Invalid value: "A": is not a valid Node name; nodes.yaml[1].addresses[0]: Invalid value: "x": is not an IP address`
	many := ""
	for i := range 300 {
		many += fmt.Sprintf("- name: %s%d\n", strings.Repeat("X", 300), i)
	}
	forbidden := apierrors.NewForbidden(corev1.Resource("configmaps"), "nodes", errors.New("no"))
	for _, steps := range [][]step{{
		{"not read", func(*ConfigMap) {}, "ConfigMap ns/nodes: not read yet", "", 0},
		{"good", version("1", good), "", "", 0},
		{"bad", version("1", "oops"), "", kept + ": line 1: ", 1},
		{"good again", version("1", good), "", fine, 0},
		{"unreachable", fails(errors.New("down")), "ConfigMap ns/nodes: down", "", 0},
		{"forbidden", fails(forbidden), `ConfigMap ns/nodes: configmaps "nodes" is forbidden: no`, gone + "it can't be read: ", 1},
		{"bad when it can be read again", version("1", "oops"), "", kept, 1},
		{"another ConfigMap, which is bad", version("2", "oops"), oops, none, 1},
		{"good once more", version("2", good), "", fine, 0},
		{"deleted", version("", ""), missing, gone + missing, 1},
		{"bad after it was deleted", version("2", "oops"), oops, none, 1},
		{"at the end", version("2", good), "", fine, 0},
	}, {
		{"no ConfigMap", version("", ""), missing, gone + missing, 1},
		{"bad", version("1", "oops"), oops, none + ": line 1: cannot unmarshal !!str `oops` into []static.Row", 1},
		{"the same mistake", version("1", "oops # again"), oops, "", 1},
		{"two mistakes", version("1", "- name: A\n- name: b\n  addresses: [x]\n"), "ConfigMap ns/nodes: [nodes.yaml[0].name: ", none + two, 2},
		{"good", version("1", good), "", fine, 0},
		{"another good one", version("1", good+" # again"), "", "", 0},
		{"many mistakes", version("1", many), "", kept + "[0].name: Invalid value: ", 300},
		{"no rows", version("1", "[]"), "-", fine, 0},
	}} {
		logged, told, recorder := 0, 0, events.NewFakeRecorder(10)
		log := funcr.New(func(_, line string) { logged += strings.Count(line, "Refused static inventory") }, funcr.Options{})
		source, err := NewConfigMap(&rest.Config{}, types.NamespacedName{Namespace: "ns", Name: "nodes"}, log)
		if err != nil {
			t.Fatal(err)
		}
		source.Changed = func(string, ...san.SAN) { told++ }
		source.Reporter = report.New(recorder, clock.RealClock{})
		for _, step := range steps {
			told, logged = 0, 0
			step.do(source)
			entry, err := source.Lookup(t.Context(), "a", nil)
			if (entry == nil) != (step.lookup != "") || err != nil && !strings.HasPrefix(err.Error(), step.lookup) {
				t.Errorf("%s: entry %v, error %v, want %q", step.what, entry, err, step.lookup)
			}
			event, problem := "", strings.HasPrefix(step.event, "Warning")
			if len(recorder.Events) > 0 {
				event = <-recorder.Events
			}
			if !strings.HasPrefix(event, step.event) || step.event == "" && event != "" || len(event) > 1100 || (logged == 1) != problem {
				t.Errorf("%s: logged %d times, Event of %d bytes %q, want %q", step.what, logged, len(event), event, step.event)
			}
			if read := source.configMap.Err() == nil; (told == 1) != read {
				t.Errorf("%s: told %d times of a change", step.what, told)
			}
			number := &dto.Metric{}
			if err := refusedRows.Write(number); err != nil || number.GetGauge().GetValue() != step.mistakes {
				t.Errorf("%s: %v mistakes, error %v, want %v", step.what, number.GetGauge().GetValue(), err, step.mistakes)
			}
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if err := source.Start(ended); err != nil {
			t.Error(err)
		}
	}
}
