package approver

import (
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/nodeidentity"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// joining returns the smallest request that a full policy accepts, with its facts.
func joining() (*BootstrapPolicy, *csr.Request, *bootstrapFacts) {
	policy := &BootstrapPolicy{
		Expected: true, MaxRequestAge: 15 * time.Minute, Window: JoinWindow{Before: 10 * time.Second, After: 2 * time.Hour},
		Users: []string{"system:bootstrap:abcdef"}, CertificateLifetime: 24 * time.Hour,
	}
	req := bootstrap(func(req *csr.Request) { req.Created = now })
	facts := &bootstrapFacts{age: time.Second, node: nodeNone, entry: &inventory.Entry{Source: "Machine default/a", Created: now.Add(-time.Minute)}}
	return policy, req, facts
}

type joinChange = func(*BootstrapPolicy, *csr.Request, *bootstrapFacts)

// TestBootstrap has a row for each difference from the smallest request, and for each change that makes up for one.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	created := func(before time.Duration) joinChange {
		return func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.entry.Created = now.Add(-before) }
	}
	node := func(state nodeState, rejoin bool) joinChange {
		return func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.node, p.Rejoin = state, rejoin }
	}
	bound := func(name string, rejoin bool) joinChange {
		return func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.entry.Bound, p.Rejoin = name, rejoin }
	}
	group := func(require bool, nodes ...string) joinChange {
		return func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) {
			p.TokenBinding = require
			for _, node := range nodes {
				req.Requester.Groups = append(req.Requester.Groups, csr.TokenGroup(node))
			}
		}
	}
	const pass, dead = "", "Node \"a\" is dead but still exists"
	for name, test := range map[string]struct {
		change joinChange
		want   string // verdict, reason and part of the message
	}{
		"the smallest request": {func(*BootstrapPolicy, *csr.Request, *bootstrapFacts) {}, pass},
		"no node name": {func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) {
			req.Cert.Subject.CommonName = "system:node:"
		}, "Deny ShapeMismatch has no node name"},
		"no name that a Node can have": {func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) {
			req.Cert.Subject.CommonName, p.Users, f.age = "system:node:A", nil, time.Hour
		}, `Deny ShapeMismatch node name "A" is not`},
		"not expected":                        {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.entry = nil }, `Wait NotExpected no source of approval.inventory expects node "a"`},
		"the machine is being deleted":        {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.entry.Leaving = true }, "Wait NotExpected Machine default/a of node \"a\" is being deleted"},
		"a source fails":                      {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.unavailable = "timeout" }, "Wait InventoryUnavailable timeout"},
		"the Node is alive":                   {node(nodeAlive, false), `Wait NodeAlive node "a" is alive`},
		"the Node is alive, rejoin is on":     {node(nodeAlive, true), "Wait NodeAlive is alive"},
		"the Node may be alive":               {node(nodeUnknown, false), "Wait NodeAlive may be alive"},
		"the Node may be alive, rejoin is on": {node(nodeUnknown, true), "Wait NodeAlive may be alive"},
		"the Node is dead":                    {node(nodeDead, false), "Wait MachineBound " + dead},
		"the Node is dead, rejoin is on":      {node(nodeDead, true), pass},
		"the Node is dead and no longer expected": {func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			f.node, p.Rejoin, f.entry = nodeDead, true, nil
		}, "Wait NotExpected no source"},
		"the machine is another node":               {bound("b", false), `Wait MachineBound Machine default/a is already node "b", so it cannot become node "a"`},
		"the machine is another node, rejoin is on": {bound("b", true), "Wait MachineBound is already node"},
		"the machine was this node":                 {bound("a", false), `Wait MachineBound Machine default/a was node "a" before`},
		"the machine was this node, rejoin is on":   {bound("a", true), pass},
		"at the start of the window":                {created(-10 * time.Second), pass},
		"at the end of the window":                  {created(2 * time.Hour), pass},
		"before the window":                         {created(-11 * time.Second), `Wait OutsideJoinWindow node "a" made its request 11s before Machine default/a was created: approval.nodeClient.joinWindow permits 10s before`},
		"after the window":                          {created(2*time.Hour + time.Second), `Wait OutsideJoinWindow node "a" made its request 2h0m1s after Machine default/a was created: approval.nodeClient.joinWindow permits 2h0m0s after`},
		"unknown creation time":                     {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.entry.Created = time.Time{} }, "Wait OutsideJoinWindow Machine default/a has no creation time yet"},
		"expected at any time": {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			f.entry.Created, f.entry.AnyTime = time.Time{}, true
		}, pass},
		"no window": {func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			f.entry.Created, p.Window = time.Time{}, JoinWindow{}
		}, pass},
		"a returning machine after the window": {func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			f.node, p.Rejoin, f.entry.Created = nodeDead, true, now.AddDate(-1, 0, 0)
		}, pass},
		"just young enough": {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.age = 15 * time.Minute }, pass},
		"too old":           {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.age = 15*time.Minute + 1 }, "Ignore RequestTooOld older than approval.nodeClient.maxRequestAge, 15m0s"},
		"no limit of the age": {func(p *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			p.MaxRequestAge, f.age = 0, 1000*time.Hour
		}, pass},
		"too old, and a source fails": {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) {
			*f = bootstrapFacts{age: time.Hour, unavailable: "x"}
		}, "Ignore RequestTooOld older than"},
		"another user": {func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) {
			req.Requester.Username = "system:node:a"
		}, `Ignore NotAuthorized user "system:node:a" may not bootstrap nodes: only users ["system:bootstrap:abcdef"]`},
		"any user": {func(p *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) {
			req.Requester.Username, p.Users = "x", nil
		}, pass},
		"the requester was deleted":           {func(_ *BootstrapPolicy, _ *csr.Request, f *bootstrapFacts) { f.gone = "revoked" }, `Wait NotAuthorized user "system:bootstrap:abcdef", which requests node "a", no longer exists: revoked`},
		"a token for this node":               {group(false, "a"), pass},
		"a token for another node":            {group(false, "b"), `Deny NotAuthorized user "system:bootstrap:abcdef" is bound to another node than "a"`},
		"a token for both nodes":              {group(false, "b", "a"), pass},
		"a token for both nodes, other order": {group(false, "a", "b"), pass},
		"a group without a node name": {func(_ *BootstrapPolicy, req *csr.Request, _ *bootstrapFacts) {
			req.Requester.Groups = []string{"system:bootstrappers:node:"}
		}, "Deny NotAuthorized another node"},
		"binding required, bound":     {group(true, "a"), pass},
		"binding required, not bound": {group(true), `Ignore NotAuthorized user "system:bootstrap:abcdef" is not bound to node "a"`},
		"a bound token without an inventory": {func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) {
			group(true, "a")(p, req, f)
			p.Expected, f.entry = false, nil
		}, pass},
		"a bound token for an unexpected node": {func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) {
			group(true, "a")(p, req, f)
			f.entry = nil
		}, "Wait NotExpected no source"},
		"a bound token for a living node": {func(p *BootstrapPolicy, req *csr.Request, f *bootstrapFacts) {
			group(true, "a")(p, req, f)
			p.Expected, f.entry, f.node = false, nil, nodeAlive
		}, "Wait NodeAlive is alive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy, req, facts := joining()
			test.change(policy, req, facts)
			got := policy.judge(req, facts)
			verdict, rest, _ := strings.Cut(test.want, " ")
			reason, text, _ := strings.Cut(rest, " ")
			if test.want == pass {
				if got != (Decision{}) {
					t.Errorf("%+v, want nothing against it", got)
				}
				return
			}
			if got.Verdict.String() != verdict || got.Reason != reason || !strings.Contains(got.Message, text) {
				t.Errorf("%+v, want %s", got, test.want)
			}
			advice := "; a new request is needed"
			if verdict == "Wait" {
				advice = "; the request is checked again when this changes, unless it is too old by then"
			}
			if !strings.HasSuffix(got.Message, advice) {
				t.Errorf("%q, want the advice %q at the end", got.Message, advice)
			}
		})
	}
}

