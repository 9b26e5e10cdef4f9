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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

func allowedNames(t *testing.T, entries ...string) ca.AllowedNames {
	t.Helper()
	return must(ca.NewAllowedNames(entries))
}

// TestCheckTrust checks the rules of a custom signer on a CA that the cluster trusts, and on one that it does not. In
// want, s means signed, and another letter is the reason of a failure.
func TestCheckTrust(t *testing.T) {
	t.Parallel()
	const custom = "example.com/custom"
	about := func(subject pkix.Name, dnsName string, wanted ...certificatesv1.KeyUsage) []func(*request) {
		return []func(*request){usages(wanted...), func(obj *request) {
			template := &x509.CertificateRequest{Subject: subject}
			if dnsName != "" {
				template.DNSNames = []string{dnsName}
			}
			obj.Spec.Request = payload(t, template, leafKey())
		}}
	}
	plain := pkix.Name{CommonName: "hook"}
	of := func(group string) pkix.Name { return pkix.Name{CommonName: "a", Organization: []string{group}} }
	letters := map[string]string{"U": "UsagesNotPermitted", "S": "SubjectNotPermitted", "N": "NameNotPermitted"}
	for name, test := range map[string]struct {
		signer Signer
		name   string
		change []func(*request)
		want   string // two letters: trusted, not trusted
	}{
		"no extended usage":                            {change: about(plain, "", "digital signature"), want: "UU"},
		"no extended usage, configured":                {signer: Signer{AllowNoExtKeyUsage: true}, change: about(plain, "", "digital signature"), want: "Us"},
		"a client":                                     {change: about(plain, "", "client auth"), want: "ss"},
		"a client in a group of Kubernetes":            {change: about(of("system:masters"), "", "client auth"), want: "Ss"},
		"a client in a group of kubeadm":               {change: about(of("kubeadm:cluster-admins"), "", "client auth"), want: "Ss"},
		"a client by a name of Kubernetes":             {change: about(pkix.Name{CommonName: "system:admin"}, "", "client auth"), want: "Ss"},
		"a code signer in a group of Kubernetes":       {change: about(of("system:nodes"), "", "code signing"), want: "Ss"},
		"a group that the configuration does not list": {signer: Signer{ForbiddenOnClientCA: []string{"O=other"}}, change: about(of("system:nodes"), "", "client auth"), want: "ss"},
		"a group that the configuration lists":         {signer: Signer{ForbiddenOnClientCA: []string{"O=system:*"}}, change: about(of("system:nodes"), "", "client auth"), want: "Ss"},
		"an empty list of forbidden subjects":          {signer: Signer{ForbiddenOnClientCA: []string{}}, change: about(of("system:masters"), "", "client auth"), want: "ss"},
		"a server without a list":                      {change: about(plain, "a.svc", "server auth"), want: "Ns"},
		"a server beside a client without a list":      {change: about(plain, "a.svc", "client auth", "server auth"), want: "Ns"},
		"any usage without a list":                     {change: about(plain, "a.svc", "any"), want: "Ns"},
		"server gated crypto without a list":           {change: about(plain, "a.svc", "netscape sgc"), want: "Ns"},
		"a server of a listed name":                    {signer: Signer{AllowedNames: allowedNames(t, "a.svc")}, change: about(plain, "a.svc", "server auth"), want: "ss"},
		"a server of another name":                     {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(plain, "a.svc", "server auth"), want: "Ns"},
		"a server of no name":                          {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(pkix.Name{CommonName: "a.svc"}, "", "server auth"), want: "Ns"},
		"Kubernetes' own signer":                       {name: certificatesv1.KubeAPIServerClientSignerName, change: about(of("system:nodes"), "", "client auth"), want: "ss"},
		"Kubernetes' own serving signer":               {name: certificatesv1.KubeletServingSignerName, change: about(of("system:nodes"), "a", "server auth"), want: "ss"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.name == "" {
				test.name = custom
			}
			req, err := csr.Parse(object(t, append(test.change, signerName(test.name))...))
			if err != nil {
				t.Fatal(err)
			}
			for i, trust := range []caTrust{{strict: trustedForClients}, {}} {
				violation := test.signer.checkTrust(req, trust)
				if want := test.want[i : i+1]; (violation != nil) != (want != "s") || violation != nil && violation.Reason != letters[want] {
					t.Errorf("%q: %+v, want %s", trust.strict, violation, want)
				}
			}
		})
	}
}

