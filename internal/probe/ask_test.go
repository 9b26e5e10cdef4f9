package probe

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func authority(lifetime time.Duration) *ca.Authority {
	made, _, err := ca.New(ca.NewOptions{CommonName: "probe-test", Lifetime: lifetime}, time.Now())
	return must(made, err)
}

func mint(t *testing.T) *Certificate {
	return must(mintCertificate(t.Context(), authority(time.Hour), nil, time.Now()))
}

func leafOf(c *Certificate) *x509.Certificate {
	block, _ := pem.Decode(c.certPEM)
	return must(x509.ParseCertificate(block.Bytes))
}

// auditLog returns a log, and a function that reads its file.
func auditLog(t *testing.T) (*audit.Log, func() []byte) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	return must(audit.Open(audit.Options{Path: file, MaxSize: 1})), func() []byte { return must(os.ReadFile(file)) }
}

func TestMint(t *testing.T) {
	t.Parallel()
	log, records := auditLog(t)
	by, now := authority(time.Hour), time.Now()
	one := must(mintCertificate(t.Context(), by, log, now))
	leaf := leafOf(one)
	expect.True(t, leaf.Subject.CommonName == one.Subject && strings.HasPrefix(one.Subject, subjectPrefix) && len(leaf.Subject.Names) == 1,
		"subject is %q, want a common name of ours and nothing else", leaf.Subject)
	if !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || leaf.KeyUsage != x509.KeyUsageDigitalSignature || leaf.IsCA {
		t.Errorf("usages are %v and %v, CA is %t", leaf.ExtKeyUsage, leaf.KeyUsage, leaf.IsCA)
	}
	expect.Equal(t, "alternative names", len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses)+len(leaf.URIs), 0)
	if span := leaf.NotAfter.Sub(leaf.NotBefore); span > 10*time.Minute || leaf.NotAfter.Before(now.Add(time.Minute)) {
		t.Errorf("valid for %s, want ten minutes at most, and some time from now on", span)
	}
	var record audit.Record
	err := json.Unmarshal(records(), &record)
	if err != nil || record.Event != audit.TrustProbe || record.Subject != "CN="+one.Subject || record.Serial != leaf.SerialNumber.Text(16) ||
		record.IssuerKeyID != by.KeyID() || record.NotAfter.IsZero() || !record.NotAfter.Equal(leaf.NotAfter) || len(record.KeySHA256) != 64 {
		t.Errorf("the record is %+v, error %v", record, err)
	}
	if another, err := mintCertificate(t.Context(), by, nil, now); err != nil || another.Subject == one.Subject || another.ID == one.ID {
		t.Errorf("another one has the same subject or id: %v", err)
	}
	if _, err := mintCertificate(t.Context(), by, nil, now.Add(2*time.Hour)); err == nil {
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
	pool.AddCert(authority(time.Hour).Certificate())
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
		expect.True(t, name != "Authorization" && !strings.HasPrefix(name, "Impersonate"), "header %s is sent", name)
	}
	expect.Equal(t, "certificates that are shown", s.shown, []*x509.Certificate{leafOf(probe)})
}

func wants(t *testing.T, what string, got Answer, trust Trust, evidence string) {
	t.Helper()
	expect.True(t, got.Trust == trust && strings.Contains(got.Evidence, evidence),
		"%s: %s: %s, want %s with %q", what, got.Trust, got.Evidence, trust, evidence)
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
			expect.True(t, cluster.BearerToken == before.BearerToken && bytes.Equal(cluster.CertData, before.CertData),
				"the caller's configuration has been changed")
			expect.True(t, test.evidence != "is not verified" || len(s.shown) == 0, "the certificate was shown")
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
	wants(t, "redirect", probe.Ask(t.Context(), cluster), Unknown, "")
	expect.Equal(t, "certificates that are shown elsewhere", len(there.shown), 0)
}

// TestAskShowsTheChain checks that a probe of an intermediate CA presents that CA too, as a kubelet does. An API
// server that knows only the root then recognises it.
func TestAskShowsTheChain(t *testing.T) {
	t.Parallel()
	root, key, err := ca.New(ca.NewOptions{CommonName: "root", Lifetime: time.Hour}, time.Now())
	rootKey := must(tls.X509KeyPair(must(root, err).CertificatePEM(), key)).PrivateKey
	template := authority(time.Hour).Certificate()
	der := must(x509.CreateCertificate(rand.Reader, template, root.Certificate(), root.Certificate().PublicKey, rootKey))
	between := must(ca.Load(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, nil))
	probe := must(mintCertificate(t.Context(), between, nil, time.Now()))
	s, cluster := serve(t, knows(probe))
	wants(t, "chain", probe.Ask(t.Context(), cluster), Recognised, "")
	expect.Equal(t, "certificates that are shown", s.shown, []*x509.Certificate{leafOf(probe), between.Certificate()})
}

