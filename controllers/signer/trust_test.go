package signer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// asked returns a parsed request for a custom signer with that subject.
func asked(subject pkix.Name, edits ...edit) *csr.Request {
	template := payload(&asks{Subject: subject}, leafKey())
	return must(csr.Parse(object(signerName(customSigner), template, all(edits...))))
}

// TestCheckTrust checks the rules of a custom signer on CAs that a cluster trusts in different ways. In want, s means signed,
// and another letter is the reason of a failure.
func TestCheckTrust(t *testing.T) {
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
		"a client of kubeadm, nothing forbidden":  {Signer{Profile: profile(ca.ProfileConfig{ForbiddenSubjects: []string{}})}, asked(of("kubeadm:cluster-admins"), client), "sSSS"},
		"a server without a list":                 {noRules, asked(hook, server("server auth")), "sNNN"},
		"a server beside a client without a list": {noRules, asked(hook, dns("a.svc"), usages("client auth", "server auth")), "sNNS"},
		"any usage without a list":                {noRules, asked(hook, server("any")), "sNNS"},
		"server gated crypto without a list":      {noRules, asked(hook, server("netscape sgc")), "sNNN"},
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
	another = cmp.Or(another, &link{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))})
	return l.sign(name, another.key, now.Add(-time.Hour))
}

func newLink(name string) *link { return (*link)(nil).below(name, nil) }

// load returns the CA with the key of l, from tls.crt.
func (l *link) load(certs string) *ca.Authority {
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(l.key))})
	return must(ca.Load([]byte(certs), key, nil))
}

// configMaps answers reads of the ConfigMaps in kube-system, and lists of the ClusterTrustBundles of rootsSigner, which are at
// bundleList. An error in their place fails the read.
type configMaps map[string]any

// bundleList is where configMaps has ClusterTrustBundles, as a []string of their certificates. None are served if it is missing.
const bundleList = "clustertrustbundles"

func (m configMaps) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch found := m[key.Name].(type) {
	case map[string]string:
		*obj.(*corev1.ConfigMap) = corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Data: found}
		return nil
	case error:
		return found
	default:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
	}
}

func (m configMaps) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch found := m[bundleList].(type) {
	case []string:
		for _, opt := range opts {
			if of, ok := opt.(client.MatchingFields); !ok || of["spec.signerName"] != "kubernetes.io/kube-apiserver-serving" {
				return fmt.Errorf("list with %v", opts)
			}
		}
		for _, certs := range found {
			bundle := certificatesv1.ClusterTrustBundle{
				ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:a"},
				Spec:       certificatesv1.ClusterTrustBundleSpec{TrustBundle: certs},
			}
			list.(*certificatesv1.ClusterTrustBundleList).Items = append(list.(*certificatesv1.ClusterTrustBundleList).Items, bundle)
		}
		return nil
	case error:
		return found
	default:
		return &meta.NoKindMatchError{}
	}
}

const (
	authentication = "extension-apiserver-authentication"
	rootCAs        = "kube-root-ca.crt"
)

