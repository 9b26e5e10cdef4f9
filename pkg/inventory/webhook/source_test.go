package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

const start = `{"apiVersion":"inventory.csr-controller-manager.io/v1alpha1","kind":"NodeLookup","uid":"u-1","node":"node-1"`

func TestWebhookAsksAndReads(t *testing.T) {
	a := newAuthority(t)
	var asked string
	server := a.serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), body)
		_, _ = io.WriteString(w, start+`,"known":true,"names":["Node-1.Example.Org."],
			"addresses":["::ffff:10.0.0.1","2001:DB8:0::1","10.1.0.0/16"],"suffixes":["Pods.example.org"],"bound":"node-1","created":"2026-01-02T03:04:05Z"}`)
	})
	webhook := a.asking(t, server.URL+"/lookup?a=b")
	got, err := webhook.Lookup(t.Context(), "node-1", request())
	if err != nil {
		t.Fatal(err)
	}
	want := &inventory.Entry{
		Source: "webhook", SANs: sans("node-1.example.org", "10.0.0.1", "2001:db8::1"), Suffixes: []string{"pods.example.org"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Bound: "node-1", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantAsked := `POST /lookup?a=b application/json {"apiVersion":"inventory.csr-controller-manager.io/v1alpha1","kind":"NodeLookup","uid":"u-1",` +
		`"node":"node-1","requester":{"username":"system:node:node-1","groups":["system:nodes","system:authenticated"],"uid":"r-1"},` +
		`"signerName":"kubernetes.io/kubelet-serving"}`
	if diff := cmp.Diff(wantAsked, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		answer  string
		want    *inventory.Entry
		wantErr string
	}{
		"not known":        {answer: start + `,"known":false}`},
		"not known, empty": {answer: start + `,"known":false,"names":[],"addresses":null}`},
		"known, no values": {answer: start + `,"known":true}`, want: &inventory.Entry{Source: "webhook"}},
		"it has become another node": {
			answer: start + `,"known":true,"names":["a"],"suffixes":["a"],"addresses":["10.0.0.0/8"],"bound":"node-2"}`,
			want:   &inventory.Entry{Source: "webhook", Bound: "node-2"},
		},
		"nothing":                            {answer: ``, wantErr: "read answer: unexpected end of JSON input"},
		"null":                               {answer: `null`, wantErr: "the response is not a NodeLookup of inventory.csr-controller-manager.io/v1alpha1"},
		"a list":                             {answer: `[]`, wantErr: "read answer: json: cannot unmarshal array into Go value of type webhook.nodeAnswer"},
		"YAML":                               {answer: "known: true", wantErr: "read answer: invalid character 'k' looking for beginning of value"},
		"more after it":                      {answer: start + `,"known":true}{}`, wantErr: "read answer: invalid character '{' after top-level value"},
		"another version":                    {answer: strings.Replace(start, "v1alpha1", "v1", 1) + `,"known":true}`, wantErr: "the response is not a NodeLookup of inventory.csr-controller-manager.io/v1alpha1"},
		"another kind":                       {answer: strings.Replace(start, "NodeLookup", "Node", 1) + `,"known":true}`, wantErr: "the response is not a NodeLookup of inventory.csr-controller-manager.io/v1alpha1"},
		"another request":                    {answer: strings.Replace(start, "u-1", "u-2", 1) + `,"known":true}`, wantErr: "the response is for another request: uid is not u-1"},
		"no request":                         {answer: strings.Replace(start, `,"uid":"u-1"`, "", 1) + `,"known":true}`, wantErr: "the response is for another request: uid is not u-1"},
		"another node":                       {answer: strings.Replace(start, "node-1", "node-2", 1) + `,"known":true}`, wantErr: `the response is for another node: node is not "node-1"`},
		"not known, another":                 {answer: strings.Replace(start, "node-1", "node-2", 1) + `,"known":false}`, wantErr: `the response is for another node: node is not "node-1"`},
		"node in other case":                 {answer: strings.Replace(start, "node-1", "Node-1", 1) + `,"known":true}`, wantErr: `the response is for another node: node is not "node-1"`},
		"no node":                            {answer: strings.Replace(start, `,"node":"node-1"`, "", 1) + `,"known":true}`, wantErr: `the response is for another node: node is not "node-1"`},
		"no field known":                     {answer: start + `}`, wantErr: "the response lacks the field known"},
		"not known, names":                   {answer: start + `,"known":false,"names":["a"]}`, wantErr: "the response describes a node although known is false"},
		"not known, a name and an address":   {answer: start + `,"known":false,"names":["a"],"addresses":["10.0.0.1"]}`, wantErr: "the response describes a node although known is false"},
		"not known, an address and a suffix": {answer: start + `,"known":false,"addresses":["10.0.0.1"],"suffixes":["a"]}`, wantErr: "the response describes a node although known is false"},
		"unknown field":                      {answer: start + `,"known":true,"name":["a"]}`, wantErr: `read answer: unknown field "name"`},
		"field in other case":                {answer: start + `,"Known":true}`, wantErr: `read answer: unknown field "Known"`},
		"field twice":                        {answer: start + `,"known":false,"known":true}`, wantErr: `read answer: duplicate field "known"`},
		"field of other type":                {answer: start + `,"known":"yes"}`, wantErr: "read answer: json: cannot unmarshal string into Go struct field nodeAnswer.known of type bool"},
		"invalid time":                       {answer: start + `,"known":true,"created":"now"}`, wantErr: `read answer: parsing time "now" as "2006-01-02T15:04:05Z07:00": cannot parse "now" as "2006"`},
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
		t.Run(name, func(t *testing.T) {
			got, err := readAnswer([]byte(test.answer), "node-1", "u-1")
			text := ""
			if err != nil {
				text = err.Error()
			}
			if diff := cmp.Diff(test.wantErr, text); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.want, got, byValue); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestHostileServers checks every response of a server other than a valid one.
func TestHostileServers(t *testing.T) {
	a := newAuthority(t)
	var followed atomic.Int32
	target := a.serve(t, func(http.ResponseWriter, *http.Request) { followed.Add(1) })
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL, http.StatusTemporaryRedirect)
		}, "answered 307, want 200"},
		"see other": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/", http.StatusSeeOther)
		}, "answered 303, want 200"},
		"error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, start+`,"known":true}`, http.StatusInternalServerError)
		}, "answered 500, want 200"},
		"created": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, start+`,"known":true}`)
		}, "answered 201, want 200"},
		"64 KiB + 1 byte": {answering(start + `,"known":true` + strings.Repeat(" ", 64<<10+1-len(start)-len(`,"known":true}`)) + `}`), "answered more than 64 KiB"},
		"an endless body": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
					return
				}
			}
		}, "answered more than 64 KiB"},
		"a truncated body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, start+`,"known":true}`)
		}, "read answer: unexpected EOF"},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}, "net/http: server response headers exceeded 65536 bytes; aborted"},
		"a long error": {answering(start + `,"known":true,"` + strings.Repeat("x", 60<<10) + `":1}`), "..."},
	} {
		t.Run(name, func(t *testing.T) {
			server := a.serve(t, test.handler)
			got, err := a.asking(t, server.URL).Lookup(t.Context(), "node-1", request())
			if got != nil || err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 600 {
				t.Errorf("is %+v, %v", got, err)
			}
			if err != nil && strings.Contains(err.Error(), server.URL) {
				t.Errorf("shows the URL: %v", err)
			}
		})
	}
	if followed.Load() != 0 {
		t.Error("a redirect was followed")
	}
}

