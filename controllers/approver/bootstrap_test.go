package approver

import (
	"cmp"
	"context"
	"crypto/x509/pkix"
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

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/servertimetest"
)

// joining returns the smallest request that a full policy accepts, with its facts.
func joining() (*BootstrapPolicy, *csr.Request, *bootstrapFacts) {
	policy := &BootstrapPolicy{
		Expected: true, MaxRequestAge: 15 * time.Minute, Window: JoinWindow{Before: 10 * time.Second, After: 2 * time.Hour},
		Users: []string{"system:bootstrap:abcdef"}, CertificateLifetime: 24 * time.Hour,
	}
	req := &csr.Request{
		Requester: csr.Requester{Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}},
		Cert:      ca.Request{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}},
		Created:   now,
	}
	machine := &inventory.Entry{Source: "Machine default/a", Created: now.Add(-time.Minute)}
	return policy, req, &bootstrapFacts{age: time.Second, node: nodeNone, entry: machine}
}

// TestBootstrap has a row for each difference from the smallest request, and for each change that makes up for one. If a fact is
// missing too, that leads to Wait, unless the request itself is refused: a fault decides nothing.
func TestBootstrap(t *testing.T) {
	type (
		policy = *BootstrapPolicy
		req    = *csr.Request
		facts  = *bootstrapFacts
		change = func(policy, req, facts)
	)
	created := func(before time.Duration) change {
		return func(_ policy, _ req, f facts) { f.entry.Created = now.Add(-before) }
	}
	aged := func(age time.Duration) change { return func(_ policy, _ req, f facts) { f.age = age } }
	node := func(state nodeState) change { return func(_ policy, _ req, f facts) { f.node = state } }
	bound := func(name string) change { return func(_ policy, _ req, f facts) { f.entry.Bound = name } }
	named := func(name string) change {
		return func(_ policy, r req, _ facts) { r.Cert.Subject.CommonName = "system:node:" + name }
	}
	by := func(groups ...string) change { return func(_ policy, r req, _ facts) { r.Requester.Groups = groups } }
	user := func(name string) change { return func(_ policy, r req, _ facts) { r.Requester.Username = name } }
	token, tokenOfB := csr.TokenGroup("a"), csr.TokenGroup("b")
	binding := func(p policy, _ req, _ facts) { p.TokenBinding = true }
	anyone := func(p policy, _ req, _ facts) { p.Users = nil }
	account := func(p policy, r req, _ facts) {
		r.Requester.Username = "system:serviceaccount:ns:joiner"
		p.Users, p.Trusted = []string{r.Requester.Username}, true
	}
	rejoin := func(p policy, _ req, _ facts) { p.Rejoin = true }
	unexpected := func(p policy, _ req, f facts) { p.Expected, f.entry = false, nil }
	timeless := func(_ policy, _ req, f facts) { f.entry.Created = time.Time{} }
	none := func(_ policy, _ req, f facts) { f.entry = nil }
	leaving := func(_ policy, _ req, f facts) { f.entry.Leaving = true }
	gone := func(_ policy, _ req, f facts) { f.gone = "revoked" }
	late, old := created(2*time.Hour+time.Second), aged(15*time.Minute+1)
	all := func(changes ...change) []change { return changes }
	for name, test := range map[string]struct {
		changes []change
		want    string // verdict, reason and part of the message, which ends with an advice
	}{
		"the smallest request":         {},
		"no node name":                 {all(named("")), "Deny ShapeMismatch has no node name"},
		"no name that a Node can have": {all(named("A"), user("x"), old), `Deny ShapeMismatch node name "A" is not`},
		"a source need not expect it":  {all(unexpected), ""},
		"not expected":                 {all(none), `Wait NotExpected no source of approval.inventory expects node "a"`},
		"the machine is being deleted": {all(leaving, bound("b")), `Wait NotExpected Machine default/a of node "a" is being deleted`},
		"the requester was deleted": {all(gone),
			`Wait NotAuthorized user "system:bootstrap:abcdef", which requests node "a", no longer exists: revoked`},
		"21 the Node is alive":                 {all(node(nodeAlive), rejoin, none), `Wait NodeAlive node "a" is alive`},
		"21 the Node may be alive":             {all(node(nodeUnknown), rejoin), "Wait NodeAlive may be alive"},
		"21 the Node is dead":                  {all(node(nodeDead), late), `Wait MachineBound Node "a" is dead but still exists`},
		"21 the Node is dead, not expected":    {all(node(nodeDead), unexpected), "Wait MachineBound is dead but still exists"},
		"21 the Node is dead and may rejoin":   {all(node(nodeDead), rejoin, late), ""},
		"21 rejoins, not expected":             {all(node(nodeDead), rejoin, none), "Wait NotExpected no source"},
		"21 rejoins, the machine is leaving":   {all(node(nodeDead), rejoin, leaving), "Wait NotExpected is being deleted"},
		"21 rejoins, bound to another node":    {all(node(nodeDead), rejoin, bound("b")), `Wait MachineBound is already node "b"`},
		"21 rejoins, the requester is gone":    {all(node(nodeDead), rejoin, gone), "Wait NotAuthorized revoked"},
		"the machine was this node":            {all(bound("a"), late), `Wait MachineBound Machine default/a was node "a" before`},
		"the machine was this node, may again": {all(bound("a"), rejoin, timeless), ""},
		"the machine is another node": {all(bound("b"), rejoin),
			`Wait MachineBound Machine default/a is already node "b", so it cannot become node "a"`},
		"at the start of the window": {all(created(-10 * time.Second)), ""},
		"at the end of the window":   {all(created(2 * time.Hour)), ""},
		"before the window": {all(created(-11*time.Second), rejoin), `Wait OutsideJoinWindow node "a" made its request 11s before Machine default/a ` +
			"was created: approval.nodeClient.joinWindow permits 10s before"},
		"after the window": {all(late, rejoin), `Wait OutsideJoinWindow node "a" made its request 2h0m1s after Machine default/a ` +
			"was created: approval.nodeClient.joinWindow permits 2h0m0s after"},
		"no window":             {all(late, func(p policy, _ req, _ facts) { p.Window = JoinWindow{} }), ""},
		"a machine of any time": {all(late, func(_ policy, _ req, f facts) { f.entry.AnyTime = true }), ""},
		"unknown creation time": {all(timeless), "Wait OutsideJoinWindow Machine default/a has no creation time yet"},
		"just young enough":     {all(aged(15 * time.Minute)), ""},
		"too old":               {all(old), "Ignore RequestTooOld older than approval.nodeClient.maxRequestAge, 15m0s"},
		"no limit of the age":   {all(old, func(p policy, _ req, _ facts) { p.MaxRequestAge = 0 }), ""},
		"another user": {all(user("system:node:a"), old),
			`Ignore NotAuthorized user "system:node:a" may not bootstrap nodes: only users ["system:bootstrap:abcdef"]`},
		"any user":                    {all(user("x"), anyone), ""},
		"a token for another node":    {all(by(tokenOfB), binding), `Deny NotAuthorized user "system:bootstrap:abcdef" is bound to another node than "a"`},
		"a token for both nodes":      {all(by(tokenOfB, token), binding), ""},
		"a group without a node name": {all(by("system:bootstrappers:node:")), "Deny NotAuthorized another node"},
		"an account":                  {all(account, by("system:authenticated", "system:serviceaccounts", "system:serviceaccounts:ns")), ""},
		"an account's name alone":     {all(account, by("system:authenticated")), "Ignore NotAuthorized is not in the group system:serviceaccounts;"},
		"an account's name, not all of its groups": {all(account, by("system:serviceaccounts")),
			"Ignore NotAuthorized is not in the group system:serviceaccounts:ns;"},
		"an account's name, groups of another namespace": {all(account, by("system:serviceaccounts", "system:serviceaccounts:n")),
			"Ignore NotAuthorized is not in the group system:serviceaccounts:ns;"},
		"no name of an account":       {all(user("system:serviceaccount:ns"), anyone), "Ignore NotAuthorized the requester is not a ServiceAccount"},
		"binding required, not bound": {all(binding, user("x")), `Ignore NotAuthorized user "x" is not bound to node "a"`},
	} {
		policy, req, facts := joining()
		for _, change := range test.changes {
			change(policy, req, facts)
		}
		got := policy.judge(req, facts)
		want, text, _ := strings.Cut(test.want, " ")
		if reason, part, _ := strings.Cut(text, " "); want == "" && got != (judge.Decision{}) ||
			want != "" && (got.Verdict.String() != want || got.Reason != reason || !strings.Contains(got.Message, part)) {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
		again, renewed := "; the request is checked again when this changes, unless it is too old by then", "; a new request is needed"
		if advice := map[string]string{"Wait": again, "Deny": renewed, "Ignore": renewed}[want]; !strings.HasSuffix(got.Message, advice) {
			t.Errorf("%s: %q, want the advice %q at the end", name, got.Message, advice)
		}
		facts.unavailable = "timeout"
		fault, ofRequest := policy.judge(req, facts), want == "Deny" || want == "Ignore"
		if ofRequest && fault != got || !ofRequest && (fault.Verdict != judge.Wait || fault.Reason != "InventoryUnavailable") {
			t.Errorf("%s: with a fault: %+v", name, fault)
		}
	}
}

// TestNodeStates checks what a Node and a Lease prove.
func TestNodeStates(t *testing.T) {
	const day = 24 * time.Hour
	seen := func(ago time.Duration) time.Time { return now.Add(-ago) }
	for name, test := range map[string]struct {
		exists   bool
		life     nodeidentity.Life
		renewed  time.Time
		lifetime time.Duration
		want     nodeState
	}{
		"no Node":                      {want: nodeNone},
		"no Node, dead Lease":          {life: nodeidentity.Dead, want: nodeNone},
		"no Node, renewed Lease":       {life: nodeidentity.Alive, renewed: now, want: nodeAlive},
		"no Node, unobserved Lease":    {renewed: now, want: nodeUnknown},
		"no Node, expired certificate": {renewed: seen(day + time.Hour + 1), lifetime: day, want: nodeNone},
		"alive":                        {exists: true, life: nodeidentity.Alive, want: nodeAlive},
		"alive with a slow clock":      {exists: true, life: nodeidentity.Alive, renewed: seen(100 * day), lifetime: day, want: nodeAlive},
		"the Node is dead":             {exists: true, life: nodeidentity.Dead, renewed: now, want: nodeDead},
		"unknown":                      {exists: true, renewed: now, lifetime: day, want: nodeUnknown},
		"unknown without a Lease":      {exists: true, lifetime: day, want: nodeUnknown},
		"its certificate may be valid": {exists: true, renewed: seen(day + time.Hour), lifetime: day, want: nodeUnknown},
		"its certificate has expired":  {exists: true, renewed: seen(day + time.Hour + 1), lifetime: day, want: nodeDead},
		"unknown certificate lifetime": {exists: true, renewed: seen(1000 * day), want: nodeUnknown},
	} {
		policy := BootstrapPolicy{CertificateLifetime: test.lifetime}
		if got := policy.stateOf(test.exists, test.life, test.renewed, &csr.Request{Created: now}); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

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
		node      nodeState // by the Lease in the cache
		unseen    bool      // the Lease was never observed
		who       string    // user name and UID; empty means the token
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
		"a dead Lease":                               {node: nodeDead, objects: all(good, lease(now))},
		"a dead Lease, renewed since":                {node: nodeDead, objects: all(good, later), want: "NodeAlive may be alive"},
		"a deleted Lease":                            {node: nodeDead, objects: all(good), want: "InventoryUnavailable Lease of node a"},
		"a deleted token":                            {objects: all(other), want: "NotAuthorized revoked"},
		"a token without a name":                     {who: "system:bootstrap:", objects: all(other), want: "NotAuthorized revoked"},
		"no cluster-info":                            {want: "InventoryUnavailable kube-public/cluster-info"},
		"cluster-info without a kubeconfig":          {objects: all(half), want: "InventoryUnavailable it is not kept up to date"},
		"the ServiceAccount":                         {who: sa + " u-1", objects: account},
		"a ServiceAccount of the same name":          {who: sa + " u-0", objects: account, want: "NotAuthorized deleted and created again"},
		"a ServiceAccount's user without a UID":      {who: sa, objects: account, want: "NotAuthorized has the name of ServiceAccount ns/joiner, but no UID"},
		"a token's user without its group":           {groupless: true, objects: all(good), want: "NotAuthorized is not in the group system:bootstrappers"},
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
			policy.Users, policy.Trusted, policy.Rejoin, facts.renewed = nil, test.trusted, true, now
			req.Requester = csr.Requester{Username: token, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:bootstrappers"}}
			if test.groupless {
				req.Requester.Groups = nil
			}
			if test.who != "" {
				req.Requester.Username, req.Requester.UID, _ = strings.Cut(test.who, " ")
			}
			facts.node = cmp.Or(test.node, facts.node)
			if test.unseen {
				facts.renewed = time.Time{}
			}
			live := nodeidentity.Live{Reader: builder.Build()}
			b := Bootstrap{Policy: *policy, Inventory: &Inventory{live: live, serverTime: serverTime(now.Add(test.passed))}}
			got := b.judge(req, facts, b.readLive(t.Context(), req, facts))
			reason, text, _ := strings.Cut(test.want, " ")
			if got.Reason != reason || !strings.Contains(got.Message, text) {
				t.Errorf("%+v, want %q", got, test.want)
			}
		})
	}
}

