package signer

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func allowedNames(t *testing.T, entries ...string) ca.AllowedNames {
	t.Helper()
	return must(ca.NewAllowedNames(entries))
}

// TestCheckTrust checks the rules of a custom signer for each state of trust. In want, s means signed, w waits, and
// another letter is the reason of a failure.
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
		want   string // three letters: trust unknown, trusted, not trusted
	}{
		"no extended usage":                            {change: about(plain, "", "digital signature"), want: "wUU"},
		"no extended usage, configured":                {signer: Signer{AllowNoExtKeyUsage: true}, change: about(plain, "", "digital signature"), want: "wUs"},
		"a client":                                     {change: about(plain, "", "client auth"), want: "sss"},
		"a client in a group of Kubernetes":            {change: about(of("system:masters"), "", "client auth"), want: "wSs"},
		"a client in a group of kubeadm":               {change: about(of("kubeadm:cluster-admins"), "", "client auth"), want: "wSs"},
		"a client by a name of Kubernetes":             {change: about(pkix.Name{CommonName: "system:admin"}, "", "client auth"), want: "wSs"},
		"a code signer in a group of Kubernetes":       {change: about(of("system:nodes"), "", "code signing"), want: "wSs"},
		"a group that the configuration does not list": {signer: Signer{ForbiddenOnClientCA: []string{"O=other"}}, change: about(of("system:nodes"), "", "client auth"), want: "sss"},
		"a group that the configuration lists":         {signer: Signer{ForbiddenOnClientCA: []string{"O=system:*"}}, change: about(of("system:nodes"), "", "client auth"), want: "wSs"},
		"an empty list of forbidden subjects":          {signer: Signer{ForbiddenOnClientCA: []string{}}, change: about(of("system:masters"), "", "client auth"), want: "sss"},
		"a server without a list":                      {change: about(plain, "a.svc", "server auth"), want: "wNs"},
		"a server beside a client without a list":      {change: about(plain, "a.svc", "client auth", "server auth"), want: "wNs"},
		"any usage without a list":                     {change: about(plain, "a.svc", "any"), want: "wNs"},
		"server gated crypto without a list":           {change: about(plain, "a.svc", "netscape sgc"), want: "wNs"},
		"a server of a listed name":                    {signer: Signer{AllowedNames: allowedNames(t, "a.svc")}, change: about(plain, "a.svc", "server auth"), want: "sss"},
		"a server of another name":                     {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(plain, "a.svc", "server auth"), want: "wNs"},
		"a server of no name":                          {signer: Signer{AllowedNames: allowedNames(t, "b.svc")}, change: about(pkix.Name{CommonName: "a.svc"}, "", "server auth"), want: "wNs"},
		"Kubernetes' own signer":                       {name: certificatesv1.KubeAPIServerClientSignerName, change: about(of("system:nodes"), "", "client auth"), want: "sss"},
		"Kubernetes' own serving signer":               {name: certificatesv1.KubeletServingSignerName, change: about(of("system:nodes"), "a", "server auth"), want: "sss"},
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
			for i, trust := range []probe.Trust{probe.Unknown, probe.Recognised, probe.Refused} {
				violation, unknown := test.signer.checkTrust(req, caTrust{Answer: probe.Answer{Trust: trust}})
				want, wait := test.want[i:i+1], unknown != ""
				if wait != (want == "w") || (violation != nil) != (want != "s") || violation != nil && !wait && violation.Reason != letters[want] {
					t.Errorf("%s: wait %t, %+v, want %s", trust, wait, violation, want)
				}
			}
		})
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	yes, no, silent := probe.Answer{Trust: probe.Recognised, Evidence: "yes"}, probe.Answer{Trust: probe.Refused, Evidence: "401"}, probe.Answer{Evidence: "silent"}
	for name, test := range map[string]struct {
		answers map[string]probe.Answer
		missing error
		want    probe.Trust
	}{
		"no API servers":             {},
		"one API server that trusts": {answers: map[string]probe.Answer{"a": yes}, want: probe.Recognised},
		"one of several":             {answers: map[string]probe.Answer{"a": no, "b": silent, "c": yes}, missing: errors.New("forbidden"), want: probe.Recognised},
		"all refuse":                 {answers: map[string]probe.Answer{"a": no, "b": no}, want: probe.Refused},
		"one is silent":              {answers: map[string]probe.Answer{"a": no, "b": silent}},
		"others can't be listed":     {answers: map[string]probe.Answer{"a": no}, missing: errors.New("forbidden")},
		"the only API server":        {answers: map[string]probe.Answer{"a": silent}},
	} {
		if got := together(probe.Round{Answers: test.answers}, test.missing); got.Trust != test.want {
			t.Errorf("%s: %s (%s), want %s", name, got.Trust, got.Evidence, test.want)
		}
	}
}

