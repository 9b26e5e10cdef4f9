package bootstrap

import (
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// joining returns the smallest request that a full policy accepts, with its facts.
func joining() (*Policy, *csr.Request, *Facts) {
	policy := &Policy{
		Expected: true, MaxRequestAge: 15 * time.Minute, Window: Window{Before: 10 * time.Second, After: 2 * time.Hour},
		Users: []string{"system:bootstrap:abcdef"}, CertificateLifetime: 24 * time.Hour,
	}
	req := &csr.Request{
		SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"},
		Requester: csr.Requester{Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}},
		Cert:      ca.Request{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}},
		Created:   now,
	}
	machine := &inventory.Entry{Source: "Machine default/a", Created: now.Add(-time.Minute)}
	return policy, req, &Facts{Now: now.Add(time.Second), Node: NodeNone, Entry: machine, Exists: true}
}

// TestBootstrap has a row for each difference from the smallest request, and for each change that makes up for one.
func TestBootstrap(t *testing.T) {
	type (
		policy = *Policy
		req    = *csr.Request
		facts  = *Facts
		change = func(policy, req, facts)
	)
	created := func(before time.Duration) change {
		return func(_ policy, _ req, f facts) { f.Entry.Created = now.Add(-before) }
	}
	aged := func(age time.Duration) change { return func(_ policy, _ req, f facts) { f.Now = now.Add(age) } }
	node := func(state NodeState) change { return func(_ policy, _ req, f facts) { f.Node = state } }
	bound := func(name string) change { return func(_ policy, _ req, f facts) { f.Entry.Bound = name } }
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
	unexpected := func(p policy, _ req, f facts) { p.Expected, f.Entry = false, nil }
	timeless := func(_ policy, _ req, f facts) { f.Entry.Created = time.Time{} }
	none := func(_ policy, _ req, f facts) { f.Entry = nil }
	leaving := func(_ policy, _ req, f facts) { f.Entry.Leaving = true }
	gone := func(_ policy, _ req, f facts) { f.Gone = "revoked" }
	late, old := created(2*time.Hour+time.Second), aged(15*time.Minute+1)
	all := func(changes ...change) []change { return changes }
	const (
		approved = "Approve AutoApproved Auto approving kubelet client certificate after SubjectAccessReview."
		expected = "Approve AutoApproved Auto approving kubelet client certificate of an expected machine."
	)
	for name, test := range map[string]struct {
		changes []change
		want    string // verdict, reason and part of the message, which ends with an advice
	}{
		"the smallest request":         {nil, approved},
		"no node name":                 {all(named("")), "Deny ShapeMismatch has no node name"},
		"no name that a Node can have": {all(named("A"), user("x"), old), `Deny ShapeMismatch node name "A" is not`},
		"a source need not expect it":  {all(unexpected), approved},
		"not expected":                 {all(none), `Wait NotExpected no source of approval.inventory expects node "a"`},
		"the machine is being deleted": {all(leaving, bound("b")), `Wait NotExpected Machine default/a of node "a" is being deleted`},
		"the requester was deleted": {all(gone),
			`Wait NotAuthorized user "system:bootstrap:abcdef", which requests node "a", no longer exists: revoked`},
		"21 the Node is alive":                 {all(node(NodeAlive), rejoin, none), `Wait NodeAlive node "a" is alive`},
		"21 the Node may be alive":             {all(node(NodeUnknown), rejoin), "Wait NodeAlive may be alive"},
		"21 the Node is dead":                  {all(node(NodeDead), late), `Wait MachineBound Node "a" is dead but still exists`},
		"21 the Node is dead, not expected":    {all(node(NodeDead), unexpected), "Wait MachineBound is dead but still exists"},
		"21 the Node is dead and may rejoin":   {all(node(NodeDead), rejoin, late), approved},
		"21 rejoins, not expected":             {all(node(NodeDead), rejoin, none), "Wait NotExpected no source"},
		"21 rejoins, the machine is leaving":   {all(node(NodeDead), rejoin, leaving), "Wait NotExpected is being deleted"},
		"21 rejoins, bound to another node":    {all(node(NodeDead), rejoin, bound("b")), `Wait MachineBound is already node "b"`},
		"21 rejoins, the requester is gone":    {all(node(NodeDead), rejoin, gone), "Wait NotAuthorized revoked"},
		"the machine was this node":            {all(bound("a"), late), `Wait MachineBound Machine default/a was node "a" before`},
		"the machine was this node, may again": {all(bound("a"), rejoin, timeless), approved},
		"the machine is another node": {all(bound("b"), rejoin),
			`Wait MachineBound Machine default/a is already node "b", so it cannot become node "a"`},
		"at the start of the window": {all(created(-10 * time.Second)), approved},
		"at the end of the window":   {all(created(2 * time.Hour)), approved},
		"before the window": {all(created(-11*time.Second), rejoin), `Wait OutsideJoinWindow node "a" made its request 11s before Machine default/a ` +
			"was created: approval.nodeClient.joinWindow permits 10s before"},
		"after the window": {all(late, rejoin), `Wait OutsideJoinWindow node "a" made its request 2h0m1s after Machine default/a ` +
			"was created: approval.nodeClient.joinWindow permits 2h0m0s after"},
		"no window":             {all(late, func(p policy, _ req, _ facts) { p.Window = Window{} }), approved},
		"a machine of any time": {all(late, func(_ policy, _ req, f facts) { f.Entry.AnyTime = true }), approved},
		"unknown creation time": {all(timeless), "Wait OutsideJoinWindow Machine default/a has no creation time yet"},
		"just young enough":     {all(aged(15 * time.Minute)), approved},
		"too old":               {all(old), "Ignore RequestTooOld older than approval.nodeClient.maxRequestAge, 15m0s"},
		"no limit of the age":   {all(old, func(p policy, _ req, _ facts) { p.MaxRequestAge = 0 }), approved},
		"another user": {all(user("system:node:b"), old),
			`Ignore NotAuthorized user "system:node:b" may not bootstrap nodes: only users ["system:bootstrap:abcdef"]`},
		"any user":                    {all(user("x"), anyone), approved},
		"a token for another node":    {all(by(tokenOfB), binding), `Deny NotAuthorized user "system:bootstrap:abcdef" is bound to another node than "a"`},
		"a token for both nodes":      {all(by(tokenOfB, token), binding), approved},
		"a group without a node name": {all(by("system:bootstrappers:node:")), "Deny NotAuthorized another node"},
		"an account":                  {all(account, by("system:authenticated", "system:serviceaccounts", "system:serviceaccounts:ns")), expected},
		"another signer":              {all(func(_ policy, r req, _ facts) { r.SignerName = "kubernetes.io/kube-apiserver-client" }), "Ignore  "},
		"a DNS name":                  {all(func(_ policy, r req, _ facts) { r.Cert.DNSNames = []string{"kubernetes"} }), "Deny ShapeMismatch DNS subjectAltNames are not allowed"},
		"another organization": {all(func(_ policy, r req, _ facts) { r.Cert.Subject.Organization = []string{"system:masters"} }),
			"Deny ShapeMismatch subject organization is not system:nodes"},
		"a node that renews, without its own permission": {all(user("system:node:a"), anyone), "Wait NotAuthorized certificatesigningrequests/selfnodeclient"},
		"it is unknown whether the requester exists":     {all(func(_ policy, _ req, f facts) { f.Exists = false }), "Wait InventoryUnavailable whether user"},
		"the time is unknown":                            {all(func(_ policy, _ req, f facts) { f.Now = time.Time{} }), "Wait InventoryUnavailable how old its request is"},
		"an account's name alone":                        {all(account, by("system:authenticated")), "Ignore NotAuthorized is not in the group system:serviceaccounts;"},
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
		got := policy.Judge(req, *facts, kubeletclient.NodeClient)
		want, text, _ := strings.Cut(test.want, " ")
		if reason, part, _ := strings.Cut(text, " "); got.Verdict.String() != want || got.Reason != reason || !strings.Contains(got.Message, part) {
			t.Errorf("%s: %+v, want %q", name, got, test.want)
		}
		again, renewed := "; the request is checked again when this changes, unless it is too old by then", "; a new request is needed"
		ofPermission := strings.HasSuffix(got.Message, "within five minutes") // the advice of package kubeletclient
		if advice := map[string]string{"Wait": again, "Deny": renewed, "Ignore": renewed}[want]; got.Made() && !ofPermission && !strings.HasSuffix(got.Message, advice) {
			t.Errorf("%s: %q, want the advice %q at the end", name, got.Message, advice)
		}
	}
}

