package loop

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	shopSigner   = "example.com/serving"
	spiffeSigner = "example.com/spiffe"
	ownSigner    = certificatesv1.KubeAPIServerClientSignerName
)

// shopRules are the rules of the tests. The rule conditions is the first rule of docs/reference/approval-rules.md.
const shopRules = `
  - {name: services, signerName: example.com/serving, preset: serviceNames}
  - name: conditions
    signerName: example.com/serving
    usages: [digital signature, key encipherment, server auth]
    maxDuration: 168h
    allow: [names]
    conditions:
    - expression: "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')"
      message: "a ServiceAccount may ask only for the name api of its own namespace"
  - {name: workloads, signerName: example.com/spiffe, preset: spiffe, trustDomain: example.org}
  - {name: people, signerName: kubernetes.io/kube-apiserver-client, preset: ownIdentity, expiryExtra: example.com/exp}
`

// withRules returns the options of a manager with approval rules, and with the signers of shopRules.
func withRules(t *testing.T, rules string) controllers.Options {
	t.Helper()
	dir, own, cluster := t.TempDir(), kit.NewCA(t), kit.ControlPlane(t).CA
	for name, data := range map[string][]byte{
		"own.crt": own.CertPEM, "own.key": own.KeyPEM, "cluster.crt": cluster.CertPEM, "cluster.key": cluster.KeyPEM,
	} {
		kit.Write(t, filepath.Join(dir, name), data)
	}
	c, err := config.Load([]string{kit.Configure(t, strings.ReplaceAll(`selfCheck: {interval: 0s}
signing:
  signers:
  - {name: example.com/serving, certFile: DIR/own.crt, keyFile: DIR/own.key, usages: [digital signature, key encipherment, server auth], duration: 24h}
  - {name: example.com/spiffe, certFile: DIR/own.crt, keyFile: DIR/own.key, usages: [digital signature, key encipherment, server auth, client auth], duration: 24h}
  - {name: kubernetes.io/kube-apiserver-client, certFile: DIR/cluster.crt, keyFile: DIR/cluster.key, duration: 1h}
approval:
  rules:`, "DIR", dir)+rules)})
	if err != nil {
		t.Fatal(err)
	}
	options, err := controllers.FromConfiguration(c)
	if err != nil {
		t.Fatal(err)
	}
	return options
}

// mayUse grants a user the right to create requests, and to use approval rules.
func mayUse(t *testing.T, user string, rules ...string) {
	t.Helper()
	kit.Grant(t, user, kit.MayCreate)
	if len(rules) == 0 {
		return
	}
	kit.GrantRule(t, user, "csr-controller-manager.io", "approvalrules", "use", rules...)
	kit.Eventually(t, "the right to use "+rules[0], func(ctx context.Context) error {
		allowed, err := authz.SubjectAccess{Client: kit.Admin(t)}.Allowed(ctx, csr.Requester{Username: user}, approver.UsePermission(rules[0]))
		if err == nil && !allowed {
			err = errors.New("not yet")
		}
		return err
	})
}

// shopAccount creates ServiceAccount web in a namespace, which may use rules. It returns its configuration.
func shopAccount(t *testing.T, namespace string, rules ...string) *rest.Config {
	t.Helper()
	kit.NewNamespace(t, namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	kit.Create(t, kit.Admin(t), account)
	mayUse(t, serviceaccount.MakeUsername(namespace, "web"), rules...)
	return kit.TokenOf(t, account)
}

// shopService creates a Service.
func shopService(t *testing.T, namespace, name string, change ...func(*corev1.Service)) *corev1.Service {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}
	for _, each := range change {
		each(service)
	}
	kit.Create(t, kit.Admin(t), service)
	return service
}

// asking returns a request for a signer.
func asking(t *testing.T, signerName string, template x509.CertificateRequest, usages ...certificatesv1.KeyUsage) *kit.Request {
	t.Helper()
	return kit.NodeRequest(t, "", func(obj *kit.Request) {
		obj.Spec.SignerName, obj.Spec.Usages, obj.Spec.Request = signerName, usages, kit.Payload(t, template)
	})
}