// TestTrustIsOfOneCA checks that an answer counts only for the CA that was asked about. It stays while API servers are
// silent for a while. A changed answer wakes waiting requests.
func TestTrustIsOfOneCA(t *testing.T) {
	t.Parallel()
	pair, _, _ := newPair()
	first, second := newRoot(t, time.Hour), newRoot(t, time.Hour)
	pair.Load(first.cert, first.key)
	authority := must(pair.Authority(now))
	woken := pair.Subscribe()
	var cache trustCache
	wakes := func() bool {
		select {
		case <-woken:
			return true
		default:
			return false
		}
	}
	yes, no, silent := probe.Answer{Trust: probe.Recognised}, probe.Answer{Trust: probe.Refused}, probe.Answer{Evidence: "silent"}
	for i, step := range []struct {
		answer probe.Answer
		after  time.Duration
		want   probe.Trust
		wakes  bool
	}{
		{silent, 0, probe.Unknown, false},
		{no, time.Second, probe.Refused, true},
		{no, time.Minute, probe.Refused, false},
		{silent, 2 * time.Minute, probe.Unknown, true},
		{yes, 3 * time.Minute, probe.Recognised, true},
		{silent, 33*time.Minute - time.Nanosecond, probe.Recognised, false},
		{silent, 33 * time.Minute, probe.Unknown, true},
	} {
		cache.note(pair, authority, step.answer, frontProxy{}, nil, now.Add(step.after))
		if got := cache.of(pair, authority).Trust; got != step.want || wakes() != step.wakes {
			t.Errorf("step %d: %s, want %s, and waking %t", i, got, step.want, step.wakes)
		}
	}
	cache.note(pair, authority, no, frontProxy{}, nil, now)
	pair.Load(second.cert, second.key)
	if got := cache.of(pair, must(pair.Authority(now))); got.Trust != probe.Unknown {
		t.Errorf("a CA that nobody was asked about is %s", got.Trust)
	}
	cache.note(pair, authority, yes, frontProxy{}, nil, now) // a late answer
	if got := cache.of(pair, must(pair.Authority(now))); got.Trust != probe.Unknown {
		t.Errorf("a CA that nobody was asked about is %s by the answer about another one", got.Trust)
	}
}

// TestWhatHasNoAnswerWaits judges a request before and after API servers have answered.
func TestWhatHasNoAnswerWaits(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t, signerName("example.com/custom"), usages("client auth"), template(t, func(r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: "a", Organization: []string{"system:masters-of-ours"}}
	})))
	made := newRoot(t, time.Hour)
	p.pair.Load(made.cert, made.key)
	if result, err := p.reconcile(t); err != nil || result.RequeueAfter == 0 || len(p.written) > 0 {
		t.Errorf("%+v, %v, %d writes, want it to wait", result, err, len(p.written))
	}
	if told := strings.Join(taken(p.recorder), "\n"); !strings.Contains(told, "CATrustUnknown") || !strings.Contains(told, "not been asked yet") {
		t.Errorf("Events are %q", told)
	}
	p.note(probe.Recognised)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 1 || csr.StateOf(p.written[0]) != csr.Failed {
		t.Errorf("%v, %d writes, want it to fail", err, len(p.written))
	}
	p.note(probe.Refused)
	p.served = changed(p.served, "8", nil)
	if _, err := p.reconcile(t); err != nil || len(p.written) != 2 || csr.StateOf(p.written[1]) != csr.Issued {
		t.Errorf("%v, %d writes, want a certificate", err, len(p.written))
	}
}

