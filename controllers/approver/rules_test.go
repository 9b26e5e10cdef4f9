package approver

import (
	"context"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
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
	const (
		from         = ` with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" but may not `
		group        = " (API group certificates.k8s.io)"
		bind         = `: "kubectl csr check" names the right that nodes lack; if they lack none, find out who made the request`
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
		{name: "being deleted", obj: object(leaving), grants: rights, want: "Untouched"},
		{name: "malformed, being deleted", obj: object(malformed, leaving), want: "Untouched"},
		{name: "another signer, malformed", obj: object(malformed, signer("example.com/a")), want: "Untouched"},

		{name: "a token for this node", obj: bound("a"), grants: rights, asked: "nodeclient", want: bootstraps},
		{name: "a token for another node", obj: bound("b"), grants: rights, want: elsewhere + `"b"`},
		{name: "a bound token, no node name", obj: bound(""), grants: rights, want: elsewhere + `""`},

		{name: "malformed", obj: object(malformed), want: "Denied Malformed: spec.request is not a PEM block of type CERTIFICATE REQUEST"},
		{name: "server auth", obj: object(usages("digital signature, client auth, server auth")), grants: rights, want: badUsages},
		{name: "CA:TRUE, which is dropped", obj: object(content(isCA)), grants: rights, asked: "nodeclient", want: bootstraps},
	} {
		t.Run(test.name, test.run)
	}
}

// TestUnreadNamesABug checks that a request that is not parsed because of a bug waits. It is never denied.
func TestUnreadNamesABug(t *testing.T) {
	const message = "index out of range; this is a bug in csr-controller-manager: report it with this request. " +
		"The request is parsed again within five minutes"
	want := judge.Decision{Verdict: judge.Wait, Reason: "InternalError", Message: message}
	expect.Equal(t, "decision", unread(object(), errors.New("index out of range")), want)
}

// asked is the content of a fuzzed request, as strings.
type asked struct {
	commonName, unit, email, user string
	organizations, dns, groups    []string
	addresses                     []net.IP
	usages                        []certificatesv1.KeyUsage
	mldsa                         bool // the key is an ML-DSA key
}

