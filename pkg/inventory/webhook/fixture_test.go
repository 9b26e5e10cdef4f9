package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func sans(texts ...string) []san.SAN {
	var all []san.SAN
	for _, text := range texts {
		all = append(all, san.Parse(text))
	}
	return all
}

// authority issues the certificates of one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, mods ...func(*x509.Certificate)) *authority {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	for _, mod := range mods {
		mod(template)
	}
	a := &authority{cert: template}
	var der []byte
	a.key, der = a.sign(t, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// sign signs template with a's key, or with its own key.
func (a *authority) sign(t testing.TB, template *x509.Certificate, with *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if with == nil {
		with = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), with)
	if err != nil {
		t.Fatal(err)
	}
	return key, der
}

// pair returns a leaf for 127.0.0.1 in PEM.
func (a *authority) pair(t testing.TB, usage x509.ExtKeyUsage, names ...string) (cert, key []byte) {
	t.Helper()
	private, der := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "leaf"}, DNSNames: names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.key)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func file(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts a server with a certificate of a.
func (a *authority) serve(t testing.TB, handler http.HandlerFunc, mods ...func(*httptest.Server)) *httptest.Server {
	t.Helper()
	cert, err := tls.X509KeyPair(a.pair(t, x509.ExtKeyUsageServerAuth))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, mod := range mods {
		mod(server)
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// asking returns a Source that trusts a and asks the server at url.
func (a *authority) asking(t testing.TB, url string, mods ...func(*Options)) *Source {
	t.Helper()
	options := Options{URL: url, CAFile: file(t, t.TempDir(), "ca.crt", a.pem)}
	for _, mod := range mods {
		mod(&options)
	}
	webhook, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	return webhook
}

func within(timeout time.Duration) func(*Options) {
	return func(o *Options) { o.Timeout = timeout }
}

func request() *csr.Request {
	return &csr.Request{
		UID: "u-1", SignerName: "kubernetes.io/kubelet-serving",
		Requester: csr.Requester{Username: "system:node:node-1", UID: "r-1", Groups: []string{"system:nodes", "system:authenticated"}},
	}
}

// answering writes text.
func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}