var (
	serverUsages = []certificatesv1.KeyUsage{"digital signature", "server auth"}
	clientUsages = []certificatesv1.KeyUsage{"digital signature", "client auth"}
)

func named(names ...string) x509.CertificateRequest { return x509.CertificateRequest{DNSNames: names} }

func identified(t *testing.T, id string) x509.CertificateRequest {
	t.Helper()
	uri, err := url.Parse(id)
	if err != nil {
		t.Fatal(err)
	}
	return x509.CertificateRequest{URIs: []*url.URL{uri}}
}

// person returns a client of a user with a UID, groups and extra, as an authenticator of tokens would report them.
func person(t *testing.T, user, uid string, groups []string, extra map[string][]string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(kit.ControlPlane(t).Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, UID: uid, Groups: append(groups, "system:authenticated"), Extra: extra}
	return kit.ClientOf(t, cfg)
}

// TestRulesIssue runs the approver and the signer with the roles that ship. Each preset, and a rule with conditions, gets a
// certificate. A Service that is deleted before the decision makes the request wait.
func TestRulesIssue(t *testing.T) {
	kit.Parallel(t)
	kit.ApplyAll(t, kit.BoundTo(t, "csr-approver", kit.Rendered(t, "approval-rules")))
	kit.MaySign(t, kit.SignerAccount, shopSigner, spiffeSigner)
	approver := serviceaccount.MakeUsername(kit.SystemNamespace, "csr-approver")
	kit.GrantRule(t, approver, certificatesv1.GroupName, "signers", "approve", shopSigner, spiffeSigner, ownSigner)
	web := kit.ClientOf(t, shopAccount(t, "shop", "services", "conditions", "workloads"))
	mayUse(t, "jane", "people")
	shopService(t, "shop", "web")
	options := withRules(t, shopRules)
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Rules = append(o.Approver.Rules, options.Approver.Rules[1:]...)
		o.Signer = options.Signer // the rules ask it whether API servers trust a CA
	}}, "signer", "approver")

	issued := func(by client.Client, obj *kit.Request) *kit.Request {
		t.Helper()
		return kit.Reaches(t, kit.CreateRequest(t, by, obj), csr.Issued)
	}
	obj := issued(web, asking(t, shopSigner, named("web.shop.svc", "web.shop.svc.cluster.local"), serverUsages...))
	if leaf := kit.Leaf(t, obj); !slices.Equal(leaf.DNSNames, []string{"web.shop.svc", "web.shop.svc.cluster.local"}) || leaf.Subject.String() != "" {
		t.Errorf("names %q, subject %s", leaf.DNSNames, leaf.Subject)
	}
	if condition := obj.Status.Conditions[0]; condition.Message != "Auto approving by rule services after SubjectAccessReview." {
		t.Errorf("condition %+v", condition)
	}
	issued(web, asking(t, shopSigner, named("api.shop.svc"), "server auth"))
	const id = "spiffe://example.org/ns/shop/sa/web"
	obj = issued(web, asking(t, spiffeSigner, identified(t, id), append(clientUsages, "server auth")...))
	if leaf := kit.Leaf(t, obj); len(leaf.URIs) != 1 || leaf.URIs[0].String() != id {
		t.Errorf("URIs %v", leaf.URIs)
	}
	jane := person(t, "jane", "", []string{"developers"}, map[string][]string{
		csr.CredentialIDKey: {"JTI=4f1c"}, "example.com/exp": {fmt.Sprint(time.Now().Add(2 * time.Hour).Unix())},
	})
	subject := x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"developers"}}}
	obj = issued(jane, asking(t, ownSigner, subject, clientUsages...))
	if leaf := kit.Leaf(t, obj); leaf.Subject.String() != "CN=jane,O=developers" || time.Until(leaf.NotAfter) > time.Hour {
		t.Errorf("subject %s, until %s", leaf.Subject, leaf.NotAfter)
	}

	kit.Remove(t, shopService(t, "shop", "gone"))
	waits := kit.CreateRequest(t, web, asking(t, shopSigner, named("gone.shop.svc"), serverUsages...))
	kit.HasEvent(t, waits, "RuleRefused", "rule services: Service shop/gone does not exist", "rule conditions: a ServiceAccount may ask only")
	if state := csr.StateOf(kit.Reload(t, waits)); state != csr.Pending {
		t.Errorf("a request for a Service that does not exist is %s", state)
	}
	shopService(t, "shop", "gone")
	kit.Reaches(t, waits, csr.Issued)
	stranger := kit.ClientOf(t, shopAccount(t, "kitchen"))
	kit.HasEvent(t, kit.CreateRequest(t, stranger, asking(t, shopSigner, named("api.kitchen.svc"), "server auth")), "NotAuthorized", "no rule that the requester may use")
}