// TestTrustIn checks what is read from the ConfigMaps about CAs that the cluster trusts in different ways.
func TestTrustIn(t *testing.T) {
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
	bundled := func(bundles any) configMaps {
		return configMaps{authentication: map[string]string{}, bundleList: bundles}
	}
	copied, own, alone := trusted.load(trusted.pem), other.load(other.pem), other.load(two.pem)
	negative := bytes.Replace(newLink("negative").cert.Raw, []byte{2, 1, 7}, []byte{2, 1, 0xff}, 1)
	unread := other.load(other.pem + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: negative})))
	for name, test := range map[string]struct {
		authority       *ca.Authority
		found           configMaps
		strict, proxies cause
		names           string
	}{
		"a CA of its own":                     {own, everywhere, noCause, noCause, ""},
		"no kube-root-ca.crt":                 {own, clients(trusted.pem), noCause, noCause, ""},
		"a copy of the client CA":             {copied, clients(trusted.pem), trustedForClients, noCause, ""},
		"a copy of one of two":                {copied, clients(other.pem + trusted.pem), trustedForClients, noCause, ""},
		"the key by another name":             {trusted.load(renamed.pem), clients(trusted.pem), trustedForClients, noCause, ""},
		"an intermediate":                     {other.load(below.pem), clients(trusted.pem), trustedForClients, noCause, ""},
		"a cross-signed CA":                   {crossed, clients(trusted.pem), trustedForClients, noCause, ""},
		"a cross-certificate, not valid yet":  {other.load(other.pem + later.pem + trusted.pem), clients(trusted.pem), trustedForClients, noCause, ""},
		"a trusted CA that has expired":       {other.load(below.pem), clients(expired.pem), trustedForClients, noCause, ""},
		"a CA for API servers":                {copied, servers, trustedForServers, noCause, ""},
		"an intermediate for API servers":     {other.load(below.pem), servers, trustedForServers, noCause, ""},
		"a CA in a ClusterTrustBundle":        {copied, bundled([]string{stranger.pem, stranger.pem + trusted.pem}), trustedForServers, noCause, ""},
		"below a CA in a ClusterTrustBundle":  {other.load(below.pem), bundled([]string{trusted.pem}), trustedForServers, noCause, ""},
		"other CAs in ClusterTrustBundles":    {own, bundled([]string{trusted.pem, stranger.pem}), noCause, noCause, ""},
		"no ClusterTrustBundle":               {own, bundled([]string{}), noCause, noCause, ""},
		"the API server serves them no more":  {own, bundled(apierrors.NewNotFound(schema.GroupResource{}, "")), noCause, noCause, ""},
		"an intermediate of two":              {other.load(two.pem + middleBelow.pem), clients(trusted.pem), trustedForClients, noCause, ""},
		"its trusted parent was left out":     {alone, clients(trusted.pem), mayBeTrusted, noCause, ""},
		"below a root that nothing trusts":    {other.load(two.pem + middleBelow.pem + trusted.pem), clients(stranger.pem), noCause, noCause, ""},
		"cross-signed, a parent was left out": {crossed, clients(stranger.pem), mayBeTrusted, noCause, ""},
		"a front proxy CA":                    {copied, proxies(trusted.pem, `["a","b"]`), trustedForProxies, trustedForProxies, "a b"},
		"a front proxy CA for any name":       {copied, proxies(trusted.pem, ""), trustedForProxies, trustedForProxies, ""},
		"an intermediate of a front proxy CA": {other.load(below.pem), proxies(trusted.pem, "[]"), trustedForProxies, trustedForProxies, ""},
		"perhaps below a front proxy CA":      {alone, proxies(trusted.pem, `["a"]`), mayBeTrusted, mayBeTrusted, "a"},
		"a certificate that cannot be read":   {unread, clients(stranger.pem), mayBeUnread, noCause, ""},
		"unread, and a front proxy CA":        {unread, proxies(stranger.pem, ""), mayBeUnread, mayBeUnread, ""},
		"not a front proxy CA":                {own, proxies(trusted.pem, `["a"]`), noCause, noCause, "a"},
	} {
		got := must(readPublished(t.Context(), test.found)).trustIn(test.authority)
		names := strings.Join(got.proxyNames, " ")
		if got.unread != isRead || got.strict != test.strict || got.proxies != test.proxies || names != test.names || got.authority != test.authority {
			t.Errorf("%s: %+v, want %+v", name, got, test)
		}
	}
	broken := "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	const in = " of ConfigMap kube-system/extension-apiserver-authentication: "
	for want, found := range map[string]configMaps{
		`configmaps "extension-apiserver-authentication" not found`:                      {rootCAs: map[string]string{}},
		"read ConfigMap kube-system/extension-apiserver-authentication: down":            {authentication: errDown, rootCAs: map[string]string{}},
		"read ConfigMap kube-system/kube-root-ca.crt: down":                              {authentication: map[string]string{}, rootCAs: errDown},
		"client-ca-file" + in + "it holds no certificate":                                clients("nonsense"),
		"requestheader-client-ca-file" + in + "parse certificate 1":                      proxies(broken, ""),
		"requestheader-allowed-names" + in:                                               proxies(trusted.pem, "a"),
		"list ClusterTrustBundles of kubernetes.io/kube-apiserver-serving: down":         bundled(errDown),
		"ClusterTrustBundle kubernetes.io:kube-apiserver-serving:a: parse certificate 1": bundled([]string{broken}),
	} {
		if _, err := readPublished(t.Context(), found); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestUnknownTrustWaits judges a request before the trust in the CA is known, after a failed read, and afterwards. A fault
// never makes it fail, nor does an answer about another CA. Only what strict rules refuse waits.
func TestUnknownTrustWaits(t *testing.T) {
	w := newWorld(t, signerName(customSigner), usages("client auth"), common("a"), orgs("system:masters-of-ours"))
	before := w.authority()
	w.untold(10 * year)
	is(t, w.reconcile(), "again 1s", w.pair)           // the first read takes a moment
	w.trusts.Store(w.pair, caTrust{authority: before}) // a late answer
	is(t, w.reconcile(), "again 1s", w.pair)
	w.trust(unknownTrust(w.authority(), "down"))
	is(t, w.reconcile(), "again 1s\nWarning CATrustUnknown it is unknown whether API servers trust this CA: down; "+
		"if they do, the request is refused (SubjectNotPermitted: …", w.pair)
	w.trust(caTrust{strict: trustedForClients})
	is(t, w.reconcile(), "Failed SubjectNotPermitted: …", w.pair)
	w.trust(caTrust{})
	is(t, w.reconcile(), "certificate", w.pair)

	w = newWorld(t, signerName(customSigner), usages("code signing"), common("a"), orgs()) // which strict rules permit
	w.signer(customSigner, func(s *Signer) { s.Usages = []usage{"code signing"} })
	w.untold(10 * year)
	is(t, w.reconcile(), "certificate", w.pair)
}

type wakes struct {
	requestQueue
	count int
}

func (w *wakes) Add(fairqueue.Key) { w.count++ }

// TestReadTrust checks what a read of the trust changes, when it is repeated, and that it wakes the waiting requests if the trust
// has changed. A CA of a built-in client signer is warned of if client-ca-file does not hold it: once, and again after 50 minutes.
// It is not parallel, because the gauge is the signer's.
func TestReadTrust(t *testing.T) {
	pair, passing, recorder := newPair()
	pair.Signers = []string{customSigner, kubeletClient}
	queue := &wakes{}
	r := &Reconciler{Signers: map[string]Signer{customSigner: {KeyPair: pair}}}
	r.waiting.Put(fairqueue.Key{Name: "csr-1"}, fairqueue.Digest(customSigner))
	if pause := r.readTrust(t.Context(), configMaps{}, pair, queue); pause != 5*time.Second {
		t.Errorf("without a CA: read again after %s", pause)
	}
	var own string
	load := func() {
		made := newRoot(day)
		own = string(made.cert)
		pair.Load(made.cert, made.key, nil)
		taken(recorder)
	}
	load()
	file := func(text string) any { return map[string]string{"client-ca-file": text} }
	foreign, roots := file(newLink("other").pem), map[string]string{}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, authentication, nil)
	caNotTrusted.WithLabelValues(kubeletClient).Set(0) // this test may run twice in one process
	const minute = time.Minute
	for n, step := range []struct {
		file  any
		roots any
		later time.Duration
		want  string // why the trust is unknown, or why rules are strict
		pause time.Duration
		wakes bool
		warns bool
		gauge float64 // it stays after a failed read
	}{
		{errDown, roots, 0, "unread", 5 * time.Second, true, false, 0},
		{forbidden, roots, 0, "unread", 5 * time.Second, false, false, 0},
		{foreign, roots, 0, "strict: ", 10 * minute, true, true, 1},
		{foreign, roots, 0, "strict: ", 10 * minute, false, false, 1},
		{foreign, roots, 50 * minute, "strict: ", 10 * minute, false, true, 1},
		{errDown, roots, 0, "unread", 5 * time.Second, true, false, 1},
		{foreign, roots, 0, "strict: ", 10 * minute, true, false, 1},
		{file(newLink("other").pem + own), roots, 0, "strict: API servers trust the CA of signer x for clients", 10 * minute, true, false, 0},
		{file(""), nil, 0, "strict: ", 30 * time.Second, true, true, 1}, // nothing publishes kube-root-ca.crt yet: it is read again soon
		{file(""), roots, 0, "strict: ", 10 * minute, false, false, 1},
	} {
		passing.SetTime(passing.Now().Add(step.later))
		queue.count = 0
		pause := r.readTrust(t.Context(), configMaps{authentication: step.file, rootCAs: step.roots}, pair, queue)
		authority := must(pair.Authority(now))
		trust := r.trustOf(pair, authority)
		got := "strict: " + trust.strict.of("x")
		if trust.unread != isRead {
			got = "unread"
		}
		if got != step.want || pause != step.pause || queue.count > 0 != step.wakes {
			t.Errorf("step %d: %s, read again after %s, %d woken; want %+v", n, got, pause, queue.count, step)
		}
		warning := ""
		if step.warns {
			warning = "Warning CANotTrusted client-ca-file of ConfigMap kube-system/extension-apiserver-authentication does not hold the CA with key " +
				authority.KeyID() + ", so API servers answer 401 to its certificates for kubernetes.io/kube-apiserver-client-kubelet: " +
				"append this CA to the --client-ca-file of every API server, or sign with a CA that is in it"
		}
		if told := strings.Join(taken(recorder), "\n"); told != warning {
			t.Errorf("step %d: Events %q, want %q", n, told, warning)
		}
		if got := valueOf(caNotTrusted.WithLabelValues(kubeletClient)); got != step.gauge {
			t.Errorf("step %d: csr_signer_ca_not_trusted is %v, want %v", n, got, step.gauge)
		}
	}
	load()
	if trust := r.trustOf(pair, must(pair.Authority(now))); trust.unread != notRead {
		t.Errorf("of another CA: %+v", trust)
	}
}

// TestFollowTrust checks that the trust is read at the start, after each pause, and at each change of the CA.
func TestFollowTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pair, _, _ := newPair()
		load := func() {
			made := newRoot(day)
			pair.Load(made.cert, made.key, nil)
		}
		load()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var reads atomic.Int32
		failing := interceptor.NewClient(nil, interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				reads.Add(1)
				return errDown
			},
		})
		if err := (&Reconciler{}).followTrust(failing, pair).Start(ctx, nil); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			change func()
			pause  time.Duration
			want   int32
		}{{func() {}, 0, 1}, {func() {}, 5*time.Second - 1, 1}, {func() {}, 1, 2}, {load, 0, 3}} {
			step.change()
			time.Sleep(step.pause)
			synctest.Wait()
			if got := reads.Load(); got != step.want {
				t.Errorf("%d reads, want %d", got, step.want)
			}
		}
	})
}