// TestNodeStates checks what a Node and a Lease prove.
func TestNodeStates(t *testing.T) {
	const day = 24 * time.Hour
	ago := func(before time.Duration) time.Time { return now.Add(-before) }
	for name, test := range map[string]struct {
		seen     Seen
		lifetime time.Duration
		want     NodeState
	}{
		"no Node":                      {want: NodeNone},
		"no Node, dead Lease":          {seen: Seen{Lease: LeaseSilent}, want: NodeNone},
		"no Node, renewed Lease":       {seen: Seen{Lease: LeaseRenewing, Renewed: now}, want: NodeAlive},
		"no Node, unobserved Lease":    {seen: Seen{Renewed: now}, want: NodeUnknown},
		"no Node, expired certificate": {seen: Seen{Renewed: ago(day + time.Hour + 1)}, lifetime: day, want: NodeNone},
		"alive":                        {seen: Seen{Exists: true, Lease: LeaseRenewing}, want: NodeAlive},
		"alive with a slow clock":      {seen: Seen{Exists: true, Lease: LeaseRenewing, Renewed: ago(100 * day)}, lifetime: day, want: NodeAlive},
		"the Node is dead":             {seen: Seen{Exists: true, Lease: LeaseSilent, Renewed: now}, want: NodeDead},
		"unknown":                      {seen: Seen{Exists: true, Renewed: now}, lifetime: day, want: NodeUnknown},
		"unknown without a Lease":      {seen: Seen{Exists: true}, lifetime: day, want: NodeUnknown},
		"its certificate may be valid": {seen: Seen{Exists: true, Renewed: ago(day + time.Hour)}, lifetime: day, want: NodeUnknown},
		"its certificate has expired":  {seen: Seen{Exists: true, Renewed: ago(day + time.Hour + 1)}, lifetime: day, want: NodeDead},
		"unknown certificate lifetime": {seen: Seen{Exists: true, Renewed: ago(1000 * day)}, want: NodeUnknown},
	} {
		policy := Policy{CertificateLifetime: test.lifetime}
		expect.Equal(t, name, policy.StateOf(&csr.Request{Created: now}, test.seen), test.want)
	}
}