// TestLongErrorsAreShortened checks errors of as many bytes as are kept, and of one more.
func TestLongErrorsAreShortened(t *testing.T) {
	a := newAuthority(t)
	const before, after = `read answer: unknown field "`, `"`
	for length, want := range map[int]string{
		512: before + strings.Repeat("x", 512-len(before+after)) + after,
		513: before + strings.Repeat("x", 512-len(before)) + "...",
	} {
		field := strings.Repeat("x", length-len(before+after))
		server := a.serve(t, answering(start+`,"known":true,"`+field+`":1}`))
		_, err := a.asking(t, server.URL).Lookup(t.Context(), "node-1", request())
		if err == nil || err.Error() != want {
			t.Errorf("an error of %d bytes became %v, want %s", length, err, want)
		}
	}
}

func TestExactly64KiB(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(t, answering(start+`,"known":true`+strings.Repeat(" ", 64<<10-len(start)-len(`,"known":true}`))+`}`))
	if got, err := a.asking(t, server.URL).Lookup(t.Context(), "node-1", request()); got == nil || err != nil {
		t.Errorf("is %+v, %v", got, err)
	}
}

// TestSlowServers has servers that stall at every point. Each lookup must end in time.
func TestSlowServers(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for name, handler := range map[string]http.HandlerFunc{
		"no header": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() },
		"half a body": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, start)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			webhook := a.asking(t, a.serve(t, handler).URL, within(100*time.Millisecond))
			began := time.Now()
			got, err := webhook.Lookup(t.Context(), "node-1", request())
			if got != nil || err == nil || !strings.Contains(err.Error(), "deadline exceeded") {
				t.Errorf("is %+v, %v", got, err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// TestTLS has servers and clients that present wrong certificates.
func TestTLS(t *testing.T) {
	a, another := newAuthority(t), newAuthority(t)
	good := answering(start + `,"known":true}`)
	verifying := func(s *httptest.Server) {
		s.TLS.ClientCAs, s.TLS.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		s.TLS.ClientCAs.AddCert(a.cert)
	}
	showing := func(by *authority) func(*Options) {
		return func(o *Options) {
			cert, key := by.pair(t, x509.ExtKeyUsageClientAuth)
			dir := t.TempDir()
			o.CertFile, o.KeyFile = file(t, dir, "tls.crt", cert), file(t, dir, "tls.key", key)
		}
	}
	for name, test := range map[string]struct {
		server *httptest.Server
		client func(*Options)
		want   string
	}{
		"valid":    {a.serve(t, good, verifying), showing(a), ""},
		"wrong CA": {another.serve(t, good), func(*Options) {}, "certificate signed by unknown authority"},
		"wrong name": {a.serve(t, good), func(o *Options) {
			o.URL = strings.Replace(o.URL, "127.0.0.1", "localhost", 1)
		}, "the server's certificate is not valid for the host in the URL"},
		"old TLS": {a.serve(t, good, func(s *httptest.Server) { s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }),
			func(*Options) {}, "protocol version"},
		"wrong client certificate": {a.serve(t, good, verifying), showing(another), "tls: "},
		"no client certificate":    {a.serve(t, good, verifying), func(*Options) {}, "certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := a.asking(t, test.server.URL, test.client).Lookup(t.Context(), "node-1", request())
			if test.want == "" {
				if got == nil || err != nil {
					t.Errorf("is %+v, %v", got, err)
				}
				return
			}
			if got != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("is %+v, %v", got, err)
			}
		})
	}
}

