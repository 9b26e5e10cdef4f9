// Package manager tests the manager's program, and the kubectl plugin, on a real control plane.
package manager

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestManager runs the whole manager with the shipped manifests and roles: without a CA, with a CA, with a bad CA.
func TestManager(t *testing.T) {
	kit.Parallel(t)
	kit.GrantJoining(t, "joiner")
	p := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "-v", "10")

	// No CA yet: the manager runs, and reports that.
	p.Answers(t, p.Probes, "/healthz", http.StatusOK)
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "signing-ca")
	waiting := joins(t, "one")
	kit.Reaches(t, waiting, csr.Approved)
	kit.HasEvent(t, waiting, "CAMissing", "Secret csr-controller-manager-system/csr-signer does not exist")

	// The CA appears: waiting requests are signed at once.
	secret := signingSecret(t)
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Equal(t, "common name", kit.Leaf(t, waiting).Subject.CommonName, "system:node:one")

	// A bad CA leaves the last good one in use, and is reported.
	secret.Data[corev1.TLSCertKey] = []byte("garbage")
	kit.Update(t, secret)
	kit.HasEvent(t, secret, "CAInvalid", "no PEM block of type CERTIFICATE", "the last good CA stays in use")
	kit.Reaches(t, joins(t, "two"), csr.Issued)
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)

	// A forbidden request waits.
	kit.Grant(t, "stranger", kit.MayCreate)
	refused := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "three"))
	kit.HasEvent(t, refused, "NotAuthorized", `user "stranger"`, "create certificatesigningrequests/nodeclient")
	kit.IsIn(t, refused, csr.Pending)
	const kubelet = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_decisions_total{reason="AutoApproved",rule="nodeclient",`+kubelet+`,verdict="Approve"} 2`,
		`csr_approver_decisions_total{reason="NotAuthorized",rule="",`+kubelet+`,verdict="Wait"} 1`,
		`csr_signer_outcomes_total{outcome="Issued",reason="",`+kubelet+`} 2`,
		`csr_signer_ca_reloads_total{result="rejected"} 2`,
		`csr_signer_ca_expiration_timestamp_seconds{signer="kubernetes.io/kubelet-serving"}`,
		`csr_signer_lifetime_seconds{signer="kubernetes.io/kubelet-serving"} 3.1536e+07`,
		`csr_approver_created_to_approved_seconds_count{`+kubelet+`} 2`,
		`csr_signer_created_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_signer_approved_to_issued_seconds_count{`+kubelet+`} 2`,
		`csr_approver_review_seconds_count{result="allowed"} 2`,
		`csr_approver_review_seconds_count{result="refused"}`)
	checkStop(t, p)
}

// TestManagerCleans deletes requests that are due when the manager starts, and requests that become due while it
// runs.
func TestManagerCleans(t *testing.T) {
	kit.Parallel(t)
	old, fresh := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "old")), kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "fresh"))
	age(t, old, 25*time.Hour)
	short := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeletServingSignerName))
	kit.StartManager(t, kit.RoleConfig(t, "cleaner"), "--leader-elect=false", kit.Configure(t, `controllers: [cleaner]
