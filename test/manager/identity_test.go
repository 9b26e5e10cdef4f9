package manager

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

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
	p := startIdentityManager(t, patient)
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
		if _, err := node.Register(ctx, cert); err != nil {
			t.Fatal(err)
		}
		// Now that the node exists, the same token can't become it again.
		isRefused(t, token.asks(t, "expected"), "NodeAlive", `node "expected" may be alive, because its Node or its Lease exists`)
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
		kit.Update(t, other.Secret)
		other.signed(t, false)
		waiting := other.asks(t, "untracked")
		kit.HasEvent(t, waiting, "NotAuthorized", "notsig", "usage-bootstrap-signing")
		other.StringData = map[string]string{"usage-bootstrap-signing": "true"}
		kit.Update(t, other.Secret)
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
	createdBefore(t, 3*time.Hour, machineIn(kit.ClusterAPI, "m-old", "spec: {infrastructureRef: {name: old}}"))
	machines.Apply(t, machineOf("other", kit.ClusterAPI, "m-foreign", "spec: {infrastructureRef: {name: foreign}}"))
	for node, test := range map[string]struct{ reason, part string }{
		// A management cluster also holds Machines of other clusters.
		"foreign": {"NotExpected", `expects node "foreign"`},
		"nobody":  {"NotExpected", `expects node "nobody"`},
		"bound":   {"MachineBound", `Machine default/m-bound is already node "another"`},
		"was":     {"MachineBound", `Machine default/m-was was node "was" before`},
		"old":     {"OutsideJoinWindow", "after Machine default/m-old was created"},
	} {
		isRefused(t, token.asks(t, node), test.reason, test.part)
	}

	// A request that has waited for too long, from a time when no manager ran.
	expect(t, "patient")
	stale := stored(t, "stored-16-minutes-ago", 16*time.Minute, kit.NodeRequest(t, "patient", func(obj *kit.Request) {
		obj.Spec.Username, obj.Spec.Groups = "system:bootstrap:refuse", []string{"system:bootstrappers", "system:authenticated"}
	}))
	isRefused(t, stale, "RequestTooOld", "approval.nodeClient.maxRequestAge, 15m0s")
}

// TestRevokedIdentities creates requests and deletes their requesters. Only then do the machines appear.
func TestRevokedIdentities(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.InstallKind(t, kit.ClusterAPI)
	startIdentityManager(t, patient)
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
		kit.Remove(t, obj)
	}
	kit.Create(t, kit.Admin(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "identity", Name: "replaced"}})
	for _, node := range []string{"revoked-a", "revoked-b", "revoked-c", "kept-a", "kept-b"} {
		expect(t, node)
	}
	for _, obj := range kept {
		kit.Reaches(t, obj, csr.Issued)
	}
	for why, obj := range left {
		isRefused(t, obj, "NotAuthorized", why)
	}
}

// TestRenewalsWaitForNoInventory renews while no source can answer, and checks that this lets no new node in.
func TestRenewalsWaitForNoInventory(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	p := startIdentityManager(t, patient)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_clock_skew_known 1") // otherwise that is reported first
	token := newToken(t, "early1")
	blind := token.asks(t, "renews-a")
	kit.HasEvent(t, blind, "InventoryUnavailable", "Machine.cluster.x-k8s.io is not installed yet")

	// Not even with a bootstrapper's permission: a node that may not renew is not a new node.
	refused := kit.CreateRequest(t, asNewNode(t, "renews-b"), kit.NodeRequest(t, "renews-b"))
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
	p := startIdentityManager(t, "nodeClient: {requireTokenBinding: true}")
	free, bound := newToken(t, "free01"), newToken(t, "bound1", "bound-a", "bound-b")
	kit.Reaches(t, bound.asks(t, "bound-a"), csr.Issued)
	kit.NewNode(t, "bound-b")
	onlyFree := free.asks(t, "bound-d")
	isRefused(t, onlyFree, "NotAuthorized", "is not bound to node")
	isRefused(t, bound.asks(t, "bound-c"), "NotAuthorized", `is bound to another node than "bound-c"`)
	isRefused(t, bound.asks(t, "bound-b"), "NodeAlive", `node "bound-b" may be alive`)
	checkStop(t, p)

	kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false")
	kit.Reaches(t, onlyFree, csr.Issued)
	narrow := newToken(t, "narrow", "narrow-a")
	kit.Reaches(t, narrow.asks(t, "narrow-a"), csr.Issued)
	isRefused(t, narrow.asks(t, "narrow-b"), "NotAuthorized", `is bound to another node than "narrow-b"`)
}

const bootstrapperNamespace = "openshift-machine-config-operator"

