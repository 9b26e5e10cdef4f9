package manager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestAuditLog compares the records of issued, refused and failed requests with the objects in the API server.
func TestAuditLog(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	path := filepath.Join(t.TempDir(), "audit.log")
	p := start(t, "--audit-log-path", path, "--self-check-interval=0")
	issued := kit.Reaches(t, joins(t, "a"), csr.Issued)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "b"))
	kit.HasEvent(t, refused, "NotAuthorized")
	broken := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)
	kit.Reaches(t, broken, csr.Failed)
	stops(t, p)

	cert := kit.Leaf(t, issued)
	about := func(obj *kit.Request) audit.Record {
		req, err := csr.Parse(obj)
		kit.NoError(t, err)
		return audit.Of(obj, req)
	}
	decided, signed, waits, fails := about(issued), about(issued), about(refused), about(broken)
	decided.Event, decided.Verdict, decided.Rule, decided.Reason = audit.Decided, "Approve", "nodeclient", "AutoApproved"
	signed.Event, signed.Serial, signed.IssuerKeyID = audit.Signed, cert.SerialNumber.Text(16), kit.Load(t, kit.ControlPlane(t).CA).KeyID()
	signed.NotBefore, signed.NotAfter = cert.NotBefore, cert.NotAfter
	signed.CertificateSHA256 = fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
	waits.Event, waits.Verdict, waits.Reason = audit.Decided, "Wait", "NotAuthorized"
	fails.Event, fails.Verdict, fails.Reason = audit.NotSigned, "Failed", "SignerValidationFailure"
	if want := fmt.Sprintf("%x", sha256.Sum256(cert.RawSubjectPublicKeyInfo)); signed.KeySHA256 != want {
		t.Errorf("fingerprint %s, the certificate's is %s", signed.KeySHA256, want)
	}
	want := map[string][]audit.Record{issued.Name: {decided, signed}, refused.Name: {waits}, broken.Name: {fails}}
	got := map[string][]audit.Record{}
	for _, record := range kit.ReadAudit(t, path) {
		if record.Message == "" && record.Event != audit.Signed {
			t.Errorf("no message: %+v", record)
		}
		record.NotBefore, record.NotAfter = record.NotBefore.Truncate(time.Second), record.NotAfter.Truncate(time.Second) // as X.509
		got[record.Name] = append(got[record.Name], record)
	}
	for _, records := range got { // a signer may be faster than the approver's record of its own write
		slices.SortFunc(records, func(a, b audit.Record) int { return strings.Compare(string(a.Event), string(b.Event)) })
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(audit.Record{}, "Time", "Message")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestSecureMetrics serves metrics only to clients that may read them. A client of the metrics port causes at most a few
// TokenReviews a second, and a scraper whose token was reviewed before is still served. The manager runs one controller alone, as
// the split overlay does, and without readiness checks, and is ready.
func TestSecureMetrics(t *testing.T) {
	kit.Parallel(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	kit.Create(t, kit.Admin(t), role)
	kit.Grant(t, "joiner", role.Name)
	cfg := kit.RoleConfig(t, "cleaner")
	p := kit.StartManager(t, cfg, "--leader-elect=false", "--controllers=cleaner", "--metrics-secure", "--self-check-interval=0")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	for token, status := range map[string]int{
		"": http.StatusUnauthorized, "nonsense": http.StatusInternalServerError, // controller-runtime's answer
		"stranger-token": http.StatusForbidden, "joiner-token": http.StatusOK,
	} {
		kit.Eventually(t, "/metrics with token "+strconv.Quote(token), func(ctx context.Context) error {
			got, body := kit.SecureGet(ctx, p.Metrics, "/metrics", token)
			if shown := strings.Contains(body, "csr_requests"); got != status || shown != (status == http.StatusOK) {
				return fmt.Errorf("status %d, metrics shown: %t", got, shown)
			}
			return nil
		})
	}
	if status, _ := cluster.Get(t.Context(), p.Metrics, "/metrics"); status == http.StatusOK {
		t.Error("metrics are served without TLS too")
	}

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 10}}
	scrape := func(ctx context.Context, token string) error {
		if status, _ := cluster.GetWith(ctx, client, "https://"+p.Metrics+"/metrics", token); status != http.StatusOK {
			return fmt.Errorf("status %d", status)
		}
		return nil
	}
	const seconds, clients = 2, 10
	before, begun := tokenReviews(t), time.Now()
	flood, stop := context.WithTimeout(t.Context(), seconds*time.Second)
	defer stop()
	var sent atomic.Int64
	var attackers sync.WaitGroup
	for attacker := range clients {
		attackers.Go(func() {
			for n := 0; flood.Err() == nil; n++ {
				short, done := context.WithTimeout(flood, 100*time.Millisecond)
				if err := scrape(short, fmt.Sprintf("random-%d-%d", attacker, n)); err == nil {
					t.Error("metrics for a random token")
				}
				done()
				sent.Add(1)
				time.Sleep(20 * time.Millisecond) // more costs processor time, and shows nothing else
			}
		})
	}
	for flood.Err() == nil {
		if err := scrape(t.Context(), "joiner-token"); err != nil {
			t.Errorf("the scraper: %v", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	attackers.Wait()
	// The limit is 5 a second, and 10 at once. Requests that were queued at the end of the flood are ignored.
	took := time.Since(begun).Seconds()
	if got, most := tokenReviews(t)-before, 10+5*took+5; got < 1 || got > most || sent.Load() < int64(1.5*most) { // fewer tokens prove nothing
		t.Errorf("%d random tokens in %.1fs cost %.0f reviews, want 1 to %.0f", sent.Load(), took, got, most)
	}
	if lines := strings.Count(p.Output(t), "Authentication failed"); lines > 3 {
		t.Errorf("%d lines of log", lines)
	}
	checkStop(t, p)
}

// tokenReviews returns how many TokenReviews the API server has answered.
func tokenReviews(t *testing.T) (total float64) {
	t.Helper()
	set, err := kubernetes.NewForConfig(kit.ControlPlane(t).Config)
	kit.NoError(t, err)
	text, err := set.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	kit.NoError(t, err)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("apiserver_request_total{")) && bytes.Contains(line, []byte(`resource="tokenreviews"`)) {
			fields := strings.Fields(string(line))
			value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			kit.NoError(t, err)
			total += value
		}
	}
	return total
}
