package signer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// asked returns a parsed request for a custom signer with that subject.
func asked(subject pkix.Name, edits ...edit) *csr.Request {
	template := payload(&asks{Subject: subject}, leafKey())
	return must(csr.Parse(object(signerName(customSigner), template, all(edits...))))
}

// TestCheckTrust checks the rules of a custom signer on CAs that a cluster trusts in different ways. In want, s means signed,
// and another letter is the reason of a failure.
func TestCheckTrust(t *testing.T) {
	t.Parallel()
	front := []string{"front-proxy-client"}
	trusts := []caTrust{
		{proxyNames: front}, // not trusted
		{strict: trustedForClients},
		{strict: trustedForProxies, proxies: trustedForProxies, proxyNames: front},
		{strict: trustedForProxies, proxies: trustedForProxies}, // by any name
	}
	hook, proxy := pkix.Name{CommonName: "hook"}, pkix.Name{CommonName: "front-proxy-client"}
	of := func(group string) pkix.Name { return pkix.Name{CommonName: "a", Organization: []string{group}} }
	server := func(of usage) edit { return all(dns("a.svc"), usages(of)) }
	client, noPurpose, noRules := usages("client auth"), usages("digital signature"), Signer{}
	allowed := func(name string) Signer { return Signer{AllowedNames: must(ca.NewAllowedNames([]string{name}))} }
	letters := map[string]string{"": "s", "UsagesNotPermitted": "U", "SubjectNotPermitted": "S", "NameNotPermitted": "N"}
	for name, test := range map[string]struct {
		signer Signer
		req    *csr.Request
		want   string
	}{
		"no extended usage":                       {noRules, asked(hook, noPurpose), "UUUS"},
		"no extended usage, configured":           {Signer{AllowNoExtKeyUsage: true}, asked(hook, noPurpose), "sUUS"},
		"a client":                                {noRules, asked(hook, client), "sssS"},
		"a client in a group of Kubernetes":       {noRules, asked(of("system:masters"), client), "sSSS"},
		"a client by a name of Kubernetes":        {noRules, asked(pkix.Name{CommonName: "system:admin"}, client), "sSSS"},
		"forbidden subjects are configured":       {Signer{OnlyForbidden: true}, asked(of("system:masters"), client), "sssS"},
		"a server without a list":                 {noRules, asked(hook, server("server auth")), "sNNN"},
		"a server beside a client without a list": {noRules, asked(hook, dns("a.svc"), usages("client auth", "server auth")), "sNNS"},
		"any usage without a list":                {noRules, asked(hook, server("any")), "sNNS"},
		"a server of a listed name":               {allowed("a.svc"), asked(hook, server("server auth")), "ssss"},
		"a server of another name":                {allowed("b.svc"), asked(hook, server("server auth")), "sNNN"},
		"a server of no name":                     {allowed("b.svc"), asked(pkix.Name{CommonName: "a.svc"}, usages("server auth")), "sNNN"},
		"Kubernetes' own signer":                  {noRules, asked(of("system:nodes"), client, signerName(clientSigner)), "ssss"},
		"a front proxy":                           {noRules, asked(proxy, client), "ssSS"},
		"a front proxy for any usage":             {allowed("a.svc"), asked(proxy, server("any")), "ssSS"},
		"a front proxy without usage":             {Signer{AllowNoExtKeyUsage: true}, asked(proxy, noPurpose), "sUSS"},
		"a server of the name of a front proxy":   {noRules, asked(proxy, usages("server auth")), "sNNN"},
		"a front proxy by Kubernetes' own signer": {noRules, asked(proxy, client, signerName(clientSigner)), "ssss"},
	} {
		got := ""
		for _, trust := range trusts {
			reason := ""
			if violation := test.signer.checkTrust(test.req, trust); violation != nil {
				reason = violation.Reason
			}
			got += letters[reason]
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// link is a CA of a chain.
type link struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

// sign returns a CA of that name and key below l, which is valid for two hours from an instant. Nil signs itself.
func (l *link) sign(name string, key *ecdsa.PrivateKey, from time.Time) *link {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: from.Add(2 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	if l == nil {
		l = &link{cert: template, key: key}
	}
	der := must(x509.CreateCertificate(rand.Reader, template, l.cert, key.Public(), l.key))
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return &link{must(x509.ParseCertificate(der)), key, string(text)}
}

// below returns a CA below l that is valid now, with another's key or a new one.
func (l *link) below(name string, another *link) *link {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	if another != nil {
		key = another.key
	}
	return l.sign(name, key, now.Add(-time.Hour))
}

func newLink(name string) *link { return (*link)(nil).below(name, nil) }

// load returns the CA with the key of l, from tls.crt and ca.crt.
func (l *link) load(certs string, anchors ...string) *ca.Authority {
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(l.key))})
	return must(ca.Load([]byte(certs), key, []byte(strings.Join(anchors, ""))))
}

// configMaps answers reads of the ConfigMaps in kube-system. An error in their place fails the read.
type configMaps map[string]any

func (m configMaps) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch found := m[key.Name].(type) {
	case map[string]string:
		obj.(*corev1.ConfigMap).Data = found
		return nil
	case error:
		return found
	default:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
	}
}

