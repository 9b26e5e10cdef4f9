package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// verdicts are what a source said of versions.
type verdicts struct {
	mu  sync.Mutex
	all []error
}

func (v *verdicts) add(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, err)
}

// last waits until the last verdict has want in it, nothing for a good version.
func (v *verdicts) last(t *testing.T, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("verdict %q", want), func(context.Context) error {
		v.mu.Lock()
		defer v.mu.Unlock()
		got := "none"
		if n := len(v.all); n > 0 && v.all[n-1] == nil {
			got = ""
		} else if n > 0 {
			got = v.all[n-1].Error()
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			return fmt.Errorf("is %q", got)
		}
		return nil
	})
}

// TestStaticConfigMap goes through what may happen to one, under a role for just that one.
func TestStaticConfigMap(t *testing.T) {
	l, said := &link{}, &verdicts{}
	role := allowStranger(t, "default", rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"csr-nodes"}, Verbs: []string{"list", "watch"},
	})
	source, err := inventory.NewStaticConfigMap(l.over(stranger()), types.NamespacedName{Namespace: "default", Name: "csr-nodes"}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	f := &following{Source: source, told: map[string]int{}}
	source.Changed, source.Refused = f.changed, said.add
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: not read yet")
	follow(t, source.Start)
	f.finds(t, "node-1", "ConfigMap default/csr-nodes does not exist: create it with a list of rows under nodes.yaml")

	// Another one of another name is not looked at.
	decoy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes-2"}, Data: map[string]string{"nodes.yaml": "[{name: decoy}]"}}
	create(t, admin, decoy)

	nodes := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}}
	write := func(text string) func() {
		return func() {
			t.Helper()
			nodes.Data = map[string]string{"nodes.yaml": text}
			if err := admin.Update(t.Context(), nodes); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Bad from the start: there is no last good one.
	f.wakes(t, "", func() { create(t, admin, nodes) })
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: has no key nodes.yaml")
	said.last(t, "has no key nodes.yaml")

	f.wakes(t, "", write("- name: node-1\n  addresses: [10.0.0.1]\n"))
	f.finds(t, "node-1", `=row 1 of ConfigMap default/csr-nodes bound "" leaving false [10.0.0.1]`)
	f.finds(t, "decoy", "")
	said.last(t, "")

	f.wakes(t, "", write("- name: node-1\n  addresses: [0.0.0.0/0]\n- name: Node-2\n"))
	said.last(t, "ConfigMap default/csr-nodes: nodes.yaml:2: row 1: addresses[0] \"0.0.0.0/0\": is too wide: /8 is the widest\nnodes.yaml:3: row 2: name")
	f.finds(t, "node-1", `[10.0.0.1]`)

	// The last good one outlives a cut, also of the right for a while.
	l.cut()
	said.last(t, "is too wide")
	f.finds(t, "node-1", `[10.0.0.1]`)
	rules := role.Rules
	role.Rules = nil
	if err := admin.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	l.cut()
	f.finds(t, "node-1", "grant list and watch on configmaps: ")
	role.Rules = rules
	if err := admin.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	f.finds(t, "node-1", `[10.0.0.1]`)

	f.wakes(t, "", write("- name: node-1\n  addresses: [10.0.0.2]\n"))
	f.finds(t, "node-1", `[10.0.0.2]`)
	said.last(t, "")

	// It goes, and with it what it said; another one that is bad does not bring that back.
	f.wakes(t, "", func() {
		if err := admin.Delete(t.Context(), nodes); err != nil {
			t.Fatal(err)
		}
	})
	f.finds(t, "node-1", "does not exist")
	another := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}, Data: map[string]string{"nodes.yaml": "oops"}}
	create(t, admin, another)
	f.finds(t, "node-1", "nodes.yaml:1: want a list of rows")
}
