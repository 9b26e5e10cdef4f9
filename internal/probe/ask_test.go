package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

func succeed(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func authority(t *testing.T, lifetime time.Duration) *ca.Authority {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: "probe-test", Lifetime: lifetime}, time.Now())
	succeed(t, err)
	return made
}

func mint(t *testing.T) *Certificate {
	t.Helper()
	made, err := Mint(t.Context(), authority(t, time.Hour), nil, time.Now())
	succeed(t, err)
	return made
}

func leafOf(t *testing.T, c *Certificate) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(c.certPEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	succeed(t, err)
	return leaf
}

// auditLog returns a log, and a function that reads its file.
func auditLog(t *testing.T) (*audit.Log, func() []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	succeed(t, err)
	return log, func() []byte {
		data, err := os.ReadFile(file)
		succeed(t, err)
		return data
	}
}

func TestMint(t *testing.T) {
	t.Parallel()
	log, records := auditLog(t)
	by, now := authority(t, time.Hour), time.Now()
	one, err := Mint(t.Context(), by, log, now)
	succeed(t, err)
	leaf := leafOf(t, one)
	if leaf.Subject.CommonName != one.Subject || !strings.HasPrefix(one.Subject, SubjectPrefix) || len(leaf.Subject.Names) != 1 {
		t.Errorf("subject is %q, want a common name of ours and nothing else", leaf.Subject)
	}
	if !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || leaf.KeyUsage != x509.KeyUsageDigitalSignature || leaf.IsCA {
		t.Errorf("usages are %v and %v, CA is %t", leaf.ExtKeyUsage, leaf.KeyUsage, leaf.IsCA)
	}
	if names := len(leaf.DNSNames) + len(leaf.IPAddresses) + len(leaf.EmailAddresses) + len(leaf.URIs); names != 0 {
		t.Errorf("%d alternative names", names)
	}
	if span := leaf.NotAfter.Sub(leaf.NotBefore); span > 10*time.Minute || leaf.NotAfter.Before(now.Add(time.Minute)) {
		t.Errorf("valid for %s, want ten minutes at most, and some time from now on", span)
	}
	var record audit.Record
	succeed(t, json.Unmarshal(records(), &record))
	if record.Event != audit.TrustProbe || record.Subject != "CN="+one.Subject || record.Serial != leaf.SerialNumber.Text(16) ||
		record.IssuerKeyID != by.KeyID() || !record.NotAfter.Equal(leaf.NotAfter) || len(record.KeySHA256) != 64 {
		t.Errorf("the record is %+v", record)
	}
	if another, err := Mint(t.Context(), by, nil, now); err != nil || another.Subject == one.Subject || another.ID == one.ID {
		t.Errorf("another one has the same subject or id: %v", err)
	}
	if _, err := Mint(t.Context(), by, nil, now.Add(2*time.Hour)); err == nil {
		t.Error("minted by a CA that has expired")
	}
}

// server is a real TLS server that requests a client certificate and records the last request.
type server struct {
	*httptest.Server
	t   *testing.T
	now func() time.Time // for the header Date

	mu     sync.Mutex
	header http.Header
	shown  []*x509.Certificate
}

// serve starts a server. answer gets the certificates of the client.
func serve(t *testing.T, answer func(shown []*x509.Certificate) (status int, body any)) (*server, *rest.Config) {
	t.Helper()
	s := &server{t: t, now: time.Now}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.header, s.shown = r.Header, r.TLS.PeerCertificates
		s.mu.Unlock()
		status, body := answer(r.TLS.PeerCertificates)
		w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
		if text, plain := body.(string); plain {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}))
	// The list of acceptable CAs from the API server must not prevent the client from presenting its certificate.
	pool := x509.NewCertPool()
	pool.AddCert(authority(t, time.Hour).Certificate())
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: caOf(s.Server)}}
}

func caOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

func always(status int, body any) func([]*x509.Certificate) (int, any) {
	return func([]*x509.Certificate) (int, any) { return status, body }
}

// knows is the answer of an API server that identifies the client by probe.
func knows(probe *Certificate) func([]*x509.Certificate) (int, any) {
	return always(201, reviewFor(probe.Subject, probe.ID))
}

func reviewFor(user string, ids ...string) any {
	review := authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	review.Status.UserInfo.Username = user
	if len(ids) > 0 {
		review.Status.UserInfo.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": ids}
	}
	return review
}

func statusOf(code int, reason metav1.StatusReason) any {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason,
	}
}