func (configMaps) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("list")
}

const (
	authentication = "extension-apiserver-authentication"
	rootCAs        = "kube-root-ca.crt"
)

// TestTrustIn checks what is read from the ConfigMaps about CAs that the cluster trusts in different ways.
func TestTrustIn(t *testing.T) {
	t.Parallel()
	trusted, other, middle, stranger := newLink("trusted"), newLink("other"), newLink("middle"), newLink("else")
	below, renamed := trusted.below("below", other), trusted.below("another name", trusted)
	crossed := other.load(other.pem + trusted.below("other", other).pem)
	// two is an intermediate whose own issuer, an intermediate too, is known or left out.
	middleBelow := trusted.below("middle", middle)
	two := middleBelow.below("two", other)
	later := trusted.sign("other", other.key, now.Add(day))          // a cross-certificate of tomorrow
	expired := trusted.sign("trusted", trusted.key, now.Add(-2*day)) // the trusted root of yesterday
	clients := func(bundle string) configMaps {
		return configMaps{authentication: map[string]string{"client-ca-file": bundle}}
	}
	proxies := func(bundle, names string) configMaps {
		return configMaps{authentication: map[string]string{
			"requestheader-client-ca-file": bundle, "requestheader-allowed-names": names,
		}}
	}
	servers := configMaps{authentication: map[string]string{}, rootCAs: map[string]string{"ca.crt": trusted.pem}}
	everywhere := clients(trusted.pem)
	everywhere[rootCAs] = servers[rootCAs]
	copied, own, alone := trusted.load(trusted.pem), other.load(other.pem), other.load(two.pem)
	for name, test := range map[string]struct {
		authority       *ca.Authority
		found           configMaps
		strict, proxies string
		names           string
	}{
		"a CA of its own":                     {own, everywhere, "", "", ""},
		"no kube-root-ca.crt":                 {own, clients(trusted.pem), "", "", ""},
		"a copy of the client CA":             {copied, clients(trusted.pem), trustedForClients, "", ""},
		"a copy of one of two":                {copied, clients(other.pem + trusted.pem), trustedForClients, "", ""},
		"the key by another name":             {trusted.load(renamed.pem), clients(trusted.pem), trustedForClients, "", ""},
		"an intermediate":                     {other.load(below.pem), clients(trusted.pem), trustedForClients, "", ""},
		"a cross-signed CA":                   {crossed, clients(trusted.pem), trustedForClients, "", ""},
		"a cross-certificate, not valid yet":  {other.load(other.pem + later.pem + trusted.pem), clients(trusted.pem), trustedForClients, "", ""},
		"a trusted CA that has expired":       {other.load(below.pem), clients(expired.pem), trustedForClients, "", ""},
		"a CA for API servers":                {copied, servers, trustedForServers, "", ""},
		"an intermediate of two":              {other.load(two.pem + middleBelow.pem), clients(trusted.pem), trustedForClients, "", ""},
		"its trusted parent was left out":     {alone, clients(trusted.pem), mayBeTrusted, "", ""},
		"below a root that nothing trusts":    {other.load(two.pem + middleBelow.pem + trusted.pem), clients(stranger.pem), "", "", ""},
		"cross-signed, a parent was left out": {crossed, clients(stranger.pem), mayBeTrusted, "", ""},
		"a front proxy CA":                    {copied, proxies(trusted.pem, `["a","b"]`), trustedForProxies, trustedForProxies, "a b"},
		"a front proxy CA for any name":       {copied, proxies(trusted.pem, ""), trustedForProxies, trustedForProxies, ""},
		"perhaps below a front proxy CA":      {alone, proxies(trusted.pem, `["a"]`), mayBeTrusted, mayBeTrusted, "a"},
		"not a front proxy CA":                {own, proxies(trusted.pem, `["a"]`), "", "", "a"},
	} {
		got := must(readPublished(t.Context(), test.found)).trustIn(test.authority)
		names := strings.Join(got.proxyNames, " ")
		if got.unread != "" || got.strict != test.strict || got.proxies != test.proxies || names != test.names || got.authority != test.authority {
			t.Errorf("%s: %+v, want %+v", name, got, test)
		}
	}
	broken := "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	const in = " of ConfigMap kube-system/extension-apiserver-authentication: "
	for want, found := range map[string]configMaps{
		`configmaps "extension-apiserver-authentication" not found`:           {rootCAs: map[string]string{}},
		"read ConfigMap kube-system/extension-apiserver-authentication: down": {authentication: errDown, rootCAs: map[string]string{}},
		"read ConfigMap kube-system/kube-root-ca.crt: down":                   {authentication: map[string]string{}, rootCAs: errDown},
		"client-ca-file" + in + "it holds no certificate":                     clients("nonsense"),
		"requestheader-client-ca-file" + in + "parse certificate 1":           proxies(broken, ""),
		"requestheader-allowed-names" + in:                                    proxies(trusted.pem, "a"),
	} {
		if _, err := readPublished(t.Context(), found); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// untold gives w a CA of which the trust is not known.
func (w *world) untold() *ca.Authority {
	made := newRoot(10 * year)
	w.pair.Load(made.cert, made.key)
	taken(w.recorder)
	return w.authority()
}

// TestUnknownTrustWaits judges a request before the trust in the CA is known, after a failed read, and afterwards. A fault
// never makes it fail, nor does an answer about another CA. Only what strict rules refuse waits.
func TestUnknownTrustWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, signerName(customSigner), usages("client auth"), common("a"), orgs("system:masters-of-ours"))
	before := w.authority()
	authority := w.untold()
	is(t, w.reconcile(), "again 1s", w.pair)           // the first read takes a moment
	w.trusts.Store(w.pair, caTrust{authority: before}) // a late answer
	is(t, w.reconcile(), "again 1s", w.pair)
	w.trust(unknownTrust(authority, "down"))
	is(t, w.reconcile(), "again 1s\nWarning CATrustUnknown it is unknown whether API servers trust this CA: down; "+
		"if they do, the request is refused (SubjectNotPermitted: …", w.pair)
	w.trust(caTrust{strict: trustedForClients})
	is(t, w.reconcile(), "Failed SubjectNotPermitted: …", w.pair)
	w.trust(caTrust{})
	is(t, w.reconcile(), "certificate", w.pair)

	w = newWorld(t, signerName(customSigner), usages("code signing"), common("a"), orgs()) // which strict rules permit
	w.signer(customSigner, func(s *Signer) { s.Usages = []usage{"code signing"} })
	w.untold()
	is(t, w.reconcile(), "certificate", w.pair)
}

