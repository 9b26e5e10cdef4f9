package approver

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// TestDefects judges requests that other approvers are known to judge wrongly. The numbers are those of defects.
func TestDefects(t *testing.T) {
	t.Parallel()
	own := []string{"10.0.0.1"}
	prefixed := newKnown("node1.example.org")
	prefixed.nodes["a"].Suffixes = []string{"a.pool.example.org"}
	for _, test := range []input{
		{name: "01 a subset of the usages: digital signature", obj: asks(t, own, usagesAre("digital signature")), want: "Denied UsagesNotPermitted"},
		{name: "01 a subset of the usages: server auth", obj: asks(t, own, usagesAre("server auth")), want: "Denied UsagesNotPermitted"},
		{name: "01 a subset of the usages: none", obj: asks(t, own, usagesAre()), want: "Denied UsagesNotPermitted"},
		{name: "02 the right to create any request is not the right to have it approved", obj: object(t), grants: []string{""}, want: "Waits NotAuthorized"},
		{name: "03 a name of the API server", obj: asks(t, []string{"kubernetes.default.svc"}), world: newKnown("kubernetes.default.svc"), want: "Denied SANReserved"},
		{name: "03 another node's address", obj: asks(t, []string{"10.0.0.2"}), want: "Waits SANNotOwned"},
		{name: "05 a prefix of the name", obj: asks(t, []string{"evil-node1.example.org.attacker"}), world: prefixed, want: "Waits SANNotOwned"},
		{name: "05 a longer suffix", obj: asks(t, []string{"node1.example.org.attacker"}), world: prefixed, want: "Waits SANNotOwned"},
		{name: "05 a longer prefix", obj: asks(t, []string{"evil-node1.example.org"}), world: prefixed, want: "Waits SANNotOwned"},
		{name: "05 a dot is not a wildcard", obj: asks(t, []string{"node1xexample.org"}), world: prefixed, want: "Waits SANNotOwned"},
		{name: "05 a suffix without its dot", obj: asks(t, []string{"eviLa.pool.example.org"}), world: prefixed, want: "Waits SANNotOwned"},
		{name: "05 a node name that is only a prefix", obj: asks(t, own, user("system:node:ab"), says(t, nodeTemplate("ab", own...))), want: "Waits NodeNotFound"},
		{name: "08 a third usage", obj: asks(t, own, usagesAre("digital signature", "server auth", "code signing")), want: "Denied UsagesNotPermitted"},
		{name: "08 a client with a URI", obj: object(t, says(t, func() *x509.CertificateRequest {
			template := nodeTemplate("a")
			template.URIs = []*url.URL{{Scheme: "spiffe", Host: "a"}}
			return template
		}())), grants: []string{"nodeclient"}, want: "Denied ShapeMismatch"},
		{name: "08 another signer that got past the predicate", obj: object(t, func(obj *request) { obj.Spec.SignerName = "example.com/a" }), grants: []string{"nodeclient"}, want: "Untouched"},
		{name: "10 fewer names than the node has", obj: asks(t, own), want: "Approved"},
		{name: "13 an address and no name", obj: asks(t, own), want: "Approved"},
		{name: "13 a second name of another node", obj: asks(t, []string{"a.example.com", "b.example.com"}), want: "Waits SANNotOwned"},
		{name: "13 the common name of another node", obj: asks(t, own, user("system:node:b")), want: "Denied CommonNameMismatch"},
		{name: "14 an ECDSA key without key encipherment", obj: asks(t, own, usagesAre("digital signature", "server auth")), want: "Approved"},
		{name: "16 a serving request for another signer", obj: asks(t, own, func(obj *request) { obj.Spec.SignerName = "example.com/serving" }), want: "Untouched"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.world == nil {
				test.world = newKnown()
			}
			p := newParts(t, test.obj).knowing(test.world)
			p.reconciler.Denial, p.grants = DenialPermanent, test.grants
			if got := p.outcome(t); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// Defects 04 and 09: an answer or an object that is missing denies nothing. The request is approved once it is there.
func TestDefectsNotYetIsNotNever(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*known)
		want   string
	}{
		"04 a source that stalls":  {func(world *known) { world.fault = "timeout" }, "Waits InventoryUnavailable"},
		"09 no Node":               {func(world *known) { delete(world.nodes, "a") }, "Waits NodeNotFound"},
		"09 a Node with nothing":   {func(world *known) { world.nodes["a"].SANs = nil }, "Waits AddressNotPublished"},
		"09 a Node with its name":  {func(world *known) { world.nodes["a"].SANs = sans("a.example.com") }, "Waits SANNotOwned"},
		"09 an address that moves": {func(world *known) { world.contested = map[san.SAN]string{sans("10.0.0.1")[0]: "Node b"} }, "Waits SANContested"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := newKnown()
			test.change(world)
			p := newParts(t, asks(t, []string{"10.0.0.1"})).knowing(world)
			p.reconciler.Denial = DenialPermanent
			if got := p.outcome(t); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			*world = *newKnown()
			if got := p.outcome(t); got != "Approved" {
				t.Errorf("then %s", got)
			}
		})
	}
}

