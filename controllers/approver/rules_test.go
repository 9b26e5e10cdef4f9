package approver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"net"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

const (
	renews     = "Approved: Auto approving self kubelet client certificate after SubjectAccessReview."
	bootstraps = "Approved: Auto approving kubelet client certificate after SubjectAccessReview."
	mismatch   = "Denied ShapeMismatch: the request for signer kubernetes.io/kube-apiserver-client-kubelet is not approved: "
	badUsages  = mismatch + "usages did not match [client auth digital signature key encipherment]"
	rights     = "selfnodeclient nodeclient"
)

// TestNodeClient checks which permissions a request for a client certificate needs, and the outcome. Messages of
// approvals are those of kube-controller-manager.
func TestNodeClient(t *testing.T) {
	t.Parallel()
	const (
		from         = ` with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" but may not `
		group        = " (API group certificates.k8s.io)"
		bind         = ": if this user may join nodes, bind a ClusterRole with this permission to it"
		may          = "create certificatesigningrequests/nodeclient" + group + bind
		notBootstrap = `Waits NotAuthorized: user "system:bootstrap:abcdef"` + from + may
		notRenew     = `Waits NotAuthorized: user "system:node:a"` + from + "create certificatesigningrequests/selfnodeclient" + group + " or " + may
		elsewhere    = `Denied NotAuthorized: user "system:bootstrap:abcdef" is bound to another node than `
	)
	node := user("system:node:a")
	bound := func(node string) *request { return object(says(kubelet(node, "")), groups("x", csr.TokenGroup("a"))) }
	trimmed := must(csr.Trim{}.Transform(object(issued))).(*request)
	for _, test := range []trial{
		{name: "a bootstrapper", obj: object(), grants: "nodeclient", asked: "nodeclient", want: bootstraps},
		{name: "a bootstrapper without permission", obj: object(), asked: "nodeclient", want: notBootstrap},
		{name: "a bootstrapper with the other right", obj: object(), grants: "selfnodeclient", asked: "nodeclient", want: notBootstrap},
		{name: "the node itself", obj: object(node), grants: rights, asked: "selfnodeclient", want: renews},
		{name: "the node itself may only bootstrap", obj: object(node), grants: "nodeclient", asked: rights, want: bootstraps},
		{name: "the node itself without permission", obj: object(node), asked: rights, want: notRenew},
		{name: "upper case", obj: object(user("system:node:A")), grants: "selfnodeclient", asked: "nodeclient", want: "Waits NotAuthorized"},
		{name: "issued and trimmed", obj: trimmed, grants: rights, want: "Untouched"},
		{name: "another signer, malformed", obj: object(malformed, signer("example.com/a")), want: "Untouched"},

		{name: "a token for this node", obj: bound("a"), grants: rights, asked: "nodeclient", want: bootstraps},
		{name: "a token for another node", obj: bound("b"), grants: rights, want: elsewhere + `"b"`},
		{name: "a bound token, no node name", obj: bound(""), grants: rights, want: elsewhere + `""`},

		{name: "malformed", obj: object(malformed), want: "Denied Malformed: spec.request is not a PEM block of type CERTIFICATE REQUEST"},
		{name: "server auth", obj: object(usages("digital signature, client auth, server auth")), grants: rights, want: badUsages},
		{name: "a DNS name", obj: object(dns("a")), grants: rights, want: mismatch + "DNS subjectAltNames are not allowed"},
		{name: "another organization", obj: object(subject("O=system:masters,CN=system:node:a", "")), grants: rights,
			want: mismatch + "subject organization is not system:nodes"},
		{name: "another common name", obj: object(subject("O=system:nodes,CN=a", "")), grants: rights,
			want: mismatch + "subject common name does not begin with system:node:"},
		{name: "CA:TRUE, which is dropped", obj: object(content(isCA)), grants: rights, asked: "nodeclient", want: bootstraps},
	} {
		t.Run(test.name, test.run)
	}
}