// TestFilesAreReadAnew replaces the CA and the client certificate while the webhook keeps a connection.
func TestFilesAreReadAnew(t *testing.T) {
	a, another := newAuthority(t), newAuthority(t)
	var serial atomic.Value
	server := a.serve(t, func(w http.ResponseWriter, r *http.Request) {
		serial.Store(r.TLS.PeerCertificates[0].SerialNumber.String())
		answering(start+`,"known":true}`)(w, r)
	}, func(s *httptest.Server) { s.TLS.ClientAuth = tls.RequireAnyClientCert })
	dir := t.TempDir()
	renew := func() {
		cert, key := a.pair(t, x509.ExtKeyUsageClientAuth)
		file(t, dir, "tls.crt", cert)
		file(t, dir, "tls.key", key)
	}
	renew()
	var ca string
	webhook := a.asking(t, server.URL, func(o *Options) {
		ca, o.CertFile, o.KeyFile = o.CAFile, dir+"/tls.crt", dir+"/tls.key"
	})
	lookup := func() error { _, err := webhook.Lookup(t.Context(), "node-1", request()); return err }
	if err := lookup(); err != nil {
		t.Fatal(err)
	}
	first, client := serial.Load(), webhook.clients.current
	if err := lookup(); err != nil || serial.Load() != first || webhook.clients.current != client {
		t.Fatalf("shows another certificate, or the files are read anew though they are the same, or %v", err)
	}
	renew()
	if err := lookup(); err != nil || serial.Load() == first {
		t.Errorf("shows the old certificate, or %v", err)
	}
	for content, want := range map[string]string{
		string(another.pem): "certificate signed by unknown authority",
		"":                  "holds no certificate",
	} {
		file(t, "/", ca, []byte(content))
		if err := lookup(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("is %v, want %s", err, want)
		}
	}
	file(t, "/", ca, append(another.pem, a.pem...))
	if err := lookup(); err != nil {
		t.Error(err)
	}
	file(t, dir, "tls.key", []byte("x"))
	if err := lookup(); err == nil || !strings.Contains(err.Error(), "tls.key: ") {
		t.Errorf("is %v", err)
	}
}

