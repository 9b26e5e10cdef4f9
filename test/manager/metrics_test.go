package manager

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
	kit.NoError(t, p.Stop())

	cert := kit.Leaf(t, issued)
	about := func(obj *kit.Request) audit.Record {
		return audit.Of(obj, kit.Must(csr.Parse(obj))(t))
	}
	decided, signed, waits, fails := about(issued), about(issued), about(refused), about(broken)
	decided.Event, decided.Verdict, decided.Rule, decided.Reason = audit.Decided, "Approve", "nodeclient", "AutoApproved"
	signed.Event, signed.Serial, signed.IssuerKeyID = audit.Signed, cert.SerialNumber.Text(16), kit.Load(t, kit.ControlPlane(t).CA).KeyID()
	signed.NotBefore, signed.NotAfter = cert.NotBefore, cert.NotAfter
	signed.CertificateSHA256 = fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
	waits.Event, waits.Verdict, waits.Reason = audit.Decided, "Wait", "NotAuthorized"
	fails.Event, fails.Verdict, fails.Reason = audit.NotSigned, "Failed", "SignerValidationFailure"
	kit.Equal(t, "fingerprint", signed.KeySHA256, fmt.Sprintf("%x", sha256.Sum256(cert.RawSubjectPublicKeyInfo)))
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
	kit.Equal(t, "records", got, want, cmpopts.IgnoreFields(audit.Record{}, "Time", "Message"))
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
			shown := strings.Contains(body, "csr_requests")
			return kit.OrError(got == status && shown == (status == http.StatusOK), "status %d, metrics shown: %t", got, shown)
		})
	}
	if status, _ := cluster.Get(t.Context(), p.Metrics, "/metrics"); status == http.StatusOK {
		t.Error("metrics are served without TLS too")
	}

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 10}}
	scrape := func(ctx context.Context, token string) error {
		status, _ := cluster.GetWith(ctx, client, "https://"+p.Metrics+"/metrics", token)
		return kit.OrError(status == http.StatusOK, "status %d", status)
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
	set := kubernetes.NewForConfigOrDie(kit.ControlPlane(t).Config)
	text := kit.Must(set.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	for _, match := range regexp.MustCompile(`(?m)^apiserver_request_total{.*resource="tokenreviews".* (\S+)$`).FindAllSubmatch(text, -1) {
		total += kit.Must(strconv.ParseFloat(string(match[1]), 64))(t)
	}
	return total
}