// tokenBinding is the node to which the requester's groups bind it.
type tokenBinding int

const (
	notBound tokenBinding = iota
	boundToNode
	boundToAnother
)

// combination holds a value of each kind of fact.
type combination struct {
	expectation                            string // none required, unavailable, none, leaving or known
	machine                                string // the Node of the machine: free, this or other
	node                                   nodeState
	window                                 string // off, any, inside, early, late or unknown
	old, required, rejoin, gone, permitted bool
	token                                  tokenBinding
}

// combinations calls visit with every combination.
func combinations(visit func(combination)) (count int) {
	bits := []bool{false, true}
	for _, expectation := range []string{"not asked", "unavailable", "none", "leaving", "known"} {
		for _, machine := range []string{"free", "this", "other"} {
			for _, node := range []nodeState{nodeUnknown, nodeNone, nodeAlive, nodeDead} {
				for _, window := range []string{"off", "any", "inside", "early", "late", "unknown"} {
					for _, token := range []tokenBinding{notBound, boundToNode, boundToAnother} {
						for flags := range 1 << 5 {
							flag := func(n int) bool { return bits[flags>>n&1] }
							visit(combination{expectation, machine, node, window, flag(0), flag(1), flag(2), flag(3), flag(4), token})
							count++
						}
					}
				}
			}
		}
	}
	return count
}