// TestAccountWithoutItsGroupsIsGone has users with the name of a ServiceAccount that is not read, because they lack its groups.
func TestAccountWithoutItsGroupsIsGone(t *testing.T) {
	for _, groups := range [][]string{nil, {"system:serviceaccounts"}, {"system:serviceaccounts:ns"}, {"system:serviceaccounts", "system:serviceaccounts:n"}} {
		by := csr.Requester{Username: "system:serviceaccount:ns:joiner", UID: "u-1", Groups: groups}
		if gone, err := (nodeidentity.Live{}).Gone(t.Context(), by); err != nil || !strings.Contains(gone, "is not in the group system:serviceaccounts") {
			t.Errorf("%q: %q, error %v", groups, gone, err)
		}
	}
}

// TestAgeIsReadAgainBeforeItRefuses has an API server whose clock is set back. A new request then looks old by the time that
// was noted before. While the time is unknown, nothing passes.
func TestAgeIsReadAgainBeforeItRefuses(t *testing.T) {
	policy, req, facts := joining()
	measured, set := servertimetest.Measured(t, 0)
	b := Bootstrap{Policy: *policy, Inventory: &Inventory{serverTime: measured}}
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
		err := b.readAge(t.Context(), req, facts)
		if old := policy.checkRequest(req, facts.age).Reason == reasonTooOld; err != nil || old != test.old {
			t.Errorf("%s: age %s, too old %t, error %v", name, facts.age, old, err)
		}
		set(0)
		_ = must(measured.Fresh(t.Context()))
	}
	b.Inventory.serverTime, facts.age = &servertime.Clock{}, 0
	if got := b.judge(req, facts, b.readAge(t.Context(), req, facts)); got.Verdict != judge.Wait || got.Reason != "InventoryUnavailable" {
		t.Errorf("without a time: %+v", got)
	}
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
			want: `Waits InventoryPending: the inventory can't say yet whether node "a" may join: not read yet`},
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
		i := &Inventory{cluster: cluster, leases: leases, expecting: inventory.Sources{source}, serverTime: serverTime(now.Add(10 * time.Second))}
		if test.unmanaged {
			i = &Inventory{}
		}
		if test.trusted != "" {
			policy.Users, policy.Trusted = []string{test.trusted}, true
		}
		rule := BoundNodeClient(Bootstrap{Policy: *policy, Inventory: i})
		p := newParts(test.obj)
		p.clock.SetTime(now.Add(10 * time.Second))
		p.reconciler.Rules, p.reconciler.Denial, p.grants = []Rule{rule}, DenialPermanent, strings.Fields(test.grants)
		if got := p.outcome(t); !strings.HasPrefix(got, test.want) || p.asked(t) != test.asked || len(source.asked) != test.questions {
			t.Errorf("%s: %s after reviews of %q and %d questions, want %+v", name, got, p.asked(t), len(source.asked), test)
		}
		if !rule.looksUp() {
			t.Error("changes of the inventory do not wake its requests")
		}
	}
}