// withCredentials adds every credential that a client configuration can hold to cluster.
func withCredentials(t *testing.T, cluster *rest.Config) {
	t.Helper()
	other := mint(t)
	cluster.BearerToken, cluster.BearerTokenFile = "secret", filepath.Join(t.TempDir(), "none")
	cluster.Username, cluster.Password = "user", "password"
	cluster.ExecProvider = &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "false", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	cluster.AuthProvider = &clientcmdapi.AuthProviderConfig{Name: "oidc"}
	cluster.CertData, cluster.KeyData = other.certPEM, other.keyPEM
	cluster.Impersonate = rest.ImpersonationConfig{UserName: "admin"}
	cluster.WrapTransport = func(http.RoundTripper) http.RoundTripper { t.Error("the transport is wrapped"); return nil }
}

// sawOnly checks that the last client presented probe and nothing else.
func (s *server) sawOnly(t *testing.T, probe *Certificate) {
	t.Helper()
	for name := range s.header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate") {
			t.Errorf("header %s is sent", name)
		}
	}
	if len(s.shown) != 1 || !s.shown[0].Equal(leafOf(t, probe)) {
		t.Errorf("%d certificates are shown, want the probe alone", len(s.shown))
	}
}

func wants(t *testing.T, what string, got Answer, trust Trust, evidence string) {
	t.Helper()
	if got.Trust != trust || !strings.Contains(got.Evidence, evidence) {
		t.Errorf("%s: %s: %s, want %s with %q", what, got.Trust, got.Evidence, trust, evidence)
	}
}

// TestAsk checks that only the right response is a proof, and that only the API server's own response to a certificate
// that it has seen and that is valid by its clock is a refusal. An API server that is not verified is not asked.
func TestAsk(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	known, unauthorized := reviewFor(probe.Subject, probe.ID), statusOf(401, metav1.StatusReasonUnauthorized)
	ahead := func(by time.Duration) func(*server, *rest.Config) {
		return func(s *server, _ *rest.Config) { s.now = func() time.Time { return time.Now().Add(by) } }
	}
	for name, test := range map[string]struct {
		status   int
		body     any
		want     Trust
		evidence string
		set      func(*server, *rest.Config)
	}{
		"recognised":               {201, known, Recognised, probe.ID, nil},
		"every other credential":   {201, known, Recognised, probe.ID, func(s *server, c *rest.Config) { withCredentials(s.t, c) }},
		"another credential":       {201, reviewFor(probe.Subject, "X509SHA256="+strings.Repeat("0", 64)), Unknown, "by another credential", nil},
		"two credentials":          {201, reviewFor(probe.Subject, probe.ID, "JTI=1"), Unknown, "by another credential", nil},
		"no credential":            {201, reviewFor(probe.Subject), Unknown, "does not say by which", nil},
		"anonymous":                {201, reviewFor("system:anonymous"), Unknown, "as anonymous", nil},
		"another user with our id": {201, reviewFor("admin", probe.ID), Refused, `"admin"`, nil},
		"401 of an API server":     {401, unauthorized, Refused, "answers 401", nil},
		"401 of another program":   {401, "log in first", Unknown, "no conclusive answer", nil},
		"403":                      {403, statusOf(403, metav1.StatusReasonForbidden), Unknown, "no conclusive answer", nil},
		"not JSON":                 {201, "<html>", Unknown, "no conclusive answer", nil},
		"401, not asked for": {401, unauthorized, Unknown, "did not ask for the certificate", func(s *server, _ *rest.Config) {
			s.TLS.ClientAuth = tls.NoClientCert // for new connections
		}},
		"401, an hour ahead":      {401, unauthorized, Unknown, "by its clock", ahead(time.Hour)},
		"401, an hour behind":     {401, unauthorized, Unknown, "synchronize the clocks", ahead(-time.Hour)},
		"401, four minutes ahead": {401, unauthorized, Refused, "answers 401", ahead(4 * time.Minute)},
		"down":                    {201, known, Unknown, "no conclusive answer", func(s *server, _ *rest.Config) { s.Close() }},
		"no TLS": {201, known, Unknown, "no conclusive answer", func(s *server, c *rest.Config) {
			*c = rest.Config{Host: "http://" + s.Listener.Addr().String()}
		}},
		"bad configuration": {201, known, Unknown, "no conclusive answer", func(_ *server, c *rest.Config) { c.CAData, c.CAFile = nil, "/none" }},
		"not verified":      {201, known, Unknown, "is not verified", func(_ *server, c *rest.Config) { c.Insecure, c.CAData = true, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cluster := serve(t, always(test.status, test.body))
			if test.set != nil {
				test.set(s, cluster)
			}
			before := rest.CopyConfig(cluster)
			wants(t, name, probe.Ask(t.Context(), cluster), test.want, test.evidence)
			if test.want == Recognised {
				s.sawOnly(t, probe)
			}
			if cluster.BearerToken != before.BearerToken || !bytes.Equal(cluster.CertData, before.CertData) {
				t.Error("the caller's configuration has been changed")
			}
			if test.evidence == "is not verified" && len(s.shown) > 0 {
				t.Error("the certificate was shown")
			}
		})
	}
	_, cluster := serve(t, knows(probe))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wants(t, "timed out", probe.Ask(ended, cluster), Unknown, "no conclusive answer")
}