// TestProxyIsNotUsed checks that proxy settings in the environment do not redirect lookups.
func TestProxyIsNotUsed(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(t, answering(start+`,"known":true}`))
	client, err := a.asking(t, server.URL).clients.get()
	if err != nil {
		t.Fatal(err)
	}
	if client.Proxy != nil {
		t.Error("there is a proxy")
	}
}

// TestStalledServerHoldsItsCallersOnly has 100 concurrent callers: at most 32 connections are open, and all callers
// return in time. After the server recovers, the webhook recovers too.
func TestStalledServerHoldsItsCallersOnly(t *testing.T) {
	a := newAuthority(t)
	var well atomic.Bool
	var mu sync.Mutex
	now, most := 0, 0
	count := func(by int) { mu.Lock(); defer mu.Unlock(); now += by; most = max(most, now) }
	server := a.serve(t, func(w http.ResponseWriter, r *http.Request) {
		count(1)
		defer count(-1)
		_, _ = io.Copy(io.Discard, r.Body)
		if !well.Load() {
			<-r.Context().Done()
			return
		}
		answering(start+`,"known":true}`)(w, r)
	})
	webhook := a.asking(t, server.URL, within(300*time.Millisecond))
	began := time.Now()
	var callers sync.WaitGroup
	var failed atomic.Int32
	for range 100 {
		callers.Go(func() {
			if _, err := webhook.Lookup(t.Context(), "node-1", request()); err != nil {
				failed.Add(1)
			}
		})
	}
	callers.Wait()
	if took := time.Since(began); took > 10*time.Second || failed.Load() != 100 {
		t.Errorf("%d failed in %s", failed.Load(), took)
	}
	well.Store(true)
	recovers(t, webhook)
	mu.Lock()
	defer mu.Unlock()
	if most > 32 {
		t.Errorf("%d at once", most)
	}
}

// recovers waits until the server answers once.
func recovers(t *testing.T, webhook *Source) {
	t.Helper()
	var err error
	for range 100 {
		if _, err = webhook.Lookup(t.Context(), "node-1", request()); err == nil {
			return
		}
	}
	t.Errorf("does not recover: %v", err)
}

