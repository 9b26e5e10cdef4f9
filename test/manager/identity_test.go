package manager

import (
	"context"
	"net/http"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// patient has a join window that is long enough for the tests.
const patient = "nodeClient: {inventory: cluster-api, clusterName: default/lab, joinWindow: {before: 10m, after: 2h}}"

// TestIdentity joins machines of Cluster API with real bootstrap tokens, and checks that no other requester can join.
func TestIdentity(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	machines := kit.InstallKind(t, kit.ClusterAPI)
	p := startIdentityManager(t, patient, "--leader-elect=false")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	token := newToken(t, "joiner")

	t.Run("a kubelet whose machine is there", func(t *testing.T) {
		expect(t, "expected")
		node := &kubelet.Node{Name: "expected", Dir: t.TempDir(), Bootstrap: token.cfg}
		ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
		defer cancel()
		cert, err := node.Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := node.CheckIdentity(ctx, cert); err != nil {
			t.Error(err)
		}
		registered, err := node.Register(ctx, cert)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), registered) })
		// Now that the node exists, the same token can't become it again.
		taken := token.asks(t, "expected")
		kit.HasEvent(t, taken, "NodeAlive", `node "expected" may be alive, because its Node or its Lease exists`)
		isPending(t, taken)
	})
	t.Run("the machine comes later", func(t *testing.T) {
		waiting := token.asks(t, "later")
		kit.HasEvent(t, waiting, "NotExpected", `node "later"`)
		issuedSoon(t, waiting, func() { expect(t, "later") })
	})
	t.Run("two machines would be it", func(t *testing.T) {
		expect(t, "twice")
		other := "status: {addresses: [{type: Hostname, address: Twice}]"
		machines.Apply(t, machineIn(kit.ClusterAPI, "m-other", other+"}"))
		waiting := token.asks(t, "twice")
		kit.HasEvent(t, waiting, "InventoryUnavailable", "node twice is claimed by Machine default/m-other and by Machine default/m-twice")
		issuedSoon(t, waiting, func() { machines.Apply(t, machineIn(kit.ClusterAPI, "m-other", other+", nodeRef: {name: not-twice}}")) })
	})
	t.Run("the Node goes", func(t *testing.T) {
		expect(t, "leaves")
		node := kit.NewNode(t, "leaves")
		waiting := token.asks(t, "leaves")
		kit.HasEvent(t, waiting, "NodeAlive", `node "leaves" may be alive`)
		issuedSoon(t, waiting, func() { machines.Remove(t, node) })
	})
	t.Run("the token becomes one that is kept track of", func(t *testing.T) {
		expect(t, "untracked")
		other := newToken(t, "notsig")
		other.StringData = map[string]string{"usage-bootstrap-signing": "false"}
		if err := kit.Admin(t).Update(t.Context(), other.Secret); err != nil {
			t.Fatal(err)
		}
		other.signed(t, false)
		waiting := other.asks(t, "untracked")
		kit.HasEvent(t, waiting, "NotAuthorized", "notsig", "usage-bootstrap-signing")
		other.StringData = map[string]string{"usage-bootstrap-signing": "true"}
		if err := kit.Admin(t).Update(t.Context(), other.Secret); err != nil {
			t.Fatal(err)
		}
		other.signed(t, true)
		kit.Reaches(t, waiting, csr.Issued) // after its pause
	})
	// One requester causes ten Events at once, so the refusals are of another token.
	t.Run("refused", func(t *testing.T) { identityRefusals(t, newToken(t, "refuse"), machines) })
	checkStop(t, p)
}

// identityRefusals has requests of machines that don't exist, no longer exist, or may not join yet.
func identityRefusals(t *testing.T, token *heldToken, machines kit.Installer) {
	machines.Apply(t, machineIn(kit.ClusterAPI, "m-bound", "spec: {infrastructureRef: {name: bound}}\nstatus: {nodeRef: {name: another}}"))
	machines.Apply(t, machineIn(kit.ClusterAPI, "m-was", "spec: {infrastructureRef: {name: was}}\nstatus: {nodeRef: {name: was}}"))
	old := kit.Object(t, machineIn(kit.ClusterAPI, "m-old", "spec: {infrastructureRef: {name: old}}"))
	old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-3 * time.Hour)))
	old.SetUID("m-old")
	if err := kit.ControlPlane(t).Store(t.Context(), kit.ClusterAPI+"/machines/default/m-old", old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), old) })
	machines.Apply(t, machineOf("other", kit.ClusterAPI, "m-foreign", "spec: {infrastructureRef: {name: foreign}}"))
	for node, test := range map[string]struct{ reason, part string }{
		// A management cluster also holds Machines of other clusters.
		"foreign": {"NotExpected", `expects node "foreign"`},
		"nobody":  {"NotExpected", `expects node "nobody"`},
		"bound":   {"MachineBound", `Machine default/m-bound is already node "another"`},
		"was":     {"MachineBound", `Machine default/m-was was node "was" before`},
		"old":     {"OutsideJoinWindow", "after Machine default/m-old was created"},
	} {
		obj := token.asks(t, node)
		kit.HasEvent(t, obj, test.reason, test.part)
		isPending(t, obj)
	}

	// A request that has waited for too long, from a time when no manager ran.
	expect(t, "patient")
	stale := kit.NodeRequest(t, "patient", func(obj *kit.Request) {
		obj.Name, obj.UID, obj.CreationTimestamp = "stored-16-minutes-ago", "stale-1", metav1.NewTime(time.Now().Add(-16*time.Minute))
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Spec.Username, obj.Spec.Groups = "system:bootstrap:refuse", []string{"system:bootstrappers", "system:authenticated"}
	})
	if err := kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+stale.Name, stale); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kit.Admin(t).Delete(context.Background(), stale) })
	kit.HasEvent(t, stale, "RequestTooOld", "approval.nodeClient.maxRequestAge, 15m0s")
	isPending(t, stale)
}