// TestAskFollowsNobodyElsewhere checks that a redirect does not lead to another server.
func TestAskFollowsNobodyElsewhere(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	there, _ := serve(t, knows(probe))
	here, cluster := serve(t, nil)
	here.Config.Handler = http.RedirectHandler(there.URL, http.StatusTemporaryRedirect)
	cluster.CAData = append(cluster.CAData, caOf(there.Server)...)
	if wants(t, "redirect", probe.Ask(t.Context(), cluster), Unknown, ""); len(there.shown) > 0 {
		t.Errorf("%d certificates shown elsewhere", len(there.shown))
	}
}

// TestAskShowsTheChain checks that a probe of an intermediate CA presents that CA too, as a kubelet does. An API
// server that knows only the root then recognises it.
func TestAskShowsTheChain(t *testing.T) {
	t.Parallel()
	root, key, err := ca.New(ca.NewOptions{CommonName: "root", Lifetime: time.Hour}, time.Now())
	succeed(t, err)
	rootPair, err := tls.X509KeyPair(root.CertificatePEM(), key)
	succeed(t, err)
	template := authority(t, time.Hour).Certificate()
	der, err := x509.CreateCertificate(rand.Reader, template, root.Certificate(), root.Certificate().PublicKey, rootPair.PrivateKey)
	succeed(t, err)
	between, err := ca.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key)
	succeed(t, err)
	probe, err := Mint(t.Context(), between, nil, time.Now())
	succeed(t, err)
	s, cluster := serve(t, knows(probe))
	wants(t, "chain", probe.Ask(t.Context(), cluster), Recognised, "")
	if len(s.shown) != 2 || s.shown[1].Subject.CommonName != template.Subject.CommonName {
		t.Errorf("shown %d certificates, want the leaf and its CA", len(s.shown))
	}
}

// TestServingCertificate checks that a certificate is read even if it can't be trusted, that Verified says so, and that
// no credential is shown.
func TestServingCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, VerifyConnection: func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) > 0 {
			t.Error("it shows a credential")
		}
		return nil
	}}
	server.StartTLS()
	defer server.Close()
	own := caOf(server)
	for name, test := range map[string]struct {
		tls      rest.TLSClientConfig
		verified bool
	}{
		"its own CA":          {rest.TLSClientConfig{CAData: own}, true},
		"another name":        {rest.TLSClientConfig{CAData: own, ServerName: "kubernetes.default.svc"}, false},
		"the system's CAs":    {rest.TLSClientConfig{}, false},
		"not verified at all": {rest.TLSClientConfig{Insecure: true}, true},
	} {
		cluster := &rest.Config{Host: server.URL, TLSClientConfig: test.tls}
		withCredentials(t, cluster)
		shown, err := ServingCertificate(t.Context(), cluster)
		if err != nil || shown.Verified != test.verified || !slices.Contains(shown.Certificate.DNSNames, "example.com") {
			t.Errorf("%s: %+v, %v", name, shown, err)
		}
	}
	// A call that is cancelled during its handshake returns an error or the complete certificate.
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
		if shown, err := ServingCertificate(ctx, &rest.Config{Host: server.URL}); (err == nil) != (shown.Certificate != nil) {
			t.Errorf("%+v, %v", shown, err)
		}
		cancel()
	}
	// A server that accepts a connection and sends nothing costs only the deadline.
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	succeed(t, err)
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if shown, err := ServingCertificate(ctx, &rest.Config{Host: "https://" + silent.Addr().String()}); err == nil {
		t.Errorf("%+v", shown)
	}
}
