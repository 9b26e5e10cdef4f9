package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

const start = `{"apiVersion":"inventory.csr-controller-manager.io/v1alpha1","kind":"NodeLookup","uid":"u-1","node":"node-1"`

func TestWebhookAsksAndReads(t *testing.T) {
	t.Parallel()
	a := newAuthority()
	var asked string
	server := a.serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), body)
		_, _ = io.WriteString(w, start+`,"known":true,"names":["Node-1.Example.Org."],
			"addresses":["::ffff:10.0.0.1","2001:DB8:0::1","10.1.0.0/16"],"suffixes":["Pods.example.org"],"bound":"node-1","created":"2026-01-02T03:04:05Z"}`)
	})
	got := must(a.asking(t, server.URL+"/lookup?a=b").Lookup(t.Context(), "node-1", request()))
	want := &inventory.Entry{
		Source: "webhook", SANs: sans("node-1.example.org", "10.0.0.1", "2001:db8::1"), Suffixes: []string{"pods.example.org"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Bound: "node-1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	const wantAsked = `POST /lookup?a=b application/json {"apiVersion":"inventory.csr-controller-manager.io/v1alpha1","kind":"NodeLookup","uid":"u-1",` +
		`"node":"node-1","requester":{"username":"system:node:node-1","groups":["system:nodes","system:authenticated"],"uid":"r-1"},` +
		`"signerName":"kubernetes.io/kubelet-serving"}`
	expect.Equal(t, "entry", got, want, cmpopts.EquateEmpty())
	expect.Equal(t, "question", asked, wantAsked)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	const noLookup = "the response is not a NodeLookup of inventory.csr-controller-manager.io/v1alpha1"
	const notUID, notNode = "the response is for another request: uid is not u-1", `the response is for another node: node is not "node-1"`
	const unknown = "the response describes a node although known is false"
	but := func(old, text string) string { return strings.Replace(start, old, text, 1) + `,"known":true}` }
	for name, test := range map[string]struct {
		answer  string
		want    *inventory.Entry
		wantErr string
	}{
		"not known":          {answer: start + `,"known":false}`},
		"known, no values":   {answer: start + `,"known":true}`, want: &inventory.Entry{Source: "webhook"}},
		"nothing":            {answer: ``, wantErr: "read answer: unexpected end of JSON input"},
		"more after it":      {answer: start + `,"known":true}{}`, wantErr: "read answer: invalid character '{' after top-level value"},
		"another version":    {answer: but("v1alpha1", "v1"), wantErr: noLookup},
		"another request":    {answer: but("u-1", "u-2"), wantErr: notUID},
		"another node":       {answer: but("node-1", "node-2"), wantErr: notNode},
		"node in other case": {answer: but("node-1", "Node-1"), wantErr: notNode},
		"no field known":     {answer: start + `}`, wantErr: "the response lacks the field known"},
		"not known, a name":  {answer: start + `,"known":false,"names":["a"]}`, wantErr: unknown},
		"unknown field":      {answer: start + `,"known":true,"name":["a"]}`, wantErr: `read answer: unknown field "name"`},
		"field twice":        {answer: start + `,"known":false,"known":true}`, wantErr: `read answer: duplicate field "known"`},
		"all mistakes": {
			answer: start + `,"known":true,"names":["a","*.a","10.0.0.1",""],"addresses":["10.0.0.1","a","0.0.0.0/0"],"suffixes":[""],"bound":"A"}`,
			wantErr: `read answer: names[1] "*.a": is not a DNS name
names[2] "10.0.0.1": is an address: list it as one
names[3] "": is not a DNS name
addresses[1] "a": is not an IP address
addresses[2] "0.0.0.0/0": is too wide: /8 is the widest
suffixes[0] "": is not a DNS name
bound "A" is not a valid Node name`,
		},
	} {
		got, err := readAnswer([]byte(test.answer), "node-1", "u-1")
		expect.Error(t, name, err, test.wantErr)
		expect.Equal(t, name, got, test.want, cmpopts.EquateEmpty())
	}
}

// TestHostileServers checks every response of a server other than a valid one, and certificates that are not accepted.
// Each lookup must end in time. No part of the URL is in an error, because any part may be a secret, and Events and logs
// show errors: net/http, the resolver and crypto/tls show a part.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	const secret, good = "/s3cr3t-path?token=s3cr3t%2Fquery", start + `,"known":true}`
	a, another := newAuthority(), newAuthority()
	constrained := newAuthority(&net.IPNet{IP: net.IPv4(192, 0, 2, 0), Mask: net.CIDRMask(24, 32)})
	status := func(code int, location string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", location)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, good)
		}
	}
	serving := func(handler http.HandlerFunc) string { return a.serve(t, handler).URL }
	closed := a.serve(t, answering(""))
	closed.Close()
	verifying := a.serve(t, answering(good), func(s *httptest.Server) {
		s.TLS.ClientCAs, s.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		s.TLS.ClientCAs.AddCert(a.Certificate())
	})
	showing := func(by *authority) func(*Options) {
		return func(o *Options) {
			cert, key := by.pair(x509.ExtKeyUsageClientAuth)
			dir := t.TempDir()
			o.CertFile, o.KeyFile = file(t, dir, "tls.crt", cert), file(t, dir, "tls.key", key)
		}
	}
	full := start + `,"known":true` + strings.Repeat(" ", 64<<10-len(good)) + `}`
	const before, misnamed = `read answer: unknown field "`, "the server's certificate is not valid for the host in the URL"
	unknownField := func(length int) string {
		return serving(answering(start + `,"known":true,"` + strings.Repeat("x", length-len(before+`"`)) + `":1}`))
	}
	for name, test := range map[string]struct {
		url    string
		client func(*Options)
		want   string // empty if it is answered
	}{
		"exactly 64 KiB":       {serving(answering(full)), nil, ""},
		"a redirect elsewhere": {serving(status(307, "https://s3cr3t-host.invalid"+secret)), nil, "answered 307, want 200"},
		"an endless body": {serving(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
					return
				}
			}
		}), nil, "answered more than 64 KiB"},
		"huge header": {serving(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}), nil, "net/http: server response headers exceeded 65536 bytes; aborted"},
		"an error as long as is kept":     {unknownField(512), nil, before + strings.Repeat("x", 512-len(before+`"`)) + `"`},
		"a longer error":                  {unknownField(513), nil, before + strings.Repeat("x", 509-len(before)) + "..."},
		"no answer":                       {serving(stalls), within(100 * time.Millisecond), "context deadline exceeded"},
		"nothing listens":                 {closed.URL, nil, "dial: connect: connection refused"},
		"a host that does not exist":      {"https://s3cr3t-host.invalid", within(time.Second), " "}, // the resolver may take too long
		"the certificate of another CA":   {another.serve(t, answering(good)).URL, nil, "certificate signed by unknown authority"},
		"the certificate of another name": {strings.Replace(serving(answering(good)), "127.0.0.1", "localhost", 1), nil, misnamed},
		"a CA that may not issue it":      {constrained.serve(t, answering(good)).URL, nil, "is not authorized to sign for this name"},
		"old TLS": {a.serve(t, answering(good), func(s *httptest.Server) {
			s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		}).URL, nil, "remote error: tls: protocol version not supported"},
		"a valid client certificate": {verifying.URL, showing(a), ""},
		"wrong client certificate":   {verifying.URL, showing(another), "tls: "},
		"no client certificate":      {verifying.URL, nil, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			webhook := a.asking(t, test.url+secret, func(o *Options) {
				o.CAFile = file(t, t.TempDir(), "ca.crt", append(bytes.Clone(a.pem), constrained.pem...))
				if test.client != nil {
					test.client(o)
				}
			})
			began := time.Now()
			found, err := inventory.Sources{webhook}.Lookup(t.Context(), "node-1", request())
			took := time.Since(began)
			expect.True(t, took <= defaultTimeout+time.Second, "took %s", took)
			if test.want == "" {
				expect.True(t, found.Entry != nil && err == nil, "found %+v, error %v", found.Entry, err)
				return
			}
			whole := len(test.want) > 500 // the row has all of the error
			if err == nil || found.Entry != nil || !strings.Contains(err.Error(), test.want) ||
				len(err.Error()) > 540 || whole && !strings.HasSuffix(err.Error(), test.want) {
				t.Fatalf("found %+v, error %v, want %s", found.Entry, err, test.want)
			}
			parsed := must(url.Parse(test.url))
			for _, part := range []string{"s3cr3t", parsed.Host, parsed.Hostname()} {
				expect.True(t, !strings.Contains(err.Error(), part), "shows %s: %v", part, err)
			}
		})
	}
}