cleaning: {signers: [{name: kubernetes.io/kubelet-serving, retention: {approved: 2s}}]}
`))
	kit.IsDeleted(t, old)
	kit.IsDeleted(t, short)
	kit.Reload(t, fresh)
}

func TestManagerRefusesBadConfiguration(t *testing.T) {
	t.Parallel()
	command := exec.CommandContext(t.Context(), kit.Must(cluster.Manager())(t), "--controllers=foo")
	out, _ := command.CombinedOutput()
	kit.Says(t, string(out), command.ProcessState.ExitCode(), 1, "--controllers: ")
}

// TestFIPS checks that these tests and the manager that they start use the FIPS 140-3 module that GOFIPS140 selects, as
// the part test-fips of `make nightly` does, and else none.
func TestFIPS(t *testing.T) {
	t.Parallel()
	module := os.Getenv("GOFIPS140")
	want := module != "" && module != "off"
	kit.Equal(t, "FIPS mode with GOFIPS140="+module, fips140.Enabled(), want)
	var got string
	for _, setting := range kit.Must(buildinfo.ReadFile(kit.Must(cluster.Manager())(t)))(t).Settings {
		if setting.Key == "GOFIPS140" {
			got = setting.Value
		}
	}
	// The go command records the version with the hash of the module, such as v1.0.0-c2097c7c.
	has := got != "" && got != "off"
	kit.Check(t, has == want && (!want || strings.HasPrefix(got, module)), "the manager has the module %q, want %q", got, module)
}

// TestRotationWithoutItsCRDHoldsUpNothingElse enables rotation without its CRD. Until the CRD is installed, the
// approver works, and the replica reports what it waits for.
func TestRotationWithoutItsCRDHoldsUpNothingElse(t *testing.T) {
	kit.Parallel(t)
	kit.ApplyAll(t, slices.DeleteFunc(kit.Rendered(t, "rotation"), func(obj *unstructured.Unstructured) bool {
		return !strings.Contains(obj.GetKind(), "Role") // above all not the CRD
	}))
	p := start(t, kit.Configure(t, "rotation: {enabled: true}\n"))
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusInternalServerError)
	kit.Reaches(t, joins(t, "joins"), csr.Approved)
	kit.Eventually(t, "the log says what is missing", func(context.Context) error {
		log := p.Output(t)
		says := strings.Contains(log, "Waiting for a resource that can't be watched yet") && strings.Contains(log, "SigningAuthority")
		return kit.OrError(says, "it does not yet")
	})
	options := envtest.CRDInstallOptions{Paths: []string{"../../config/crd"}, ErrorIfPathMissing: true}
	kit.Must(envtest.InstallCRDs(kit.ControlPlane(t).Config, options))(t)
	p.Answers(t, p.Probes, "/readyz/caches", http.StatusOK)
}

// TestDryRun goes through every outcome with the rights of config/dry-run, and proves with a proxy that only Events and reviews were written.
func TestDryRun(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-dry-run"}}
	kit.Create(t, kit.Admin(t), account)
	kit.ApplyAll(t, kit.BoundTo(t, account.Name, kit.Rendered(t, "overlays/dry-run")))
	cfg := kit.TokenOf(t, account)
	kit.Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		return kit.ClientOf(t, cfg).List(ctx, &certificatesv1.CertificateSigningRequestList{})
	})
	proxy := kit.ThroughFaults(t, cfg)
	p := startAs(t, proxy.Config, "--dry-run=*", kit.Configure(t, "cleaning: {retention: {denied: 1s}}\n"))
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	// tells waits for an Event about obj.
	tells := func(obj *kit.Request, kind, reason string, parts ...string) {
		t.Helper()
		kit.AnEvent(t, obj, reason, func(event *eventsv1.Event) bool { return event.Type == kind && kit.Notes(event, parts...) })
	}

	agreed := joins(t, "dry-a")
	tells(agreed, "Normal", "WouldApprove", "AutoApproved: Auto approving kubelet client certificate after SubjectAccessReview.")
	kit.Approve(t, agreed)
	tells(agreed, "Normal", "WouldIssue", "would sign the request")

	differs := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-b"))
	tells(differs, "Warning", "WouldWait", "NotAuthorized: ", `user "stranger"`)
	kit.Approve(t, differs)
	tells(differs, "Normal", "WouldIssue", "would sign the request")
	given := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-c"))
	tells(given, "Warning", "WouldWait", "NotAuthorized")
	broken := decided(t, certificatesv1.CertificateApproved, signerName(certificatesv1.KubeAPIServerClientSignerName), kit.WrongUsage)
	tells(broken, "Warning", "WouldFail", "SignerValidationFailure: ")
	due := decided(t, certificatesv1.CertificateDenied, signerName("example.com/foreign"))
	tells(due, "Normal", "WouldDelete", "Due: the request is Denied and due for deletion since ")

	const signer = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_dry_run_total{reason="AutoApproved",`+signer+`,verdict="Approve"} 1`,
		`csr_approver_dry_run_total{reason="NotAuthorized",`+signer+`,verdict="Wait"} 2`,
		`csr_signer_dry_run_total{outcome="Issued",reason="",`+signer+`} 2`,
		`csr_signer_dry_run_total{outcome="Failed",reason="SignerValidationFailure",signer="kubernetes.io/kube-apiserver-client"} 1`,
		`csr_cleaner_dry_run_total{reason="Due",state="Denied"} 1`)
	// Only now: an attempt that overlaps the deletion would report and count the outcome again.
	kit.Remove(t, given)
	for _, obj := range []*kit.Request{agreed, differs, broken, due} {
		before := obj.ResourceVersion
		kit.Check(t, kit.Reload(t, obj).ResourceVersion == before && len(obj.Status.Certificate) == 0,
			"%s was written: %+v", obj.Name, obj.Status)
	}
	checkStop(t, p) // the log shows that no forbidden call was attempted
	writes := map[string]int{}
	for _, call := range proxy.Calls() {
		if !slices.Contains([]string{"get", "list", "watch"}, call.Verb) {
			writes[call.Verb+" "+call.Resource]++
		}
	}
	for what, times := range writes {
		if !slices.Contains([]string{"create subjectaccessreviews", "create selfsubjectaccessreviews", "create events", "patch events"}, what) {
			t.Errorf("%d times %s", times, what)
		}
	}
	kit.Check(t, writes["create events"] >= 6 && writes["create subjectaccessreviews"] != 0, "the proxy has only seen %v", writes)
}