func (c combination) build() (*BootstrapPolicy, *csr.Request, *bootstrapFacts) {
	policy, req, facts := joining()
	policy.Expected, policy.Rejoin, policy.TokenBinding = c.expectation != "not asked", c.rejoin, c.required
	facts.node = c.node
	facts.entry.Bound = map[string]string{"this": "a", "other": "b"}[c.machine]
	switch c.expectation {
	case "not asked", "none":
		facts.entry = nil
	case "unavailable":
		facts.entry, facts.unavailable = nil, "timeout"
	case "leaving":
		facts.entry.Leaving = true
	}
	if facts.entry != nil {
		facts.entry.Created = map[string]time.Time{"inside": now, "early": now.Add(time.Hour), "late": now.Add(-3 * time.Hour)}[c.window]
		facts.entry.AnyTime = c.window == "any"
	}
	if c.window == "off" {
		policy.Window = JoinWindow{}
	}
	if c.old {
		facts.age = time.Hour
	}
	if !c.permitted {
		req.Requester.Username = "somebody"
	}
	if c.gone {
		facts.gone = "revoked"
	}
	req.Requester.Groups = append(req.Requester.Groups, map[tokenBinding][]string{
		boundToNode: {csr.TokenGroup("a")}, boundToAnother: {csr.TokenGroup("b")},
	}[c.token]...)
	return policy, req, facts
}

// objections returns the violations of a combination in order of precedence, computed independently of judge.
func (c combination) objections() []string {
	var all []string
	object := func(applies bool, what string) {
		if applies {
			all = append(all, what)
		}
	}
	known := c.expectation == "known" || c.expectation == "leaving"
	comesBack := c.node == nodeDead || c.node == nodeNone && known && c.machine == "this"
	object(c.token == boundToAnother, "Deny NotAuthorized")
	object(c.required && c.token != boundToNode, "Ignore NotAuthorized")
	object(!c.permitted, "Ignore NotAuthorized")
	object(c.old, "Ignore RequestTooOld")
	object(c.expectation == "unavailable", "Wait InventoryUnavailable")
	object(c.node == nodeAlive || c.node == nodeUnknown, "Wait NodeAlive")
	object(c.expectation == "none" || c.expectation == "leaving", "Wait NotExpected")
	object(known && c.machine == "other", "Wait MachineBound")
	object(comesBack && !c.rejoin, "Wait MachineBound")
	object(known && !comesBack && slices.Contains([]string{"early", "late", "unknown"}, c.window), "Wait OutsideJoinWindow")
	object(c.gone, "Wait NotAuthorized")
	return all
}

