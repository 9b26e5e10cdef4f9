package manager

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// TestIdentity joins machines of Cluster API with real bootstrap tokens, and checks that no other requester can join. It starts
// before there are machines: meanwhile nodes renew, and no new node is let in.
func TestIdentity(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.Apply(t, "kubelet-serving")
	p := startIdentityManager(t, "nodeClient: {inventory: cluster-api, clusterName: default/lab, joinWindow: {before: 10m, after: 2h}}, "+
		"kubeletServing: {enabled: true}")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_clock_skew_known 1") // otherwise that is reported first
	token := newToken(t, "joiner")
	waiting := token.asks(t, "later")
	kit.HasEvent(t, waiting, "InventoryUnavailable", "Machine.cluster.x-k8s.io is not installed yet")
	// Not even with a bootstrapper's permission: a node that may not renew is not a new node.
	refused := kit.CreateRequest(t, asNewNode(t, "renews-b"), kit.NodeRequest(t, "renews-b"))
	kit.HasEvent(t, refused, "NotAuthorized", "certificatesigningrequests/selfnodeclient")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	renewal := kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, "renews-c"), kit.NodeRequest(t, "renews-c")), csr.Issued)
	got := csr.Condition(renewal, certificatesv1.CertificateApproved)
	kit.Equal(t, "approval", got.Reason+": "+got.Message, "AutoApproved: "+kit.SelfNodeMessage)
	kit.IsIn(t, waiting, csr.Pending)

	kit.InstallKind(t, kit.ClusterAPI)
	kit.HasEvent(t, waiting, "NotExpected", `node "later"`)
	kit.Reaches(t, refused, csr.Issued) // as soon as it has the permission
	issuedSoon(t, waiting, func() { expect(t, "later") })

	expect(t, "expected")
	node := &kubelet.Node{Name: "expected", Dir: t.TempDir(), Bootstrap: token.cfg}
	node.Register(t, node.Join(t))
	// Now that the node exists, the same token can't become it again, until the Node goes.
	waiting = token.asks(t, "expected")
	isRefused(t, waiting, "NodeAlive", `node "expected" may be alive, because its Node or its Lease exists`)
	issuedSoon(t, waiting, func() {
		kit.Remove(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "expected"}})
	})

	// One requester causes ten Events at once, so the refusals are of another token.
	other := newToken(t, "refuse")
	kit.Put(t, machineIn(kit.ClusterAPI, "m-bound", "spec: {infrastructureRef: {name: bound}}\nstatus: {nodeRef: {name: another}}"))
	createdBefore(t, 3*time.Hour, machineIn(kit.ClusterAPI, "m-old", "spec: {infrastructureRef: {name: old}}"))
	kit.Put(t, machineOf("other", kit.ClusterAPI, "m-foreign", "spec: {infrastructureRef: {name: foreign}}"))
	isRefused(t, other.asks(t, "foreign"), "NotExpected", `expects node "foreign"`) // a management cluster also holds Machines of others
	isRefused(t, other.asks(t, "bound"), "MachineBound", `Machine default/m-bound is already node "another"`)
	isRefused(t, other.asks(t, "old"), "OutsideJoinWindow", "after Machine default/m-old was created")
	expect(t, "untracked")
	other.change(t, "false")
	waiting = other.asks(t, "untracked")
	kit.HasEvent(t, waiting, "NotAuthorized", "refuse", "usage-bootstrap-signing")
	other.change(t, "true")
	kit.Reaches(t, waiting, csr.Issued) // after its pause

	revokedIdentities(t)
	machineAddresses(t)
	checkStop(t, p)
}

// machineAddresses has machines with addresses and without Nodes, and Nodes without machines that report these addresses.
func machineAddresses(t *testing.T) {
	t.Helper()
	having := func(name, address, more string) client.Object {
		return kit.Put(t, machineIn(kit.ClusterAPI, name, "status: {addresses: [{type: InternalIP, address: "+address+"}]"+more+"}"))
	}
	gone := having("m-gone", "192.0.2.81", "")
	having("m-own", "192.0.2.83", "")
	var waiting []*kit.Request
	for node, address := range map[string]string{"m-gone": "192.0.2.81", "m-own": "192.0.2.83"} {
		kit.NewNode(t, "of-"+node, address)
		obj := asksFor(t, "of-"+node, address)
		kit.HasEvent(t, obj, "SANContested", address+` is claimed by node "of-`+node+`" and by Machine default/`+node+`, which`)
		waiting = append(waiting, obj)
	}
	backdate(t, waiting...)
	kit.Remove(t, gone)
	having("m-own", "192.0.2.83", ", nodeRef: {name: of-m-own}") // it is the machine's own Node
	for _, obj := range waiting {
		kit.Reaches(t, obj, csr.Issued)
	}
}