// countedWakes counts the requests that are queued.
type countedWakes struct {
	requestQueue
	adds atomic.Int64
}

func (c *countedWakes) Add(fairqueue.Key) { c.adds.Add(1) }

// countedReads counts the reads of ConfigMaps.
type countedReads struct {
	mu sync.Mutex
	configMaps
	reads atomic.Int64
}

// set replaces the answer about a ConfigMap. Without an answer it does not exist.
func (c *countedReads) set(name string, answer any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.configMaps[name] = answer
}

func (c *countedReads) Get(ctx context.Context, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads.Add(1)
	return c.configMaps.Get(ctx, key, obj, options...)
}

// TestFollowTrust checks when the trust is read, and what wakes the waiting requests.
func TestFollowTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pair, _, recorder := newPair()
		pair.Lifetimes = map[string]time.Duration{customSigner: time.Hour}
		found, woken := &countedReads{configMaps: configMaps{rootCAs: map[string]string{}}}, &countedWakes{}
		found.set(authentication, errDown)
		r := &Reconciler{Signers: map[string]Signer{customSigner: {KeyPair: pair}}}
		r.waiting.Put(fairqueue.Key{Name: "csr-1"}, fairqueue.Digest(customSigner))
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.followTrust(found, pair).Start(ctx, woken); err != nil {
			t.Fatal(err)
		}
		var loaded root
		load := func() {
			loaded = newRoot(day)
			pair.Load(loaded.cert, loaded.key)
		}
		publish := func(answer any) func() { return func() { found.set(authentication, answer) } }
		trusts := func() { found.set(authentication, map[string]string{"client-ca-file": string(loaded.cert)}) }
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, authentication, nil)
		for _, step := range []struct {
			name         string
			change       func()
			pause        time.Duration
			reads, woken int64 // in all
			want         string
		}{
			{"no CA", func() {}, 0, 0, 0, "no CA"},
			{"a CA, a failed read", load, 0, 1, 1, "down"},
			{"before the pause ends", func() {}, trustRetry - 1, 1, 1, "down"},
			{"after five seconds", func() {}, 1, 2, 1, "down"},
			{"the read succeeds", publish(map[string]string{}), trustRetry, 4, 2, "strict: "},
			{"for ten minutes", func() {}, trustEvery - 1, 4, 2, "strict: "},
			{"the cluster trusts the CA", trusts, 1, 6, 3, "strict: " + trustedForClients},
			{"a failed read after ten minutes", publish(forbidden), trustEvery, 7, 4, "forbidden"},
			{"and a read five seconds later", trusts, trustRetry, 9, 5, "strict: " + trustedForClients},
			{"another CA", load, 0, 11, 6, "strict: "},
			{"a failed read", publish(errDown), 0, 11, 6, "strict: "},
			{"of another CA", load, 0, 12, 7, "down"},
			{"no answer about roots", func() { found.set(rootCAs, nil) }, 0, 12, 7, "down"},
			{"nothing publishes kube-root-ca.crt", publish(map[string]string{}), trustRetry, 14, 8, "strict: "},
			{"which is read again soon", func() {}, rootsRetry, 16, 8, "strict: "},
		} {
			step.change()
			time.Sleep(step.pause)
			synctest.Wait()
			got := "no CA"
			if authority, err := pair.Authority(now); err == nil {
				trust := r.trustOf(pair, authority)
				if got = trust.unread; got == "" {
					got = "strict: " + trust.strict
				}
			}
			if reads, adds := found.reads.Load(), woken.adds.Load(); reads != step.reads || adds != step.woken || !strings.Contains(got, step.want) {
				t.Errorf("%d reads, woken %d times, %s; want %+v", reads, adds, got, step)
			}
		}
		cancel()
		synctest.Wait()
		if told := strings.Join(taken(recorder), "\n"); strings.Contains(told, "CANotTrusted") {
			t.Errorf("a CA for no client is warned of: %s", told)
		}
	})
}