// TestAskNamesAServerWithoutMLDSA checks the evidence if a server refuses a certificate of an ML-DSA CA.
func TestAskNamesAServerWithoutMLDSA(t *testing.T) {
	t.Parallel()
	probes := map[bool]*Certificate{false: mint(t)}
	if fips140.Version() != "v1.0.0" { // the module has ML-DSA
		by, _, err := ca.New(ca.NewOptions{CommonName: "CA", Algorithm: ca.MLDSA44, Lifetime: time.Hour}, time.Now())
		probes[true] = must(mintCertificate(t.Context(), must(by, err), nil, time.Now()))
	}
	for goVersion, want := range map[string]string{
		"go1.26.8":                "; it is built with go1.26.8, and only Go 1.27 and later can verify ML-DSA",
		"go1.26.8 X:boringcrypto": "; it is built with go1.26.8 X:boringcrypto, and only Go 1.27 and later can verify ML-DSA",
		"go1.26-\x1b[31m":         `; it is built with go1.26-\x1b[31m, and only Go 1.27 and later can verify ML-DSA`,
		"":                        "; only a server that is built with Go 1.27 or later can verify ML-DSA, and this one does not name its version: ",
		"go1.27.0":                "",
		"go1.30":                  "",
	} {
		s, cluster := serve(t, always(401, statusOf(401, metav1.StatusReasonUnauthorized)))
		reviews := s.Config.Handler
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/version" || goVersion == "" {
				reviews.ServeHTTP(w, r)
				return
			}
			expect.True(t, len(r.TLS.PeerCertificates) == 0, "the certificate is shown")
			_ = json.NewEncoder(w).Encode(apiversion.Info{GoVersion: goVersion})
		})
		for isMLDSA, probe := range probes {
			answer := probe.Ask(t.Context(), cluster)
			_, evidence, _ := strings.Cut(answer.Evidence, " answers 401 to a client certificate of this CA")
			matches := evidence == want || goVersion == "" && strings.HasPrefix(evidence, want)
			if !isMLDSA {
				matches = evidence == ""
			}
			expect.True(t, answer.Trust == Refused && matches, "%q, ML-DSA %t: %+v", goVersion, isMLDSA, answer)
		}
	}
}

// TestServingCertificate checks that a certificate is read even if it can't be trusted, that Verified says so, and that
// no credential is shown.
func TestServingCertificate(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, VerifyConnection: func(state tls.ConnectionState) error {
		expect.True(t, len(state.PeerCertificates) == 0, "it shows a credential")
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
		expect.True(t, err == nil && shown.Verified == test.verified && slices.Contains(shown.Certificate.DNSNames, "example.com"),
			"%s: %+v, %v", name, shown, err)
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
	silent := must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if shown, err := ServingCertificate(ctx, &rest.Config{Host: "https://" + silent.Addr().String()}); err == nil {
		t.Errorf("%+v", shown)
	}
}

// slice returns an EndpointSlice with two ports: other, and the given one.
func slice(namespace, name, service, port string, number int32, ready bool, addresses ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("other"), Port: ptr.To(int32(1))}, {Name: &port, Port: &number}},
	}
	for _, address := range addresses {
		conditions := discoveryv1.EndpointConditions{Ready: &ready}
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, Conditions: conditions})
	}
	return made
}

// TestEndpoints checks that the API servers are all endpoints of the Service default/kubernetes, and that it is an
// error if one may be missing.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	one := slice("default", "a", "kubernetes", "https", 6443, true, "192.0.2.2", "192.0.2.1")
	for name, test := range map[string]struct {
		objects []client.Object
		want    []string
		err     string
	}{
		"an empty one": {
			objects: []client.Object{slice("default", "a", "kubernetes", "https", 6443, true)}, err: "the Service default/kubernetes has no endpoints",
		},
		"of others": {objects: []client.Object{
			slice("default", "a", "other", "https", 6443, true, "192.0.2.1"), slice("elsewhere", "a", "kubernetes", "https", 6443, true, "192.0.2.1"),
		}, err: "has no endpoints"},
		"ready or not, of both families, each once": {objects: []client.Object{
			one, slice("default", "b", "kubernetes", "https", 6443, false, "192.0.2.3", "192.0.2.1"),
			slice("default", "c", "kubernetes", "https", 443, true, "2001:db8::1"),
		}, want: []string{"192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.3:6443", "[2001:db8::1]:443"}},
		"a slice without the port is an error": {
			objects: []client.Object{one, slice("default", "b", "kubernetes", "http", 6443, true, "192.0.2.2")},
			err:     `EndpointSlice default/b has no port "https"`,
		},
	} {
		got, err := Endpoints(t.Context(), fake.NewClientBuilder().WithObjects(test.objects...).Build())
		if (test.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.err) || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v; want %q, %q", name, got, err, test.want, test.err)
		}
	}
}

// TestDirectTakesNothingElse checks that Direct takes no credential and no proxy from the manager's configuration.
func TestDirectTakesNothingElse(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	s, own := serve(t, knows(probe))
	address := s.Listener.Addr().String()
	withCredentials(t, own)
	own.Host, own.ServerName, own.Timeout = "https://elsewhere.test/path", "elsewhere.test", 1
	target := Direct(own, "example.com", []string{address})[0] // the name is in httptest's certificate
	wants(t, target.Name, probe.Ask(t.Context(), target.Cluster), Recognised, "")
	s.sawOnly(t, probe)
	insecure := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	for name, target := range map[string]Target{
		"by the usual name, which this one does not have": Direct(own, "", []string{address})[0],
		"unverified":    Direct(insecure, "", []string{address})[0],
		"not host:port": Direct(own, "", []string{"https://user:secret@" + address})[0],
	} {
		wants(t, name, probe.Ask(t.Context(), target.Cluster), Unknown, "")
	}
}