// TestGateAndConfirmSurroundTheReview checks the order of Gate, review and Confirm, and that each of them ends the
// judgement if it refuses or fails.
func TestGateAndConfirmSurroundTheReview(t *testing.T) {
	t.Parallel()
	for answers, want := range map[string]string{ // of Gate, of the review and of Confirm; an error counts more than a refusal
		"pass pass pass":    "AutoApproved after gate review confirm",
		"refuses":           "Refused after gate",
		"fails":             "down after gate",
		"pass refuses":      "NotAuthorized after gate review",
		"pass pass refuses": "Refused after gate review confirm",
		"pass pass fails":   "down after gate review confirm",
	} {
		var steps []string
		step := func(name string) (refuses bool, err error) {
			answer := strings.Fields(answers)[len(steps)]
			steps = append(steps, name)
			if answer == "fails" {
				err = errDown
			}
			return answer != "pass", err
		}
		judge := func(name string) Judge {
			return func(context.Context, *csr.Request) (decision Decision, err error) {
				refuses, err := step(name)
				if refuses {
					decision.Result = verdict.Wait.Because("Refused", "no")
				}
				return decision, err
			}
		}
		p := newParts(object())
		bootstrapper := &p.reconciler.Rules[0].Recognisers[1]
		bootstrapper.Gate, bootstrapper.Confirm = judge("gate"), judge("confirm")
		p.reconciler.Authorizer = authz.Func(func(context.Context, csr.Requester, authorizationv1.ResourceAttributes) (bool, error) {
			refuses, err := step("review")
			return !refuses, err
		})
		_, decision, err := p.reconciler.Decide(t.Context(), p.served)
		got := decision.Reason
		if err != nil {
			got = err.Error()
		}
		if got += " after " + strings.Join(steps, " "); got != want {
			t.Errorf("%s: %s, want %s", answers, got, want)
		}
	}
}

// asked is the content of a fuzzed request, as strings.
type asked struct {
	commonName, unit, email, user string
	organizations, dns, groups    []string
	addresses                     []net.IP
	usages                        []certificatesv1.KeyUsage
}

// FuzzRules compares the rules with their statement in the TLS bootstrapping document, which strictServing and
// strictClient repeat in other words. A rule approves nothing that they refuse, and they refuse nothing that a rule
// approves.
func FuzzRules(f *testing.F) {
	const client, serving = uint8(5), uint8(3)
	const a, nodes, bound = "system:node:a", "system:nodes", "system:bootstrappers:node:ca978112ca1bbdca"
	own := []byte{10, 0, 0, 1}
	f.Add(a, nodes, "", "", []byte{}, "", "system:bootstrap:abcdef", "system:bootstrappers", client)
	f.Add(a, nodes, "", "", []byte{}, "", a, nodes, client)
	f.Add(a, nodes, "", "", []byte{}, "", "bound", bound+"fac231b39a23dc4da786eff8147c4e72b9807785afee48bb", client)
	f.Add(a, nodes, "", "", []byte{}, "", "bound", bound, client)
	f.Add(a, nodes, "", "a.example.com", own, "", a, nodes, serving)
	f.Add(a, nodes, "", "a.example.com", own, "", a, "system:node", serving)
	f.Add(a, nodes, "", "A.example.com.,10.0.0.1", []byte{}, "", a, "x,system:nodes", serving|4)
	f.Add(a, nodes, "ou", "b.example.com", []byte{10, 0, 0, 2}, "a@b", "system:node:b", "", serving)
	f.Add("system:node:", "system:nodes,system:masters", "", "kubernetes.default.svc", []byte{10, 96, 0, 1}, "", "system:node:", nodes, serving)
	f.Add(a, nodes, "", "::ffff:10.0.0.1,*.example.com,a\u3002b", []byte{127, 0, 0, 1}, "", a, nodes, uint8(15))
	f.Fuzz(func(t *testing.T, commonName, organizations, unit, dns string, ips []byte, email, user, groups string, usages uint8) {
		content := asked{
			commonName: commonName, unit: unit, email: email, user: user,
			organizations: fields(organizations), dns: fields(dns), groups: fields(groups),
		}
		for len(ips) >= 4 {
			content.addresses, ips = append(content.addresses, net.IP(ips[:4])), ips[4:]
		}
		for i, usage := range []certificatesv1.KeyUsage{"digital signature", "server auth", "client auth", "key encipherment"} {
			if usages&(1<<i) != 0 {
				content.usages = append(content.usages, usage)
			}
		}
		obj := content.object()
		if obj == nil {
			return
		}
		req, err := csr.Parse(obj)
		if err != nil {
			return
		}
		approver := newKnown()
		decision, _ := approver.judge(t.Context(), req)
		if again, _ := approver.judge(t.Context(), req); again != decision {
			t.Fatalf("%+v; again %+v", decision, again)
		}
		if got, want := decision.Verdict == verdict.Approve, content.strictServing(); got != want {
			t.Errorf("serving: approved %t, want %t: %+v: %s", got, want, content, decision.Message)
		}
		var names []string
		refused, err := NodeClient().decide(t.Context(), req, authz.Func(
			func(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
				names = append(names, what.Subresource)
				return false, nil
			}))
		if want := content.strictClient(); err != nil || !slices.Equal(names, want) {
			t.Errorf("client: recognised as %q, want %q: %+v: %s, error %v", names, want, content, refused.Message, err)
		}
		for _, each := range []Decision{decision, refused} { // it explains itself, within bounds
			if each.Reason == "" || each.Message == "" || len(each.Message) > 32<<10 {
				t.Errorf("reason %q, message of %d bytes", each.Reason, len(each.Message))
			}
		}
	})
}

