package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestExplainAsksTheInventory compares the output of explain with the Event, byte by byte, for every reason that
// depends on the inventory.
func TestExplainAsksTheInventory(t *testing.T) {
	parallel(t)
	prepareIdentity(t)
	machines := installKind(t, clusterAPI)
	apply(t, "kubelet-serving")
	approval := patient + ", kubeletServing: {enabled: true}"
	p := startIdentityManager(t, approval, "--leader-elect=false")
	p.answers(t, p.probes, "/readyz", http.StatusOK)
	args := []string{"--config", identityConfig(t, approval), "--signing-secret", systemNamespace + "/csr-signer", "--kubeconfig", adminKubeconfig(t)}
	token := newToken(t, "explnd")
	newNode(t, "explained-a", "192.0.2.51")
	serving := func(node string, sans ...string) *request {
		return createRequest(t, kubeletOf(t, node), servingRequest(t, node, sans...))
	}
	for _, row := range []struct {
		reason string
		obj    func() *request
	}{
		{"SANNotOwned", func() *request { return serving("explained-a", "192.0.2.51", "192.0.2.52") }},
		{"SANContested", func() *request {
			newNode(t, "x-explained", "192.0.2.51")
			return serving("x-explained", "192.0.2.51")
		}},
		{"NodeNotFound", func() *request { return serving("explained-nobody", "192.0.2.53") }},
		{"AddressNotPublished", func() *request {
			newNode(t, "explained-silent")
			return serving("explained-silent", "192.0.2.54")
		}},
		{"NotExpected", func() *request { return token.asks(t, "explained-unexpected") }},
		{"NodeAlive", func() *request {
			expect(t, "explained-there")
			newNode(t, "explained-there")
			return token.asks(t, "explained-there")
		}},
		{"MachineBound", func() *request {
			for _, name := range []string{"elsewhere", "explained-bound"} { // it is never seen with this name and without a node
				machines.apply(t, machineIn(clusterAPI, "m-explained-bound", "spec: {infrastructureRef: {name: "+name+"}}\nstatus: {nodeRef: {name: another}}"))
			}
			return token.asks(t, "explained-bound")
		}},
		{"OutsideJoinWindow", func() *request {
			storeOldMachine(t, "explained-old")
			return token.asks(t, "explained-old")
		}},
		{"RequestTooOld", func() *request { return storeOldRequest(t, "explained-stale", "system:bootstrap:explnd") }},
	} {
		t.Run(row.reason, func(t *testing.T) {
			obj := row.obj()
			hasEvent(t, obj, row.reason)
			note := ""
			for _, event := range eventsOf(t.Context(), t, obj) {
				if event.Reason == row.reason {
					note = event.Note
				}
			}
			exits(t, 0, "("+row.reason+"): "+note, append(args, obj.Name)...)
		})
	}
	// A manager knows more about a node with a Lease than one read can show.
	expect(t, "explained-leased")
	newNode(t, "explained-leased")
	newLease(t, "explained-leased", time.Now())
	exits(t, 0, `  decision            unknown: whether node "explained-leased" is alive is known only to a manager that has watched its lease for a minute; see the Events`,
		append(args, token.asks(t, "explained-leased").Name)...)
	checkStop(t, p)
}

// storeOldMachine stores a machine that was created three hours ago, and whose node will be node.
func storeOldMachine(t *testing.T, node string) {
	t.Helper()
	old := object(t, machineIn(clusterAPI, "m-"+node, "spec: {infrastructureRef: {name: "+node+"}}"))
	old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-3 * time.Hour)))
	old.SetUID("m-old")
	if err := controlPlane(t).Store(t.Context(), clusterAPI+"/machines/default/m-"+node, old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin(t).Delete(context.Background(), old) })
}

// storeOldRequest stores a request for node that is a quarter of an hour old, from a time when no manager ran.
func storeOldRequest(t *testing.T, node, user string) *request {
	t.Helper()
	obj := nodeRequest(t, node, func(obj *request) {
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Name, obj.UID, obj.CreationTimestamp = node, "stale-explained", metav1.NewTime(time.Now().Add(-16*time.Minute))
		obj.Spec.Username, obj.Spec.Groups = user, []string{"system:bootstrappers", "system:authenticated"}
	})
	if err := controlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin(t).Delete(context.Background(), obj) })
	return obj
}

// TestExplainAsksTheInventoryAsTheCaller needs no manager, and grants a user one right after the other.
func TestExplainAsksTheInventoryAsTheCaller(t *testing.T) {
	unshared(t)
	newNode(t, "asked-a", "192.0.2.61")
	obj := createRequest(t, kubeletOf(t, "asked-a"), servingRequest(t, "asked-a", "192.0.2.62"))
	kubeconfig, err := controlPlane(t).WriteKubeconfig("explain-asks", stranger(t))
	if err != nil {
		t.Fatal(err)
	}
	args := func(sources string) []string {
		return []string{"--kubeconfig", kubeconfig, "--config", identityConfig(t, "kubeletServing: {enabled: true}"+sources), obj.Name}
	}
	read := []string{"get", "list", "watch"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "explain-asks"}}
	create(t, admin(t), role)
	grant(t, "stranger", role.Name)
	allow := func(check func(context.Context) error, rules ...rbacv1.PolicyRule) {
		t.Helper()
		role.Rules = append(role.Rules, rules...)
		if err := admin(t).Update(t.Context(), role); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the stranger may do more", check)
	}
	reader := as(t, "stranger")
	allow(func(ctx context.Context) error { return reader.Get(ctx, client.ObjectKeyFromObject(obj), &request{}) },
		rbacv1.PolicyRule{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: read})
	exits(t, 0, "  decision            unknown: may not list nodes, watch nodes, list services, watch services, list endpointslices.discovery.k8s.io in default, "+
		"watch endpointslices.discovery.k8s.io in default\n", args("")...)

	allow(func(ctx context.Context) error { return reader.List(ctx, &discoveryv1.EndpointSliceList{}) },
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes", "services"}, Verbs: read},
		rbacv1.PolicyRule{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: read})
	began := time.Now()
	exits(t, 0, `["192.0.2.62"] do not belong to node "asked-a": Node asked-a has `, args("")...)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("that took %s", took)
	}

	// Of a source that is configured by hand, only the source can tell.
	out := exits(t, 0, "  decision            unknown: ", args(", inventory: {sources: [{machine: {group: apps, version: v1, kind: Deployment, addressesPath: .status.addresses}}]}")...)
	if !explains(out, "deployments.apps is forbidden") {
		t.Errorf("it does not say why:\n%s", out)
	}
	// What the manager would wait for too is a verdict.
	out = exits(t, 0, "  reason              InventoryUnavailable\n", args(", inventory: {sources: [{machine: {group: nowhere.example.org, kind: Machine, addressesPath: .status.addresses}}]}")...)
	if !explains(out, "Machine.nowhere.example.org is not installed yet") {
		t.Errorf("it does not say why:\n%s", out)
	}

	t.Setenv("KUBECONFIG", "")
	list := kubectl(t, adminKubeconfig(t), "get", "csr", obj.Name, "-o", "yaml")
	offline, err := runExplain(t, list, "--config", identityConfig(t, "kubeletServing: {enabled: true}"), "-f", "-")
	if err != nil || !strings.Contains(offline, "  decision            unknown: offline\n") {
		t.Errorf("%v\n%s", err, offline)
	}
}