// TestStalledHandshakes checks that stalled handshakes do not use up the connections for good.
func TestStalledHandshakes(t *testing.T) {
	a := newAuthority(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var well atomic.Bool
	gate := &stalling{Listener: listener, well: &well}
	server := a.serve(t, answering(start+`,"known":true}`), func(s *httptest.Server) { _ = s.Listener.Close(); s.Listener = gate })
	webhook := a.asking(t, server.URL, within(200*time.Millisecond))
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			if _, err := webhook.Lookup(t.Context(), "node-1", request()); err == nil {
				t.Error("is answered")
			}
		})
	}
	callers.Wait()
	well.Store(true)
	recovers(t, webhook)
}

// stalling accepts connections, and does not answer them until the test lets the server recover.
type stalling struct {
	net.Listener
	well *atomic.Bool
}

func (s *stalling) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil || s.well.Load() {
			return conn, err
		}
		go func() { _, _ = io.Copy(io.Discard, conn); _ = conn.Close() }()
	}
}

// TestCallersGiveUp checks that a canceled caller does not wait for the server.
func TestCallersGiveUp(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() })
	webhook := a.asking(t, server.URL, within(30*time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := webhook.Lookup(ctx, "node-1", request()); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("is %v", err)
	}
}

func TestWebhookMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"nothing":    {Options{}, "url: want https://HOST\ncaFile: set the file with the CA of the server"},
		"no TLS":     {Options{URL: "http://a", CAFile: "ca"}, "url: want https://HOST"},
		"no host":    {Options{URL: "https://:443/a", CAFile: "ca"}, "url: want https://HOST"},
		"no URL":     {Options{URL: "https://u:secret@a:b", CAFile: "ca"}, "url: invalid URL"},
		"a password": {Options{URL: "https://u:secret@a", CAFile: "ca"}, "url: must not contain a user or a fragment; authenticate with a client certificate"},
		"half a pair and a long timeout": {Options{URL: "https://a", CAFile: "ca", CertFile: "c", Timeout: 31 * time.Second},
			"certFile, keyFile: set both or none\ntimeout: 31s: want up to 30s"},
		"negative timeout": {Options{URL: "https://a", CAFile: "ca", Timeout: -1}, "timeout: -1ns: want up to 30s"},
	} {
		if _, err := New(test.options); err == nil || err.Error() != test.want {
			t.Errorf("%s: is %v, want %s", name, err, test.want)
		}
	}
	webhook, err := New(Options{URL: "https://127.0.0.1:1", CAFile: "/nowhere/ca.crt"})
	if err != nil {
		t.Fatal(err)
	}
	if webhook.options.Timeout != 5*time.Second {
		t.Errorf("waits %s", webhook.options.Timeout)
	}
	if _, err := webhook.Lookup(t.Context(), "a", request()); err == nil || err.Error() != "open /nowhere/ca.crt: no such file or directory" {
		t.Errorf("is %v", err)
	}
	for _, req := range []*csr.Request{nil, {}} {
		if _, err := webhook.Lookup(t.Context(), "a", req); err == nil || err.Error() != "a lookup needs a request" {
			t.Errorf("is %v", err)
		}
	}
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
		if entry != nil && err != nil {
			t.Errorf("is both %+v and %v", entry, err)
		}
		if err != nil {
			return
		}
		checkGeneric(t, data, entry)
		if entry == nil {
			return
		}
		if !strings.Contains(string(data), "known") || entry.Bound != "" && entry.Bound != "node-1" && !entry.Empty() {
			t.Errorf("is %+v", entry)
		}
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
		if !slices.Contains(fields, name) {
			t.Errorf("accepted with the field %q", name)
		}
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

// TestClosedConnections checks that a server may close a kept connection at any moment.
func TestClosedConnections(t *testing.T) {
	a := newAuthority(t)
	server := a.serve(t, answering(start+`,"known":false}`))
	webhook := a.asking(t, server.URL)
	for range 50 {
		if _, err := webhook.Lookup(t.Context(), "node-1", request()); err != nil {
			t.Fatal(err)
		}
		server.CloseClientConnections()
	}
}