// FuzzRules compares the rules with their statement in the TLS bootstrapping document, which strictServing and
// strictClient repeat in other words, and the approval rules with strictRules. A rule approves nothing that they refuse,
// and they refuse nothing that a rule approves.
func FuzzRules(f *testing.F) {
	const forClient, forServing = uint8(5), uint8(3)
	const a, nodes, bound = "system:node:a", "system:nodes", "system:bootstrappers:node:ca978112ca1bbdca"
	own := []byte{10, 0, 0, 1}
	f.Add(a, nodes, "", "", []byte{}, "", "system:bootstrap:abcdef", "system:bootstrappers", forClient)
	f.Add(a, nodes, "", "", []byte{}, "", a, nodes, forClient)
	f.Add(a, nodes, "", "", []byte{}, "", a, nodes, forClient|8)
	f.Add(a, nodes, "", "", []byte{}, "", a, nodes, forClient|16)
	f.Add(a, nodes, "", "", []byte{}, "", a, nodes, forClient|8|16)
	f.Add(a, nodes, "", "a.example.com", own, "", a, nodes, forServing|8|16)
	f.Add(a, nodes, "", "", []byte{}, "", "bound", bound+"fac231b39a23dc4da786eff8147c4e72b9807785afee48bb", forClient)
	f.Add(a, nodes, "", "", []byte{}, "", "bound", bound, forClient)
	f.Add(a, nodes, "", "a.example.com", own, "", a, nodes, forServing)
	f.Add(a, nodes, "", "a.example.com", own, "", a, "system:node", forServing)
	f.Add(a, nodes, "", "A.example.com.,10.0.0.1", []byte{}, "", a, "x,system:nodes", forServing|4)
	f.Add(a, nodes, "ou", "b.example.com", []byte{10, 0, 0, 2}, "a@b", "system:node:b", "", forServing)
	f.Add("system:node:", "system:nodes,system:masters", "", "kubernetes.default.svc", []byte{10, 96, 0, 1}, "", "system:node:", nodes, forServing)
	f.Add(a, nodes, "", "::ffff:10.0.0.1,*.example.com,a\u3002b", []byte{127, 0, 0, 1}, "", a, nodes, uint8(15))
	const account, accounts = "system:serviceaccount:shop:web", "system:serviceaccounts,system:serviceaccounts:shop"
	f.Add("", "", "", "api.shop.svc", []byte{}, "", account, accounts, uint8(2))
	f.Add("", "", "", "a.example.com", []byte{}, "", "jane", "", uint8(2))
	f.Add("api.shop.svc", "", "", "api.shop.svc,db.shop.svc.cluster.local", []byte{}, "", account, accounts, forServing)
	f.Add("", "", "", "api.kitchen.svc,kubernetes.shop.svc", []byte{}, "", account, accounts, forServing|8)
	world := newRuled()
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
		content.checkRules(t, world, obj)
		if content.mldsa = usages&16 != 0; content.mldsa {
			req.Cert.PublicKey = new(mldsa.PublicKey)
		}
		req.SignerName = servingSigner
		approver := newKnown()
		decision, _ := approver.Judge(t.Context(), req, Readers{})
		if again, _ := approver.Judge(t.Context(), req, Readers{}); again != decision {
			t.Fatalf("%+v; again %+v", decision, again)
		}
		got, want := decision.Verdict == judge.Approve, content.strictServing()
		expect.True(t, got == want, "serving: approved %t, want %t: %+v: %s", got, want, content, decision.Message)
		var names []string
		req.SignerName = kubeletSigner
		refused, err := KubeletClient{}.Judge(t.Context(), req, Readers{Authorizer: authz.Func(
			func(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
				names = append(names, what.Subresource)
				return false, nil
			})})
		if want := content.strictClient(); err != nil || !slices.Equal(names, want) {
			t.Errorf("client: recognised as %q, want %q: %+v: %s, error %v", names, want, content, refused.Message, err)
		}
		for _, each := range []judge.Decision{decision, refused} { // it explains itself, within bounds
			expect.True(t, each.Reason != "" && each.Message != "" && len(each.Message) <= 32<<10,
				"reason %q, message of %d bytes", each.Reason, len(each.Message))
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
	template := &x509.CertificateRequest{DNSNames: a.dns, IPAddresses: a.addresses, EmailAddresses: fields(a.email)}
	template.Subject = pkix.Name{CommonName: a.commonName, Organization: a.organizations, OrganizationalUnit: fields(a.unit)}
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

// strictClient returns the permissions that are reviewed.
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

// onlyUsages reports whether the usages are those of the TLS bootstrapping document for purpose. An ML-DSA key can't encipher.
func (a asked) onlyUsages(purpose certificatesv1.KeyUsage) bool {
	return slices.Contains(a.usages, "digital signature") && slices.Contains(a.usages, purpose) &&
		!slices.ContainsFunc(a.usages, func(usage certificatesv1.KeyUsage) bool {
			return usage != "digital signature" && (usage != "key encipherment" || a.mldsa) && usage != purpose
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

const ruledSigner = "example.com/serving"

// ruled is a cluster with a manager that has approval rules for ruledSigner.
type ruled struct {
	client.Reader
	accounts map[string]types.UID
	services map[string]corev1.ServiceType
	err      error
	allowed  []string // the rules that the requester may use
	denied   error    // why a review fails
	asked    []authorizationv1.ResourceAttributes
	rules    *ApprovalRules
}

func (r *ruled) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	found := false
	switch obj := obj.(type) {
	case *metav1.PartialObjectMetadata:
		obj.UID, found = r.accounts[key.String()]
	case *corev1.Service:
		obj.Spec.Type, found = r.services[key.String()]
	}
	if r.err == nil && !found {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "objects"}, key.String())
	}
	return r.err
}

func (r *ruled) Allowed(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
	r.asked = append(r.asked, what)
	return slices.Contains(r.allowed, what.Name), r.denied
}

// newRuled has the rules own (its own name api), any (every name, of any requester), and services (the preset).
func newRuled() *ruled {
	r := &ruled{
		accounts: map[string]types.UID{"shop/web": "uid-1"}, services: map[string]corev1.ServiceType{"shop/api": "ClusterIP"},
		allowed: []string{"own", "any", "services"},
	}
	conditions := must(cel.New(csr.DefaultLimits))
	rule := func(name, expression, message string) rules.Rule {
		return rules.Rule{Name: name, SignerName: ruledSigner, Usages: []certificatesv1.KeyUsage{"server auth"}, Allow: []string{"names"},
			MaxDuration: metav1.Duration{Duration: time.Hour}, Conditions: []rules.Condition{{Expression: expression, Message: message}}}
	}
	r.rules = &ApprovalRules{
		Lifetime: func(time.Duration) time.Duration { return time.Hour },
		Trusted:  func(time.Time) (rules.Trust, bool) { return rules.Trust{Untrusted: true}, false },
	}
	for _, each := range []rules.Rule{
		rule("own", "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')", "only the name api of its own namespace"),
		rule("any", "request.names.all(n, n.endsWith('.example.com'))", ""),
		{Name: "services", SignerName: ruledSigner, Preset: rules.ServiceNames},
	} {
		compiled, mistakes := rules.Compile(each, field.NewPath("rule"), conditions)
		if len(mistakes) > 0 {
			panic(mistakes)
		}
		r.rules.Rules = append(r.rules.Rules, compiled)
	}
	return r
}

func (r *ruled) reconciler() *Reconciler {
	passive := clocktesting.NewFakePassiveClock(now)
	return &Reconciler{
		Judges: map[string]Judge{kubeletSigner: KubeletClient{}, ruledSigner: r.rules}, Clock: passive, Denial: DenialPermanent,
		Readers: Readers{Live: r, Authorizer: r, ServerTime: servertime.Of(passive)},
	}
}

// web returns a request of ServiceAccount web in namespace shop.
func web(name string, modify ...func(*request)) *request {
	return object(append([]func(*request){
		signer(ruledSigner), usages("server auth"), says(&x509.CertificateRequest{DNSNames: fields(name)}), user("system:serviceaccount:shop:web"),
		groups("system:serviceaccounts", "system:serviceaccounts:shop"), func(obj *request) { obj.Spec.UID = "uid-1" },
	}, modify...)...)
}

var (
	// accountName matches the user names of ServiceAccounts.
	accountName = regexp.MustCompile(`^system:serviceaccount:([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?):` +
		`([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`)
	plainName   = regexp.MustCompile(`^[a-z0-9_][a-z0-9_-]*(\.[a-z0-9_][a-z0-9_-]*)*$`)
	addressLike = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*$`)
)

// strictRules returns the approval rules of newRuled that accept the content, in other words than theirs. All accounts and
// Services exist.
func (a asked) strictRules() (accepting []string) {
	all := func(is func(string) bool) bool {
		return !slices.ContainsFunc(a.dns, func(name string) bool { return !is(name) })
	}
	if len(a.organizations) > 0 || a.unit != "" || a.email != "" || len(a.addresses) > 0 || len(a.dns) == 0 ||
		!all(func(name string) bool {
			return plainName.MatchString(name) && len(name) <= 253 && !addressLike.MatchString(name)
		}) {
		return nil
	}
	parts := accountName.FindStringSubmatch(a.user)
	isAccount := parts != nil && len(parts[3]) <= 253 && slices.Contains(a.groups, "system:serviceaccounts") &&
		slices.Contains(a.groups, "system:serviceaccounts:"+parts[1])
	onlyNames := a.commonName == "" && slices.Equal(a.usages, []certificatesv1.KeyUsage{"server auth"})
	if onlyNames && isAccount && all(func(name string) bool { return name == "api."+parts[1]+".svc" }) {
		accepting = append(accepting, "own")
	}
	if onlyNames && all(func(name string) bool { return strings.HasSuffix(name, ".example.com") }) {
		accepting = append(accepting, "any")
	}
	named := a.commonName == "" || slices.Contains(a.dns, a.commonName)
	if isAccount && named && a.onlyUsages("server auth") && len(a.dns) <= 20 && all(func(name string) bool {
		service, rest, found := strings.Cut(name, ".")
		return found && service != "kubernetes" && (rest == parts[1]+".svc" || rest == parts[1]+".svc.cluster.local")
	}) {
		accepting = append(accepting, "services")
	}
	return accepting
}

// checkRules compares the approval rules with strictRules. No rule denies, and each approval has one rule.
func (a asked) checkRules(t *testing.T, world *ruled, obj *request) {
	t.Helper()
	world.asked = nil
	obj.Spec.SignerName, obj.Spec.UID = ruledSigner, "uid-1"
	r := world.reconciler()
	r.Assume = true
	_, decision, err := r.Decide(t.Context(), obj)
	accepting, approved := a.strictRules(), decision.Verdict == judge.Approve
	if err != nil || approved != (len(accepting) > 0) || approved && decision.By != accepting[0] || decision.Verdict == judge.Deny {
		t.Errorf("approval rules: %+v, error %v, want that %q accept %+v", decision, err, accepting, a)
	}
	expect.True(t, len(decision.Message) <= 4096 && decision.Message != "", "a message of %d bytes", len(decision.Message))
}

func approvedBy(rule string) string {
	return "Approve " + rule + " AutoApproved Auto approving by rule " + rule + " after SubjectAccessReview."
}

func waits(reason, message string) string {
	const before, after = "the request for signer example.com/serving is not approved: ", "; it is checked again within five minutes"
	return "Wait  " + reason + " " + before + message + after
}

// TestApprovalRules has the decisions about requests by three rules.
func TestApprovalRules(t *testing.T) {
	const (
		everyone   = "own any services"
		ownRefuses = "rule own: only the name api of its own namespace"
		anyRefuses = "rule any: the condition request.names.all(n, n.endsWith('.example.com')) is not true"
		tooFew     = `rule services: usages ["server auth"] are too few: a digital signature and a purpose are needed, ` +
			`of ["digital signature" "key encipherment" "server auth"]`
		nobody = "there is no rule that the requester may use: user \"system:serviceaccount:shop:web\" needs the verb use on " +
			"approvalrules (API group csr-controller-manager.io)"
		badUsage   = `usage "digital signature" is not one of ["server auth"]; `
		otherUsage = `rule 9: usage "server auth" is not one of ["client auth"]`
		another    = "ServiceAccount shop/web was deleted and created again: its UID is uid-1, and the requester's UID is \"uid-0\""
		notInGroup = "the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts"
	)
	type change = func(*ruled)
	signs, api := usages("digital signature, server auth"), web("api.shop.svc")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "web", errors.New("no role"))
	may := func(rules ...string) change { return func(r *ruled) { r.allowed = rules } }
	unsigned := func(r *ruled) { r.rules.Lifetime, r.rules.Trusted = nil, nil }
	external := func(r *ruled) {
		r.services["shop/api"] = corev1.ServiceTypeExternalName
		may("services")(r)
	}
	alone := func(change change) change { return func(r *ruled) { change(r); may("own")(r) } }
	after := func(others int, last string) change { // the requester may use only last, which comes after others that refuse the usage
		return func(r *ruled) {
			own := r.rules.Rules[0]
			r.allowed, r.rules.Rules = []string{last}, nil
			for i := range others {
				other := *own
				other.Name, other.Usages = fmt.Sprint(i), []certificatesv1.KeyUsage{"client auth"}
				r.rules.Rules = append(r.rules.Rules, &other)
			}
			r.rules.Rules = append(r.rules.Rules, own)
		}
	}
	fails := func(err error) change { return func(r *ruled) { r.err = err } }
	for name, test := range map[string]struct {
		obj    *request
		change change
		want   string // verdict, rule, reason and message, or the error
		asked  string // the rules whose use is reviewed
	}{
		"the first rule":  {api, nil, approvedBy("own"), "own"},
		"the second rule": {web("a.example.com"), nil, approvedBy("any"), "own any"},
		"the preset":      {web("api.shop.svc.cluster.local", signs), nil, approvedBy("services"), "services"},
		"no Service": {web("api.shop.svc.cluster.local", signs), func(r *ruled) { r.services = nil },
			waits("RuleRefused", "rule services: Service shop/api does not exist; rule own: "+badUsage+"rule any: "+strings.TrimSuffix(badUsage, "; ")), "services own any"},
		"an external name": {web("api.shop.svc", signs), external,
			waits("RuleRefused", "rule services: Service shop/api is of the type ExternalName, which names another host"), "services own any"},
		"three rules refuse": {web("api.kitchen.svc"), nil,
			waits("RuleRefused", ownRefuses+"; "+anyRefuses+"; "+tooFew), everyone},
		"rules of other requesters are not named": {web("api.kitchen.svc"), may("any"), waits("RuleRefused", anyRefuses), everyone},
		"no permission": {api, may(), waits("NotAuthorized", nobody), everyone},
		"another rule accepts than may be used": {web("a.example.com"), may("own"),
			waits("RuleRefused", ownRefuses), everyone},
		"ten reviews for a message": {web("api.kitchen.svc"), after(20, "own"), waits("RuleRefused", ownRefuses), "own 0 1 2 3 4 5 6 7 8 9"},
		"the tenth rule":            {web("api.kitchen.svc"), after(20, "9"), waits("RuleRefused", otherUsage), "own 0 1 2 3 4 5 6 7 8 9"},
		"an eleventh rule":          {web("api.kitchen.svc"), after(20, "10"), waits("NotAuthorized", nobody), "own 0 1 2 3 4 5 6 7 8 9"},
		"the account is deleted": {api, alone(func(r *ruled) { r.accounts = nil }),
			waits("RuleRefused", "rule own: ServiceAccount shop/web is deleted"), everyone},
		"the API server is down":           {api, fails(errDown), "error: get ServiceAccount shop/web: down", "own any"},
		"another rule needs nothing of it": {web("a.example.com"), fails(errDown), approvedBy("any"), "own any"},
		"the manager may not read an account": {api, fails(forbidden),
			waits("InventoryUnavailable", "get ServiceAccount shop/web: serviceaccounts \"web\" is forbidden: no role"), "own any"},
		"no answer about the permission": {api, func(r *ruled) { r.denied = errors.New("slow") },
			"error: review the permission to use a rule: slow", "own"},
		"the trust is not read yet": {api, func(r *ruled) {
			r.rules.Trusted = func(time.Time) (rules.Trust, bool) { return rules.Trust{Why: "unknown"}, true }
		},
			waits("InventoryPending", "the CAs that API servers trust are not read yet"), ""},
		"the manager may not approve": {api, func(r *ruled) { r.rules.Off = func() bool { return true } },
			waits("RightsMissing", "the approval rules for this signer are off, because this manager may not approve its requests: grant the "+
				"manager the verb approve on the resource signers of the API group certificates.k8s.io"), ""},
		"the manager may approve again": {api, func(r *ruled) { r.rules.Off = func() bool { return false } }, approvedBy("own"), "own"},
		"malformed": {web("", malformed), nil,
			"Ignore  Malformed spec.request is not a PEM block of type CERTIFICATE REQUEST; a new request is needed", ""},
		"another signer": {web("api.shop.svc", signer("example.com/serving2")), nil, "Ignore   ", ""},
		"without a duration": {api, alone(unsigned), waits("RuleRefused",
			"rule own: the request has no duration (spec.expirationSeconds), and this manager does not sign it"), everyone},
	} {
		world := newRuled()
		if test.change != nil {
			test.change(world)
		}
		_, decision, err := world.reconciler().Decide(t.Context(), test.obj)
		got := strings.Join([]string{decision.Verdict.String(), decision.By, decision.Reason, decision.Message}, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		expect.Equal(t, name, got, test.want)
		asked := strings.Join(mapped(world.asked, func(what authorizationv1.ResourceAttributes) string {
			want := authorizationv1.ResourceAttributes{Verb: "use", Group: "csr-controller-manager.io", Version: "*", Resource: "approvalrules"}
			want.Name = what.Name
			expect.True(t, what == want, "review of %+v, want %+v", what, want)
			return what.Name
		}), " ")
		expect.Equal(t, name+": asked about", asked, test.asked)
	}
}

// counted are Conditions that are true. They count their evaluations.
type counted struct{ evaluations int }

func (c *counted) Compile(rules.Rule, rules.Condition) (rules.Program, []string, []string) {
	return c, nil, nil
}

func (c *counted) Check(context.Context, *rules.Subject) csr.Objection {
	c.evaluations++
	return csr.NoObjection
}

// TestFloodOfReviews has the reviews that the requests of a requester cost who may use none of 1,000 rules. No condition is
// evaluated for it. Another requester, and the same one half a minute later, gets a right that was just granted.
func TestFloodOfReviews(t *testing.T) {
	conditions, passive := &counted{}, clocktesting.NewFakePassiveClock(now)
	world := newRuled()
	world.allowed, world.rules.Rules = nil, nil
	world.rules.refusals.cache = cache.NewLRUExpireCacheWithClock(20_000, passive)
	for i := range 1000 {
		compiled, mistakes := rules.Compile(rules.Rule{
			Name: fmt.Sprint("rule-", i), SignerName: ruledSigner, Usages: []certificatesv1.KeyUsage{"server auth"}, Allow: []string{"names"},
			MaxDuration: metav1.Duration{Duration: time.Hour}, Conditions: []rules.Condition{{Expression: "true"}},
		}, field.NewPath("rule"), conditions)
		expect.NoError(t, mistakes.ToAggregate())
		world.rules.Rules = append(world.rules.Rules, compiled)
	}
	r := world.reconciler()
	decides := func(name string, requests, reviews int, verdict judge.Verdict, modify ...func(*request)) {
		t.Helper()
		world.asked = nil
		for range requests {
			_, decision, err := r.Decide(t.Context(), web("a.example.com", modify...))
			expect.NoError(t, err)
			expect.Equal(t, name, decision.Verdict, verdict)
		}
		expect.Equal(t, name+": reviews", len(world.asked), reviews)
	}
	extra := func(obj *request) { obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"a": {"b"}} }
	another := func(obj *request) { obj.Spec.UID = "uid-2" }
	decides("a flood", 100, 1020, judge.Wait)
	decides("a flood of a requester that differs only by its extra", 20, 1020, judge.Wait, extra)
	decides("one request with another UID", 1, 1000, judge.Wait, another)
	decides("another usage", 20, 0, judge.Wait, usages("client auth"))
	expect.Equal(t, "evaluations", conditions.evaluations, 0)

	world.allowed = []string{"rule-19", "rule-20"}
	decides("granted at once to another requester", 1, 20, judge.Approve, groups("system:serviceaccounts"))
	decides("granted in the half minute after a flood", 1, 0, judge.Wait)
	passive.SetTime(now.Add(31 * time.Second))
	decides("half a minute later", 1, 20, judge.Approve)
	decides("an approval is not remembered", 1, 20, judge.Approve)
	world.allowed = nil
	decides("revoked", 1, 982, judge.Wait) // the last 18 of 38 refusals are remembered
}

// TestRefusalsGrantAtOnce checks that the first twenty refusals of a requester are not remembered.
func TestRefusalsGrantAtOnce(t *testing.T) {
	world := newRuled()
	world.allowed = nil
	r := world.reconciler()
	wait := func(times int) {
		for range times {
			_, decision, err := r.Decide(t.Context(), web("a.example.com"))
			expect.NoError(t, err)
			expect.Equal(t, "verdict", decision.Verdict, judge.Wait)
		}
	}
	wait(6) // three reviews each
	world.allowed = []string{"any"}
	_, decision, err := r.Decide(t.Context(), web("a.example.com"))
	expect.NoError(t, err)
	expect.Equal(t, "after 18 refusals", decision.By, "any")
}