// TestTargets checks that the manager's API server and the configured ones are asked. Without endpoints there are no
// others.
func TestTargets(t *testing.T) {
	t.Parallel()
	asker := &trustAsker{cluster: &rest.Config{Host: "https://lb.test"}, live: fake.NewClientBuilder().Build()}
	if got, err := asker.targets(t.Context()); err != nil || len(got) != 1 || got[0].Name != "https://lb.test" {
		t.Errorf("%+v, %v", got, err)
	}
	asker.listed = []string{"b.test:6443", "a.test:6443"}
	if got, err := asker.targets(t.Context()); err != nil || len(got) != 3 || got[1].Name != "a.test:6443" || got[2].Cluster.ServerName != probe.ServerName {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTargetsThatRestart checks that an API server that refuses connections is asked if others accept them. If all
// addresses refuse connections, none is asked.
func TestTargetsThatRestart(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	port := int32(listener.Addr().(*net.TCPAddr).Port)
	published := func(addresses ...string) *discoveryv1.EndpointSlice {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
			Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: &port}},
		}
		for _, address := range addresses {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
		return slice
	}
	for name, test := range map[string]struct {
		published *discoveryv1.EndpointSlice
		want      int
	}{
		"one of two refuses": {published("127.0.0.1", "127.0.0.2"), 3},
		"all refuse":         {published("127.0.0.2", "127.0.0.3"), 1},
	} {
		asker := &trustAsker{cluster: &rest.Config{Host: "https://lb.test"}, live: fake.NewClientBuilder().WithObjects(test.published).Build()}
		if got, err := asker.targets(t.Context()); err != nil || len(got) != test.want {
			t.Errorf("%s: %d targets, want %d: %+v, %v", name, len(got), test.want, got, err)
		}
	}
}

// crossSigned returns a certificate with cert's name and key, issued by by.
func crossSigned(t *testing.T, cert *x509.Certificate, by root, subject pkix.Name) []byte {
	t.Helper()
	issuerBlock, _ := pem.Decode(by.cert)
	issuer := must(x509.ParseCertificate(issuerBlock.Bytes))
	keyBlock, _ := pem.Decode(by.key)
	key := must(x509.ParsePKCS8PrivateKey(keyBlock.Bytes)).(*ecdsa.PrivateKey)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, cert.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestReadFrontProxy(t *testing.T) {
	t.Parallel()
	named := func(name string) root {
		authority, key, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: 24 * time.Hour}, now)
		if err != nil {
			t.Fatal(err)
		}
		return root{authority.CertificatePEM(), key}
	}
	proxies, other := named("front proxies"), named("other")
	load := func(certs []byte, key []byte) *ca.Authority { return must(ca.Load(certs, key)) }
	copied, strange := load(proxies.cert, proxies.key), load(other.cert, other.key)
	crossed := load(slices.Concat(other.cert, crossSigned(t, strange.Certificate(), proxies, strange.Certificate().Subject)), other.key)
	renamed := load(crossSigned(t, copied.Certificate(), proxies, pkix.Name{CommonName: "another name"}), proxies.key)
	below := load(crossSigned(t, strange.Certificate(), proxies, pkix.Name{CommonName: "below"}), other.key)
	for name, test := range map[string]struct {
		authority *ca.Authority
		data      map[string]string // nil means no ConfigMap
		want      string
	}{
		"no ConfigMap":            {authority: copied, want: "other"},
		"no front proxies":        {authority: copied, data: map[string]string{"client-ca-file": string(proxies.cert)}, want: "other"},
		"a CA of its own":         {authority: strange, data: map[string]string{frontProxyCAs: string(proxies.cert), frontProxyNames: `["a"]`}, want: "other"},
		"a copy":                  {authority: copied, data: map[string]string{frontProxyCAs: string(proxies.cert), frontProxyNames: `["a","b"]`}, want: "trusted a b"},
		"a copy of one of two":    {authority: copied, data: map[string]string{frontProxyCAs: string(other.cert) + string(proxies.cert)}, want: "trusted"},
		"the key by another name": {authority: renamed, data: map[string]string{frontProxyCAs: string(proxies.cert), frontProxyNames: `[]`}, want: "trusted"},
		"an intermediate below":   {authority: below, data: map[string]string{frontProxyCAs: string(proxies.cert)}, want: "trusted"},
		"a cross-signed CA":       {authority: crossed, data: map[string]string{frontProxyCAs: string(proxies.cert)}, want: "trusted"},
		"no certificates":         {authority: copied, data: map[string]string{frontProxyCAs: "nonsense"}, want: "error"},
		"no names":                {authority: copied, data: map[string]string{frontProxyCAs: string(proxies.cert), frontProxyNames: "a"}, want: "error"},
	} {
		builder := fake.NewClientBuilder()
		if test.data != nil {
			builder.WithObjects(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: test.data})
		}
		front, err := readFrontProxy(t.Context(), builder.Build(), test.authority, now)
		got := "other"
		switch {
		case err != nil:
			got = "error"
		case front.trusted:
			got = strings.TrimSpace("trusted " + strings.Join(front.names, " "))
		}
		if got != test.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, test.want)
		}
	}
}