// TestCAThatAPIServersDoNotTrust checks that a CA of a built-in client signer is warned of if client-ca-file does not
// hold it: once, and again after 50 minutes. It is not parallel, because the gauge is the signer's.
func TestCAThatAPIServersDoNotTrust(t *testing.T) {
	pair, passing, recorder := newPair()
	pair.Lifetimes = map[string]time.Duration{kubeletClient: time.Hour}
	made := newRoot(day)
	pair.Load(made.cert, made.key)
	taken(recorder)
	r := &Reconciler{}
	warning := "Warning CANotTrusted client-ca-file of ConfigMap kube-system/extension-apiserver-authentication does not hold the CA with key " +
		must(pair.Authority(now)).KeyID() + ", so API servers answer 401 to its certificates for kubernetes.io/kube-apiserver-client-kubelet: " +
		"append this CA to the --client-ca-file of every API server, or sign with a CA that is in it"
	file := func(text string) any { return map[string]string{"client-ca-file": text} }
	foreign := file(newLink("other").pem)
	for n, step := range []struct {
		file  any
		later time.Duration
		want  string  // Event
		gauge float64 // it stays after a failed read
	}{
		{foreign, 0, warning, 1},
		{foreign, 0, "", 1},
		{foreign, report.Again, warning, 1},
		{errDown, 0, "", 1},
		{foreign, 0, "", 1},
		{file(newLink("other").pem + string(made.cert)), 0, "", 0},
		{file(""), 0, warning, 1},
	} {
		passing.SetTime(passing.Now().Add(step.later))
		r.readTrust(t.Context(), configMaps{authentication: step.file}, pair, nil)
		if told := strings.Join(taken(recorder), "\n"); told != step.want {
			t.Errorf("step %d: Events %q, want %q", n, told, step.want)
		}
		if got := valueOf(caNotTrusted.WithLabelValues(kubeletClient)); got != step.gauge {
			t.Errorf("step %d: csr_signer_ca_not_trusted is %v, want %v", n, got, step.gauge)
		}
	}
}