// openshiftMachine returns the machine for node.
func openshiftMachine(node string) string {
	return "apiVersion: " + kit.Openshift + "/v1beta1\nkind: Machine\nmetadata: {namespace: openshift-machine-api, name: m-" + node +
		"}\nstatus: {addresses: [{type: InternalDNS, address: " + node + "}]}"
}

// TestOpenShiftsSevenRules tests the rules of OpenShift's machine-approver, one by one (openshift/enhancements,
// master-bootstrap-credentials.md, "How machine-approver Decides to Approve Client Certificates").
func TestOpenShiftsSevenRules(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	kit.Apply(t, "inventory-openshift")
	startIdentityManager(t, "nodeClient: {inventory: openshift}")
	_, joiner := accountThatAsks(t, bootstrapperNamespace, "node-bootstrapper") // OpenShift does not bind nodeclient to it
	_, other := account(t, bootstrapperNamespace, "other")
	// A control-plane node has a client certificate for that account.
	const all = "system:serviceaccounts"
	user, err := kit.ControlPlane(t).Env.AddUser(envtest.User{
		Name: "system:serviceaccount:" + bootstrapperNamespace + ":node-bootstrapper", Groups: []string{all, all + ":" + bootstrapperNamespace},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	master := kit.ClientOf(t, user.Config())
	machines := kit.Administrator(t, kit.ControlPlane(t).Config)
	for _, node := range []string{"rule-1", "rule-2", "rule-3", "rule-4", "rule-7", "rule-7-certificate"} {
		machines.Apply(t, openshiftMachine(node))
	}
	kit.NewNode(t, "rule-4")
	createdBefore(t, 3*time.Hour, openshiftMachine("rule-6"))
	for rule, test := range map[string]struct {
		by           client.Client
		node         string
		mod          func(*kit.Request)
		reason, part string // empty if all is right
	}{
		"1: not a well-formed client certificate":   {joiner, "rule-1", kit.WrongUsage, "ShapeMismatch", "usages"},
		"2: a renewal is not approved by this path": {asNewNode(t, "rule-2"), "rule-2", nil, "NotAuthorized", `requests subject "CN=system:node:rule-2,O=system:nodes" but may not`},
		"3: not the node bootstrapper":              {other, "rule-3", nil, "NotAuthorized", "may not bootstrap nodes: only users"},
		"3: a bootstrap token":                      {newToken(t, "rule03"), "rule-3", nil, "NotAuthorized", "may not bootstrap nodes: only users"},
		"4: the node exists":                        {joiner, "rule-4", nil, "NodeAlive", `node "rule-4" may be alive, because its Node or its Lease exists`},
		"5: no machine":                             {joiner, "rule-5", nil, "NotExpected", `expects node "rule-5"`},
		"5: no machine, by a certificate":           {master, "rule-5", nil, "NotExpected", `expects node "rule-5"`},
		"6: not when the machine was created":       {joiner, "rule-6", nil, "OutsideJoinWindow", "joinWindow permits 2h0m0s after"},
		"7: all of it":                              {joiner, "rule-7", nil, "", ""},
		"7: all of it, by a certificate":            {master, "rule-7-certificate", nil, "", ""},
	} {
		t.Run(rule, func(t *testing.T) {
			obj := kit.NodeRequest(t, test.node)
			if test.mod != nil {
				test.mod(obj)
			}
			kit.Create(t, test.by, obj)
			if test.by == master && obj.Spec.UID != "" {
				t.Fatalf("the requester has the UID %q", obj.Spec.UID)
			}
			if test.reason == "" {
				kit.Reaches(t, obj, csr.Issued)
			} else {
				isRefused(t, obj, test.reason, test.part)
			}
		})
	}
}

// startIdentityManager runs the manager with approval, under its shipped roles.
func startIdentityManager(t *testing.T, approval string, args ...string) *kit.Process {
	t.Helper()
	kit.Apply(t, "node-identity")
	kit.Apply(t, "inventory-cluster-api")
	args = append([]string{"--leader-elect=false", kit.Configure(t, "approval: {"+approval+"}\n")}, args...)
	return kit.StartManager(t, kit.ManagerConfig(t), args...)
}

// prepareIdentity grants the right to join to bootstrappers, and runs Kubernetes' controller of the ConfigMap
// cluster-info.
func prepareIdentity(t *testing.T) {
	t.Helper()
	signingSecret(t)
	for _, role := range []string{kit.MayCreate, kit.MayJoin} {
		kit.GrantGroup(t, "system:bootstrappers", role)
	}
	kit.Create(t, kit.Admin(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": "apiVersion: v1\nkind: Config\n"},
	})
	startKCM(t, "--controllers=bootstrapsigner,tokencleaner")
}

// heldToken is a real bootstrap token.
type heldToken struct {
	*corev1.Secret
	cfg *rest.Config
	client.Client
}

// newToken creates a bootstrap token, bound to nodes if there are any. It waits until the API server knows the token
// and permits it to create requests.
func newToken(t *testing.T, id string, nodes ...string) *heldToken {
	t.Helper()
	var groups []string
	for _, node := range nodes {
		groups = append(groups, csr.TokenGroup(node))
	}
	const secret = "0123456789abcdef"
	token := &heldToken{Secret: &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": strings.Join(groups, ","),
		},
	}}
	kit.Create(t, kit.Admin(t), token.Secret)
	token.cfg = kit.WithToken(t, id+"."+secret)
	token.cfg.QPS = -1
	token.Client = kit.ClientOf(t, token.cfg)
	kit.Eventually(t, "bootstrap token "+id, func(ctx context.Context) error {
		return token.Create(ctx, kit.NodeRequest(t, "x"), client.DryRunAll)
	})
	token.signed(t, true)
	return token
}