// revokedIdentities creates requests and deletes their requesters. Only then do the machines appear.
func revokedIdentities(t *testing.T) {
	t.Helper()
	good, bad := newToken(t, "goodid"), newToken(t, "revokd")
	deleted, byDeleted := account(t, "identity", "deleted")
	replaced, byReplaced := account(t, "identity", "replaced")
	_, byKept := account(t, "identity", "kept")
	left := map[string]*kit.Request{
		"bootstrap token revokd is not in ConfigMap kube-public/cluster-info": bad.asks(t, "revoked-a"),
		"ServiceAccount identity/deleted is deleted":                          kit.CreateRequest(t, byDeleted, kit.NodeRequest(t, "revoked-b")),
		"ServiceAccount identity/replaced was deleted and created again":      kit.CreateRequest(t, byReplaced, kit.NodeRequest(t, "revoked-c")),
	}
	kept := []*kit.Request{good.asks(t, "kept-a"), kit.CreateRequest(t, byKept, kit.NodeRequest(t, "kept-b"))}
	for _, obj := range left {
		kit.HasEvent(t, obj, "NotExpected")
	}
	kit.Remove(t, bad.Secret)
	bad.signed(t, false)
	kit.Remove(t, deleted)
	kit.Remove(t, replaced)
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

// TestOpenShiftsSevenRules tests the rules of OpenShift's machine-approver, except the first one about the form of the request
// (openshift/enhancements, master-bootstrap-credentials.md, "How machine-approver Decides to Approve Client Certificates").
func TestOpenShiftsSevenRules(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	kit.Apply(t, "inventory-openshift")
	startIdentityManager(t, "nodeClient: {inventory: openshift}")
	_, joiner := accountThatAsks(t, bootstrapperNamespace, "node-bootstrapper") // OpenShift does not bind nodeclient to it
	_, other := account(t, bootstrapperNamespace, "other")
	// A control-plane node has a client certificate for that account, and no UID.
	bootstrapper, groups := serviceaccount.MakeUsername(bootstrapperNamespace, "node-bootstrapper"), serviceaccount.MakeGroupNames(bootstrapperNamespace)
	master := kit.CertificateClient(t, bootstrapper, groups...)
	for _, node := range []string{"rule-2", "rule-3", "rule-4", "rule-7", "rule-7-certificate"} {
		kit.Put(t, openshiftMachine(node))
	}
	kit.NewNode(t, "rule-4")
	createdBefore(t, 3*time.Hour, openshiftMachine("rule-6"))
	for rule, test := range map[string]struct {
		by                 client.Client
		node, reason, part string // empty if all is right
	}{
		"2: a renewal":                        {asNewNode(t, "rule-2"), "rule-2", "NotAuthorized", `"CN=system:node:rule-2,O=system:nodes" but may not`},
		"3: not the node bootstrapper":        {other, "rule-3", "NotAuthorized", "may not bootstrap nodes: only users"},
		"3: a bootstrap token":                {newToken(t, "rule03"), "rule-3", "NotAuthorized", "may not bootstrap nodes: only users"},
		"4: the node exists":                  {joiner, "rule-4", "NodeAlive", `node "rule-4" may be alive, because its Node or its Lease exists`},
		"5: no machine":                       {joiner, "rule-5", "NotExpected", `expects node "rule-5"`},
		"6: not when the machine was created": {joiner, "rule-6", "OutsideJoinWindow", "joinWindow permits 2h0m0s after"},
		"7: all of it":                        {joiner, "rule-7", "", ""},
		"7: all of it, by a certificate":      {master, "rule-7-certificate", "", ""},
	} {
		t.Run(rule, func(t *testing.T) {
			obj := kit.CreateRequest(t, test.by, kit.NodeRequest(t, test.node))
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
	kit.Eventually(t, "the token may create requests", func(ctx context.Context) error {
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
		err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, info)
		_, found := info.Data["jws-kubeconfig-"+id]
		return errors.Join(err, kit.OrError(found == want, "there is one: %t", found))
	})
}

// change sets whether Kubernetes signs for the token, and so keeps track of it.
func (b *heldToken) change(t *testing.T, signing string) {
	t.Helper()
	b.StringData = map[string]string{"usage-bootstrap-signing": signing}
	kit.Update(t, b.Secret)
	b.signed(t, signing == "true")
}

// asks creates the request of a kubelet that will become node.
func (b *heldToken) asks(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, b.Client, kit.NodeRequest(t, node))
}

// account returns a client with a token of a new ServiceAccount that may bootstrap.
func account(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.Grant(t, serviceaccount.MakeUsername(namespace, name), kit.MayJoin)
	return accountThatAsks(t, namespace, name)
}

// accountThatAsks returns a client with a token of a new ServiceAccount that may create requests.
func accountThatAsks(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.NewNamespace(t, namespace)
	obj := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	kit.Create(t, kit.Admin(t), obj)
	c := kit.ClientOf(t, kit.TokenOf(t, obj))
	kit.Grant(t, serviceaccount.MakeUsername(namespace, name), kit.MayCreate)
	return obj, c
}

// asNewNode returns a client of the kubelet of node. Nodes have the permissions of bootstrappers.
func asNewNode(t *testing.T, node string) client.Client {
	t.Helper()
	kit.GrantGroup(t, csr.NodeGroup, kit.MayCreate)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayJoin)
	return kit.KubeletOf(t, node)
}

// isRefused checks that obj waits, with an Event.
func isRefused(t *testing.T, obj *kit.Request, reason string, parts ...string) {
	t.Helper()
	kit.HasEvent(t, obj, reason, parts...)
	kit.IsIn(t, obj, csr.Pending)
}

// expect creates the machine that will become node.
func expect(t *testing.T, node string) {
	t.Helper()
	kit.Put(t, machineIn(kit.ClusterAPI, "m-"+node, "spec: {infrastructureRef: {name: "+node+"}}"))
}

// createdBefore stores a machine that was created that long ago.
func createdBefore(t *testing.T, ago time.Duration, text string) {
	t.Helper()
	old := kit.Object(t, text)
	old.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-ago)))
	old.SetUID(types.UID(old.GetName()))
	group := old.GroupVersionKind().Group
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), group+"/machines/"+old.GetNamespace()+"/"+old.GetName(), old))
}

