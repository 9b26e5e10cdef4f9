package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// following is a running source, and the nodes that it has reported as changed.
type following struct {
	inventory.Source
	mu   sync.Mutex
	told map[string]int
}

func (f *following) changed(node string, _ ...san.SAN) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.told[node]++
}

func (f *following) toldOf(node string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told[node]
}

// follow runs start until the test ends.
func follow(t *testing.T, start func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- start(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("the source stopped with %v", err)
			}
		case <-time.After(kit.Patience):
			t.Error("the source does not stop")
		}
	})
}

// finds waits until the source's answer about node matches want: a part of the error or, after =, of the entry. An
// empty want means that the node is not known.
func (f *following) finds(t *testing.T, node, want string) *inventory.Entry {
	t.Helper()
	var found *inventory.Entry
	kit.Eventually(t, fmt.Sprintf("lookup of %q", node), func(ctx context.Context) error {
		entry, err := f.Lookup(ctx, node, nil)
		found = entry
		got := ""
		switch {
		case err != nil:
			got = err.Error()
		case entry != nil:
			got = fmt.Sprintf("=%s bound %q leaving %t %v", entry.Source, entry.Bound, entry.Leaving, entry.SANs)
		}
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			return fmt.Errorf("is %q, want %q", got, want)
		}
		return nil
	})
	return found
}

const (
	// wokenWithin is less than the ten seconds after which failed sources retry.
	wokenWithin = 8 * time.Second
	// retriedWithin is little more than that.
	retriedWithin = 12 * time.Second
)

// wakes checks that change makes the source report node, because of an event.
func (f *following) wakes(t *testing.T, node string, change func()) {
	t.Helper()
	f.tells(t, wokenWithin, node, change)
}

// recovers checks that a source that has failed reports all nodes after repair.
func (f *following) recovers(t *testing.T, repair func()) {
	t.Helper()
	f.tells(t, retriedWithin, "", repair)
}

func (f *following) tells(t *testing.T, most time.Duration, node string, change func()) {
	t.Helper()
	before := f.toldOf(node)
	change()
	kit.Within(t, most, fmt.Sprintf("told of %q", node), func(context.Context) error {
		if f.toldOf(node) == before {
			return errors.New("not")
		}
		return nil
	})
}

// over returns the user stranger on the connection w.
func over(t *testing.T, w *kit.Wire) *rest.Config {
	t.Helper()
	cfg := kit.TokenConfig(t, "stranger")
	cfg.Dial = w.Dial
	return cfg
}

// grantStranger grants verbs on a resource to stranger, in namespace default. The returned function changes the verbs.
func grantStranger(t *testing.T, group, resource string, names []string, verbs ...string) (change func(verbs ...string)) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "inventory-test"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
	})
	rule := role.Rules[0]
	return func(verbs ...string) {
		t.Helper()
		role.Rules = nil
		if len(verbs) > 0 {
			rule.Verbs = verbs
			role.Rules = []rbacv1.PolicyRule{rule}
		}
		kit.Update(t, role)
	}
}