// TestFrontProxyRules checks a custom signer with a CA that API servers accept for front proxies but not for clients.
func TestFrontProxyRules(t *testing.T) {
	t.Parallel()
	proxy, user := pkix.Name{CommonName: "front-proxy-client"}, pkix.Name{CommonName: "alice"}
	anyName := caTrust{strict: trustedForProxies, proxies: trustedForProxies}
	listed := anyName
	listed.proxyNames = []string{"front-proxy-client"}
	for name, test := range map[string]struct {
		trust   caTrust
		signer  string
		subject pkix.Name
		usages  []certificatesv1.KeyUsage
		want    string
	}{
		"a front proxy":                              {listed, "", proxy, []certificatesv1.KeyUsage{"client auth"}, "SubjectNotPermitted"},
		"a front proxy for any usage":                {listed, "", proxy, []certificatesv1.KeyUsage{"any"}, "SubjectNotPermitted"},
		"a front proxy without usage":                {listed, "", proxy, []certificatesv1.KeyUsage{"digital signature"}, "SubjectNotPermitted"},
		"another client":                             {listed, "", user, []certificatesv1.KeyUsage{"client auth"}, ""},
		"another client, where any is a front proxy": {anyName, "", user, []certificatesv1.KeyUsage{"client auth"}, "SubjectNotPermitted"},
		"a group of Kubernetes":                      {listed, "", pkix.Name{CommonName: "a", Organization: []string{"system:masters"}}, []certificatesv1.KeyUsage{"client auth"}, "SubjectNotPermitted"},
		"no extended usage":                          {listed, "", user, []certificatesv1.KeyUsage{"digital signature"}, "UsagesNotPermitted"},
		"a server of the name":                       {listed, "", proxy, []certificatesv1.KeyUsage{"server auth"}, "NameNotPermitted"},
		"another CA":                                 {caTrust{proxyNames: listed.proxyNames}, "", proxy, []certificatesv1.KeyUsage{"client auth"}, ""},
		"Kubernetes' own signer":                     {listed, certificatesv1.KubeAPIServerClientSignerName, proxy, []certificatesv1.KeyUsage{"client auth"}, ""},
	} {
		if test.signer == "" {
			test.signer = "example.com/custom"
		}
		req := must(csr.Parse(object(t, signerName(test.signer), usages(test.usages...), template(t, func(r *x509.CertificateRequest) { r.Subject = test.subject }))))
		got := ""
		if violation := (Signer{AllowNoExtKeyUsage: true}).checkTrust(req, test.trust); violation != nil {
			got = violation.Reason
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestRefusalsByTrust checks the messages, which name the value, the rule and the remedy.
func TestRefusalsByTrust(t *testing.T) {
	t.Parallel()
	incomplete := caTrust{strict: mayBeTrusted, proxies: mayBeTrusted, proxyNames: []string{"proxy"}}
	for want, test := range map[string]struct {
		trust   caTrust
		subject pkix.Name
		usages  []certificatesv1.KeyUsage
	}{
		`subject "CN=a,O=system:nodes" is not permitted: API servers trust the CA of signer example.com/custom for clients, so it never issues O=system:*`: {
			caTrust{strict: trustedForClients}, pkix.Name{CommonName: "a", Organization: []string{"system:nodes"}}, []certificatesv1.KeyUsage{"client auth"}},
		`subject "CN=a,O=system:nodes" is not permitted: API servers may trust the CA of signer example.com/custom, because its chain is incomplete ` +
			`(append the certificates of its issuers, up to the root, to its ca.crt), so it never issues O=system:*`: {
			incomplete, pkix.Name{CommonName: "a", Organization: []string{"system:nodes"}}, []certificatesv1.KeyUsage{"client auth"}},
		`usages ["server auth"] are for servers, but clients trust the CA of signer example.com/custom for API servers: list the permitted names in the signer's allowedNames`: {
			caTrust{strict: trustedForServers}, pkix.Name{CommonName: "a"}, []certificatesv1.KeyUsage{"server auth"}},
		`usages ["digital signature"] include no extended key usage, so the certificate would be valid for clients, but ` +
			`API servers trust the CA of signer example.com/custom for clients; add a usage that this signer permits`: {
			caTrust{strict: trustedForClients}, pkix.Name{CommonName: "a"}, []certificatesv1.KeyUsage{"digital signature"}},
		`subject "CN=proxy" is not permitted: API servers may trust the CA of signer example.com/custom, because its chain is incomplete ` +
			`(append the certificates of its issuers, up to the root, to its ca.crt), so a client with this name could act as any user as a front proxy ` +
			`(--requestheader-client-ca-file); give the signer a CA of its own`: {
			incomplete, pkix.Name{CommonName: "proxy"}, []certificatesv1.KeyUsage{"client auth"}},
	} {
		req := must(csr.Parse(object(t, signerName("example.com/custom"), usages(test.usages...), template(t, func(r *x509.CertificateRequest) { r.Subject = test.subject }))))
		if violation := (Signer{}).checkTrust(req, test.trust); violation == nil || violation.Message != want {
			t.Errorf("%+v, want %s", violation, want)
		}
	}
}

// crossSigned returns a certificate with cert's key, issued by by.
func crossSigned(t *testing.T, cert *x509.Certificate, by root, subject pkix.Name) []byte {
	t.Helper()
	return crossSignedFrom(t, now.Add(-time.Hour), cert, by, subject)
}

// crossSignedFrom is crossSigned for a certificate that is valid for two hours from an instant.
func crossSignedFrom(t *testing.T, from time.Time, cert *x509.Certificate, by root, subject pkix.Name) []byte {
	t.Helper()
	issuerBlock, _ := pem.Decode(by.cert)
	issuer := must(x509.ParseCertificate(issuerBlock.Bytes))
	keyBlock, _ := pem.Decode(by.key)
	key := must(x509.ParsePKCS8PrivateKey(keyBlock.Bytes)).(*ecdsa.PrivateKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: subject, NotBefore: from, NotAfter: from.Add(2 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, cert.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// namedRoot returns a CA of that name, with any number of CAs below, that is valid for an hour.
func namedRoot(t *testing.T, name string) root {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return root{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyPEM}
}

// configMaps answers reads of the ConfigMaps in kube-system. An error in their place fails the read.
type configMaps map[string]any

func (m configMaps) Get(_ context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	switch found := m[key.Name].(type) {
	case map[string]string:
		return unstructured.SetNestedStringMap(obj.(*unstructured.Unstructured).Object, found, "data")
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
	trusted, other := namedRoot(t, "trusted"), namedRoot(t, "other")
	load := func(certs []byte, key []byte, anchors ...[]byte) *ca.Authority {
		return must(ca.Load(certs, key, anchors...))
	}
	copied, own := load(trusted.cert, trusted.key), load(other.cert, other.key)
	crossed := load(slices.Concat(other.cert, crossSigned(t, own.Certificate(), trusted, own.Certificate().Subject)), other.key)
	renamed := load(crossSigned(t, copied.Certificate(), trusted, pkix.Name{CommonName: "another name"}), trusted.key)
	below := crossSigned(t, own.Certificate(), trusted, pkix.Name{CommonName: "below"})
	// two is an intermediate whose own issuer, an intermediate too, is known or left out
	middle := namedRoot(t, "middle")
	middleBelow := crossSigned(t, load(middle.cert, middle.key).Certificate(), trusted, pkix.Name{CommonName: "middle"})
	// later is a cross-certificate of tomorrow, and expired is the trusted root of yesterday
	later := crossSignedFrom(t, now.Add(day), own.Certificate(), trusted, own.Certificate().Subject)
	expired := crossSignedFrom(t, now.Add(-2*day), copied.Certificate(), trusted, copied.Certificate().Subject)
	two := crossSigned(t, own.Certificate(), root{middleBelow, middle.key}, pkix.Name{CommonName: "two"})
	everywhere := configMaps{authentication: map[string]string{"client-ca-file": string(trusted.cert)}, rootCAs: map[string]string{"ca.crt": string(trusted.cert)}}
	clients := func(bundle ...[]byte) configMaps {
		return configMaps{authentication: map[string]string{"client-ca-file": string(slices.Concat(bundle...))}}
	}
	proxies := func(bundle []byte, names string) configMaps {
		return configMaps{authentication: map[string]string{"requestheader-client-ca-file": string(bundle), "requestheader-allowed-names": names}}
	}
	servers := configMaps{authentication: map[string]string{}, rootCAs: map[string]string{"ca.crt": string(trusted.cert)}}
	for name, test := range map[string]struct {
		authority *ca.Authority
		found     configMaps
		strict    string
		proxies   string
		names     string
		err       string // part of the error
	}{
		"a CA of its own":                                     {authority: own, found: everywhere},
		"a cluster without CAs":                               {authority: own, found: configMaps{authentication: map[string]string{}, rootCAs: map[string]string{}}},
		"no kube-root-ca.crt":                                 {authority: own, found: clients(trusted.cert)},
		"a copy of the client CA":                             {authority: copied, found: clients(trusted.cert), strict: trustedForClients},
		"a copy of one of two":                                {authority: copied, found: clients(other.cert, trusted.cert), strict: trustedForClients},
		"the key by another name":                             {authority: renamed, found: clients(trusted.cert), strict: trustedForClients},
		"an intermediate":                                     {authority: load(below, other.key), found: clients(trusted.cert), strict: trustedForClients},
		"an intermediate with its root":                       {authority: load(slices.Concat(below, trusted.cert), other.key), found: clients(trusted.cert), strict: trustedForClients},
		"a cross-signed CA":                                   {authority: crossed, found: clients(trusted.cert), strict: trustedForClients},
		"a cross-certificate that is not valid yet":           {authority: load(slices.Concat(other.cert, later, trusted.cert), other.key), found: clients(trusted.cert), strict: trustedForClients},
		"a trusted CA that has expired":                       {authority: load(below, other.key), found: clients(expired), strict: trustedForClients},
		"a CA for API servers":                                {authority: copied, found: servers, strict: trustedForServers},
		"an intermediate for API servers":                     {authority: load(below, other.key), found: servers, strict: trustedForServers},
		"an intermediate of two":                              {authority: load(slices.Concat(two, middleBelow), other.key), found: clients(trusted.cert), strict: trustedForClients},
		"an intermediate of two in ca.crt":                    {authority: load(two, other.key, slices.Concat(middleBelow, trusted.cert)), found: clients(trusted.cert), strict: trustedForClients},
		"an intermediate whose trusted parent was left out":   {authority: load(two, other.key), found: clients(trusted.cert), strict: mayBeTrusted},
		"an intermediate whose untrusted parent was left out": {authority: load(two, other.key), found: clients(other.cert[:0], namedRoot(t, "else").cert), strict: mayBeTrusted},
		"an intermediate of a root that nothing trusts":       {authority: load(slices.Concat(two, middleBelow, trusted.cert), other.key), found: clients(namedRoot(t, "else").cert)},
		"a cross-signed CA whose trusted parent was left out": {authority: crossed, found: clients(namedRoot(t, "else").cert), strict: mayBeTrusted},
		"a front proxy CA":                                    {authority: copied, found: proxies(trusted.cert, `["a","b"]`), strict: trustedForProxies, proxies: trustedForProxies, names: "a b"},
		"a front proxy CA for any name":                       {authority: copied, found: proxies(trusted.cert, ""), strict: trustedForProxies, proxies: trustedForProxies},
		"an intermediate of a front proxy CA":                 {authority: load(below, other.key), found: proxies(trusted.cert, "[]"), strict: trustedForProxies, proxies: trustedForProxies},
		"perhaps an intermediate of a front proxy CA":         {authority: load(two, other.key), found: proxies(trusted.cert, `["a"]`), strict: mayBeTrusted, proxies: mayBeTrusted, names: "a"},
		"not a front proxy CA":                                {authority: own, found: proxies(trusted.cert, `["a"]`), names: "a"},

		"extension-apiserver-authentication is missing":        {authority: own, found: configMaps{rootCAs: map[string]string{}}, err: `configmaps "extension-apiserver-authentication" not found`},
		"extension-apiserver-authentication cannot be read":    {authority: own, found: configMaps{authentication: errors.New("down"), rootCAs: map[string]string{}}, err: "read ConfigMap kube-system/extension-apiserver-authentication: down"},
		"kube-root-ca.crt cannot be read":                      {authority: own, found: configMaps{authentication: map[string]string{}, rootCAs: errors.New("down")}, err: "read ConfigMap kube-system/kube-root-ca.crt: down"},
		"client-ca-file has no certificate":                    {authority: own, found: clients([]byte("nonsense")), err: "client-ca-file of ConfigMap kube-system/extension-apiserver-authentication: it holds no certificate"},
		"requestheader-client-ca-file has a broken one":        {authority: own, found: proxies([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ""), err: "requestheader-client-ca-file of ConfigMap kube-system/extension-apiserver-authentication: parse certificate 1"},
		"requestheader-allowed-names is not a list of strings": {authority: own, found: proxies(trusted.cert, "a"), err: "requestheader-allowed-names of ConfigMap kube-system/extension-apiserver-authentication: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			read, err := readPublished(t.Context(), test.found)
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error %v, want %q", err, test.err)
			}
			if err != nil {
				return
			}
			got := read.trustIn(test.authority)
			if got.unread != "" || got.strict != test.strict || got.proxies != test.proxies || strings.Join(got.proxyNames, " ") != test.names || got.authority != test.authority {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestUnknownTrustWaits judges a request before the trust in the CA is known, after a failed read, and afterwards. A fault
// never makes it fail.
func TestUnknownTrustWaits(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t, signerName("example.com/custom"), usages("client auth"), template(t, func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: "a", Organization: []string{"system:masters-of-ours"}}
	})))
	made := newRoot(t, time.Hour)
	p.pair.Load(made.cert, made.key)
	taken(p.recorder)
	authority := must(p.pair.Authority(now))
	for i, why := range []string{"that has not been read yet", "down"} {
		if i > 0 {
			p.trust(unknownTrust(authority, why))
		}
		if result, err := p.reconcile(t); err != nil || result.RequeueAfter != csr.Pause(0) || len(p.written) > 0 {
			t.Errorf("%+v, %v, %d writes, want it to wait", result, err, len(p.written))
		}
		want := "Warning CATrustUnknown it is unknown whether API servers trust this CA: " + why + "; if they do, the request is refused (SubjectNotPermitted: "
		if told := taken(p.recorder); len(told) != i || i == 1 && !strings.HasPrefix(told[0], want) { // the first read takes a moment
			t.Errorf("Events %q, want %q", told, want)
		}
	}
	judged := p.reconciler.Judge(t.Context(), p.served)
	if judged.IfTrusted == nil || judged.IfTrusted.Reason != "SubjectNotPermitted" {
		t.Errorf("judged %+v", judged)
	}
	p.trust(caTrust{strict: trustedForClients})
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || csr.StateOf(p.written[0]) != csr.Failed {
		t.Errorf("%v, %d writes, want it to fail", err, len(p.written))
	}
	p.trust(caTrust{})
	if _, err := p.reconcile(t); err != nil || len(p.written) != 2 || csr.StateOf(p.written[1]) != csr.Issued {
		t.Errorf("%v, %d writes, want a certificate", err, len(p.written))
	}
}

// TestUnknownTrustStopsNoneThatStrictRulesPermit checks that only what strict rules refuse waits.
func TestUnknownTrustStopsNoneThatStrictRulesPermit(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t, signerName("example.com/custom"), usages("code signing"), template(t, func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: "a"}
	})))
	custom := p.reconciler.Signers["example.com/custom"]
	custom.Usages = []certificatesv1.KeyUsage{"code signing"}
	p.reconciler.Signers["example.com/custom"] = custom
	made := newRoot(t, time.Hour)
	p.pair.Load(made.cert, made.key)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || csr.StateOf(p.written[0]) != csr.Issued {
		t.Errorf("%v, %d writes", err, len(p.written))
	}
}

// TestTrustIsOfOneCA checks that an answer counts only for the CA that it is about.
func TestTrustIsOfOneCA(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	p.load(t, time.Hour)
	before := must(p.pair.Authority(now))
	if got := p.reconciler.trustOf(p.pair, before); got.unread != "" {
		t.Errorf("%+v", got)
	}
	next := newRoot(t, time.Hour)
	p.pair.Load(next.cert, next.key)
	if got := p.reconciler.trustOf(p.pair, must(p.pair.Authority(now))); got.unread == "" || got.strict == "" || got.proxies == "" {
		t.Errorf("of the next CA: %+v", got)
	}
	p.reconciler.trusts.Store(p.pair, caTrust{authority: before}) // a late answer
	if got := p.reconciler.trustOf(p.pair, must(p.pair.Authority(now))); got.unread == "" {
		t.Errorf("of the next CA, by an answer about the last one: %+v", got)
	}
}

// TestFollowTrust checks when the trust is read, and what wakes the waiting requests.
func TestFollowTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pair, _, recorder := newPair()
		pair.Lifetimes = map[string]time.Duration{"example.com/custom": time.Hour}
		found, woken := &countedReads{configMaps: configMaps{rootCAs: map[string]string{}}}, &countedWakes{}
		found.set(errors.New("down"))
		r := &Reconciler{Signers: map[string]Signer{"example.com/custom": {KeyPair: pair}}}
		r.waiting.Put(fairqueue.Key{Name: "csr-1"}, fairqueue.Digest("example.com/custom"))
		ctx, cancel := context.WithCancel(t.Context())
		if err := r.followTrust(found, pair).Start(ctx, woken); err != nil {
			t.Fatal(err)
		}
		expect := func(step string, wantReads, wantWoken int64, want string) {
			t.Helper()
			synctest.Wait()
			got := "no CA"
			if authority, err := pair.Authority(now); err == nil {
				trust := r.trustOf(pair, authority)
				got = trust.unread
				if got == "" {
					got = "strict: " + trust.strict
				}
			}
			if reads, wakes := found.reads.Load(), woken.adds.Load(); reads != wantReads || wakes != wantWoken || !strings.Contains(got, want) {
				t.Errorf("%s: %d reads, want %d; woken %d times, want %d; %s, want %s", step, reads, wantReads, wakes, wantWoken, got, want)
			}
		}
		expect("no CA", 0, 0, "no CA")
		first := newRoot(t, day)
		pair.Load(first.cert, first.key)
		expect("a CA, a failed read", 1, 1, "down")
		time.Sleep(5*time.Second - 1)
		expect("before the pause ends", 1, 1, "down")
		time.Sleep(time.Nanosecond)
		expect("after five seconds", 2, 1, "down")
		found.set(map[string]string{})
		time.Sleep(5 * time.Second)
		expect("the read succeeds", 4, 2, "strict: ")
		time.Sleep(10*time.Minute - 1)
		expect("for ten minutes", 4, 2, "strict: ")
		found.set(map[string]string{"client-ca-file": string(first.cert)})
		time.Sleep(time.Nanosecond)
		expect("the cluster trusts the CA", 6, 3, "strict: "+trustedForClients)
		found.set(apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, authentication, nil))
		time.Sleep(10 * time.Minute)
		expect("a failed read after ten minutes", 7, 4, "forbidden")
		found.set(map[string]string{"client-ca-file": string(first.cert)})
		time.Sleep(5 * time.Second)
		expect("and a read five seconds later", 9, 5, "strict: "+trustedForClients)
		second := newRoot(t, day)
		pair.Load(second.cert, second.key)
		expect("another CA", 11, 6, "strict: ")
		found.set(errors.New("down"))
		third := newRoot(t, day)
		pair.Load(third.cert, third.key)
		expect("another CA, a failed read", 12, 7, "down")
		found.set(map[string]string{})
		found.setOf(rootCAs, nil)
		time.Sleep(5 * time.Second)
		expect("nothing publishes kube-root-ca.crt", 14, 8, "strict: ")
		time.Sleep(30 * time.Second)
		expect("which is read again soon", 16, 8, "strict: ")
		cancel()
		synctest.Wait()
		for _, told := range taken(recorder) {
			if strings.Contains(told, "CANotTrusted") {
				t.Errorf("a CA for no client is warned of: %s", told)
			}
		}
	})
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

