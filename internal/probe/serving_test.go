package probe

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestServingCertificate checks that a certificate is read even if it can't be trusted, and that Verified says so.
func TestServingCertificate(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, VerifyConnection: func(state tls.ConnectionState) error {
		if connections.Add(1); len(state.PeerCertificates) > 0 {
			t.Error("it shows a credential")
		}
		return nil
	}}
	server.StartTLS()
	defer server.Close()
	other := mint(t)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, test := range map[string]struct {
		tls      rest.TLSClientConfig
		verified bool
	}{
		"its own CA":              {rest.TLSClientConfig{CAData: own}, true},
		"its own CA, by its name": {rest.TLSClientConfig{CAData: own, ServerName: "example.com"}, true},
		"another name":            {rest.TLSClientConfig{CAData: own, ServerName: "kubernetes.default.svc"}, false},
		"the system's CAs":        {rest.TLSClientConfig{}, false},
		"not verified at all":     {rest.TLSClientConfig{Insecure: true}, true},
	} {
		cluster := &rest.Config{Host: server.URL, TLSClientConfig: test.tls}
		withCredentials(t, cluster, other)
		shown, err := ServingCertificate(t.Context(), cluster)
		if err != nil || shown.Verified != test.verified || !slices.Contains(shown.Certificate.DNSNames, "example.com") {
			t.Errorf("%s: %+v, %v", name, shown, err)
		}
	}
	if connections.Load() == 0 {
		t.Error("the server was not asked")
	}
}

// TestServingCertificateIsWholeOrNone cancels calls during their handshake. Each returns an error or the complete
// certificate.
func TestServingCertificateIsWholeOrNone(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		if shown, err := ServingCertificate(ctx, &rest.Config{Host: server.URL}); (err == nil) != (shown.Certificate != nil) {
			t.Errorf("%+v, %v", shown, err)
		}
		cancel()
	}
}

// TestServingCertificateOfASilentServer checks that a server that accepts a connection and sends nothing costs only
// the deadline.
func TestServingCertificateOfASilentServer(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if shown, err := ServingCertificate(ctx, &rest.Config{Host: "https://" + listener.Addr().String()}); err == nil {
		t.Errorf("%+v", shown)
	}
}