func TestMain(m *testing.M) { kit.Main(m, 6) }

// signingSecret creates the Secret from which managers sign, with the CA of the control plane.
func signingSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	kit.Create(t, kit.Admin(t), secret)
	return secret
}

// start runs a manager under the shipped roles. It signs with the CA of the control plane, and joiner may join. It takes
// part in no election, unless args say so.
func start(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	return startAs(t, kit.ManagerConfig(t), args...)
}

// startAs is start as cfg's user.
func startAs(t *testing.T, cfg *rest.Config, args ...string) *kit.Process {
	t.Helper()
	signingSecret(t)
	kit.GrantJoining(t, "joiner")
	return kit.StartManager(t, cfg, append([]string{"--leader-elect=false"}, args...)...)
}

// startJoinable is startAs. It returns once a kubelet has joined.
func startJoinable(t *testing.T, cfg *rest.Config, args ...string) *kit.Process {
	t.Helper()
	p := startAs(t, cfg, args...)
	kit.Reaches(t, joins(t, "first"), csr.Issued)
	return p
}

// joins creates the first request of a node.
func joins(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, node))
}

// asksFor creates a request of the kubelet of node for a serving certificate.
func asksFor(t *testing.T, node string, sans ...string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.KubeletOf(t, node), kit.ServingRequest(t, node, sans...))
}

// decided gives a request of an administrator a condition.
func decided(t *testing.T, kind certificatesv1.RequestConditionType, mods ...func(*kit.Request)) *kit.Request {
	t.Helper()
	return kit.Decide(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "decided", mods...)), kind)
}

// signerName makes a request one for another signer.
func signerName(name string) func(*kit.Request) {
	return func(obj *kit.Request) { obj.Spec.SignerName = name }
}

// issuedSoon calls change, and checks that this wakes obj. Without a wake-up it would be judged again a minute later.
func issuedSoon(t *testing.T, obj *kit.Request, change func()) {
	t.Helper()
	backdate(t, obj)
	change()
	kit.Reaches(t, obj, csr.Issued)
}

// age makes obj older in etcd.
func age(t *testing.T, obj *kit.Request, by time.Duration) {
	t.Helper()
	kit.Reload(t, obj)
	obj.CreationTimestamp.Time = obj.CreationTimestamp.Add(-by)
	obj.TypeMeta = metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"}
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj))
}

// backdate makes waiting requests ninety seconds older. It returns once the manager judges them at most once a minute.
func backdate(t *testing.T, waiting ...*kit.Request) {
	t.Helper()
	var pause time.Duration
	for _, obj := range waiting {
		pause = max(pause, csr.Pause(time.Since(obj.CreationTimestamp.Time))) // of a reconcile just before
		age(t, obj, 90*time.Second)
	}
	time.Sleep(pause) // the retry that was scheduled before can't be observed
}