// TestFilesAreReadAnew replaces the CA and the client certificate between two lookups. Proxy settings in the environment
// redirect none, and a canceled caller does not wait.
func TestFilesAreReadAnew(t *testing.T) {
	t.Parallel()
	a, another := newAuthority(), newAuthority()
	var serial atomic.Value
	server := a.serve(t, func(w http.ResponseWriter, r *http.Request) {
		serial.Store(r.TLS.PeerCertificates[0].SerialNumber.String())
		answering(start+`,"known":true}`)(w, r)
	}, func(s *httptest.Server) { s.TLS.ClientAuth = tls.RequireAnyClientCert })
	dir := t.TempDir()
	renew := func() {
		cert, key := a.pair(x509.ExtKeyUsageClientAuth)
		file(t, dir, "tls.crt", cert)
		file(t, dir, "tls.key", key)
	}
	webhook := a.asking(t, server.URL, func(o *Options) { o.CertFile, o.KeyFile = dir+"/tls.crt", dir+"/tls.key" })
	ctx, cancel := context.WithCancel(t.Context())
	lookup := func(want string) {
		t.Helper()
		_, err := webhook.Lookup(ctx, "node-1", request())
		expect.True(t, (want != "" || err == nil) && strings.Contains(fmt.Sprint(err), want), "error %v, want %q", err, want)
	}
	renew()
	lookup("")
	transport, err := webhook.options.transport()
	expect.True(t, err == nil && transport.Proxy == nil, "there is a proxy, or %v", err)
	first := serial.Load()
	renew()
	lookup("")
	expect.True(t, serial.Load() != first, "shows the old certificate")
	file(t, "/", webhook.options.CAFile, another.pem)
	lookup("certificate signed by unknown authority")
	file(t, "/", webhook.options.CAFile, nil)
	lookup("holds no certificate")
	file(t, "/", webhook.options.CAFile, append(another.pem, a.pem...))
	lookup("")
	file(t, dir, "tls.key", []byte("x"))
	lookup("tls.key: ")
	renew()
	cancel()
	lookup("canceled")
}