// TestRevokedIdentities creates requests and deletes their requesters. Only then do the machines appear.
func TestRevokedIdentities(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.InstallKind(t, kit.ClusterAPI)
	startIdentityManager(t, patient, "--leader-elect=false")
	good, bad := newToken(t, "goodid"), newToken(t, "revokd")
	deleted, byDeleted := account(t, "identity", "deleted")
	replaced, byReplaced := account(t, "identity", "replaced")
	_, byKept := account(t, "identity", "kept")
	left := map[string]*kit.Request{
		"bootstrap token revokd is not in ConfigMap kube-public/cluster-info": bad.asks(t, "revoked-a"),
		"ServiceAccount identity/deleted is deleted":                          kit.CreateRequest(t, byDeleted, kit.NodeRequest(t, "revoked-b")),
		"ServiceAccount identity/replaced was deleted and created again":      kit.CreateRequest(t, byReplaced, kit.NodeRequest(t, "revoked-c")),
	}
	kept := map[string]*kit.Request{"kept-a": good.asks(t, "kept-a"), "kept-b": kit.CreateRequest(t, byKept, kit.NodeRequest(t, "kept-b"))}
	for _, obj := range left {
		kit.HasEvent(t, obj, "NotExpected")
	}
	bad.revoke(t)
	bad.signed(t, false)
	for _, obj := range []*corev1.ServiceAccount{deleted, replaced} {
		if err := kit.Admin(t).Delete(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	kit.Create(t, kit.Admin(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "identity", Name: "replaced"}})
	for _, node := range []string{"revoked-a", "revoked-b", "revoked-c", "kept-a", "kept-b"} {
		expect(t, node)
	}
	for _, obj := range kept {
		kit.Reaches(t, obj, csr.Issued)
	}
	for why, obj := range left {
		kit.HasEvent(t, obj, "NotAuthorized", why)
		isPending(t, obj)
	}
}

// TestRenewalsWaitForNoInventory renews while no source can answer, and checks that this lets no new node in.
func TestRenewalsWaitForNoInventory(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	p := startIdentityManager(t, patient, "--leader-elect=false")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_clock_skew_known 1") // otherwise that is reported first
	token := newToken(t, "early1")
	blind := token.asks(t, "renews-a")
	kit.HasEvent(t, blind, "InventoryUnavailable", "Machine.cluster.x-k8s.io is not installed yet")

	// Not even with a bootstrapper's permission: a node that may not renew is not a new node.
	kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayJoin)
	kit.Eventually(t, "permission to ask", func(ctx context.Context) error {
		return kit.KubeletOf(t, "renews-b").Create(ctx, kit.NodeRequest(t, "renews-b"), client.DryRunAll)
	})
	refused := kit.CreateRequest(t, kit.KubeletOf(t, "renews-b"), kit.NodeRequest(t, "renews-b"))
	kit.HasEvent(t, refused, "NotAuthorized", "certificatesigningrequests/selfnodeclient")

	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	renewal := kit.CreateRequest(t, kit.KubeletOf(t, "renews-c"), kit.NodeRequest(t, "renews-c"))
	kit.Reaches(t, renewal, csr.Issued)
	if got := renewal.Status.Conditions[0]; got.Type != certificatesv1.CertificateApproved || got.Reason != "AutoApproved" || got.Message != kit.SelfNodeMessage {
		t.Errorf("condition %+v", got)
	}
	isPending(t, blind)

	kit.InstallKind(t, kit.ClusterAPI)
	expect(t, "renews-a")
	kit.Reaches(t, blind, csr.Issued)
	kit.Reaches(t, refused, csr.Issued) // as soon as it has the permission
}

// TestBoundTokens requires each token to be bound to its node, and uses no inventory. Without a configuration, a bound token is restricted
// too, and what kube-controller-manager would approve by the groups is approved.
func TestBoundTokens(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	p := startIdentityManager(t, "nodeClient: {requireTokenBinding: true}", "--leader-elect=false")
	free, bound := newToken(t, "free01"), newToken(t, "bound1", "bound-a", "bound-b")
	kit.Reaches(t, bound.asks(t, "bound-a"), csr.Issued)
	kit.NewNode(t, "bound-b")
	isRefused := func(obj *kit.Request, reason, part string) {
		t.Helper()
		kit.HasEvent(t, obj, reason, part)
		isPending(t, obj)
	}
	onlyFree := free.asks(t, "bound-d")
	isRefused(onlyFree, "NotAuthorized", "is not bound to node")
	isRefused(bound.asks(t, "bound-c"), "NotAuthorized", `is bound to another node than "bound-c"`)
	isRefused(bound.asks(t, "bound-b"), "NodeAlive", `node "bound-b" may be alive`)
	checkStop(t, p)

	kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false")
	kit.Reaches(t, onlyFree, csr.Issued)
	narrow := newToken(t, "narrow", "narrow-a")
	kit.Reaches(t, narrow.asks(t, "narrow-a"), csr.Issued)
	isRefused(narrow.asks(t, "narrow-b"), "NotAuthorized", `is bound to another node than "narrow-b"`)
}
