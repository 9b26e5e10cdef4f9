package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
)

// TestNoErrorShowsTheURL checks that no part of the URL is in an error, because any part may be a secret, and Events and
// logs show errors. Each server fails in another way, in which net/http, the resolver or crypto/tls shows a part.
func TestNoErrorShowsTheURL(t *testing.T) {
	t.Parallel()
	const secret = "/s3cr3t-path?token=s3cr3t%2Fquery"
	a, another := newAuthority(t), newAuthority(t)
	location := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", text)
			w.WriteHeader(http.StatusFound)
		}
	}
	on := func(server *httptest.Server) string { return server.URL + secret }
	closed := a.serve(t, answering(""))
	closed.Close()
	plain := httptest.NewServer(answering("hello"))
	t.Cleanup(plain.Close)
	constrained := newAuthority(t, func(cert *x509.Certificate) {
		cert.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(192, 0, 2, 0), Mask: net.CIDRMask(24, 32)}}
	})
	trusting := func(options *Options) {
		options.CAFile = file(t, t.TempDir(), "ca.crt", append(bytes.Clone(a.pem), constrained.pem...))
	}
	for name, test := range map[string]struct{ url, want string }{
		"a redirect":           {on(a.serve(t, location(secret))), "answered 302, want 200"},
		"a redirect elsewhere": {on(a.serve(t, location("https://s3cr3t-host.invalid"+secret))), "answered 302, want 200"},
		"a redirect without a valid location": {
			on(a.serve(t, location("https://s3cr3t-host.invalid/%zz"+secret))), "answered 302, want 200",
		},
		"a redirect without a location": {on(a.serve(t, location(""))), "answered 302, want 200"},
		"nothing listens":               {on(closed), "dial: connect: connection refused"},
		"no HTTPS":                      {strings.Replace(on(plain), "http:", "https:", 1), "tls: first record does not look like a TLS handshake"},
		"no answer": {on(a.serve(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		})), "context deadline exceeded"},
		"a connection that ends": {on(a.serve(t, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, _ := w.(http.Hijacker).Hijack()
			_ = conn.Close()
		})), "EOF"},
		"the certificate of another CA":   {on(another.serve(t, answering(""))), "certificate signed by unknown authority"},
		"the certificate of another name": {strings.Replace(on(a.serve(t, answering(""))), "127.0.0.1", "localhost", 1), "the server's certificate is not valid for the host in the URL"},
		"the certificate of another address": {on(a.serve(t, answering(""), func(s *httptest.Server) {
			_ = s.Listener.Close()
			var err error
			if s.Listener, err = net.Listen("tcp", "127.0.0.2:0"); err != nil {
				t.Fatal(err)
			}
		})), "the server's certificate is not valid for the host in the URL"},
		"the certificate of a CA that may not issue it": {on(constrained.serve(t, answering(""))), "is not authorized to sign for this name"},
		"old TLS": {on(a.serve(t, answering(""), func(s *httptest.Server) {
			s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		})), "remote error: tls: protocol version not supported"},
		"a host that does not exist": {"https://s3cr3t-host.invalid" + secret, ""}, // the resolver may take too long
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sources := inventory.Sources{a.asking(t, test.url, within(time.Second), trusting)}
			found, err := sources.Lookup(t.Context(), "node-1", request())
			if err == nil || found.Entry != nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("found %+v, error %v, want %s", found.Entry, err, test.want)
			}
			parsed, parseErr := url.Parse(test.url)
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			for _, part := range []string{"s3cr3t", parsed.Host, parsed.Hostname(), parsed.RequestURI()} {
				if strings.Contains(err.Error(), part) {
					t.Errorf("shows %s: %v", part, err)
				}
			}
		})
	}
}

// TestAHostThatIsNotFound checks the error of a resolver, which TestNoErrorShowsTheURL may have to do without.
func TestAHostThatIsNotFound(t *testing.T) {
	t.Parallel()
	err := hideURL(&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "s3cr3t", Server: "10.0.0.1:53"}})
	if got := err.Error(); got != "the host in the URL can't be resolved: no such host" {
		t.Error(got)
	}
}