// set replaces the answer about extension-apiserver-authentication.
func (c *countedReads) set(answer any) { c.setOf(authentication, answer) }

// setOf replaces the answer about a ConfigMap. Without an answer it does not exist.
func (c *countedReads) setOf(name string, answer any) {
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

// TestCAThatAPIServersDoNotTrust checks that a CA of a built-in client signer is warned of if client-ca-file does not
// hold it: once, and again after 50 minutes.
func TestCAThatAPIServersDoNotTrust(t *testing.T) {
	pair, passing, recorder := newPair()
	pair.Lifetimes = map[string]time.Duration{kubeletClient: time.Hour}
	made, other := newRoot(t, day), namedRoot(t, "other")
	pair.Load(made.cert, made.key)
	taken(recorder)
	found := configMaps{authentication: map[string]string{"client-ca-file": string(other.cert)}, rootCAs: map[string]string{}}
	r := &Reconciler{}
	warning := "Warning CANotTrusted client-ca-file of ConfigMap kube-system/extension-apiserver-authentication does not hold the CA with key " +
		must(pair.Authority(now)).KeyID() + ", so API servers answer 401 to its certificates for kubernetes.io/kube-apiserver-client-kubelet: " +
		"append this CA to the --client-ca-file of every API server, or sign with a CA that is in it"
	const unread = -1
	for n, step := range []struct {
		file  any
		pause time.Duration
		later time.Duration
		want  int     // Events
		gauge float64 // unread: as before
	}{
		{map[string]string{"client-ca-file": string(other.cert)}, trustEvery, 0, 1, 1},
		{map[string]string{"client-ca-file": string(other.cert)}, trustEvery, 0, 0, 1},
		{map[string]string{"client-ca-file": string(other.cert)}, trustEvery, report.Again, 1, 1},
		{errors.New("down"), trustRetry, 0, 0, unread},
		{map[string]string{"client-ca-file": string(other.cert)}, trustEvery, 0, 0, 1},
		{map[string]string{"client-ca-file": string(other.cert) + string(made.cert)}, trustEvery, 0, 0, 0},
		{map[string]string{}, trustEvery, 0, 1, 1},
		{nil, rootsRetry, 0, 0, 1},
	} {
		if step.file == nil { // nothing publishes kube-root-ca.crt yet: it is read again soon
			delete(found, rootCAs)
			step.file = map[string]string{}
		}
		found[authentication] = step.file
		passing.SetTime(passing.Now().Add(step.later))
		if pause := r.readTrust(t.Context(), found, pair, nil); pause != step.pause {
			t.Errorf("step %d: read again after %s, want %s", n, pause, step.pause)
		}
		if told := taken(recorder); len(told) != step.want || len(told) == 1 && told[0] != warning {
			t.Errorf("step %d: Events %q, want %d", n, told, step.want)
		}
		var gauge dto.Metric
		if err := caNotTrusted.WithLabelValues(kubeletClient).Write(&gauge); err != nil {
			t.Fatal(err)
		}
		if got := gauge.GetGauge().GetValue(); step.gauge != unread && got != step.gauge {
			t.Errorf("step %d: csr_signer_ca_not_trusted is %v, want %v", n, got, step.gauge)
		}
	}
}
