package manager

import (
	"context"
	"encoding/json"
	"encoding/pem"
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

// tells checks that change makes the source report node within less than the ten seconds after which failed sources retry.
func (f *following) tells(t *testing.T, node string, change func()) {
	t.Helper()
	told := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.told[node]
	}
	before := told()
	change()
	kit.Within(t, 8*time.Second, fmt.Sprintf("told of %q", node), func(context.Context) error { return kit.OrError(told() > before, "not") })
}

// grantStranger grants the rights to list and watch a resource in namespace default to stranger. The returned function changes the verbs.
func grantStranger(t *testing.T, group, resource string, names ...string) (change func(verbs ...string)) {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "default", Name: "inventory-test"}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: []string{"list", "watch"}},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "stranger"}},
	})
	return func(verbs ...string) {
		t.Helper()
		role.Rules[0].Verbs = verbs
		kit.Update(t, role)
	}
}

// machineIn returns a Machine of the cluster lab.
func machineIn(group, name, more string) string { return machineOf("lab", group, name, more) }

// machineOf returns a Machine in group of cluster, with Cluster API's label.
func machineOf(cluster, group, name, more string) string {
	return fmt.Sprintf("apiVersion: %s/v1beta1\nkind: Machine\nmetadata: {namespace: default, name: %s, labels: {%s: %s}}\n%s",
		group, name, machine.ClusterNameLabel, cluster, more)
}

// TestMachinesComeAndGo follows machines before their CRD exists, before and after the right to read them is there, and after the
// CRD is deleted. Each change of a machine wakes its node. TestLookup in pkg/inventory/machine has what a machine says.
func TestMachinesComeAndGo(t *testing.T) {
	kit.Parallel(t)
	const group = "comes.example.org"
	options, proxy := machine.ClusterAPI(), kit.ThroughFaults(t, kit.TokenConfig(t, "stranger"))
	options.Group, options.Namespace = group, "default"
	source := kit.Must(machine.New(proxy.Config, options, logr.Discard()))(t)
	f := &following{Source: source, told: map[string]int{}}
	source.Changed = f.changed
	if _, err := source.Lookup(t.Context(), "a", nil); err == nil {
		t.Error("an answer before anything is read")
	}
	follow(t, source.Start)
	const missing, spec = "Machine." + group + " is not installed yet", "spec: {infrastructureRef: {name: node-1}}\n"
	f.finds(t, "node-1", missing)
	crd := kit.InstallKind(t, group)
	f.finds(t, "node-1", "grant list and watch on machines."+group+`: machines.`+group+` is forbidden: User "stranger" cannot list`)
	change := grantStranger(t, group, "machines")
	f.finds(t, "node-1", "")

	f.tells(t, "node-1", func() { kit.Put(t, machineIn(group, "m", spec)) })
	if age := time.Since(f.finds(t, "node-1", `=Machine default/m bound "" leaving false []`).Created); age.Abs() > time.Minute {
		t.Errorf("created %s ago", age)
	}
	var obj client.Object
	f.tells(t, "node-1", func() {
		obj = kit.Put(t, machineIn(group, "m", spec+"status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}]}"))
	})
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving false [10.0.0.1]`)
	f.tells(t, "node-1", func() { kit.Remove(t, obj) })
	f.finds(t, "node-1", "")

	kit.Put(t, machineIn(group, "m-2", spec))
	change("list")
	f.finds(t, "node-1", "=Machine default/m-2") // an open watch continues
	proxy.Use()                                  // ends all watches
	f.finds(t, "node-1", `cannot watch resource "machines"`)
	change("list", "watch")
	f.finds(t, "node-1", "=Machine default/m-2")
	kit.Remove(t, crd) // with a machine in it
	f.finds(t, "node-1", missing)
	kit.InstallKind(t, group)
	f.finds(t, "node-1", "")
	f.tells(t, "node-1", func() { kit.Put(t, machineIn(group, "m-3", spec)) })
}

// TestStaticConfigMap has a role for only the ConfigMap with the list, which comes, changes and goes. TestLastGoodListStaysInUse
// in pkg/inventory/static has more versions of it.
func TestStaticConfigMap(t *testing.T) {
	kit.Parallel(t)
	recorder := events.NewFakeRecorder(100)
	says := func(want string) {
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
	grantStranger(t, "", "configmaps", "csr-nodes")
	name := types.NamespacedName{Namespace: "default", Name: "csr-nodes"}
	source := kit.Must(static.NewConfigMap(kit.TokenConfig(t, "stranger"), name, logr.Discard()))(t)
	f := &following{Source: source, told: map[string]int{}}
	source.Changed, source.Reporter = f.changed, report.New(recorder, clock.RealClock{})
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: not read yet")
	follow(t, source.Start)
	f.finds(t, "node-1", "ConfigMap default/csr-nodes does not exist: create it with a list of rows under nodes.yaml")
	says("StaticListMissing")

	nodes := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "csr-nodes"}}
	f.tells(t, "", func() { kit.Create(t, kit.Admin(t), nodes) })
	f.finds(t, "node-1", "ConfigMap default/csr-nodes: has no key nodes.yaml")
	says("Warning StaticListInvalid the list is rejected, and no row is in use: ConfigMap default/csr-nodes: has no key nodes.yaml")
	for _, version := range []struct{ address, want, event string }{
		{"10.0.0.1", `=row 1 of ConfigMap default/csr-nodes bound "" leaving false [10.0.0.1]`, "Normal StaticListRead all rows are in use"},
		{"0.0.0.0/0", "[10.0.0.1]", `the last good version stays in use: nodes.yaml[0].addresses[0]: Invalid value: "0.0.0.0/0"`},
		{"10.0.0.2", "[10.0.0.2]", "Normal StaticListRead all rows are in use"},
	} {
		f.tells(t, "", func() {
			nodes.Data = map[string]string{"nodes.yaml": "[{name: node-1, addresses: [" + version.address + "]}]"}
			kit.Update(t, nodes)
		})
		says(version.event)
		f.finds(t, "node-1", version.want)
	}
	f.tells(t, "", func() { kit.Remove(t, nodes) })
	f.finds(t, "node-1", "does not exist")
	says("StaticListMissing")
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
	authority := kit.Must(os.ReadFile(ca))(t)
	kit.Apply(t, "kubelet-serving")
	records := filepath.Join(t.TempDir(), "audit.log")
	url := server.URL + "/s3cr3t-path?token=s3cr3t"
	sources := fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 2s}}, {node: {}}]", url, ca)
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
	shown := p.Output(t) + metrics + string(kit.Must(os.ReadFile(records))(t))
	if !strings.Contains(shown, "has-another-ca") {
		t.Error("the texts are not complete")
	}
	for _, list := range []client.ObjectList{
		&corev1.ConfigMapList{}, &eventsv1.EventList{}, &coordinationv1.LeaseList{}, &certificatesv1.CertificateSigningRequestList{},
	} {
		kit.NoError(t, kit.Admin(t).List(t.Context(), list))
		shown += string(kit.Must(json.Marshal(list))(t))
	}
	for _, secret := range []string{"s3cr3t", server.Listener.Addr().String()} {
		if at := strings.Index(shown, secret); at >= 0 {
			t.Errorf("%q is shown: %s", secret, shown[max(0, at-300):min(len(shown), at+100)])
		}
	}
}
