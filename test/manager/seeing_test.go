package manager

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestAuditLog compares the records of issued, refused and failed requests with the objects in the API server.
func TestAuditLog(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	kit.GrantJoining(t, "joiner")
	kit.Grant(t, "stranger", kit.MayCreate)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	path := filepath.Join(t.TempDir(), "audit.log")
	p := kit.StartManager(t, kit.ServiceAccountConfig(t), "--leader-elect=false", "--audit-log-path", path, "--self-check-interval=0")
	issued := kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "a")), csr.Issued)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "b"))
	kit.HasEvent(t, refused, "NotAuthorized")
	broken := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "c", func(obj *kit.Request) {
		obj.Spec.SignerName, obj.Spec.Usages = "kubernetes.io/kube-apiserver-client", append(obj.Spec.Usages, "server auth")
	}))
	kit.Approve(t, broken)
	kit.Reaches(t, broken, csr.Failed)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	cert := kit.Leaf(t, issued)
	about := func(obj *kit.Request) audit.Record {
		req, err := csr.Parse(obj)
		if err != nil {
			t.Fatal(err)
		}
		return audit.Of(obj, req)
	}
	decided, signed, waits, fails := about(issued), about(issued), about(refused), about(broken)
	decided.Event, decided.Verdict, decided.Rule, decided.Reason = audit.Decided, "Approve", "nodeclient", "AutoApproved"
	signed.Event, signed.Serial, signed.IssuerKeyID = audit.Signed, cert.SerialNumber.Text(16), keyID(t, kit.ControlPlane(t).CA.CertPEM)
	signed.NotBefore, signed.NotAfter = &cert.NotBefore, &cert.NotAfter
	signed.CertificateSHA256 = fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
	waits.Event, waits.Verdict, waits.Reason = audit.Decided, "Wait", "NotAuthorized"
	fails.Event, fails.Verdict, fails.Reason = audit.NotSigned, "Failed", "SignerValidationFailure"
	if want := fmt.Sprintf("%x", sha256.Sum256(cert.RawSubjectPublicKeyInfo)); signed.KeySHA256 != want {
		t.Errorf("fingerprint %s, the certificate's is %s", signed.KeySHA256, want)
	}
	want := map[string][]audit.Record{issued.Name: {decided, signed}, refused.Name: {waits}, broken.Name: {fails}}
	got := map[string][]audit.Record{}
	for _, record := range auditRecords(t, path) {
		if record.Message == "" && record.Event != audit.Signed {
			t.Errorf("no message: %+v", record)
		}
		if record.NotBefore != nil { // X.509 has whole seconds
			*record.NotBefore, *record.NotAfter = record.NotBefore.Truncate(1e9), record.NotAfter.Truncate(1e9)
		}
		got[record.Name] = append(got[record.Name], record)
	}
	for _, records := range got { // a signer may be faster than the approver's record of its own write
		slices.SortFunc(records, func(a, b audit.Record) int { return strings.Compare(string(a.Event), string(b.Event)) })
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(audit.Record{}, "Time", "Message")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// keyID returns the issuer's ID in records.
func keyID(t *testing.T, certPEM []byte) string {
	t.Helper()
	certs, err := ca.ParseCertificates(certPEM)
	if err != nil || len(certs) != 1 {
		t.Fatalf("%d certificates, error %v", len(certs), err)
	}
	return ca.KeyID(certs[0].RawSubjectPublicKeyInfo)
}

// auditRecords reads an audit log. An unknown field is an error.
func auditRecords(t *testing.T, path string) []audit.Record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var records []audit.Record
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var record audit.Record
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&record); err != nil || record.Time.IsZero() {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		records = append(records, record)
	}
	return records
}

// TestSecureMetrics serves metrics only to clients that may read them.
func TestSecureMetrics(t *testing.T) {
	kit.Parallel(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	kit.Create(t, kit.Admin(t), role)
	kit.Grant(t, "joiner", role.Name)
	p := kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", "--controllers=cleaner", "--metrics-secure")
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
}

// TestRequestsAreCountedAtScrape follows the gauges up and down, on a standby too.
func TestRequestsAreCountedAtScrape(t *testing.T) {
	kit.Parallel(t)
	if err := kit.Admin(t).DeleteAllOf(t.Context(), &kit.Request{}); err != nil { // left over from earlier tests
		t.Fatal(err)
	}
	kit.InstallRBAC(t)
	leaseOf(t, "another")
	p := kit.StartManager(t, kit.ServiceAccountConfig(t), "--controllers=approver")
	const pending = `csr_requests{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} `
	const other = `csr_requests{signer="other",state="Denied"} `
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, pending+"0", other+"0",
		`csr_requests_oldest_seconds{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} 0`)
	first := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "a"))
	kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "b"))
	foreign := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "c", func(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" }))
	kit.Decide(t, foreign, "Denied")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, pending+"2", other+"1")
	oldest := regexp.MustCompile(`csr_requests_oldest_seconds\{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"\} ([0-9.]+)`)
	age := func() float64 {
		_, body := cluster.Get(t.Context(), p.Metrics, "/metrics")
		found := oldest.FindStringSubmatch(body)
		if found == nil {
			t.Fatalf("no age in %s", body)
		}
		seconds, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return seconds
	}
	before := age()
	kit.Eventually(t, "the oldest request gets older", func(context.Context) error {
		if now := age(); now <= before || now > kit.Patience.Seconds() {
			return fmt.Errorf("it was %f s old, and is %f s", before, now)
		}
		return nil
	})
	if err := kit.Admin(t).Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, pending+"1")
}
