package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

func authority(t *testing.T, lifetime time.Duration) *ca.Authority {
	t.Helper()
	made, key, err := ca.New(ca.NewOptions{CommonName: "probe-test", Lifetime: lifetime}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ca.Load(made.CertificatePEM(), key)
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func mint(t *testing.T) *Certificate {
	t.Helper()
	made, err := Mint(t.Context(), authority(t, time.Hour), nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestMint(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Options{Path: file, MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	by, now := authority(t, time.Hour), time.Now()
	one, err := Mint(t.Context(), by, log, now)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(one.certPEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if leaf.Subject.CommonName != one.Subject || !strings.HasPrefix(one.Subject, SubjectPrefix) || len(leaf.Subject.Names) != 1 {
		t.Errorf("subject is %q, want a common name of ours and nothing else", leaf.Subject)
	}
	if len(leaf.ExtKeyUsage) != 1 || leaf.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || len(leaf.UnknownExtKeyUsage) != 0 ||
		leaf.KeyUsage != x509.KeyUsageDigitalSignature || leaf.IsCA {
		t.Errorf("usages are %v and %v, CA is %t", leaf.ExtKeyUsage, leaf.KeyUsage, leaf.IsCA)
	}
	if names := len(leaf.DNSNames) + len(leaf.IPAddresses) + len(leaf.EmailAddresses) + len(leaf.URIs); names != 0 {
		t.Errorf("%d alternative names", names)
	}
	if span := leaf.NotAfter.Sub(leaf.NotBefore); span > 10*time.Minute || leaf.NotAfter.Before(now.Add(time.Minute)) {
		t.Errorf("valid for %s, want ten minutes at most, and some time from now on", span)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var record audit.Record
	if err := json.Unmarshal(data, &record); err != nil {
		t.Fatalf("%v: %q", err, data)
	}
	if record.Event != audit.TrustProbe || record.Subject != "CN="+one.Subject || record.Serial != leaf.SerialNumber.Text(16) ||
		record.IssuerKeyID != by.KeyID() || record.NotAfter == nil || !record.NotAfter.Equal(leaf.NotAfter) || len(record.KeySHA256) != 64 {
		t.Errorf("the record is %s", data)
	}
	another, err := Mint(t.Context(), by, nil, now)
	if err != nil || another.Subject == one.Subject || another.ID == one.ID {
		t.Errorf("another one has the same subject or id: %v", err)
	}
}

func TestMintByWhatHasEnded(t *testing.T) {
	t.Parallel()
	if _, err := Mint(t.Context(), authority(t, time.Minute), nil, time.Now().Add(time.Hour)); err == nil {
		t.Error("minted")
	}
}

// server is a real TLS server that requests a client certificate and records it.
type server struct {
	*httptest.Server
	answer func(shown *x509.Certificate) (status int, body any)

	mu     sync.Mutex
	header http.Header
	shown  []*x509.Certificate
}

// noted records the last request.
func (s *server) noted(r *http.Request) *x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.header, s.shown = r.Header, r.TLS.PeerCertificates
	if len(s.shown) > 0 {
		return s.shown[0]
	}
	return nil
}

func serve(t *testing.T, answer func(shown *x509.Certificate) (int, any)) (*server, *rest.Config) {
	t.Helper()
	return serveAt(t, time.Now, answer)
}

// serveAt is serve with another clock than the real clock.
func serveAt(t *testing.T, now func() time.Time, answer func(shown *x509.Certificate) (int, any)) (*server, *rest.Config) {
	t.Helper()
	s := &server{answer: answer}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := s.answer(s.noted(r))
		w.Header().Set("Date", now().UTC().Format(http.TimeFormat))
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
	pool.AppendCertsFromPEM(authority(t, time.Hour).CertificatePEM())
	s.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	caData := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return s, &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: caData}}
}

func reviewFor(user string, ids ...string) any {
	review := authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}}
	review.Status.UserInfo.Username = user
	if len(ids) > 0 {
		review.Status.UserInfo.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/credential-id": ids}
	}
	return review
}

func statusOf(code int32, reason metav1.StatusReason) any {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason),
	}
}

// TestAsk checks that only the right response is a proof, and that only the API server's own response is a refusal.
func TestAsk(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	for name, test := range map[string]struct {
		status   int
		body     any
		want     Trust
		evidence string
	}{
		"recognised":               {201, reviewFor(probe.Subject, probe.ID), Recognised, probe.ID},
		"another credential":       {201, reviewFor(probe.Subject, "X509SHA256="+strings.Repeat("0", 64)), Unknown, "by another credential"},
		"two credentials":          {201, reviewFor(probe.Subject, probe.ID, "JTI=1"), Unknown, "by another credential"},
		"no credential":            {201, reviewFor(probe.Subject), Unknown, "does not say by which"},
		"anonymous":                {201, reviewFor("system:anonymous"), Unknown, "as anonymous"},
		"another user with our id": {201, reviewFor("admin", probe.ID), Refused, `"admin"`},
		"no user":                  {201, reviewFor(""), Refused, `""`},
		"401 of an API server":     {401, statusOf(401, metav1.StatusReasonUnauthorized), Refused, "401"},
		"401 of another program":   {401, "log in first", Unknown, "no conclusive answer"},
		"403":                      {403, statusOf(403, metav1.StatusReasonForbidden), Unknown, "no conclusive answer"},
		"404":                      {404, statusOf(404, metav1.StatusReasonNotFound), Unknown, "no conclusive answer"},
		"500":                      {500, statusOf(500, metav1.StatusReasonInternalError), Unknown, "no conclusive answer"},
		"503":                      {503, "no backend", Unknown, "no conclusive answer"},
		"not JSON":                 {201, "<html>", Unknown, "no conclusive answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, cluster := serve(t, func(*x509.Certificate) (int, any) { return test.status, test.body })
			got := probe.Ask(t.Context(), cluster)
			if got.Trust != test.want || !strings.Contains(got.Evidence, test.evidence) {
				t.Errorf("%s: %s, want %s with %q", got.Trust, got.Evidence, test.want, test.evidence)
			}
		})
	}
}