// ruleApprover returns an approver with rules, which a test calls itself.
func ruleApprover(t *testing.T, rules string) *approver.Reconciler {
	t.Helper()
	r := withRules(t, rules).Approver
	for _, rule := range r.Rules {
		if rule.Policy != nil && rule.Policy.Trusted != nil { // no signer runs that reads it
			rule.Policy.Trusted = func(time.Time) (string, bool) { return "", false }
		}
	}
	r.Client, r.Live, r.Authorizer = kit.Admin(t), kit.Admin(t), authz.SubjectAccess{Client: kit.Admin(t)}
	r.Reporter, r.Clock, r.ServerTime = report.New(events.NewFakeRecorder(1000), clock.RealClock{}), clock.RealClock{}, servertime.Of(clock.RealClock{})
	r.Denial = approver.DenialPermanent // rules never deny
	return r
}

// decides checks what becomes of obj after the approver has judged it: want is "approved", or a part of the Event of a
// request that waits.
func decides(t *testing.T, r *approver.Reconciler, name string, obj *kit.Request, want string) {
	t.Helper()
	_, decision, err := r.Decide(t.Context(), obj)
	if err != nil {
		t.Fatal(err)
	}
	reconcileOnce(t, r, obj)
	state, note := csr.StateOf(kit.Reload(t, obj)), decision.Reason+": "+decision.Message
	if want == "approved" && state != csr.Approved || want != "approved" && (state != csr.Pending || !strings.Contains(note, want)) {
		t.Errorf("%s: %s, %s; want %q", name, state, note, want)
	}
}

