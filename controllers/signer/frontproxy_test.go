package signer

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// crossSigned returns a certificate of cert's name and key, that by has issued.
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
		data      map[string]string // nil is no ConfigMap
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

// TestFrontProxyRules has what a custom signer does on a CA that API servers accept for front proxies, though they answer 401
// to its client certificates.
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
		switch violation, wait := (Signer{AllowNoExtKeyUsage: true}).checkTrust(req, probe.Refused, test.front); {
		case wait:
			got = "wait"
		case violation != nil:
			got = violation.Reason
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestFrontProxyIsOfOneCA keeps an answer for its CA, also when it can't be read any more. A right that is missing is no
// answer either: an API server that has just started forbids what it will permit.
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