// followMachines runs a source for machines in group, with the options for Cluster API.
func followMachines(t *testing.T, cfg *rest.Config, group string, mods ...func(*machine.Options)) *following {
	t.Helper()
	options := machine.ClusterAPI()
	options.Group = group
	for _, mod := range mods {
		mod(&options)
	}
	source, err := machine.New(cfg, options, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	f := &following{Source: source, told: map[string]int{}}
	source.Changed = f.changed
	if _, err := source.Lookup(t.Context(), "a", nil); err == nil {
		t.Error("an answer before anything is read")
	}
	follow(t, source.Start)
	return f
}

// machineIn returns a Machine of the cluster lab.
func machineIn(group, name, more string) string { return machineOf("lab", group, name, more) }

// machineOf returns a Machine in group of cluster, with Cluster API's label.
func machineOf(cluster, group, name, more string) string {
	return fmt.Sprintf("apiVersion: %s/v1beta1\nkind: Machine\nmetadata: {namespace: default, name: %s, labels: {%s: %s}}\n%s",
		group, name, machine.ClusterNameLabel, cluster, more)
}

// TestMachineCRDComesAndGoes starts before the CRD exists, and continues after it is deleted.
func TestMachineCRDComesAndGoes(t *testing.T) {
	kit.Parallel(t)
	const group = "comes.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	f := followMachines(t, kit.ControlPlane(t).Config, group)
	f.finds(t, "node-1", "Machine."+group+": Machine."+group+" is not installed yet")

	crd := c.InstallMachines(t, group, "v1beta1")
	f.finds(t, "node-1", "")

	// A machine appears, gets addresses, becomes a node, is being deleted, and is gone.
	f.wakes(t, "node-1", func() {
		c.Apply(t, machineIn(group, "m", "spec: {infrastructureRef: {name: node-1}}"))
	})
	entry := f.finds(t, "node-1", `=Machine default/m bound "" leaving false []`)
	if age := time.Since(entry.Created); age < -time.Minute || age > time.Minute {
		t.Errorf("created %s", entry.Created)
	}
	f.wakes(t, "node-1", func() {
		c.Apply(t, machineIn(group, "m", `spec: {infrastructureRef: {name: node-1}}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalDNS, address: Node-1.Internal.}]}`))
	})
	f.finds(t, "node-1", `=Machine default/m bound "" leaving false [10.0.0.1 node-1.internal]`)
	f.finds(t, "node-1.internal", `=Machine default/m bound ""`)
	var machine client.Object
	f.wakes(t, "node-1", func() {
		text := machineIn(group, "m", "status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}]}")
		obj := kit.Object(t, text)
		obj.SetFinalizers([]string{"example.org/wait"})
		if err := c.Patch(t.Context(), obj, client.Merge); err != nil {
			t.Fatal(err)
		}
		obj.Object["status"] = kit.Object(t, text).Object["status"]
		if err := c.Status().Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		machine = obj
	})
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving false [10.0.0.1]`)
	f.wakes(t, "node-1", func() { c.Remove(t, machine) })
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving true [10.0.0.1]`)
	f.wakes(t, "node-1", func() {
		if err := c.Patch(t.Context(), machine, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Fatal(err)
		}
	})
	f.finds(t, "node-1", "")

	// The CRD is deleted with a machine in it, and installed again without.
	c.Apply(t, machineIn(group, "m-2", "spec: {infrastructureRef: {name: node-2}}"))
	f.finds(t, "node-2", "=Machine default/m-2")
	c.Remove(t, crd)
	f.finds(t, "node-2", "is not installed yet")
	f.recovers(t, func() { c.InstallMachines(t, group, "v1beta1") })
	f.finds(t, "node-2", "")
	c.Apply(t, machineIn(group, "m-3", "spec: {infrastructureRef: {name: node-2}}"))
	f.finds(t, "node-2", "=Machine default/m-3")
}

// TestMachineRights tests rights that are missing, granted and removed.
func TestMachineRights(t *testing.T) {
	kit.Parallel(t)
	const group = "rights.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	c.InstallMachines(t, group, "v1beta1")
	c.Apply(t, machineIn(group, "m", "spec: {infrastructureRef: {name: node-1}}"))
	l := &kit.Wire{}
	f := followMachines(t, over(t, l), group, func(o *machine.Options) { o.Namespace = "default" })
	missing := "grant list and watch on machines." + group + `: machines.` + group + ` is forbidden: User "stranger" cannot list`
	f.finds(t, "node-1", missing)
	change := grantStranger(t, group, "machines", nil, "list", "watch")
	f.finds(t, "node-1", "=Machine default/m")
	change("list")
	f.finds(t, "node-1", "=Machine default/m") // an open watch continues
	l.Cut()
	f.finds(t, "node-1", `cannot watch resource "machines"`)
	change("list", "watch")
	f.finds(t, "node-1", "=Machine default/m")
}

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
	l, recorder := &kit.Wire{}, events.NewFakeRecorder(100)
	change := grantStranger(t, "", "configmaps", []string{"csr-nodes"}, "list", "watch")
	source, err := static.NewConfigMap(over(t, l), types.NamespacedName{Namespace: "default", Name: "csr-nodes"}, logr.Discard())
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
			kit.Update(t, nodes)
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
	change()
	l.Cut()
	f.finds(t, "node-1", "grant list and watch on configmaps: ")
	eventSays(t, recorder, "Warning StaticListMissing")
	change("list", "watch")
	f.finds(t, "node-1", `[10.0.0.1]`)
	eventSays(t, recorder, "the last good version stays in use: nodes.yaml[0].addresses[0]: ")

	f.wakes(t, "", write("- name: node-1\n  addresses: [10.0.0.2]\n"))
	f.finds(t, "node-1", `[10.0.0.2]`)
	eventSays(t, recorder, "Normal StaticListRead all rows are in use")

	// The ConfigMap is deleted, and with it its rows. A bad new one does not bring them back.
	f.wakes(t, "", func() { kit.Remove(t, nodes) })
	f.finds(t, "node-1", "does not exist")
	eventSays(t, recorder, "StaticListMissing")
	another := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}, Data: map[string]string{"nodes.yaml": "oops"}}
	kit.Create(t, kit.Admin(t), another)
	f.finds(t, "node-1", "nodes.yaml: line 1: cannot unmarshal")
}