// signed waits until the ConfigMap cluster-info lists the token, or no longer does.
func (b *heldToken) signed(t *testing.T, want bool) {
	t.Helper()
	id := strings.TrimPrefix(b.Name, "bootstrap-token-")
	kit.Eventually(t, "signature of "+id, func(ctx context.Context) error {
		info := &corev1.ConfigMap{}
		if err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, info); err != nil {
			return err
		}
		if _, found := info.Data["jws-kubeconfig-"+id]; found != want {
			return fmt.Errorf("there is one: %t", found)
		}
		return nil
	})
}

// revoke deletes the token without waiting.
func (b *heldToken) revoke(t *testing.T) { kit.Remove(t, b.Secret) }

// asks creates the request of a kubelet that will become node.
func (b *heldToken) asks(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, b.Client, kit.NodeRequest(t, node))
}

// account returns a client with a token of a new ServiceAccount that may bootstrap.
func account(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.Grant(t, "system:serviceaccount:"+namespace+":"+name, kit.MayJoin)
	return accountThatAsks(t, namespace, name)
}

// accountThatAsks returns a client with a token of a new ServiceAccount that may create requests.
func accountThatAsks(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.NewNamespace(t, namespace)
	obj := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	kit.Create(t, kit.Admin(t), obj)
	c := kit.ClientOf(t, kit.TokenOf(t, obj))
	user := "system:serviceaccount:" + namespace + ":" + name
	kit.Grant(t, user, kit.MayCreate)
	kit.Eventually(t, user, func(ctx context.Context) error { return c.Create(ctx, kit.NodeRequest(t, "x"), client.DryRunAll) })
	return obj, c
}

// asNewNode returns a client of the kubelet of node. Nodes have the permissions of bootstrappers.
func asNewNode(t *testing.T, node string) client.Client {
	t.Helper()
	kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayJoin)
	c := kit.KubeletOf(t, node)
	kit.Eventually(t, "permission to ask", func(ctx context.Context) error { return c.Create(ctx, kit.NodeRequest(t, node), client.DryRunAll) })
	return c
}

// isRefused checks that obj waits, with an Event.
func isRefused(t *testing.T, obj *kit.Request, reason string, parts ...string) {
	t.Helper()
	kit.HasEvent(t, obj, reason, parts...)
	isPending(t, obj)
}

// newLease creates the Lease of node, renewed at an instant.
func newLease(t *testing.T, node string, renewed time.Time) *coordinationv1.Lease {
	t.Helper()
	kit.NewNamespace(t, corev1.NamespaceNodeLease)
	seconds := int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: renewed}},
	}
	kit.Create(t, kit.Admin(t), lease)
	return lease
}

// renew renews lease as its kubelet does.
func renew(t *testing.T, lease *coordinationv1.Lease) {
	t.Helper()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
	kit.Update(t, lease)
}

// expect creates the machine that will become node.
func expect(t *testing.T, node string) {
	t.Helper()
	kit.Administrator(t, kit.ControlPlane(t).Config).Apply(t, machineIn(kit.ClusterAPI, "m-"+node, "spec: {infrastructureRef: {name: "+node+"}}"))
}

// createdBefore stores a machine that was created that long ago.
func createdBefore(t *testing.T, ago time.Duration, text string) {
	t.Helper()
	old := kit.Object(t, text)
	old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-ago)))
	old.SetUID(types.UID(old.GetName()))
	group := old.GroupVersionKind().Group
	if err := kit.ControlPlane(t).Store(t.Context(), group+"/machines/"+old.GetNamespace()+"/"+old.GetName(), old); err != nil {
		t.Fatal(err)
	}
}