// TestEveryCombination judges every combination, and checks that no forbidden one passes.
func TestEveryCombination(t *testing.T) {
	t.Parallel()
	approvals := 0
	count := combinations(func(c combination) {
		policy, req, facts := c.build()
		got := policy.judge(req, facts)
		want := c.objections()
		said := strings.TrimSpace(fmt.Sprintf("%s %s", got.Verdict, got.Reason))
		switch {
		case len(want) > 0 && said != want[0]:
			t.Fatalf("%+v: %+v, want the first of %q", c, got, want)
		case len(want) == 0 && got != (Decision{}):
			t.Fatalf("%+v: %+v, want nothing against it", c, got)
		}
		if got.Reason != "" {
			if got.Message == "" {
				t.Fatalf("%+v: no message", c)
			}
			return
		}
		approvals++
		switch {
		case c.node == nodeAlive, c.node == nodeUnknown:
			t.Fatalf("%+v: a Node that may be alive is taken over", c)
		case c.expectation == "unavailable", c.expectation == "none":
			t.Fatalf("%+v: approved from nothing", c)
		case c.old, c.gone, c.token == boundToAnother:
			t.Fatalf("%+v: passes", c)
		}
	})
	if count != 5*3*4*6*3*32 || approvals == 0 || approvals > count/100 {
		t.Errorf("%d of %d combinations pass", approvals, count)
	}
}

// TestFaultsDecideNothing checks that a fault leads to Wait, or leaves the decision as it was.
func TestFaultsDecideNothing(t *testing.T) {
	t.Parallel()
	combinations(func(c combination) {
		policy, req, facts := c.build()
		before := policy.judge(req, facts)
		facts.unavailable = "timeout"
		after := policy.judge(req, facts)
		if after.Reason == "" || after.Verdict == verdict.Approve || after.Verdict == verdict.Deny && before.Verdict != verdict.Deny {
			t.Fatalf("%+v: %+v", c, after)
		}
	})
}

func TestNodeStates(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
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
		req := &csr.Request{Created: now}
		if got := policy.stateOf(test.exists, test.life, test.renewed, req); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// TestBoundTokensAreNarrowed checks, without any configuration, that a token for one node is refused for another.
func TestBoundTokensAreNarrowed(t *testing.T) {
	t.Parallel()
	rule := NodeClient()
	for node, want := range map[string][]string{"a": {"nodeclient"}, "b": nil, "": nil, "A": nil} {
		req := bootstrap(func(req *csr.Request) {
			req.Requester.Groups = append(req.Requester.Groups, csr.TokenGroup("a"))
			req.Cert.Subject = pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
		})
		names, decision := reviewed(t, rule, req)
		if !slices.Equal(names, want) {
			t.Errorf("%q: asks for %q, want %q", node, names, want)
		}
		if (decision.Verdict == verdict.Deny && decision.Reason == "NotAuthorized") != (want == nil) {
			t.Errorf("%q: %+v", node, decision)
		}
	}
}

// TestRenewalsAskNoInventory checks that a node that may not renew is not treated as a new node. Its request waits for
// no source.
func TestRenewalsAskNoInventory(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*request)
		grants []string
		want   string
		asked  []string
	}{
		"a renewal":                                   {user("system:node:a"), []string{"selfnodeclient"}, "Approved", []string{"selfnodeclient"}},
		"a renewal without permission":                {user("system:node:a"), nil, "Waits NotAuthorized", []string{"selfnodeclient"}},
		"a renewal with permission to bootstrap only": {user("system:node:a"), []string{"nodeclient"}, "Waits NotAuthorized", []string{"selfnodeclient"}},
		"a bootstrap":                                 {user("system:bootstrap:abcdef"), []string{"nodeclient"}, "Waits InventoryUnavailable", nil},
		"a node that requests another node":           {user("system:node:b"), []string{"nodeclient", "selfnodeclient"}, "Waits InventoryUnavailable", nil},
	} {
		p := newParts(t, object(t, test.change))
		p.reconciler.Rules = []Rule{BoundNodeClient(Bootstrap{Inventory: &Inventory{}, Policy: BootstrapPolicy{Expected: true}})}
		p.grants = test.grants
		if got := p.outcome(t); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
		var asked []string
		for _, review := range p.reviews {
			asked = append(asked, review.Subresource)
		}
		if !slices.Equal(asked, test.asked) {
			t.Errorf("%s: asked for %q, want %q", name, asked, test.asked)
		}
	}
}
