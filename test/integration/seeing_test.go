package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
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
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// TestAuditLog compares the records of issued, refused and failed requests with the objects in the API server.
func TestAuditLog(t *testing.T) {
	parallel(t)
	installRBAC(t)
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	grant(t, "stranger", mayCreate)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	path := filepath.Join(t.TempDir(), "audit.log")
	p := startManager(t, serviceAccountConfig(t), "--leader-elect=false", "--audit-log-path", path, "--self-check-interval=0")
	issued := reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "a")), csr.Issued)
	refused := createRequest(t, as(t, "stranger"), nodeRequest(t, "b"))
	hasEvent(t, refused, "NotAuthorized")
	broken := createRequest(t, admin(t), nodeRequest(t, "c", func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Usages = "kubernetes.io/kube-apiserver-client", append(obj.Spec.Usages, "server auth")
	}))
	approve(t, broken)
	reaches(t, broken, csr.Failed)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	cert := leaf(t, issued)
	about := func(obj *request) audit.Record {
		req, err := csr.Parse(obj)
		if err != nil {
			t.Fatal(err)
		}
		return audit.Of(obj, req)
	}
	decided, signed, waits, fails := about(issued), about(issued), about(refused), about(broken)
	decided.Event, decided.Verdict, decided.Rule, decided.Reason = audit.Decided, "Approve", "nodeclient", "AutoApproved"
	signed.Event, signed.Serial, signed.IssuerKeyID = audit.Signed, cert.SerialNumber.Text(16), keyID(t, controlPlane(t).CA.CertPEM)
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
	parallel(t)
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}
	create(t, admin(t), role)
	grant(t, "joiner", role.Name)
	p := startManager(t, roleConfig(t, "cleaner"), "--leader-elect=false", "--controllers=cleaner", "--metrics-secure")
	for token, status := range map[string]int{
		"": http.StatusUnauthorized, "nonsense": http.StatusInternalServerError, // controller-runtime's answer
		"stranger-token": http.StatusForbidden, "joiner-token": http.StatusOK,
	} {
		eventually(t, "/metrics with token "+strconv.Quote(token), func(ctx context.Context) error {
			got, body := secureGet(ctx, p.metrics, "/metrics", token)
			if shown := strings.Contains(body, "csr_requests"); got != status || shown != (status == http.StatusOK) {
				return fmt.Errorf("status %d, metrics shown: %t", got, shown)
			}
			return nil
		})
	}
	if status, _ := cluster.Get(t.Context(), p.metrics, "/metrics"); status == http.StatusOK {
		t.Error("metrics are served without TLS too")
	}
}

// secureGet is cluster.Get for a page that is served with TLS, with a token unless it is empty.
func secureGet(ctx context.Context, address, path, token string) (int, string) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	trusting := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := trusting.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// TestRequestsAreCountedAtScrape follows the gauges up and down, on a standby too.
func TestRequestsAreCountedAtScrape(t *testing.T) {
	parallel(t)
	if err := admin(t).DeleteAllOf(t.Context(), &request{}); err != nil { // left over from earlier tests
		t.Fatal(err)
	}
	installRBAC(t)
	leaseOf(t, "another")
	p := startManager(t, serviceAccountConfig(t), "--controllers=approver")
	const pending = `csr_requests{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} `
	const other = `csr_requests{signer="other",state="Denied"} `
	p.answers(t, p.metrics, "/metrics", http.StatusOK, pending+"0", other+"0",
		`csr_requests_oldest_seconds{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} 0`)
	first := createRequest(t, admin(t), nodeRequest(t, "a"))
	createRequest(t, admin(t), nodeRequest(t, "b"))
	foreign := createRequest(t, admin(t), nodeRequest(t, "c", func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }))
	decide(t, foreign, "Denied")
	p.answers(t, p.metrics, "/metrics", http.StatusOK, pending+"2", other+"1")
	oldest := regexp.MustCompile(`csr_requests_oldest_seconds\{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"\} ([0-9.]+)`)
	age := func() float64 {
		_, body := cluster.Get(t.Context(), p.metrics, "/metrics")
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
	eventually(t, "the oldest request gets older", func(context.Context) error {
		if now := age(); now <= before || now > patience.Seconds() {
			return fmt.Errorf("it was %f s old, and is %f s", before, now)
		}
		return nil
	})
	if err := admin(t).Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	p.answers(t, p.metrics, "/metrics", http.StatusOK, pending+"1")
}
