package approver

import (
	"context"
	"crypto/x509"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

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
	policy   *Policy
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
	compiler := must(rules.NewCompiler(csr.DefaultLimits))
	rule := func(name, expression, message string) rules.Rule {
		return rules.Rule{Name: name, SignerName: ruledSigner, Usages: []certificatesv1.KeyUsage{"server auth"}, Allow: []string{"names"},
			MaxDuration: metav1.Duration{Duration: time.Hour}, Conditions: []rules.Condition{{Expression: expression, Message: message}}}
	}
	r.policy = &Policy{
		Lifetime: func(time.Duration) time.Duration { return time.Hour },
		Trusted:  func(time.Time) (string, bool) { return "", false },
	}
	for _, each := range []rules.Rule{
		rule("own", "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')", "only the name api of its own namespace"),
		rule("any", "request.names.all(n, n.endsWith('.example.com'))", ""),
		{Name: "services", SignerName: ruledSigner, Preset: rules.ServiceNames},
	} {
		compiled, mistakes := compiler.Compile(each, field.NewPath("rule"))
		if len(mistakes) > 0 {
			panic(mistakes)
		}
		r.policy.Rules = append(r.policy.Rules, compiled)
	}
	return r
}

// reconciler returns the approver.
func (r *ruled) reconciler() *Reconciler {
	passive := clocktesting.NewFakePassiveClock(now)
	return &Reconciler{
		Rules: []Rule{NodeClient(), {SignerName: ruledSigner, Policy: r.policy}}, Live: r, Authorizer: authz.Authorizer(r), Clock: passive,
		ServerTime: servertime.Of(passive), Denial: DenialPermanent,
	}
}

// web returns a request of ServiceAccount web in namespace shop.
func web(name string, modify ...func(*request)) *request {
	template := &x509.CertificateRequest{}
	if name != "" {
		template.DNSNames = strings.Split(name, ",")
	}
	return object(append([]func(*request){
		signer(ruledSigner), usages("server auth"), says(template), user("system:serviceaccount:shop:web"),
		groups("system:serviceaccounts", "system:serviceaccounts:shop"), func(obj *request) { obj.Spec.UID = "uid-1" },
	}, modify...)...)
}

