package approver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/servertimetest"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/node"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// TestConfirm checks the reads before an approval, for facts that a lagging cache has wrong.
func TestConfirm(t *testing.T) {
	t.Parallel()
	lease := func(renewed time.Time) client.Object {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "a"}, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: renewed}}}
	}
	info := func(keys ...string) client.Object {
		data := map[string]string{}
		for _, key := range keys {
			data[key] = "x"
		}
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: data}
	}
	good := info("kubeconfig", "jws-kubeconfig-abcdef")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "joiner", UID: "u-1"}}
	by := func(user, uid string) csr.Requester { return csr.Requester{Username: user, UID: uid} }
	const token, sa = "system:bootstrap:abcdef", "system:serviceaccount:ns:joiner"
	for name, test := range map[string]struct {
		cached  nodeState
		unseen  bool // its Lease was never observed
		who     csr.Requester
		objects []client.Object
		down    bool
		want    string // reason and part of the message; empty means that it passes
	}{
		"no Node, and the token exists":                  {cached: nodeNone, who: by(token, ""), objects: []client.Object{good}},
		"a Node that the cache lacks":                    {cached: nodeNone, who: by(token, ""), objects: []client.Object{good, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}, want: "NodeAlive may be alive"},
		"a dead lease without a Node":                    {cached: nodeNone, who: by(token, ""), objects: []client.Object{good, lease(now)}},
		"a dead Lease without a Node, renewed since":     {cached: nodeNone, who: by(token, ""), objects: []client.Object{good, lease(now.Add(time.Second))}, want: "NodeAlive may be alive"},
		"a Lease that the cache lacks":                   {cached: nodeNone, unseen: true, who: by(token, ""), objects: []client.Object{good, lease(now)}, want: "NodeAlive may be alive"},
		"a dead Lease":                                   {cached: nodeDead, who: by(token, ""), objects: []client.Object{good, lease(now)}},
		"a dead Lease, renewed since":                    {cached: nodeDead, who: by(token, ""), objects: []client.Object{good, lease(now.Add(time.Second))}, want: "NodeAlive may be alive"},
		"a deleted Lease":                                {cached: nodeDead, who: by(token, ""), objects: []client.Object{good}, want: "InventoryUnavailable Lease of node a"},
		"a deleted token":                                {cached: nodeNone, who: by(token, ""), objects: []client.Object{info("kubeconfig", "jws-kubeconfig-ghijkl")}, want: "NotAuthorized revoked"},
		"a token without a name":                         {cached: nodeNone, who: by("system:bootstrap:", ""), objects: []client.Object{info("kubeconfig", "jws-kubeconfig-ghijkl")}, want: "NotAuthorized revoked"},
		"no cluster-info":                                {cached: nodeNone, who: by(token, ""), want: "InventoryUnavailable kube-public/cluster-info"},
		"cluster-info without a kubeconfig":              {cached: nodeNone, who: by(token, ""), objects: []client.Object{info("jws-kubeconfig-abcdef")}, want: "InventoryUnavailable it is not kept up to date"},
		"the ServiceAccount":                             {cached: nodeNone, who: by(sa, "u-1"), objects: []client.Object{account}},
		"a ServiceAccount of the same name":              {cached: nodeNone, who: by(sa, "u-0"), objects: []client.Object{account}, want: "NotAuthorized deleted and created again"},
		"a ServiceAccount's user without a UID":          {cached: nodeNone, who: by(sa, ""), objects: []client.Object{account}, want: "NotAuthorized deleted and created again"},
		"no such ServiceAccount":                         {cached: nodeNone, who: by(sa, "u-1"), want: "NotAuthorized ServiceAccount ns/joiner is deleted"},
		"any other user":                                 {cached: nodeNone, who: by("arn:aws:iam::1:role/node", "")},
		"the API server does not answer":                 {cached: nodeNone, who: by(token, ""), down: true, want: "InventoryUnavailable down"},
		"the API server does not answer, ServiceAccount": {cached: nodeNone, who: by(sa, "u-1"), down: true, want: "InventoryUnavailable down"},
		"the API server does not answer, Lease":          {cached: nodeDead, who: by("x", ""), down: true, want: "InventoryUnavailable down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			builder := fake.NewClientBuilder().WithScheme(scheme.Scheme)
			for _, obj := range test.objects {
				builder.WithObjects(obj.DeepCopyObject().(client.Object)) // the builder sets resourceVersions
			}
			reader := builder.WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
					if test.down {
						return errors.New("down")
					}
					if err := ctx.Err(); err != nil {
						return err
					}
					return c.Get(ctx, key, obj, options...)
				},
			}).Build()
			policy, req, facts := joining()
			policy.Users, policy.Rejoin = nil, true
			req.Requester, facts.node, facts.renewed = test.who, test.cached, now
			if test.unseen {
				facts.renewed = time.Time{}
			}
			b := Bootstrap{Policy: *policy, Inventory: &Inventory{live: nodeidentity.Live{Reader: reader}, serverTime: servertime.Of(clocktesting.NewFakePassiveClock(now))}}
			got := b.judge(req, facts, b.readLive(t.Context(), req, facts))
			reason, text, _ := strings.Cut(test.want, " ")
			if got.Reason != reason || !strings.Contains(got.Message, text) {
				t.Errorf("%+v, want %q", got, test.want)
			}
		})
	}
}