// TestAttacksOnRules has an attacker with only the right to create requests and to use one rule. No try is approved.
func TestAttacksOnRules(t *testing.T) {
	kit.Parallel(t)
	victim := shopAccount(t, "kitchen", "services")
	shopService(t, "kitchen", "api")
	attacker := shopAccount(t, "shop", "services")
	shopService(t, "shop", "api")
	shopService(t, "shop", "kubernetes")
	shopService(t, "shop", "outside", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
	})
	as := kit.ClientOf(t, attacker)
	spiffe := kit.ClientOf(t, shopAccount(t, "garden", "workloads"))
	mayUse(t, "mallory", "people")
	credential := map[string][]string{csr.CredentialIDKey: {"JTI=1"}, "example.com/exp": {fmt.Sprint(time.Now().Add(time.Hour + time.Minute).Unix())}}
	mallory := person(t, "mallory", "", []string{"interns"}, credential)
	account := "system:serviceaccount:kitchen:web"
	byCertificate, err := kit.ControlPlane(t).Env.AddUser(envtest.User{Name: account, Groups: serviceaccount.MakeGroupNames("kitchen")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	subject := func(name string, groups ...string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}
	}
	long := func(obj *kit.Request) { obj.Spec.ExpirationSeconds = new(int32(8 * 24 * 3600)) }
	r := ruleApprover(t, shopRules)
	for name, try := range map[string]struct {
		by     client.Client
		obj    *kit.Request
		change func(*kit.Request)
		want   string
	}{
		"the name of another namespace":            {by: as, obj: asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...), want: "is not SERVICE.shop.svc"},
		"its own name and another":                 {by: as, obj: asking(t, shopSigner, named("api.shop.svc", "api.kitchen.svc"), serverUsages...), want: "is not SERVICE.shop.svc"},
		"a name outside of the cluster":            {by: as, obj: asking(t, shopSigner, named("example.com"), serverUsages...), want: "is not SERVICE.shop.svc"},
		"the API server":                           {by: as, obj: asking(t, shopSigner, named("kubernetes.default.svc"), serverUsages...), want: "is not SERVICE.shop.svc"},
		"a Service with the API server's name":     {by: as, obj: asking(t, shopSigner, named("kubernetes.shop.svc"), serverUsages...), want: "is a name of the API server"},
		"a Service that names another host":        {by: as, obj: asking(t, shopSigner, named("outside.shop.svc"), serverUsages...), want: "of the type ExternalName"},
		"a Service that does not exist":            {by: as, obj: asking(t, shopSigner, named("none.shop.svc"), serverUsages...), want: "Service shop/none does not exist"},
		"a wildcard":                               {by: as, obj: asking(t, shopSigner, named("*.shop.svc"), serverUsages...), want: "is a wildcard"},
		"the victim's name as common name":         {by: as, obj: asking(t, shopSigner, x509.CertificateRequest{Subject: pkix.Name{CommonName: "api.kitchen.svc"}, DNSNames: []string{"api.shop.svc"}}, serverUsages...), want: "is not one of the DNS names"},
		"a group":                                  {by: as, obj: asking(t, shopSigner, x509.CertificateRequest{Subject: pkix.Name{Organization: []string{"system:masters"}}, DNSNames: []string{"api.shop.svc"}}, serverUsages...), want: "the rule does not allow organizations"},
		"a client certificate":                     {by: as, obj: asking(t, shopSigner, named("api.shop.svc"), append(serverUsages, "client auth")...), want: "usage \"client auth\" is not one of"},
		"a certificate for every purpose":          {by: as, obj: asking(t, shopSigner, named("api.shop.svc"), "digital signature"), want: "a digital signature and a purpose are needed"},
		"a certificate of its own CA":              {by: as, obj: asking(t, shopSigner, named("api.shop.svc"), append(serverUsages, "cert sign")...), want: "usage \"cert sign\" is not one of"},
		"no names":                                 {by: as, obj: asking(t, shopSigner, named(), serverUsages...), want: "asks for no name"},
		"a name in upper case":                     {by: as, obj: asking(t, shopSigner, named("API.kitchen.svc"), serverUsages...), want: "has upper-case letters"},
		"an address in place of a name":            {by: as, obj: asking(t, shopSigner, named("10.96.0.1"), serverUsages...), want: "is an address"},
		"an address as inet_aton reads it":         {by: as, obj: asking(t, shopSigner, named("127.1"), serverUsages...), want: "is an address"},
		"another rule, which it may not use":       {by: as, obj: asking(t, shopSigner, named("api.shop.svc"), "server auth"), want: "rule services: usages [\"server auth\"] are too few"},
		"a rule for another signer":                {by: as, obj: asking(t, spiffeSigner, identified(t, "spiffe://example.org/ns/shop/sa/web"), clientUsages...), want: "no rule that the requester may use"},
		"a user with a ServiceAccount's name":      {by: kit.ClientOf(t, byCertificate.Config()), obj: asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...), want: "but no UID"},
		"that user, with another account's UID":    {by: person(t, account, "1", serviceaccount.MakeGroupNames("kitchen"), nil), obj: asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...), want: "was deleted and created again"},
		"that user, without the namespace":         {by: person(t, account, "1", []string{"system:serviceaccounts"}, nil), obj: asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...), want: "is not in the group system:serviceaccounts:kitchen"},
		"another workload":                         {by: spiffe, obj: asking(t, spiffeSigner, identified(t, "spiffe://example.org/ns/kitchen/sa/web"), clientUsages...), want: "the only URI must be spiffe://example.org/ns/garden/sa/web"},
		"another trust domain":                     {by: spiffe, obj: asking(t, spiffeSigner, identified(t, "spiffe://example.net/ns/garden/sa/web"), clientUsages...), want: "the only URI must be"},
		"a workload with a user's name":            {by: spiffe, obj: asking(t, spiffeSigner, subject("root"), clientUsages...), want: "does not allow commonName"},
		"a workload for longer than a day":         {by: spiffe, obj: asking(t, spiffeSigner, identified(t, "spiffe://example.org/ns/garden/sa/web"), clientUsages...), change: long, want: "approved"}, // the signer lowers it to 24h
		"another user":                             {by: mallory, obj: asking(t, ownSigner, subject("root"), clientUsages...), want: "is not the requester's user name"},
		"a group that the user is not in":          {by: mallory, obj: asking(t, ownSigner, subject("mallory", "admins"), clientUsages...), want: "is not in all of the groups"},
		"a group of Kubernetes":                    {by: mallory, obj: asking(t, ownSigner, subject("mallory", "system:authenticated"), clientUsages...), want: "may begin with system: or kubeadm:"},
		"a user's certificate for a server":        {by: mallory, obj: asking(t, ownSigner, x509.CertificateRequest{Subject: pkix.Name{CommonName: "mallory"}, DNSNames: []string{"a"}}, clientUsages...), want: "does not allow names"},
		"a certificate that renews itself":         {by: person(t, "mallory", "", nil, map[string][]string{csr.CredentialIDKey: {"X509SHA256=00"}}), obj: asking(t, ownSigner, subject("mallory"), clientUsages...), want: "a certificate cannot renew itself"},
		"an impersonation without a credential":    {by: person(t, "mallory", "", nil, nil), obj: asking(t, ownSigner, subject("mallory"), clientUsages...), want: "a certificate cannot renew itself"},
		"two credentials":                          {by: person(t, "mallory", "", nil, map[string][]string{csr.CredentialIDKey: {"JTI=1", "JTI=2"}}), obj: asking(t, ownSigner, subject("mallory"), clientUsages...), want: "a certificate cannot renew itself"},
		"a credential that ends earlier":           {by: person(t, "mallory", "", nil, map[string][]string{csr.CredentialIDKey: {"JTI=1"}, "example.com/exp": {fmt.Sprint(time.Now().Add(30 * time.Minute).Unix())}}), obj: asking(t, ownSigner, subject("mallory"), clientUsages...), want: "would outlive the credential"},
		"a credential whose end is not told":       {by: person(t, "mallory", "", nil, map[string][]string{csr.CredentialIDKey: {"JTI=1"}}), obj: asking(t, ownSigner, subject("mallory"), clientUsages...), want: "would outlive the credential"},
		"the victim's own request (not an attack)": {by: kit.ClientOf(t, victim), obj: asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...), want: "approved"},
		"the attacker's own name (not an attack)":  {by: as, obj: asking(t, shopSigner, named("api.shop.svc"), serverUsages...), want: "approved"},
		"mallory's own name (not an attack)":       {by: mallory, obj: asking(t, ownSigner, subject("mallory", "interns"), clientUsages...), want: "approved"},
	} {
		if try.change != nil {
			try.change(try.obj)
		}
		decides(t, r, name, kit.CreateRequest(t, try.by, try.obj), try.want)
	}
	own := kit.CreateRequest(t, as, asking(t, shopSigner, named("api.kitchen.svc"), serverUsages...))
	csr.AddCondition(own, certificatesv1.CertificateApproved, "Mine", "", time.Time{})
	if err := as.SubResource("approval").Update(t.Context(), own); err == nil {
		t.Error("the attacker approves his own request")
	}
}

// TestConditionsOnAnAPIServer has expressions whose result is an error, or that cost too much. They do not accept, and the
// Event says why. An error that does not decide the result accepts.
func TestConditionsOnAnAPIServer(t *testing.T) {
	kit.Parallel(t)
	as := kit.ClientOf(t, shopAccount(t, "shop", "tried"))
	for expression, want := range map[string]string{
		"1/0 == 1 || true":             "approved",
		"1/0 == 1":                     "(error: division by zero)",
		"requester.extra['no'] == []":  "(error: no such key: no)",
		"requester.username == 'root'": "the condition requester.username == 'root' is not true",
		"object.annotations['long'].split('').all(c, c != 'b')": "(the conditions ",
	} {
		r := ruleApprover(t, fmt.Sprintf(`
  - {name: tried, signerName: example.com/serving, usages: [server auth], maxDuration: 24h, allow: [names], conditions: [{expression: %q}]}`, expression))
		obj := asking(t, shopSigner, named("api.shop.svc"), "server auth")
		obj.Annotations = map[string]string{"long": strings.Repeat("a", 250_000)}
		decides(t, r, expression, kit.CreateRequest(t, as, obj), want)
	}
}