// TestApprovalRules has the decisions about requests by three rules.
func TestApprovalRules(t *testing.T) {
	t.Parallel()
	const before, after = "the request for signer example.com/serving is not approved: ", "; it is checked again within five minutes"
	const mismatch = "rule any: the condition request.names.all(n, n.endsWith('.example.com')) is not true"
	const usages3 = `rule services: usages ["server auth"] are too few: a digital signature and a purpose are needed, of ["digital signature" "key encipherment" "server auth"]`
	const nobody = "no rule that the requester may use: bind a ClusterRole with the verb use on approvalrules (API group " +
		"csr-controller-manager.io) to user \"system:serviceaccount:shop:web\""
	signs := usages("digital signature, server auth")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "web", errors.New("no role"))
	for name, test := range map[string]struct {
		obj    *request
		change func(*ruled)
		want   string // verdict, rule, reason and message, or the error
		asked  string
	}{
		"the first rule":  {obj: web("api.shop.svc"), want: "Approve own AutoApproved Auto approving by rule own after SubjectAccessReview.", asked: "own"},
		"the second rule": {obj: web("a.example.com"), want: "Approve any AutoApproved Auto approving by rule any after SubjectAccessReview.", asked: "any"},
		"a user by the second rule": {
			obj: web("a.example.com", user("jane")), want: "Approve any AutoApproved Auto approving by rule any after SubjectAccessReview.", asked: "any"},
		"the preset": {obj: web("api.shop.svc.cluster.local", signs),
			want:   "Wait  RuleRefused " + before + "rule own: usage \"digital signature\" is not one of [\"server auth\"]; rule any: usage \"digital signature\" is not one of [\"server auth\"]; rule services: Service shop/api does not exist" + after,
			change: func(r *ruled) { r.services = nil }, asked: "services own any services"},
		"the preset approves": {obj: web("api.shop.svc.cluster.local", signs), want: "Approve services AutoApproved Auto approving by rule services after SubjectAccessReview.", asked: "services"},
		"an external name": {obj: web("api.shop.svc", signs), change: func(r *ruled) {
			r.services["shop/api"] = corev1.ServiceTypeExternalName
			r.allowed = []string{"services"}
		},
			want: "Wait  RuleRefused " + before + "rule services: Service shop/api is of the type ExternalName, which names another host" + after, asked: "services own any services"},
		"three rules refuse": {obj: web("api.kitchen.svc"), want: "Wait  RuleRefused " + before + "rule own: only the name api of its own namespace; " + mismatch + "; " + usages3 + after, asked: "own any services"},
		"others' rules are not told": {obj: web("api.kitchen.svc"), change: func(r *ruled) { r.allowed = []string{"any"} },
			want: "Wait  RuleRefused " + before + mismatch + after, asked: "own any services"},
		"no permission": {obj: web("api.shop.svc"), change: func(r *ruled) { r.allowed = nil }, want: "Wait  NotAuthorized " + before + nobody + after, asked: "own any services"},
		"another rule accepts than may be used": {obj: web("a.example.com"), change: func(r *ruled) { r.allowed = []string{"own"} },
			want: "Wait  RuleRefused " + before + "rule own: only the name api of its own namespace" + after, asked: "any own services"},
		"the account is deleted": {obj: web("api.shop.svc"), change: func(r *ruled) { r.accounts = nil; r.allowed = []string{"own"} },
			want: "Wait  RuleRefused " + before + "rule own: only the name api of its own namespace (ServiceAccount shop/web is deleted)" + after, asked: "own any services"},
		"the account is another": {obj: web("api.shop.svc", func(obj *request) { obj.Spec.UID = "uid-0" }), change: func(r *ruled) { r.allowed = []string{"own"} },
			want: "Wait  RuleRefused " + before + "rule own: only the name api of its own namespace (ServiceAccount shop/web was deleted and created again: its UID is uid-1, and the requester's UID is \"uid-0\")" + after, asked: "own any services"},
		"a user who calls himself one": {obj: web("api.shop.svc", groups("system:authenticated")), change: func(r *ruled) { r.allowed = []string{"own"} },
			want: "Wait  RuleRefused " + before + "rule own: only the name api of its own namespace (the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts)" + after, asked: "own any services"},
		"the API server is down":              {obj: web("api.shop.svc"), change: func(r *ruled) { r.err = errors.New("down") }, want: "error: get ServiceAccount shop/web: down"},
		"another rule needs nothing of it":    {obj: web("a.example.com"), change: func(r *ruled) { r.err = errors.New("down") }, want: "Approve any AutoApproved Auto approving by rule any after SubjectAccessReview.", asked: "any"},
		"the manager may not read an account": {obj: web("api.shop.svc"), change: func(r *ruled) { r.err = forbidden }, want: "Wait  InventoryUnavailable " + before + "get ServiceAccount shop/web: serviceaccounts \"web\" is forbidden: no role" + after},
		"no answer about the permission":      {obj: web("api.shop.svc"), change: func(r *ruled) { r.denied = errors.New("slow") }, want: "error: review the permission to use a rule: slow", asked: "own"},
		"the trust is not read yet":           {obj: web("api.shop.svc"), change: func(r *ruled) { r.policy.Trusted = func(time.Time) (string, bool) { return "unknown", true } }, want: "Wait  InventoryPending " + before + "the CAs that API servers trust are not read yet" + after},
		"malformed":                           {obj: web("", malformed), want: "Ignore  Malformed spec.request is not a PEM block of type CERTIFICATE REQUEST; a new request is needed"},
		"another signer":                      {obj: web("api.shop.svc", signer("example.com/serving2")), want: "Ignore   "},
		"without a duration": {obj: web("api.shop.svc"), change: func(r *ruled) { r.policy.Lifetime, r.policy.Trusted = nil, nil; r.allowed = []string{"own"} },
			want: "Wait  RuleRefused " + before + "rule own: the request has no duration (spec.expirationSeconds), and this manager does not sign it" + after, asked: "own any services"},
		"with a duration": {obj: web("api.shop.svc", func(obj *request) { obj.Spec.ExpirationSeconds = new(int32(3600)) }), change: func(r *ruled) { r.policy.Lifetime, r.policy.Trusted = nil, nil },
			want: "Approve own AutoApproved Auto approving by rule own after SubjectAccessReview.", asked: "own"},
	} {
		world := newRuled()
		if test.change != nil {
			test.change(world)
		}
		_, decision, err := world.reconciler().Decide(t.Context(), test.obj)
		got := strings.Join([]string{decision.Verdict.String(), decision.Rule, decision.Reason, decision.Message}, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		asked := mapped(world.asked, func(what authorizationv1.ResourceAttributes) string { return what.Name })
		if test.asked != "" && strings.Join(asked, " ") != test.asked {
			t.Errorf("%s: asked about %q, want %s", name, asked, test.asked)
		}
		if len(decision.Message) > 1024 {
			t.Errorf("%s: a message of %d bytes", name, len(decision.Message))
		}
	}
}

// TestUsePermission has the permission that users are told to grant.
func TestUsePermission(t *testing.T) {
	t.Parallel()
	want := authorizationv1.ResourceAttributes{Verb: "use", Group: "csr-controller-manager.io", Version: "*", Resource: "approvalrules", Name: "a"}
	if diff := cmp.Diff(want, UsePermission("a")); diff != "" {
		t.Error(diff)
	}
}