// TestFrontProxyRules checks a custom signer with a CA that API servers accept for front proxies but not for clients.
func TestFrontProxyRules(t *testing.T) {
	t.Parallel()
	proxy, user := pkix.Name{CommonName: "front-proxy-client"}, pkix.Name{CommonName: "alice"}
	listed, anyName := frontProxy{trusted: true, names: []string{"front-proxy-client"}}, frontProxy{trusted: true}
	unread := frontProxy{unread: "timeout"}
	for name, test := range map[string]struct {
		front   frontProxy
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
		"not known yet":                              {unread, "", user, []certificatesv1.KeyUsage{"client auth"}, "wait"},
		"not known yet, without usage":               {unread, "", user, []certificatesv1.KeyUsage{"digital signature"}, "wait"},
		"not known yet, a server":                    {unread, "", user, []certificatesv1.KeyUsage{"server auth"}, ""},
		"another CA":                                 {frontProxy{}, "", proxy, []certificatesv1.KeyUsage{"client auth"}, ""},
		"Kubernetes' own signer":                     {listed, certificatesv1.KubeAPIServerClientSignerName, proxy, []certificatesv1.KeyUsage{"client auth"}, ""},
	} {
		if test.signer == "" {
			test.signer = "example.com/custom"
		}
		req := must(csr.Parse(object(t, signerName(test.signer), usages(test.usages...), template(t, func(r *x509.CertificateRequest) { r.Subject = test.subject }))))
		got := ""
		trust := caTrust{Answer: probe.Answer{Trust: probe.Refused}, front: test.front}
		switch violation, unknown := (Signer{AllowNoExtKeyUsage: true}).checkTrust(req, trust); {
		case unknown != "":
			got = "wait"
		case violation != nil:
			got = violation.Reason
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestFrontProxyIsOfOneCA checks that an answer counts only for its CA, and stays if a later read fails. A missing
// right is no answer: an API server that has just started may forbid what it will permit.
func TestFrontProxyIsOfOneCA(t *testing.T) {
	t.Parallel()
	pair, _, _ := newPair()
	first, second := newRoot(t, time.Hour), newRoot(t, time.Hour)
	pair.Load(first.cert, first.key)
	authority := must(pair.Authority(now))
	var cache trustCache
	if front := cache.of(pair, authority).front; front.unread != "" {
		t.Errorf("nobody asks, but %s", front.unread)
	}
	cache.asked = true
	down := errors.New("down")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "", down)
	for i, step := range []struct {
		found frontProxy
		err   error
		want  frontProxy
	}{
		{err: down, want: frontProxy{unread: "down"}},
		{err: forbidden, want: frontProxy{unread: forbidden.Error()}},
		{found: frontProxy{trusted: true}, want: frontProxy{trusted: true}},
		{err: down, want: frontProxy{trusted: true}},
		{err: forbidden, want: frontProxy{trusted: true}},
	} {
		cache.note(pair, authority, probe.Answer{}, step.found, step.err, now)
		if got := cache.of(pair, authority).front; got.unread != step.want.unread || got.trusted != step.want.trusted {
			t.Errorf("step %d: %+v, want %+v", i, got, step.want)
		}
	}
	pair.Load(second.cert, second.key)
	if front := cache.of(pair, must(pair.Authority(now))).front; front.unread == "" || front.trusted {
		t.Errorf("of another CA %+v is known", front)
	}
}