// TestARefusalProvesNothingOfACertificateThatWasNotSeen checks that some 401 responses do not prove that the server
// distrusts the CA. The server may not have requested a certificate, or its clock may say that the certificate is not
// valid.
func TestARefusalProvesNothingOfACertificateThatWasNotSeen(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	unauthorized := func(*x509.Certificate) (int, any) { return 401, statusOf(401, metav1.StatusReasonUnauthorized) }
	for name, test := range map[string]struct {
		auth     tls.ClientAuthType
		ahead    time.Duration
		want     Trust
		evidence string
	}{
		"seen and valid":     {tls.RequestClientCert, 0, Refused, "answers 401"},
		"not asked for":      {tls.NoClientCert, 0, Unknown, "did not ask for the certificate"},
		"an hour ahead":      {tls.RequestClientCert, time.Hour, Unknown, "by its clock"},
		"an hour behind":     {tls.RequestClientCert, -time.Hour, Unknown, "synchronize the clocks"},
		"four minutes ahead": {tls.RequestClientCert, 4 * time.Minute, Refused, "answers 401"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, cluster := serveAt(t, func() time.Time { return time.Now().Add(test.ahead) }, unauthorized)
			s.TLS.ClientAuth = test.auth // for new connections
			got := probe.Ask(t.Context(), cluster)
			if got.Trust != test.want || !strings.Contains(got.Evidence, test.evidence) {
				t.Errorf("%s: %s, want %s with %q", got.Trust, got.Evidence, test.want, test.evidence)
			}
		})
	}
}

// withCredentials adds every credential that a client configuration can hold to cluster.
func withCredentials(t *testing.T, cluster *rest.Config, other *Certificate) {
	t.Helper()
	cluster.BearerToken, cluster.BearerTokenFile = "secret", filepath.Join(t.TempDir(), "none")
	cluster.Username, cluster.Password = "user", "password"
	cluster.ExecProvider = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "false", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
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
	block, _ := pem.Decode(probe.certPEM)
	if len(s.shown) != 1 || string(s.shown[0].Raw) != string(block.Bytes) {
		t.Errorf("%d certificates are shown, want the probe alone", len(s.shown))
	}
}

// TestAskShowsNothingElse calls Ask with every credential that a client configuration can hold.
func TestAskShowsNothingElse(t *testing.T) {
	t.Parallel()
	probe, other := mint(t), mint(t)
	s, cluster := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	withCredentials(t, cluster, other)
	if got := probe.Ask(t.Context(), cluster); got.Trust != Recognised {
		t.Errorf("%s: %s", got.Trust, got.Evidence)
	}
	s.sawOnly(t, probe)
	if len(cluster.CertData) == 0 || cluster.BearerToken == "" {
		t.Error("the caller's configuration has been changed")
	}
}

func TestAskWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	s, cluster := serve(t, nil)
	s.Close()
	stranger, _ := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, slow := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	wrongName := rest.CopyConfig(slow)
	wrongName.ServerName = "another.test"
	for name, test := range map[string]struct {
		ctx     context.Context
		cluster *rest.Config
	}{
		"down":              {t.Context(), cluster},
		"no TLS":            {t.Context(), &rest.Config{Host: "http://" + stranger.Listener.Addr().String()}},
		"another name":      {t.Context(), wrongName},
		"timed out":         {ended, slow},
		"bad configuration": {t.Context(), &rest.Config{Host: "https://x", TLSClientConfig: rest.TLSClientConfig{CAFile: "/none"}}},
	} {
		if got := probe.Ask(test.ctx, test.cluster); got.Trust != Unknown || !strings.Contains(got.Evidence, "no conclusive answer") {
			t.Errorf("%s: %s: %s", name, got.Trust, got.Evidence)
		}
	}
}

// An API server that is not verified may be another server that sends the expected response.
func TestAskTrustsNobodyUnverified(t *testing.T) {
	t.Parallel()
	probe := mint(t)
	s, cluster := serve(t, func(*x509.Certificate) (int, any) { return 201, reviewFor(probe.Subject, probe.ID) })
	cluster.Insecure, cluster.CAData = true, nil
	if got := probe.Ask(t.Context(), cluster); got.Trust != Unknown || !strings.Contains(got.Evidence, "is not verified") || len(s.shown) > 0 {
		t.Errorf("%s: %s; %d certificates shown", got.Trust, got.Evidence, len(s.shown))
	}
}