func TestWebhookMistakes(t *testing.T) {
	t.Parallel()
	for want, options := range map[string]Options{
		"url: want https://HOST\ncaFile: set the file with the CA of the server": {URL: "http://a"},
		"url: want https://HOST": {URL: "https://:443/a", CAFile: "ca"},
		"url: invalid URL":       {URL: "https://u:secret@a:b", CAFile: "ca"},
		"url: must not contain a user or a fragment; authenticate with a client certificate": {URL: "https://u:secret@a", CAFile: "ca"},
		"certFile, keyFile: set both or none\ntimeout: 31s: want up to 30s":                  {URL: "https://a", CAFile: "ca", CertFile: "c", Timeout: 31 * time.Second},
		"timeout: -1ns: want up to 30s":                                                      {URL: "https://a", CAFile: "ca", Timeout: -1},
	} {
		_, err := New(options)
		expect.Error(t, "error", err, want)
	}
	webhook := must(New(Options{URL: "https://127.0.0.1:1", CAFile: "/nowhere/ca.crt"}))
	expect.Equal(t, "the default timeout", webhook.options.Timeout, 5*time.Second)
	for want, req := range map[string]*csr.Request{"open /nowhere/ca.crt: no such file or directory": request(), "a lookup needs a request": {}} {
		_, err := webhook.Lookup(t.Context(), "a", req)
		expect.Error(t, "error", err, want)
	}
	// The error of a resolver, which may take too long in TestHostileServers.
	err := hideURL(&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "s3cr3t", Server: "10.0.0.1:53"}})
	expect.Error(t, "resolver", err, "the host in the URL can't be resolved: no such host")
}

func sans(texts ...string) []san.SAN { return san.Of(texts, nil) }

