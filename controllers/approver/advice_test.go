package approver

import (
	"crypto/x509"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/static"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestAdviceWorks follows the advice of each refusal, by other objects, another configuration or a new request, and checks
// that the request is then approved. Each reason of the approver in docs/reference/reasons.md has a row.
func TestAdviceWorks(t *testing.T) {
	type decides func(*testing.T) judge.Decision
	type row struct {
		advice        string
		before, after decides
	}
	serving := func(node, names string, parts ...any) decides {
		return func(t *testing.T) judge.Decision {
			return newWorld(parts...).run(t).decide(t.Context(), node, names)
		}
	}
	decided := func(obj *request, change func(*parts)) decides {
		return func(t *testing.T) judge.Decision {
			p := newParts(obj)
			change(p)
			_, decision, err := p.reconciler.Decide(t.Context(), p.served)
			return must(decision, err)
		}
	}
	asIs := func(*parts) {}
	may := func(rights string) func(*parts) { return func(p *parts) { p.grants = strings.Fields(rights) } }
	joins := func(change func(*bootstrap.Policy, *csr.Request, *bootstrap.Facts)) decides {
		return func(*testing.T) judge.Decision {
			policy, req, facts := joining()
			change(policy, req, facts)
			return policy.Judge(req, *facts, kubeletclient.NodeClient)
		}
	}
	byRules := func(name string, change func(*ruled)) decides {
		return func(t *testing.T) judge.Decision {
			world := newRuled()
			change(world)
			_, decision, err := world.reconciler().Decide(t.Context(), web(name))
			return must(decision, err)
		}
	}
	type (
		policy = *bootstrap.Policy
		req    = *csr.Request
		facts  = *bootstrap.Facts
	)
	const first, off = "10.0.0.1", "169.254.1.0"
	a, twin, three := nodeObject("a", first), nodeObject("b", first), []any{nodeObject("a", first), nodeObject("b", first), nodeObject("c", first)}
	listed, service, endpoint := static.Row{Name: "a", Addresses: []string{first}}, serviceObject("x", "y", first), endpointsObject(first)
	good, joined, tooMany := serving("a", first, a), joins(func(policy, req, facts) {}), dns(strings.Fields(strings.Repeat("a.example.com ", 1001))...)
	own, shared := byRules("a.example.com", func(*ruled) {}), serving("a", first, three...)
	token := func(node string) func(*request) { return groups(csr.TokenGroup(node)) }
	rows := map[string]row{ // by the reason, and what differs
		"SANReserved, link-local":              {"correct the addresses that the Node reports (--node-ip", serving("a", first+" fe80::1", nodeObject("a", first, "fe80::1")), good},
		"SANReserved, link-local IPv4":         {"correct the addresses that the Node reports (--node-ip", serving("a", off, nodeObject("a", off)), good},
		"SANReserved, the name of a Service":   {"correct the addresses that the Node reports (--node-ip", serving("a", "a.b.svc", nodeObject("a", "a.b.svc")), good},
		"SANReserved, a Node called so":        {"give the node another name (--hostname-override", serving("kubernetes", "kubernetes", named("kubernetes")...), serving("w", "w", named("w")...)},
		"SANReserved, a Node called localhost": {"give the node another name (--hostname-override", serving("localhost", "localhost", named("localhost")...), serving("w", "w", named("w")...)},
		"SANReserved by the configuration":     {"correct approval.kubeletServing if it is the node's", serving("a", first, a, san.Reserved{Endpoints: sans(first)}), good},
		"SANReserved for a Service":            {"delete the Service if it is the node's", serving("a", first, a, service), good},
		"SANReserved for an API server":        {"add the node to approval.kubeletServing.apiServerNodes", serving("a", first, a, endpoint), serving("a", first, a, endpoint, "a")},
		"NodeNotFound":                         {"register its Node", serving("a", first), good},
		"NodeNotFound, listed":                 {"add the node to a source of approval.inventory", serving("a", first), serving("a", first, listed)},
		"AddressNotPublished":                  {"set them", serving("a", first, nodeObject("a")), good},
		"AddressNotPublished, listed":          {"list them in a static row", serving("a", first, nodeObject("a")), serving("a", first, nodeObject("a"), listed)},
		"SANNotOwned":                          {"add them there if they are the node's", serving("a", first, nodeObject("a", "10.0.0.2")), good},
		"SANContested, deleted":                {"delete the Node of a replaced machine", serving("a", first, a, twin), good},
		"SANContested, listed":                 {"list the value for its node in a Machine, a static row", serving("a", first, a, twin), serving("a", first, a, twin, listed)},
		"SANContested by a stronger entry":     {"correct that entry if it is wrong", serving("a", first, a, static.Row{Name: "b", Addresses: []string{first}}), serving("a", first, a, listed)},
		"SANContested by many": {"add the row {namePattern", shared, func(t *testing.T) (_ judge.Decision) {
			var row static.Row
			text := regexp.MustCompile(`\{name.*?\]\}`).FindString(shared(t).Message)
			expect.NoError(t, yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "CIDR of the nodes", "10.0.0.0/24")), &row))
			return serving("a", first, append(three, row)...)(t)
		}},
		"RequestTooLarge": {"requestLimits.maxNames); a new request is needed, or a higher limit", decided(asks("a", "", tooMany), asIs),
			decided(asks("a", "", tooMany), func(p *parts) { p.reconciler.RequestLimits = csr.Limits{Names: 1001} })},

		"NotAuthorized":          {"names the right that nodes lack", decided(object(), asIs), decided(object(), may("nodeclient"))},
		"NotAuthorized, bound":   {"only a token with the group " + csr.TokenGroup("a"), decided(object(token("b")), may(rights)), decided(object(token("a")), may(rights))},
		"NotAuthorized, deleted": {"use another credential", joins(func(_ policy, _ req, f facts) { f.Gone = "revoked" }), joined},
		"NotAuthorized, user":    {`only users ["system:bootstrap:abcdef"] may`, joins(func(_ policy, r req, _ facts) { r.Requester.Username = "x" }), joined},
		"NotExpected":            {"add the node to a source", joins(func(_ policy, _ req, f facts) { f.Entry = nil }), joined},
		"NotExpected, deleted":   {"create another one", joins(func(_ policy, _ req, f facts) { f.Entry.Leaving = true }), joined},
		"NodeAlive":              {"delete both if its machine is gone", joins(func(_ policy, _ req, f facts) { f.Node = bootstrap.NodeUnknown }), joined},
		"NodeAlive, renewed":     {"stop its kubelet", joins(func(_ policy, _ req, f facts) { f.Node = bootstrap.NodeAlive }), joins(func(p policy, _ req, f facts) { p.Rejoin, f.Node = true, bootstrap.NodeDead })},
		"MachineBound":           {"create another one", joins(func(_ policy, _ req, f facts) { f.Entry.Bound = "b" }), joined},
		"MachineBound, dead": {"or enable approval.nodeClient.rejoin", joins(func(_ policy, _ req, f facts) { f.Node = bootstrap.NodeDead }),
			joins(func(p policy, _ req, f facts) { p.Rejoin, f.Node = true, bootstrap.NodeDead })},
		"OutsideJoinWindow": {"approval.nodeClient.joinWindow permits 2h0m0s after", joins(func(_ policy, _ req, f facts) { f.Entry.Created = now.Add(-3 * time.Hour) }),
			joins(func(p policy, _ req, f facts) { p.Window.After, f.Entry.Created = 4*time.Hour, now.Add(-3*time.Hour) })},
		"RequestTooOld": {"a new request is needed", joins(func(_ policy, _ req, f facts) { f.Now = now.Add(time.Hour) }), joined},

		"NotAuthorized by rules": {"the verb use on approvalrules", byRules("a.example.com", func(r *ruled) { r.allowed = nil }), own},
		"RuleRefused":            {"rule any: the condition request.names.all(n, n.endsWith('.example.com')) is not true", byRules("a.other.test", func(*ruled) {}), own},
		"RightsMissing": {"grant the manager the verb approve", byRules("a.example.com", func(r *ruled) { r.rules.Off = func() bool { return true } }),
			byRules("a.example.com", func(r *ruled) { r.rules.Off = func() bool { return false } })},
	}
	mail := content(func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b"} })
	for name, other := range map[string]func(*request){ // a new request without what the message names
		"RequesterNotNode: only a node (user system:node:NAME, group system:nodes)":         groups("system:authenticated"),
		`CommonNameMismatch: is not the requester's user name "system:node:b"`:              user("system:node:b"),
		"ShapeMismatch: must be exactly system:nodes":                                       subject("CN=system:node:a", first),
		"UsagesNotPermitted: must be digital signature and server auth":                     usages("client auth"),
		`UnexpectedContent: content that no kubelet requests: ["OU=x"]`:                     subject("O=system:nodes,OU=x,CN=system:node:a", first),
		`SANTypeNotPermitted: e-mail addresses ["a@b"] are not permitted`:                   mail,
		`NameNotPermitted: correct the addresses that the Node reports (--node-ip and`:      dns("10.1"),
		"SANMissing: correct the addresses that the Node reports (--node-ip and --hostname": dns(),
	} {
		reason, advice, _ := strings.Cut(name, ": ")
		rows[reason] = row{advice, decided(asks("a", first, other), asIs), good}
	}
	explained := map[string]bool{"AutoApproved": true, "ApprovedByHand": true, "InventoryPending": true, "RateLimited": true} // nothing to do but wait
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		row := rows[name]
		reason, _, _ := strings.Cut(strings.ReplaceAll(name, " ", ","), ",")
		explained[reason] = true
		if before := row.before(t); before.Reason != reason || !strings.Contains(before.Message, row.advice) {
			t.Errorf("%s: %+v, want the advice %q", name, before, row.advice)
		}
		if after := row.after(t); after.Verdict != judge.Approve {
			t.Errorf("%s: after its advice was followed: %+v", name, after)
		}
	}
	page := string(must(os.ReadFile("../../docs/reference/reasons.md")))
	table, _, _ := strings.Cut(page[strings.Index(page, "\n## Approver\n"):], "\n### ")
	for _, found := range regexp.MustCompile("(?m)^\\| `(\\w+)`").FindAllStringSubmatch(table, -1) {
		expect.True(t, explained[found[1]], "no row follows the advice of %s", found[1])
	}
}