// inventoryServer runs a webhook of the inventory. It returns the server, and the file with the CA of its certificate.
func inventoryServer(t *testing.T, answer http.HandlerFunc) (server *httptest.Server, caFile string) {
	t.Helper()
	server = httptest.NewUnstartedServer(answer)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // managers are killed at the end
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	caFile = filepath.Join(t.TempDir(), "inventory-ca.crt")
	kit.Write(t, caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	return server, caFile
}

// TestWebhookURLIsSecret has a webhook with a secret in its URL, which fails in several ways one after the other. The URL
// is in nothing that the manager stores, serves or logs, however verbose.
func TestWebhookURLIsSecret(t *testing.T) {
	kit.Parallel(t)
	var answer atomic.Pointer[http.HandlerFunc]
	answers := func(with http.HandlerFunc) { answer.Store(&with) }
	server, ca := inventoryServer(t, func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
	authority, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	kit.Apply(t, "kubelet-serving")
	records := filepath.Join(t.TempDir(), "audit.log")
	sources := fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 2s}}, {node: {}}]", server.URL+"/s3cr3t-path?token=s3cr3t", ca)
	p := start(t, servingConfig(t, sources), "-v", "10", "--audit-log-path", records)
	fails := func(node, part string) {
		t.Helper()
		kit.HasEvent(t, asksFor(t, node, "192.0.2.90"), "InventoryUnavailable", "ask webhook", part)
	}
	answers(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "s3cr3t", http.StatusInternalServerError) })
	fails("answers-500", "answered 500, want 200")
	answers(http.RedirectHandler("https://s3cr3t-host.example.com/s3cr3t", http.StatusTemporaryRedirect).ServeHTTP)
	fails("redirects", "answered 307, want 200")
	answers(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is a disconnected client noticed
		<-r.Context().Done()
	})
	fails("hangs", "context deadline exceeded")
	kit.Write(t, ca, kit.NewCA(t).CertPEM)
	fails("has-another-ca", "certificate signed by unknown authority")
	kit.Write(t, ca, authority)
	server.CloseClientConnections()
	server.Close()
	fails("is-down", "connection refused")

	_, metrics := cluster.Get(t.Context(), p.Metrics, "/metrics")
	checkStop(t, p)
	audited, err := os.ReadFile(records)
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{"the log": p.Output(t), "the metrics": metrics, "the audit log": string(audited)}
	for what, list := range map[string]client.ObjectList{
		"ConfigMaps": &corev1.ConfigMapList{}, "Events": &eventsv1.EventList{}, "Leases": &coordinationv1.LeaseList{},
		"requests": &certificatesv1.CertificateSigningRequestList{},
	} {
		if err := kit.Admin(t).List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		shown[what] = string(text)
	}
	if !strings.Contains(shown["the log"], "has-another-ca") {
		t.Error("the texts are not complete")
	}
	host := server.Listener.Addr().String()
	for what, text := range shown {
		for _, secret := range []string{"s3cr3t", host} {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s show %q: %s", what, secret, text[max(0, at-300):min(len(text), at+100)])
			}
		}
	}
}