// Defect 06: a dry run writes nothing.
func TestDefect06ADryRunWrites(t *testing.T) {
	t.Parallel()
	for _, obj := range []*request{asks(t, []string{"10.0.0.1"}), asks(t, nil), asks(t, []string{"10.0.0.2"}), object(t), object(t, malformedRequest)} {
		p := newParts(t, obj).knowing(newKnown())
		p.reconciler.Denial, p.reconciler.DryRun, p.grants = DenialPermanent, true, []string{"nodeclient"}
		if _, err := p.reconcile(t); err != nil || len(p.written) > 0 {
			t.Errorf("%d writes, error %v", len(p.written), err)
		}
	}
}

// Defect 07: a request over the limit is requeued.
func TestDefect07OverTheLimitIsForgotten(t *testing.T) {
	t.Parallel()
	p := newParts(t, asks(t, []string{"10.0.0.1"})).knowing(newKnown())
	p.reconciler.limiter = newLimiter(Limit{Burst: 1, PerHour: 60}, p.clock)
	for _, want := range []string{"Approved", "Waits RateLimited"} {
		if got := p.outcome(t); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	p.clock.SetTime(now.Add(time.Minute))
	if got := p.outcome(t); got != "Approved" {
		t.Errorf("a minute later: %s", got)
	}
}

// Defect 11: a message names the node, and the requester if that is another user.
func TestDefect11MessagesNameNobody(t *testing.T) {
	t.Parallel()
	for name, obj := range map[string]*request{
		"CommonNameMismatch": asks(t, []string{"10.0.0.1"}, user("system:node:b")),
		"NodeNotFound":       asks(t, nil, user("system:node:gone"), says(t, nodeTemplate("gone", "10.0.0.1"))),
	} {
		p := newParts(t, obj).knowing(newKnown())
		if _, err := p.reconcile(t); err != nil {
			t.Fatal(err)
		}
		told := strings.Join(p.events(), "\n")
		if node := strings.TrimPrefix(obj.Spec.Username, "system:node:"); !strings.Contains(told, name) || !strings.Contains(told, node+`"`) {
			t.Errorf("%s: %q", name, told)
		}
	}
}

// Defect 19: a failed review approves nothing, even if another review would be allowed.
func TestDefect19AFaultApproves(t *testing.T) {
	t.Parallel()
	fault := errors.New("no answer")
	for failing, asked := range map[string]int{"selfnodeclient": 1, "nodeclient": 2} {
		p := newParts(t, object(t, user("system:node:a")))
		reviews := 0
		p.reconciler.Authorizer = authz.Func(func(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
			reviews++
			if what.Subresource == failing {
				return true, fault // the answer beside an error must not count
			}
			return failing == "selfnodeclient", nil
		})
		if _, err := p.reconcile(t); !errors.Is(err, fault) || len(p.written) > 0 || reviews != asked {
			t.Errorf("%s fails: %d writes, %d reviews, error %v", failing, len(p.written), reviews, err)
		}
	}
}

// Defect 20: without configuration no serving certificate is approved, and without rules no request at all.
func TestDefect20NothingConfiguredApproves(t *testing.T) {
	t.Parallel()
	for _, obj := range []*request{asks(t, []string{"10.0.0.1"}), object(t)} {
		p := newParts(t, obj)
		p.grants = []string{"nodeclient", "selfnodeclient"}
		if obj.Spec.SignerName != servingSigner {
			p.reconciler.Rules = nil
		}
		if got := p.outcome(t); got != "Untouched" || len(p.reviews) > 0 {
			t.Errorf("%s after %d reviews", got, len(p.reviews))
		}
	}
}