// checkStop stops the manager. It checks that there was no error, and that the log contains nothing of the key.
func checkStop(t *testing.T, p *kit.Process) {
	t.Helper()
	kit.NoError(t, p.Stop())
	log := p.Output(t)
	for _, part := range secretParts(kit.ControlPlane(t).CA.KeyPEM) {
		kit.Check(t, !strings.Contains(log, part), "the log holds the key")
	}
	kit.Check(t, !strings.Contains(log, "forbidden"), "the shipped roles do not suffice:\n%s", log)
}

// secretParts returns parts from the middle of a PKCS#8 P-256 key, in the encodings of a file and of a Secret. All
// such keys have the same beginning, and end with the public key.
func secretParts(keyPEM []byte) []string {
	line := bytes.Split(keyPEM, []byte("\n"))[2][:24]
	at := (bytes.Index(keyPEM, line) + 2) / 3 * 3
	return []string{string(line), base64.StdEncoding.EncodeToString(keyPEM[at : at+18])}
}

// TestAuditLog compares the records of issued and failed requests with the objects in the API server. A request that waits has
// no record. The log tells of it.
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
	about := func(obj *kit.Request, event audit.Event, verdict, reason, signer, node string, usages ...string) audit.Record {
		block, _ := pem.Decode(obj.Spec.Request)
		requested := kit.Must(x509.ParseCertificateRequest(block.Bytes))(t)
		who := &audit.Requester{Username: obj.Spec.Username, UID: obj.Spec.UID, Groups: obj.Spec.Groups, CredentialIDs: obj.Spec.Extra[credentialID]}
		return audit.Record{
			Name: obj.Name, UID: obj.UID, Event: event, Verdict: verdict, Reason: reason, Signer: "kubernetes.io/" + signer, Requester: who,
			Subject: "CN=system:node:" + node + ",O=system:nodes", Usages: append([]string{"digital signature", "client auth"}, usages...),
			KeySHA256: fmt.Sprintf("%x", sha256.Sum256(requested.RawSubjectPublicKeyInfo)),
		}
	}
	decided := about(issued, audit.Decided, "Approve", "AutoApproved", "kube-apiserver-client-kubelet", "a")
	decided.Rule = "nodeclient"
	signed := about(issued, audit.Signed, "", "", "kube-apiserver-client-kubelet", "a")
	signed.Serial, signed.IssuerKeyID = cert.SerialNumber.Text(16), kit.Load(t, kit.ControlPlane(t).CA).KeyID()
	signed.NotBefore, signed.NotAfter = cert.NotBefore, cert.NotAfter
	signed.CertificateSHA256 = fmt.Sprintf("%x", sha256.Sum256(cert.Raw))
	fails := about(broken, audit.NotSigned, "Failed", "SignerValidationFailure", "kube-apiserver-client", "decided", "server auth")
	want := map[string][]audit.Record{issued.Name: {decided, signed}, broken.Name: {fails}}
	got := map[string][]audit.Record{}
	for _, record := range kit.ReadAudit(t, path) {
		kit.Check(t, record.Message != "" || record.Event == audit.Signed, "no message: %+v", record)
		record.NotBefore, record.NotAfter = record.NotBefore.Truncate(time.Second), record.NotAfter.Truncate(time.Second) // as X.509
		got[record.Name] = append(got[record.Name], record)
	}
	for _, records := range got { // a signer may be faster than the approver's record of its own write
		slices.SortFunc(records, func(a, b audit.Record) int { return strings.Compare(string(a.Event), string(b.Event)) })
	}
	kit.Equal(t, "records", got, want, cmpopts.IgnoreFields(audit.Record{}, "Time", "Message"))
	logged := slices.ContainsFunc(strings.Split(p.Output(t), "\n"), func(line string) bool {
		return strings.Contains(line, `"msg":"Decided"`) && strings.Contains(line, string(refused.UID)) &&
			strings.Contains(line, `"verdict":"Wait"`) && strings.Contains(line, `"reason":"NotAuthorized"`)
	})
	kit.Check(t, logged, "the log does not tell of the request that waits: %s", p.Output(t))
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
				kit.Check(t, scrape(short, fmt.Sprintf("random-%d-%d", attacker, n)) != nil, "metrics for a random token")
				done()
				sent.Add(1)
				time.Sleep(20 * time.Millisecond) // more costs processor time, and shows nothing else
			}
		})
	}
	for flood.Err() == nil {
		kit.NoError(t, scrape(t.Context(), "joiner-token"))
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
