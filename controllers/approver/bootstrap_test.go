package approver

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/servertimetest"
)

// running is an Inventory that has started, of which nothing is asked.
var running = &Inventory{cluster: &node.Source{}, leases: &nodeidentity.Leases{}}

func serverTime(at time.Time) *servertime.Clock {
	return servertime.Of(clocktesting.NewFakePassiveClock(at))
}

// TestConfirm checks the reads before an approval, for facts that a lagging cache has wrong.
func TestConfirm(t *testing.T) {
	const token, sa = "system:bootstrap:abcdef", "system:serviceaccount:ns:joiner"
	lease := func(renewed time.Time) client.Object {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "a"},
			Spec:       coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}},
		}
	}
	info := func(keys string) client.Object {
		data := map[string]string{}
		for _, key := range strings.Fields(keys) {
			data[key] = "x"
		}
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data}
	}
	all := func(objs ...client.Object) []client.Object { return objs }
	good, other, half := info("kubeconfig jws-kubeconfig-abcdef"), info("kubeconfig jws-kubeconfig-ghijkl"), info("jws-kubeconfig-abcdef")
	later := lease(now.Add(time.Second))
	a := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	account := all(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "joiner", UID: "u-1"}})
	for name, test := range map[string]struct {
		node      bootstrap.NodeState // by the Lease in the cache
		unseen    bool                // the Lease was never observed
		who       string              // user name and UID; empty means the token
		trusted   bool
		groupless bool
		objects   []client.Object
		down      error
		passed    time.Duration
		want      string // reason and part of the message; empty means that it passes
	}{
		"no Node, and the token exists":              {objects: all(good)},
		"a Node that the cache lacks":                {objects: all(good, a), want: "NodeAlive may be alive"},
		"a dead lease without a Node":                {objects: all(good, lease(now))},
		"a dead Lease without a Node, renewed since": {objects: all(good, later), want: "NodeAlive may be alive"},
		"a Lease that the cache lacks":               {unseen: true, objects: all(good, lease(now)), want: "NodeAlive may be alive"},
		"a dead Lease":                               {node: bootstrap.NodeDead, objects: all(good, lease(now))},
		"a dead Lease, renewed since":                {node: bootstrap.NodeDead, objects: all(good, later), want: "NodeAlive may be alive"},
		"a deleted Lease":                            {node: bootstrap.NodeDead, objects: all(good), want: "InventoryUnavailable Lease of node a"},
		"a deleted token":                            {objects: all(other), want: "NotAuthorized revoked"},
		"a token without a name":                     {who: "system:bootstrap:", objects: all(other), want: "NotAuthorized revoked"},
		"no cluster-info":                            {want: "InventoryUnavailable kube-public/cluster-info"},
		"cluster-info without a kubeconfig":          {objects: all(half), want: "InventoryUnavailable it is not kept up to date"},
		"the ServiceAccount":                         {who: sa + " u-1", objects: account},
		"a ServiceAccount of the same name":          {who: sa + " u-0", objects: account, want: "NotAuthorized deleted and created again"},
		"a ServiceAccount's user without a UID":      {who: sa, objects: account, want: "NotAuthorized has the name of ServiceAccount ns/joiner, but no UID"},
		"a token's user without its group":           {groupless: true, objects: all(good), want: "NotAuthorized is not in the group system:bootstrappers"},
		"a ServiceAccount's user without its groups": {who: sa + " u-1", groupless: true, objects: account, want: "NotAuthorized is not in the group system:serviceaccounts"},
		"no such ServiceAccount":                     {who: sa + " u-1", want: "NotAuthorized ServiceAccount ns/joiner is deleted"},
		"trusted, by certificate":                    {who: sa, trusted: true},
		"trusted, the ServiceAccount of before": {
			who: sa + " u-0", objects: account, trusted: true, want: "NotAuthorized deleted and created again"},
		"any other user":                                 {who: "arn:aws:iam::1:role/node"},
		"too old by then":                                {who: "x", passed: time.Hour, want: "RequestTooOld older than"},
		"the API server does not answer":                 {down: errDown, want: "InventoryUnavailable down"},
		"the API server does not answer, ServiceAccount": {who: sa + " u-1", down: errDown, want: "InventoryUnavailable down"},
	} {
		t.Run(name, func(t *testing.T) {
			builder := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
					return cmp.Or(ctx.Err(), test.down, c.Get(ctx, key, obj))
				},
			})
			for _, obj := range test.objects {
				builder.WithObjects(obj.DeepCopyObject().(client.Object)) // the builder sets resourceVersions
			}
			policy, req, facts := joining()
			policy.Users, policy.Trusted, policy.Rejoin = nil, test.trusted, true
			seen := bootstrap.Seen{Renewed: now}
			req.Requester = csr.Requester{Username: token, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:bootstrappers"}}
			if test.groupless {
				req.Requester.Groups = nil
			}
			if test.who != "" {
				req.Requester.Username, req.Requester.UID, _ = strings.Cut(test.who, " ")
			}
			facts.Node = cmp.Or(test.node, facts.Node)
			if test.unseen {
				seen = bootstrap.Seen{}
			}
			with := Readers{Live: builder.Build(), ServerTime: serverTime(now.Add(test.passed)), Inventory: running}
			var got judge.Decision
			if err := (KubeletClient{Bootstrap: policy}).readLive(t.Context(), req, with, seen, facts); err != nil {
				got = missing(req, err)
			} else {
				got = policy.Judge(req, *facts, kubeletclient.NodeClient)
			}
			reason, text, _ := strings.Cut(test.want, " ")
			expect.True(t, got.Reason == cmp.Or(reason, "AutoApproved") && strings.Contains(got.Message, text), "%+v, want %q", got, test.want)
		})
	}
}