// TestConfirmSeesTheTimePass checks that a request that becomes too old during a lookup is not approved.
func TestConfirmSeesTheTimePass(t *testing.T) {
	t.Parallel()
	policy, req, facts := joining()
	policy.Users, req.Requester.Username = nil, "x"
	reader := fake.NewClientBuilder().WithScheme(scheme.Scheme).Build()
	b := Bootstrap{Policy: *policy, Inventory: &Inventory{live: nodeidentity.Live{Reader: reader}, serverTime: servertime.Of(clocktesting.NewFakePassiveClock(now.Add(time.Hour)))}}
	err := b.readLive(t.Context(), req, facts)
	if got := b.judge(req, facts, err); err != nil || got.Reason != "RequestTooOld" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAgeNeedsTheTimeOfTheAPIServers checks that nothing passes while that time is unknown.
func TestAgeNeedsTheTimeOfTheAPIServers(t *testing.T) {
	t.Parallel()
	policy, req, facts := joining()
	b := Bootstrap{Policy: *policy, Inventory: &Inventory{serverTime: &servertime.Clock{}}}
	facts.age = 0
	err := b.readAge(t.Context(), req, facts)
	got := b.judge(req, facts, err)
	if err == nil || got.Verdict != verdict.Wait || got.Reason != "InventoryUnavailable" {
		t.Errorf("%+v, error %v", got, err)
	}
}

// TestAgeIsReadAgainBeforeItRefuses has an API server whose clock is set back. A new request then looks old by the time that
// was noted before.
func TestAgeIsReadAgainBeforeItRefuses(t *testing.T) {
	t.Parallel()
	policy, req, facts := joining()
	measured, set := servertimetest.Measured(t)
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
		if _, err := measured.Fresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMissingFactsWait checks the decision about a request for which a fact is missing.
func TestMissingFactsWait(t *testing.T) {
	t.Parallel()
	policy, req, facts := joining()
	b := Bootstrap{Policy: *policy}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"none is missing":     {nil, ""},
		"a source is down":    {errors.New("ask webhook: down"), "InventoryUnavailable"},
		"a source is busy":    {&inventory.Unavailable{Source: "webhook", Cause: inventory.ErrBusy}, "InventoryPending"},
		"Leases are not read": {errors.Join(fmt.Errorf("leases: %w", informer.ErrNotRead)), "InventoryPending"},
	} {
		facts := *facts
		got := b.judge(req, &facts, test.err)
		if got.Reason != test.want || test.want != "" && (got.Verdict != verdict.Wait || !strings.Contains(got.Message, test.err.Error())) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestTheInventoryIsAskedOnceAfterTheReview counts the questions to a source. A requester without the permission, or with a
// request that can never be approved, causes none.
func TestTheInventoryIsAskedOnceAfterTheReview(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(now)
	cluster, err := node.New(&rest.Config{}, nil, false, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	leases, err := nodeidentity.NewLeases(&rest.Config{}, nil, clock, logr.Discard(), nil) // it does not run
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change         func(*request)
		grants         []string
		want           string
		reviews, asked int
	}{
		"permitted":         {grants: []string{"nodeclient"}, want: "Waits ", reviews: 1, asked: 1},
		"not permitted":     {want: "Waits NotAuthorized", reviews: 1},
		"another user":      {change: user("x"), grants: []string{"nodeclient"}, want: "Ignored NotAuthorized"},
		"an old request":    {change: func(obj *request) { obj.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }, grants: []string{"nodeclient"}, want: "Ignored RequestTooOld"},
		"no name of a Node": {change: says(t, nodeTemplate("no_name")), grants: []string{"nodeclient"}, want: "Denied ShapeMismatch"},
	} {
		source := &askedOf{entries: map[string]*inventory.Entry{"a": {Source: "Machine default/a", AnyTime: true}}}
		policy, _, _ := joining()
		rule := BoundNodeClient(Bootstrap{Policy: *policy, Inventory: &Inventory{
			cluster: cluster, leases: leases, expecting: inventory.Sources{source}, serverTime: servertime.Of(clock),
		}})
		p := newParts(t, object(t))
		if test.change != nil {
			test.change(p.served)
		}
		p.reconciler.Rules, p.reconciler.Denial, p.grants = []Rule{rule}, DenialPermanent, test.grants
		if !rule.looksUp() {
			t.Error("changes of the inventory do not wake its requests")
		}
		got := p.outcome(t)
		if got != test.want || len(p.reviews) != test.reviews || len(source.asked) != test.asked {
			t.Errorf("%s: %s after %d reviews and %d questions, want %s after %d and %d",
				name, got, len(p.reviews), len(source.asked), test.want, test.reviews, test.asked)
		}
	}
}

// TestOutsideOfAManager checks that a request waits without a manager.
func TestOutsideOfAManager(t *testing.T) {
	t.Parallel()
	policy, req, _ := joining()
	rule := BoundNodeClient(Bootstrap{Inventory: &Inventory{}, Policy: *policy})
	got, err := rule.Recognisers[1].Gate(t.Context(), req)
	if err != nil || got.Verdict != verdict.Wait || got.Reason != "InventoryUnavailable" {
		t.Errorf("%+v, %v", got, err)
	}
	if rule.Recognisers[0].Gate != nil || rule.Recognisers[0].Confirm != nil {
		t.Error("renewals are gated")
	}
	certificate, _ := serving()
	got, err = KubeletServing(Serving{Inventory: &Inventory{}}).Judge(t.Context(), certificate)
	if err != nil || got.Verdict != verdict.Wait || got.Reason != "InventoryUnavailable" {
		t.Errorf("serving: %+v, %v", got, err)
	}
}