func fields(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// object returns the request as the API server stores it, or nil if PKCS#10 has no form for its content.
func (a asked) object() *request {
	template := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: a.commonName, Organization: a.organizations, OrganizationalUnit: fields(a.unit)},
		DNSNames: a.dns, IPAddresses: a.addresses, EmailAddresses: fields(a.email),
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, leafKey())
	if err != nil {
		return nil
	}
	return &request{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Username: a.user, Groups: a.groups, Usages: a.usages,
	}}
}

// strictServing reports whether node a or b asks for names that newKnown says are its own, and for nothing else.
func (a asked) strictServing() bool {
	own := map[string][2]string{"system:node:a": {"a.example.com", "10.0.0.1"}, "system:node:b": {"b.example.com", "10.0.0.2"}}
	names, known := own[a.user]
	if !known || a.commonName != a.user || !slices.Contains(a.groups, "system:nodes") || !slices.Equal(a.organizations, []string{"system:nodes"}) ||
		a.unit != "" || a.email != "" || len(a.dns)+len(a.addresses) == 0 || !a.onlyUsages("server auth") {
		return false
	}
	for _, name := range a.dns {
		name = strings.TrimSuffix(name, ".")
		if name != names[1] && asciiLower(name) != names[0] {
			return false
		}
	}
	return !slices.ContainsFunc(a.addresses, func(ip net.IP) bool { return ip.String() != names[1] })
}

// strictClient returns the recognisers for the request.
func (a asked) strictClient() []string {
	node, isNode := strings.CutPrefix(a.commonName, "system:node:")
	if !isNode || !slices.Equal(a.organizations, []string{"system:nodes"}) || len(a.dns)+len(a.addresses) > 0 || a.email != "" ||
		!a.onlyUsages("client auth") {
		return nil
	}
	var names []string
	if a.user == a.commonName {
		names = append(names, "selfnodeclient")
	}
	sum := sha256.Sum256([]byte(node))
	bound := slices.ContainsFunc(a.groups, func(group string) bool { return strings.HasPrefix(group, "system:bootstrappers:node:") })
	if !bound || slices.Contains(a.groups, "system:bootstrappers:node:"+hex.EncodeToString(sum[:])) {
		names = append(names, "nodeclient")
	}
	return names
}

// onlyUsages reports whether the usages are those of the TLS bootstrapping document for purpose.
func (a asked) onlyUsages(purpose certificatesv1.KeyUsage) bool {
	return slices.Contains(a.usages, "digital signature") && slices.Contains(a.usages, purpose) &&
		!slices.ContainsFunc(a.usages, func(usage certificatesv1.KeyUsage) bool {
			return usage != "digital signature" && usage != "key encipherment" && usage != purpose
		})
}

func asciiLower(name string) string {
	return strings.Map(func(char rune) rune {
		if char >= 'A' && char <= 'Z' {
			return char + 'a' - 'A'
		}
		return char
	}, name)
}