// TestAgeIsReadAgainBeforeItRefuses has an API server whose clock is set back. A new request then looks old by the time that
// was noted before. While the time is unknown, nothing passes.
func TestAgeIsReadAgainBeforeItRefuses(t *testing.T) {
	policy, req, _ := joining()
	measured, set := servertimetest.Measured(t, 0)
	n, with := KubeletClient{Bootstrap: policy}, Readers{ServerTime: measured, Inventory: running}
	latest := measured.Latest()
	for name, test := range map[string]struct {
		created time.Time
		ahead   time.Duration
		old     bool
	}{
		"an old request":                         {latest.Add(-time.Hour), 0, true},
		"a new one":                              {latest, 0, false},
		"a new one after the clock was set back": {latest.Add(-time.Hour), -time.Hour, false},
	} {
		set(test.ahead)
		req.Created = test.created
		at, err := n.now(t.Context(), req, with)
		if old := policy.Check(req, at).Reason == bootstrap.ReasonTooOld; err != nil || old != test.old {
			t.Errorf("%s: %s, too old %t, error %v", name, at, old, err)
		}
		set(0)
		_ = must(measured.Fresh(t.Context()))
	}
	with.ServerTime = &servertime.Clock{}
	got := must(n.Judge(t.Context(), req, with))
	expect.True(t, got.Verdict == judge.Wait && got.Reason == "InventoryUnavailable", "without a time: %+v", got)
}

// TestBoundNodeClient checks that a source is asked once, after the review, and only about first certificates. A requester
// without the permission, or with a request that can never be approved, causes no question. A node that may not renew is
// not treated as a new node. Without a manager every first certificate waits.
func TestBoundNodeClient(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(now)
	cluster := must(node.New(&rest.Config{}, nil, false, logr.Discard()))
	leases := must(nodeidentity.NewLeases(&rest.Config{}, nil, clock, logr.Discard(), nil)) // it does not run
	const self = "system:node:a"
	for name, test := range map[string]struct {
		obj       *request
		grants    string
		unmanaged bool
		trusted   string // the only user, who needs no permission
		asked     string
		questions int
		want      string
	}{
		"permitted": {obj: object(), grants: "nodeclient", asked: "nodeclient", questions: 1,
			want: `Waits InventoryPending: it is unknown whether node "a" may join: not read yet`},
		"not permitted":                  {obj: object(), asked: "nodeclient", want: "Waits NotAuthorized"},
		"not permitted, but trusted":     {obj: object(user("x")), trusted: "x", questions: 1, want: "Waits InventoryPending"},
		"another user than the trusted":  {obj: object(user("y")), grants: rights, trusted: "x", want: "Ignored NotAuthorized"},
		"another node":                   {obj: object(user("system:node:b")), grants: rights, want: "Ignored NotAuthorized"},
		"an old request":                 {obj: object(created(now.Add(-time.Hour))), grants: rights, want: "Ignored RequestTooOld"},
		"no name of a Node":              {obj: object(says(kubelet("no_name", ""))), grants: rights, want: "Denied ShapeMismatch"},
		"a renewal":                      {obj: object(user(self)), grants: rights, asked: "selfnodeclient", want: renews},
		"a renewal, not permitted":       {obj: object(user(self)), asked: "selfnodeclient", want: "Waits NotAuthorized"},
		"a renewal, bootstrap permitted": {obj: object(user(self)), grants: "nodeclient", asked: "selfnodeclient", want: "Waits NotAuthorized"},
		"without a manager":              {obj: object(), grants: rights, unmanaged: true, want: "Waits InventoryUnavailable"},
		"without a manager, a renewal":   {obj: object(user(self)), grants: rights, unmanaged: true, asked: "selfnodeclient", want: renews},
	} {
		source := &askedOf{entries: map[string]*inventory.Entry{"a": {Source: "Machine default/a", AnyTime: true}}}
		policy, _, _ := joining()
		i := &Inventory{cluster: cluster, leases: leases, expecting: inventory.Sources{source}}
		if test.unmanaged {
			i = &Inventory{}
		}
		if test.trusted != "" {
			policy.Users, policy.Trusted = []string{test.trusted}, true
		}
		p := newParts(test.obj)
		p.clock.SetTime(now.Add(10 * time.Second))
		p.reconciler.Judges[kubeletSigner], p.reconciler.Inventory = KubeletClient{Bootstrap: policy}, i
		p.reconciler.Denial, p.grants = DenialPermanent, strings.Fields(test.grants)
		if got := p.outcome(t); !strings.HasPrefix(got, test.want) || p.asked(t) != test.asked || len(source.asked) != test.questions {
			t.Errorf("%s: %s after reviews of %q and %d questions, want %+v", name, got, p.asked(t), len(source.asked), test)
		}
		if len(marksOf(KubeletClient{Bootstrap: policy}, parse(object()))) == 0 {
			t.Error("changes of the inventory do not wake its requests")
		}
	}
}

// joining returns the smallest request that a full policy accepts, with its facts.
func joining() (*bootstrap.Policy, *csr.Request, *bootstrap.Facts) {
	policy := &bootstrap.Policy{
		Expected: true, MaxRequestAge: 15 * time.Minute, Window: bootstrap.Window{Before: 10 * time.Second, After: 2 * time.Hour},
		Users: []string{"system:bootstrap:abcdef"}, CertificateLifetime: 24 * time.Hour,
	}
	machine := &inventory.Entry{Source: "Machine default/a", Created: now.Add(-time.Minute)}
	return policy, parse(object()), &bootstrap.Facts{Now: now.Add(time.Second), Node: bootstrap.NodeNone, Entry: machine, Exists: true}
}
