package manager

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// eventSays waits for the next Event and checks that it contains want.
func eventSays(t *testing.T, recorder *events.FakeRecorder, want string) {
	t.Helper()
	select {
	case got := <-recorder.Events:
		if !strings.Contains(got, want) {
			t.Fatalf("Event %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("no Event %q", want)
	}
}

// TestStaticConfigMap goes through the possible changes of a ConfigMap, with a role for only this one.
func TestStaticConfigMap(t *testing.T) {
	kit.Parallel(t)
	l, recorder := &link{}, events.NewFakeRecorder(100)
	role := allowStranger(t, "default", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"csr-nodes"}, Verbs: []string{"list", "watch"},
	})
	source, err := static.NewConfigMap(l.over(stranger(t)), types.NamespacedName{Namespace: "default", Name: "csr-nodes"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	f := &following{Source: source, told: map[string]int{}}
	source.Changed, source.Reporter = f.changed, report.New(recorder, clock.RealClock{})
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: not read yet")
	follow(t, source.Start)
	f.finds(t, "node-1", "ConfigMap default/csr-nodes does not exist: create it with a list of rows under nodes.yaml")
	eventSays(t, recorder, "StaticListMissing")

	// A ConfigMap of another name is ignored.
	decoy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes-2"}, Data: map[string]string{"nodes.yaml": "[{name: decoy}]"}}
	kit.Create(t, kit.Admin(t), decoy)

	nodes := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}}
	write := func(text string) func() {
		return func() {
			t.Helper()
			nodes.Data = map[string]string{"nodes.yaml": text}
			if err := kit.Admin(t).Update(t.Context(), nodes); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Bad from the start: there is no last good version.
	f.wakes(t, "", func() { kit.Create(t, kit.Admin(t), nodes) })
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: has no key nodes.yaml")
	eventSays(t, recorder, "Warning StaticListInvalid the list is rejected, and no row is in use: ConfigMap default/csr-nodes: has no key nodes.yaml")

	f.wakes(t, "", write("- name: node-1\n  addresses: [10.0.0.1]\n"))
	f.finds(t, "node-1", `=row 1 of ConfigMap default/csr-nodes bound "" leaving false [10.0.0.1]`)
	f.finds(t, "decoy", "")
	eventSays(t, recorder, "Normal StaticListRead all rows are in use")

	f.wakes(t, "", write("- name: node-1\n  addresses: [0.0.0.0/0]\n- name: Node-2\n"))
	eventSays(t, recorder, "the last good version stays in use: nodes.yaml[0].addresses[0]: Invalid value: \"0.0.0.0/0\": is too wide: /8 is the widest; nodes.yaml[1].name: ")
	f.finds(t, "node-1", `[10.0.0.1]`)

	// The last good version survives a lost connection, and a lost right.
	l.Cut()
	f.finds(t, "node-1", `[10.0.0.1]`)
	rules := role.Rules
	role.Rules = nil
	if err := kit.Admin(t).Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	l.Cut()
	f.finds(t, "node-1", "grant list and watch on configmaps: ")
	eventSays(t, recorder, "Warning StaticListMissing")
	role.Rules = rules
	if err := kit.Admin(t).Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	f.finds(t, "node-1", `[10.0.0.1]`)
	eventSays(t, recorder, "the last good version stays in use: nodes.yaml[0].addresses[0]: ")

	f.wakes(t, "", write("- name: node-1\n  addresses: [10.0.0.2]\n"))
	f.finds(t, "node-1", `[10.0.0.2]`)
	eventSays(t, recorder, "Normal StaticListRead all rows are in use")

	// The ConfigMap is deleted, and with it its rows. A bad new one does not bring them back.
	f.wakes(t, "", func() {
		if err := kit.Admin(t).Delete(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
	})
	f.finds(t, "node-1", "does not exist")
	eventSays(t, recorder, "StaticListMissing")
	another := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}, Data: map[string]string{"nodes.yaml": "oops"}}
	kit.Create(t, kit.Admin(t), another)
	f.finds(t, "node-1", "nodes.yaml: line 1: cannot unmarshal")
}