// TestLongTextsFitIntoAnEvent has rules whose messages are as long as possible, and a requester with long names.
func TestLongTextsFitIntoAnEvent(t *testing.T) {
	t.Parallel()
	world := newRuled()
	compiler := must(rules.NewCompiler(csr.DefaultLimits))
	world.policy.Rules, world.allowed = nil, nil
	signerName := "example.com/" + strings.Repeat("s", 500)
	for i := range 5 {
		name := strings.Repeat("r", 62) + string(rune('0'+i))
		compiled, mistakes := compiler.Compile(rules.Rule{Name: name, SignerName: signerName, Usages: []certificatesv1.KeyUsage{"server auth"}, Allow: []string{"names"},
			MaxDuration: metav1.Duration{Duration: time.Hour}, Conditions: []rules.Condition{{Expression: "requester.extra['a'] == []", Message: strings.Repeat("ü", 100)}},
		}, field.NewPath("rule"))
		if len(mistakes) > 0 {
			t.Fatal(mistakes)
		}
		world.policy.Rules, world.allowed = append(world.policy.Rules, compiled), append(world.allowed, name)
	}
	r := world.reconciler()
	r.Rules = []Rule{{SignerName: signerName, Policy: world.policy}}
	_, decision, err := r.Decide(t.Context(), web("a", signer(signerName)))
	if err != nil || len(decision.Message) > 1024 || strings.Count(decision.Message, "rule rrr") != 3 || !strings.HasSuffix(decision.Message, "five minutes") {
		t.Errorf("%d bytes: %s, %v", len(decision.Message), decision.Message, err)
	}
	world.allowed = nil
	_, decision, err = r.Decide(t.Context(), web("a", signer(signerName), user(strings.Repeat("ü", 5000))))
	if err != nil || len(decision.Message) > 1024 || decision.Reason != "NotAuthorized" {
		t.Errorf("%d bytes: %s, %v", len(decision.Message), decision.Message, err)
	}
}

// accountName matches the user names of ServiceAccounts.
var accountName = regexp.MustCompile(`^system:serviceaccount:([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?):([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$`)

// strictRules returns the approval rules of newRuled that accept the content, in other words than theirs. All accounts and
// Services exist.
func (a asked) strictRules() (accepting []string) {
	parts := accountName.FindStringSubmatch(a.user)
	isAccount := parts != nil && len(parts[3]) <= 253 && slices.Contains(a.groups, "system:serviceaccounts") &&
		slices.Contains(a.groups, "system:serviceaccounts:"+parts[1])
	if a.commonName != "" && len(parts) > 0 && !slices.Contains(a.dns, a.commonName) {
		isAccount = false
	}
	plain := func(name string) bool {
		return regexp.MustCompile(`^[a-z0-9_][a-z0-9_-]*(\.[a-z0-9_][a-z0-9_-]*)*$`).MatchString(name) && len(name) <= 253
	}
	if len(a.organizations) > 0 || a.unit != "" || a.email != "" || len(a.addresses) > 0 || len(a.dns) == 0 ||
		slices.ContainsFunc(a.dns, func(name string) bool { return !plain(name) || addressLike(name) }) {
		return nil
	}
	onlyServer := slices.Equal(a.usages, []certificatesv1.KeyUsage{"server auth"})
	all := func(is func(string) bool) bool {
		return !slices.ContainsFunc(a.dns, func(name string) bool { return !is(name) })
	}
	if a.commonName == "" && onlyServer && isAccount && all(func(name string) bool { return name == "api."+parts[1]+".svc" }) {
		accepting = append(accepting, "own")
	}
	if a.commonName == "" && onlyServer && all(func(name string) bool { return strings.HasSuffix(name, ".example.com") }) {
		accepting = append(accepting, "any")
	}
	if isAccount && a.onlyUsages("server auth") && len(a.dns) <= 20 && all(func(name string) bool {
		service, _, found := strings.Cut(name, ".")
		rest := strings.TrimPrefix(name, service+".")
		return found && service != "kubernetes" && (rest == parts[1]+".svc" || rest == parts[1]+".svc.cluster.local")
	}) {
		accepting = append(accepting, "services")
	}
	return accepting
}

func addressLike(name string) bool {
	return regexp.MustCompile(`(^|\.)[0-9]+$`).MatchString(name)
}

// checkRules compares the approval rules with strictRules. No rule denies, and each approval has one rule.
func (a asked) checkRules(t *testing.T, world *ruled, obj *request) {
	t.Helper()
	world.asked = nil
	obj.Spec.SignerName, obj.Spec.UID = ruledSigner, "uid-1"
	r := world.reconciler()
	r.Assume = true
	_, decision, err := r.Decide(t.Context(), obj)
	accepting := a.strictRules()
	approved := decision.Verdict == verdict.Approve
	if err != nil || approved != (len(accepting) > 0) || approved && decision.Rule != accepting[0] || decision.Verdict == verdict.Deny {
		t.Errorf("approval rules: %+v, error %v, want that %q accept %+v", decision, err, accepting, a)
	}
	if len(decision.Message) > 4096 || decision.Message == "" {
		t.Errorf("a message of %d bytes", len(decision.Message))
	}
}