// startRejoin runs only an approver, in this process and with a clock of the test. Dead nodes may join again.
func startRejoin(t *testing.T, steps *clocktesting.FakeClock) {
	t.Helper()
	mgr := kit.NewManager(t, kit.RoleConfig(t, "approver", "node-identity"), manager.Options{})
	listed := func(manager.Manager, *node.Source, inventory.Changed) (inventory.Source, error) {
		source, mistakes := static.New(nil, []static.Row{{NamePattern: "rejoin-.*"}})
		return source, mistakes.ToAggregate()
	}
	known := &approver.Inventory{Sources: []approver.SourceBuilder{listed}}
	policy := &bootstrap.Policy{Expected: true, Rejoin: true, MaxRequestAge: 15 * time.Minute}
	options := controllers.Options{
		Approver: &approver.Reconciler{
			Judges:  map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{Bootstrap: policy}},
			Readers: approver.Readers{Inventory: known},
		},
		Clock: steps,
	}
	kit.NoError(t, options.SetupWithManager(mgr))
	follow(t, mgr.Start)
}

// newLease creates the Lease of node, renewed now.
func newLease(t *testing.T, node string) *coordinationv1.Lease {
	t.Helper()
	kit.NewNamespace(t, corev1.NamespaceNodeLease)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: new(int32(40)), RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}
	kit.Create(t, kit.Admin(t), lease)
	return lease
}

// TestRejoin reuses the name of a dead node, and of no other node. TestLife in pkg/nodeidentity has more of the nodes' lives.
func TestRejoin(t *testing.T) {
	kit.Parallel(t)
	prepareIdentity(t)
	token := newToken(t, "rejoin")
	for _, name := range []string{"rejoin-dead", "rejoin-alive", "rejoin-other", "rejoin-mute"} {
		kit.NewNode(t, name)
	}
	newLease(t, "rejoin-dead")
	alive, other, deleted := newLease(t, "rejoin-alive"), newLease(t, "rejoin-other"), newLease(t, "rejoin-deleted")
	steps := clocktesting.NewFakeClock(time.Now())
	startRejoin(t, steps)
	// pass steps the clock by ten seconds n times, at which living nodes renew their Leases. The pauses give the watch more time
	// than it needs. Without them less time would seem to pass, never more.
	pass := func(n int, living ...*coordinationv1.Lease) {
		for range n {
			steps.Step(10 * time.Second)
			for _, lease := range living {
				lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
				kit.Update(t, lease)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	notYet := func(node string) *kit.Request {
		t.Helper()
		fresh := token.asks(t, node) // it is judged now, and older requests after their pause
		isRefused(t, fresh, "NodeAlive", "may be alive")
		return fresh
	}
	onDead, onAlive := notYet("rejoin-dead"), notYet("rejoin-alive")
	// A Lease without a Node may be renewed too. After it is deleted as well, no node is alive.
	onDeleted := notYet("rejoin-deleted")
	kit.Remove(t, deleted)
	kit.Reaches(t, onDeleted, csr.Approved)

	pass(8, alive) // one other node is not enough
	notYet("rejoin-dead")
	pass(5, alive, other)
	notYet("rejoin-dead")
	kit.IsIn(t, onDead, csr.Pending)
	pass(3, alive, other)
	kit.Reaches(t, token.asks(t, "rejoin-dead"), csr.Approved)
	kit.IsIn(t, onAlive, csr.Pending)
	notYet("rejoin-mute") // without a Lease nothing is ever proven
}