// authority issues the certificates of one test.
type authority struct {
	*ca.Authority
	pem []byte
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// newAuthority returns a CA that may issue for any name. If permitted is set, the clients' copy of its certificate permits
// only these addresses.
func newAuthority(permitted ...*net.IPNet) *authority {
	made, keyPEM, err := ca.New(ca.NewOptions{CommonName: "test", Lifetime: time.Hour}, time.Now())
	a := &authority{must(made, err), made.CertificatePEM()}
	if len(permitted) > 0 {
		template, key := *a.Certificate(), must(tls.X509KeyPair(a.pem, keyPEM)).PrivateKey
		template.PermittedIPRanges = permitted
		der := must(x509.CreateCertificate(rand.Reader, &template, &template, template.PublicKey, key))
		a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return a
}

// pair returns a leaf for 127.0.0.1 in PEM.
func (a *authority) pair(usage x509.ExtKeyUsage) (cert, key []byte) {
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	issued := must(a.Issue(must(ca.NewProfile(ca.ProfileConfig{})), ca.Request{
		PublicKey: private.Public(), IPAddresses: []net.IP{{127, 0, 0, 1}}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}, time.Now()))
	return issued.PEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(private))})
}

func file(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	expect.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// serve starts a server with a certificate of a.
func (a *authority) serve(t testing.TB, handler http.HandlerFunc, mods ...func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	cert := must(tls.X509KeyPair(a.pair(x509.ExtKeyUsageServerAuth)))
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
	return must(New(options))
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

// stalls does not answer.
func stalls(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// FuzzReadAnswer checks that an answer is accepted for one request and one node only, and that a generic JSON reader
// finds in it what was accepted, and no other field.
func FuzzReadAnswer(f *testing.F) {
	for _, rest := range []string{
		`,"known":true,"names":["a"],"addresses":["10.0.0.1","10.0.0.0/8"],"suffixes":["b"],"bound":"node-1"}`,
		`,"known":true,"names":["Node-1.Example.Org."],"addresses":["::ffff:10.0.0.1","2001:DB8:0::1"],"created":"2026-01-02T03:04:05Z"}`,
		`,"known":true,"bound":"node-2","names":["a"]}`, `,"known":false}`, `,"known":false,"names":["a"]}`, `,"Known":true}`, `,"known":true,"known":false}`,
		`,"known":true,"more":1}`, `,"known":true}{}`, `,"known":true,"names":null}`, `,"known":true,"addresses":["fd00::1%eth0","0.0.0.0/0"]}`,
	} {
		f.Add([]byte(start + rest))
	}
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		entry, err := readAnswer(data, "node-1", "u-1")
		expect.True(t, entry == nil || err == nil, "is both %+v and %v", entry, err)
		if err != nil {
			return
		}
		checkGeneric(t, data, entry)
		if entry == nil {
			return
		}
		expect.True(t, strings.Contains(string(data), "known") && (entry.Bound == "" || entry.Bound == "node-1" || entry.Empty()),
			"is %+v", entry)
		if _, err := readAnswer(data, "node-1", "u-2"); err == nil {
			t.Error("is an answer to any request")
		}
		if _, err := readAnswer(data, "node-2", "u-1"); err == nil {
			t.Error("is an answer about any node")
		}
	})
}

// checkGeneric compares entry, which is nil for an unknown node, with what encoding/json reads without a schema.
func checkGeneric(t *testing.T, data []byte, entry *inventory.Entry) {
	t.Helper()
	var generic map[string]any
	if err := json.Unmarshal(data, &generic); err != nil {
		t.Fatalf("accepted, but it is not JSON: %v", err)
	}
	fields := []string{"apiVersion", "kind", "uid", "node", "known", "names", "addresses", "suffixes", "bound", "created"}
	for name := range generic {
		expect.True(t, slices.Contains(fields, name), "accepted with the field %q", name)
	}
	count := func(name string) int { list, _ := generic[name].([]any); return len(list) }
	asked := count("names") + count("addresses") + count("suffixes")
	switch known := generic["known"]; {
	case known != (entry != nil) || generic["uid"] != "u-1" || generic["node"] != "node-1":
		t.Errorf("known is %v of %v for %v, and the entry %+v", known, generic["node"], generic["uid"], entry)
	case entry == nil && asked > 0:
		t.Errorf("a node that is not known has %d names", asked)
	case entry != nil && !entry.Empty() && len(entry.SANs)+len(entry.Prefixes)+len(entry.Suffixes) != asked:
		t.Errorf("the answer has %d names and addresses, the entry is %+v", asked, entry)
	}
}
