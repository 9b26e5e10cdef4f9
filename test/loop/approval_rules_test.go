package loop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	shopSigner   = "example.com/serving"
	spiffeSigner = "example.com/spiffe"
	ownSigner    = certificatesv1.KubeAPIServerClientSignerName
	spiffeID     = "spiffe://example.org/ns/shop/sa/web"
)

// shopConfig has rules and their signers. The rule conditions is the first rule of docs/reference/approval-rules.md.
const shopConfig = `
selfCheck: {interval: 0s}
signing:
  signers:
  - {name: example.com/serving, certFile: DIR/own.crt, keyFile: DIR/own.key, duration: 24h,
     usages: [digital signature, key encipherment, server auth]}
  - {name: example.com/spiffe, certFile: DIR/own.crt, keyFile: DIR/own.key, usages: [digital signature, server auth, client auth], duration: 24h}
  - {name: kubernetes.io/kube-apiserver-client, certFile: DIR/cluster.crt, keyFile: DIR/cluster.key, duration: 1h}
approval:
  rules:
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

// shopOptions returns the options of a manager with shopConfig.
func shopOptions(t *testing.T) controllers.Options {
	t.Helper()
	dir, own, cluster := t.TempDir(), kit.NewCA(t), kit.ControlPlane(t).CA
	for name, data := range map[string][]byte{
		"own.crt": own.CertPEM, "own.key": own.KeyPEM, "cluster.crt": cluster.CertPEM, "cluster.key": cluster.KeyPEM,
	} {
		kit.Write(t, filepath.Join(dir, name), data)
	}
	c := kit.Must(config.Load([]string{kit.Configure(t, strings.ReplaceAll(shopConfig, "DIR", dir))}, cel.New))(t)
	return kit.Must(controllers.FromConfiguration(c))(t)
}

// mayUse grants a user the right to create requests, and to use approval rules.
func mayUse(t *testing.T, user string, rules ...string) {
	t.Helper()
	kit.Grant(t, user, kit.MayCreate)
	kit.GrantRule(t, user, "csr-controller-manager.io", "approvalrules", "use", rules...)
	kit.Eventually(t, "the right to use "+rules[0], func(ctx context.Context) error {
		allowed, err := authz.SubjectAccess{Client: kit.Admin(t)}.Allowed(ctx, csr.Requester{Username: user}, approver.UsePermission(rules[0]))
		return errors.Join(err, kit.OrError(allowed, "not yet"))
	})
}

// shopAccount returns a client of ServiceAccount web in a new namespace, which may use rules.
func shopAccount(t *testing.T, namespace string, rules ...string) client.Client {
	t.Helper()
	kit.NewNamespace(t, namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	kit.Create(t, kit.Admin(t), account)
	mayUse(t, serviceaccount.MakeUsername(namespace, "web"), rules...)
	return kit.ClientOf(t, kit.TokenOf(t, account))
}

// shopService creates a Service. With the name of another host it is of the type ExternalName.
func shopService(t *testing.T, namespace, name, host string) *corev1.Service {
	t.Helper()
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}, ExternalName: host},
	}
	if host != "" {
		service.Spec.Type = corev1.ServiceTypeExternalName
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

func asksNames(t *testing.T, names ...string) *kit.Request {
	return asking(t, shopSigner, x509.CertificateRequest{DNSNames: names}, "digital signature", "server auth")
}

func asksURI(t *testing.T, id string) *kit.Request {
	uris := []*url.URL{kit.Must(url.Parse(id))(t)}
	return asking(t, spiffeSigner, x509.CertificateRequest{URIs: uris}, "digital signature", "client auth")
}

func asksIdentity(t *testing.T, user string, groups ...string) *kit.Request {
	template := x509.CertificateRequest{Subject: pkix.Name{CommonName: user, Organization: groups}}
	return asking(t, ownSigner, template, "digital signature", "client auth")
}

// person returns a client of a user with a UID, groups and a credential, as an authenticator of tokens would report them. The
// credential ends in that time, unless it is 0.
func person(t *testing.T, user, uid string, groups []string, credential string, ends time.Duration) client.Client {
	t.Helper()
	extra := map[string][]string{}
	if credential != "" {
		extra[csr.CredentialIDKey] = []string{credential}
	}
	if ends != 0 {
		extra["example.com/exp"] = []string{fmt.Sprint(time.Now().Add(ends).Unix())}
	}
	groups = append(slices.Clone(groups), "system:authenticated")
	return kit.ActAs(t, rest.ImpersonationConfig{UserName: user, UID: uid, Groups: groups, Extra: extra})
}

// TestRulesIssue runs the approver and the signer with the roles that ship. Each preset, and a rule with conditions, gets a
// certificate. A Service that is deleted before the decision makes the request wait.
func TestRulesIssue(t *testing.T) {
	kit.Parallel(t)
	kit.ApplyAll(t, kit.BoundTo(t, "csr-approver", kit.Rendered(t, "approval-rules")))
	kit.MaySign(t, kit.SignerAccount, shopSigner, spiffeSigner)
	approver := serviceaccount.MakeUsername(kit.SystemNamespace, "csr-approver")
	kit.GrantRule(t, approver, certificatesv1.GroupName, "signers", "approve", shopSigner, spiffeSigner, ownSigner)
	web := shopAccount(t, "shop", "services", "conditions", "workloads")
	mayUse(t, "jane", "people")
	shopService(t, "shop", "web", "")
	options := shopOptions(t)
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Approver.Judges = options.Approver.Judges
		o.Signer = options.Signer // the rules ask it whether API servers trust a CA
	}}, "signer", "approver")

	issued := func(by client.Client, obj *kit.Request) *x509.Certificate {
		t.Helper()
		return kit.Leaf(t, kit.Reaches(t, kit.CreateRequest(t, by, obj), csr.Issued))
	}
	names := []string{"web.shop.svc", "web.shop.svc.cluster.local"}
	if leaf := issued(web, asksNames(t, names...)); !slices.Equal(leaf.DNSNames, names) || leaf.Subject.String() != "" {
		t.Errorf("names %q, subject %s", leaf.DNSNames, leaf.Subject)
	}
	issued(web, asksNames(t, "api.shop.svc"))
	if leaf := issued(web, asksURI(t, spiffeID)); len(leaf.URIs) != 1 || leaf.URIs[0].String() != spiffeID {
		t.Errorf("URIs %v", leaf.URIs)
	}
	jane := person(t, "jane", "", []string{"developers"}, "JTI=4f1c", 2*time.Hour)
	leaf := issued(jane, asksIdentity(t, "jane", "developers"))
	kit.Check(t, leaf.Subject.String() == "CN=jane,O=developers" && time.Until(leaf.NotAfter) <= time.Hour,
		"subject %s, until %s", leaf.Subject, leaf.NotAfter)

	kit.Remove(t, shopService(t, "shop", "gone", ""))
	waits := kit.CreateRequest(t, web, asksNames(t, "gone.shop.svc"))
	kit.HasEvent(t, waits, "RuleRefused", "rule services: Service shop/gone does not exist", "rule conditions: a ServiceAccount may ask only")
	kit.IsIn(t, waits, csr.Pending)
	shopService(t, "shop", "gone", "")
	kit.Reaches(t, waits, csr.Issued)
	kit.Equal(t, "message", waits.Status.Conditions[0].Message, "Auto approving by rule services after SubjectAccessReview.")
	stranger := shopAccount(t, "kitchen", "workloads")
	kit.HasEvent(t, kit.CreateRequest(t, stranger, asksNames(t, "api.kitchen.svc")), "NotAuthorized", "no rule that the requester may use")
}

// ruleApprover returns an approver with the rules of shopConfig, which a test calls itself.
func ruleApprover(t *testing.T) *approver.Reconciler {
	t.Helper()
	r := shopOptions(t).Approver
	for _, each := range r.Judges {
		if judge, are := each.(*approver.ApprovalRules); are && judge.Trusted != nil { // no signer runs that reads it
			judge.Trusted = func(time.Time) (rules.Trust, bool) { return rules.Trust{Untrusted: true}, false }
		}
	}
	r.Client, r.Live, r.Authorizer = kit.Admin(t), kit.Admin(t), authz.SubjectAccess{Client: kit.Admin(t)}
	r.Recorder, r.Clock, r.ServerTime = events.NewFakeRecorder(1000), clock.RealClock{}, servertime.Of(clock.RealClock{})
	r.Denial = approver.DenialPermanent // rules never deny
	return r
}

// decides has a client create obj, and checks what becomes of it after the approver has judged it: want is "approved", or a part
// of the Event of a request that waits.
func decides(t *testing.T, r *approver.Reconciler, name string, by client.Client, obj *kit.Request, want string) {
	t.Helper()
	kit.Create(t, by, obj)
	_, decision, err := r.Decide(t.Context(), obj)
	kit.NoError(t, err)
	reconcileOnce(t, r, obj)
	state, note := csr.StateOf(kit.Reload(t, obj)), decision.Reason+": "+decision.Message
	if want == "approved" && state != csr.Approved || want != "approved" && (state != csr.Pending || !strings.Contains(note, want)) {
		t.Errorf("%s: %s, %s; want %q", name, state, note, want)
	}
}

// TestAttacksOnRules has attackers with only the right to create requests and to use one rule. The API server tells who they
// are. The tests of the presets in pkg/rules have more requests.
func TestAttacksOnRules(t *testing.T) {
	kit.Parallel(t)
	victim, as, spiffe := shopAccount(t, "kitchen", "services"), shopAccount(t, "shop", "services"), shopAccount(t, "garden", "workloads")
	shopService(t, "kitchen", "api", "")
	shopService(t, "shop", "api", "")
	shopService(t, "shop", "outside", "example.com")
	mayUse(t, "mallory", "people")
	mallory := person(t, "mallory", "", []string{"interns"}, "JTI=1", time.Hour+time.Minute)
	const account = "system:serviceaccount:kitchen:web"
	kitchen := serviceaccount.MakeGroupNames("kitchen")
	another, outside := person(t, account, "1", kitchen, "", 0), person(t, account, "1", kitchen[:1], "", 0)
	byCertificate := kit.CertificateClient(t, account, kitchen...)
	unsuited := asking(t, shopSigner, x509.CertificateRequest{DNSNames: []string{"api.shop.svc"}}, "server auth")
	long := asksURI(t, "spiffe://example.org/ns/garden/sa/web")
	long.Spec.ExpirationSeconds = new(int32(8 * 24 * 3600))
	r := ruleApprover(t)
	for name, try := range map[string]struct {
		by   client.Client
		obj  *kit.Request
		want string
	}{
		"the name of another namespace":          {as, asksNames(t, "api.kitchen.svc"), "is not SERVICE.shop.svc"},
		"its own name and another":               {as, asksNames(t, "api.shop.svc", "api.kitchen.svc"), "is not SERVICE.shop.svc"},
		"a Service that names another host":      {as, asksNames(t, "outside.shop.svc"), "of the type ExternalName"},
		"another rule, which it may not use":     {as, unsuited, "are too few"},
		"a rule for another signer":              {as, asksURI(t, spiffeID), "no rule that the requester may use"},
		"a user with a ServiceAccount's name":    {byCertificate, asksNames(t, "api.kitchen.svc"), "but no UID"},
		"that user, with another account's UID":  {another, asksNames(t, "api.kitchen.svc"), "was deleted and created again"},
		"that user, without the namespace":       {outside, asksNames(t, "api.kitchen.svc"), "is not in the group " + kitchen[1]},
		"another workload":                       {spiffe, asksURI(t, spiffeID), "the only URI must be spiffe://example.org/ns/garden/sa/web"},
		"a workload for longer than a day":       {spiffe, long, "approved"}, // the signer lowers it to 24h
		"another user":                           {mallory, asksIdentity(t, "root"), "is not the requester's user name"},
		"a group that the user is not in":        {mallory, asksIdentity(t, "mallory", "admins"), "is not in all of the groups"},
		"a group of Kubernetes":                  {mallory, asksIdentity(t, "mallory", "system:authenticated"), "may begin with system: or kubeadm:"},
		"an impersonation without a credential":  {person(t, "mallory", "", nil, "", 0), asksIdentity(t, "mallory"), "a certificate cannot renew itself"},
		"a credential whose end is not told":     {person(t, "mallory", "", nil, "JTI=1", 0), asksIdentity(t, "mallory"), "would outlive the credential"},
		"no attack: the victim's own request":    {victim, asksNames(t, "api.kitchen.svc"), "approved"},
		"no attack: a request of the attacker's": {as, asksNames(t, "api.shop.svc"), "approved"},
		"no attack: mallory's own name":          {mallory, asksIdentity(t, "mallory", "interns"), "approved"},
	} {
		decides(t, r, name, try.by, try.obj, try.want)
	}
	own := kit.CreateRequest(t, as, asksNames(t, "api.kitchen.svc"))
	csr.AddCondition(own, certificatesv1.CertificateApproved, "Mine", "", time.Time{})
	kit.Check(t, as.SubResource("approval").Update(t.Context(), own) != nil, "the attacker approves his own request")
}

// TestHostileValues has a stranger, and a user of a rule whose conditions compare only the end or the beginning of values. The API
// server accepts all these requests. The rule approves what is its user's own, as the end of each list shows.
func TestHostileValues(t *testing.T) {
	kit.Parallel(t)
	const dns, email, uri, common, own = 2, 1, 6, -1, "spiffe://example.org/ns/market/"
	r, rule := ruleApprover(t), rules.Rule{
		Name: "ends", SignerName: shopSigner, Usages: []certificatesv1.KeyUsage{"server auth"}, Allow: []string{"names", "emails", "uris", "commonName"},
		MaxDuration: metav1.Duration{Duration: 24 * time.Hour}, Conditions: []rules.Condition{
			{Expression: "request.names.all(n, n.endsWith('.market.svc')) && request.emails.all(e, e.endsWith('@corp.com'))"},
			{Expression: "request.uris.all(u, u.startsWith('" + own + "')) && (request.commonName == '' || request.commonName.endsWith('.shop'))"},
			{Expression: "has(requester.serviceAccount) ? requester.serviceAccount.namespace == 'market' : true"},
		},
	}
	compiled, mistakes := rules.Compile(rule, nil, kit.Must(cel.New(csr.DefaultLimits))(t))
	kit.NoError(t, mistakes.ToAggregate())
	r.Judges[shopSigner].(*approver.ApprovalRules).Rules = []*rules.Compiled{compiled}
	user, stranger := shopAccount(t, "market", "ends"), shopAccount(t, "alley", "services")
	with := func(kind int, value string) *kit.Request {
		if kind == common {
			return asking(t, shopSigner, x509.CertificateRequest{Subject: pkix.Name{CommonName: value}}, "server auth")
		}
		names := kit.Must(asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: kind, Bytes: []byte(value)}}))(t)
		extension := pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: names} // subjectAltName; nothing has checked its bytes
		return asking(t, shopSigner, x509.CertificateRequest{ExtraExtensions: []pkix.Extension{extension}}, "server auth")
	}
	for kind, values := range map[int][]string{
		dns: {"*.market.svc", "A.market.svc", "a.market.svc.", "a..market.svc", "kubernetes.default.svc\x00.market.svc", "kubernetes.default.svc\n.market.svc",
			"kubernetes.default.svc,a.market.svc", "kubernetes.default.svc/.market.svc", "$(id).market.svc", "--all.market.svc", "a.market.svc"},
		email: {"root@victim.com\x00@corp.com", "root@victim.com,a@corp.com", "root@victim.com\r\nBcc: a@corp.com", `"root@victim.com"@corp.com`,
			"root@victim.com@corp.com", "<root@victim.com>@corp.com", "a..b@corp.com", "@corp.com", "mailto:a@corp.com", "a@corp.com"},
		uri: {own + "../kitchen/sa/web", own + "%2e%2e/kitchen/sa/web", own + "..%2fkitchen", own + "..;/kitchen", own + "/sa/web", own + "a%00", own + "a%0a",
			own + "%e2%80%ae", "spiffe://u@example.org/ns/market/", own + "..\\kitchen", own + strings.Repeat("a", 2048), own + "sa/web"},
		common: {"kubernetes.default.svc\x00.shop", "root\n.shop", "root\x1b[2J.shop", "\u202epohs.shop", "root\u200b.shop", "root\u3164.shop", "*.shop",
			strings.Repeat("x", 60) + ".shop", "a.shop"},
	} {
		for i, value := range values {
			want := "RuleRefused"
			if i == len(values)-1 {
				want = "approved"
			}
			decides(t, r, fmt.Sprintf("%q", value), user, with(kind, value), want)
		}
		decides(t, r, "a stranger", stranger, with(kind, values[len(values)-1]), "NotAuthorized")
	}
	mayUse(t, serviceaccount.MakeUsername("alley", "web"), "ends")
	waits := with(dns, "a.market.svc")
	decides(t, r, "another namespace", stranger, waits, "requester.serviceAccount.namespace == 'market' : true is not true")
	kit.Remove(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "alley", Name: "web"}})
	_, decision, err := r.Decide(t.Context(), kit.Reload(t, waits))
	kit.NoError(t, err)
	kit.Check(t, decision.Verdict == judge.Wait && strings.Contains(decision.Message, "ServiceAccount alley/web is deleted"), "after its deletion: %+v", decision)
}

// issuer is an OpenID Connect provider.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func startIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{key: kit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	point := kit.Must(i.key.PublicKey.Bytes())(t)
	pages := http.NewServeMux()
	pages.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	pages.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1", "x": encoded(point[1:33]), "y": encoded(point[33:65]),
		}}})
	})
	i.Server = httptest.NewTLSServer(pages)
	t.Cleanup(i.Close)
	return i
}

func encoded(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// token returns a token of jane, with more claims.
func (i *issuer) token(t *testing.T, end time.Time, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "csr", "sub": "jane", "groups": []string{"developers"}, "iat": time.Now().Unix(), "exp": end.Unix()}
	maps.Copy(all, claims)
	var parts []string
	for _, part := range []any{map[string]string{"alg": "ES256", "kid": "1", "typ": "JWT"}, all} {
		parts = append(parts, encoded(kit.Must(json.Marshal(part))(t)))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	kit.NoError(t, err)
	return strings.Join(append(parts, encoded(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))), ".")
}

// TestOwnIdentityOfAnOIDCUser has an API server that authenticates users by OpenID Connect, and tells the end of a token as
// docs/how-to/user-certificates.md shows. A user gets a certificate for the same name, and with this certificate no other one.
func TestOwnIdentityOfAnOIDCUser(t *testing.T) {
	kit.Parallel(t)
	issuer := startIssuer(t)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		file := filepath.Join(dir, "authentication.yaml")
		authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})
		kit.Write(t, file, []byte(fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %q, audiences: [csr], certificateAuthority: %q}
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {claim: groups, prefix: ""}
    extra:
    - {key: example.com/exp, valueExpression: "string(int(claims.exp))"}
`, issuer.URL, authority)))
		args.Set("authentication-config", file)
	})
	mayUse(t, "jane", "people")
	r, jti, guests := ruleApprover(t), map[string]any{"jti": "4f1c"}, map[string]any{"jti": "4f1c", "groups": []string{"guests"}}
	for name, test := range map[string]struct {
		ends   time.Duration
		claims map[string]any
		want   string
	}{
		"a token":                    {2 * time.Hour, jti, "approved"},
		"a token that ends before":   {30 * time.Minute, jti, "would outlive the credential"},
		"a token without an ID":      {2 * time.Hour, nil, "a certificate cannot renew itself"},
		"a token of a smaller group": {2 * time.Hour, guests, "is not in all of the groups"},
	} {
		jane := kit.ClientOf(t, kit.WithToken(t, issuer.token(t, time.Now().Add(test.ends), test.claims)))
		decides(t, r, name, jane, asksIdentity(t, "jane", "developers"), test.want)
	}
	byCertificate := kit.CertificateClient(t, "jane", "developers")
	decides(t, r, "a certificate", byCertificate, asksIdentity(t, "jane", "developers"), "a certificate cannot renew itself")
}
