package approver

import (
	"context"
	"crypto/x509"
	"errors"
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

// by returns the outcome of a request that rule approves.
func by(rule string) string {
	return "Approve " + rule + " AutoApproved Auto approving by rule " + rule + " after SubjectAccessReview."
}

// waits returns the outcome of a request that is not approved.
func waits(reason, message string) string {
	const before, after = "the request for signer example.com/serving is not approved: ", "; it is checked again within five minutes"
	return "Wait  " + reason + " " + before + message + after
}

// TestApprovalRules has the decisions about requests by three rules.
func TestApprovalRules(t *testing.T) {
	t.Parallel()
	const (
		everyone   = "own any services"
		ownRefuses = "rule own: only the name api of its own namespace"
		anyRefuses = "rule any: the condition request.names.all(n, n.endsWith('.example.com')) is not true"
		tooFew     = `rule services: usages ["server auth"] are too few: a digital signature and a purpose are needed, ` +
			`of ["digital signature" "key encipherment" "server auth"]`
		nobody = "no rule that the requester may use: bind a ClusterRole with the verb use on approvalrules (API group " +
			"csr-controller-manager.io) to user \"system:serviceaccount:shop:web\""
		badUsage   = `usage "digital signature" is not one of ["server auth"]; `
		another    = "ServiceAccount shop/web was deleted and created again: its UID is uid-1, and the requester's UID is \"uid-0\""
		notInGroup = "the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts"
	)
	type change = func(*ruled)
	signs, api := usages("digital signature, server auth"), web("api.shop.svc")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "web", errors.New("no role"))
	may := func(rules ...string) change { return func(r *ruled) { r.allowed = rules } }
	unsigned := func(r *ruled) { r.policy.Lifetime, r.policy.Trusted = nil, nil }
	external := func(r *ruled) {
		r.services["shop/api"] = corev1.ServiceTypeExternalName
		may("services")(r)
	}
	alone := func(change change) change { return func(r *ruled) { change(r); may("own")(r) } }
	fails := func(err error) change { return func(r *ruled) { r.err = err } }
	for name, test := range map[string]struct {
		obj    *request
		change change
		want   string // verdict, rule, reason and message, or the error
		asked  string // the rules whose use is reviewed
	}{
		"the first rule":  {api, nil, by("own"), "own"},
		"the second rule": {web("a.example.com"), nil, by("any"), "any"},
		"the preset":      {web("api.shop.svc.cluster.local", signs), nil, by("services"), "services"},
		"no Service": {web("api.shop.svc.cluster.local", signs), func(r *ruled) { r.services = nil },
			waits("RuleRefused", "rule own: "+badUsage+"rule any: "+badUsage+"rule services: Service shop/api does not exist"), "services own any services"},
		"an external name": {web("api.shop.svc", signs), external,
			waits("RuleRefused", "rule services: Service shop/api is of the type ExternalName, which names another host"), "services own any services"},
		"three rules refuse": {web("api.kitchen.svc"), nil,
			waits("RuleRefused", ownRefuses+"; "+anyRefuses+"; "+tooFew), everyone},
		"others' rules are not told": {web("api.kitchen.svc"), may("any"), waits("RuleRefused", anyRefuses), everyone},
		"no permission":              {api, may(), waits("NotAuthorized", nobody), everyone},
		"another rule accepts than may be used": {web("a.example.com"), may("own"),
			waits("RuleRefused", ownRefuses), "any own services"},
		"the account is deleted": {api, alone(func(r *ruled) { r.accounts = nil }),
			waits("RuleRefused", ownRefuses+" (ServiceAccount shop/web is deleted)"), everyone},
		"the API server is down":           {api, fails(errDown), "error: get ServiceAccount shop/web: down", ""},
		"another rule needs nothing of it": {web("a.example.com"), fails(errDown), by("any"), "any"},
		"the manager may not read an account": {api, fails(forbidden),
			waits("InventoryUnavailable", "get ServiceAccount shop/web: serviceaccounts \"web\" is forbidden: no role"), ""},
		"no answer about the permission": {api, func(r *ruled) { r.denied = errors.New("slow") },
			"error: review the permission to use a rule: slow", "own"},
		"the trust is not read yet": {api, func(r *ruled) { r.policy.Trusted = func(time.Time) (string, bool) { return "unknown", true } },
			waits("InventoryPending", "the CAs that API servers trust are not read yet"), ""},
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
		got := strings.Join([]string{decision.Verdict.String(), decision.Rule, decision.Reason, decision.Message}, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		asked := strings.Join(mapped(world.asked, func(what authorizationv1.ResourceAttributes) string {
			want := authorizationv1.ResourceAttributes{Verb: "use", Group: "csr-controller-manager.io", Version: "*", Resource: "approvalrules"}
			if want.Name = what.Name; what != want {
				t.Errorf("review of %+v, want %+v", what, want)
			}
			return what.Name
		}), " ")
		if asked != test.asked {
			t.Errorf("%s: asked about %q, want %s", name, asked, test.asked)
		}
	}
}
