package manager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// ledger is a proxy in front of the API server that records all calls other than reads.
type ledger struct {
	*httptest.Server
	mu     sync.Mutex
	writes map[string]int
	// before, if set, is called with each request before it is forwarded.
	before func(*http.Request)
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	target, err := url.Parse(kit.ControlPlane(t).Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if target.Host == "" {
		target = &url.URL{Scheme: "https", Host: kit.ControlPlane(t).Config.Host}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(kit.ControlPlane(t).Config.CAData)
	l := &ledger{writes: map[string]int{}}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true},
		FlushInterval: -1, // watches
	}
	l.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method != http.MethodGet {
			l.mu.Lock()
			l.writes[request.Method+" "+request.URL.Path]++
			l.mu.Unlock()
		}
		if l.before != nil {
			l.before(request)
		}
		proxy.ServeHTTP(w, request)
	}))
	t.Cleanup(func() {
		l.CloseClientConnections()
		l.Close()
	})
	return l
}

// config returns a configuration that reaches the API server through l.
func (l *ledger) config(of *rest.Config) *rest.Config {
	cfg := rest.AnonymousClientConfig(of)
	cfg.Host, cfg.BearerToken = l.URL, of.BearerToken
	cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: l.Certificate().Raw})
	return cfg
}

// readOnly returns the configuration of a ServiceAccount with exactly the rights of docs/how-to/dry-run.md.
func readOnly(t *testing.T) *rest.Config {
	t.Helper()
	kit.InstallRBAC(t)
	// The account that config/rbac binds, but in its own namespace.
	name := "csr-dry-run"
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: name}}
	kit.Create(t, kit.Admin(t), account)
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: kit.SystemNamespace, Name: name}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"}},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}})
	events := rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}
	for namespace, rules := range map[string][]rbacv1.PolicyRule{
		metav1.NamespaceDefault:  {events},
		trust.ExtensionNamespace: {{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{trust.ExtensionName, "kube-root-ca.crt"}, Verbs: []string{"get"}}},
		kit.SystemNamespace:      {events, {APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"csr-signer"}, Verbs: []string{"list", "watch"}}},
	} {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		kit.Create(t, kit.Admin(t), &rbacv1.Role{ObjectMeta: meta, Rules: rules})
		kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{ObjectMeta: *meta.DeepCopy(), Subjects: subject,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}})
	}
	return kit.TokenOf(t, account)
}

// tells waits for an Event about obj, and returns the number of such Events.
func tells(t *testing.T, obj client.Object, kind, reason string, parts ...string) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("Event %s about %s", reason, obj.GetName()), func(ctx context.Context) error {
		var all []string
		for _, event := range kit.EventsOf(ctx, t, obj) {
			all = append(all, event.Type+" "+event.Reason+" "+event.Note)
			found := event.Type == kind && event.Reason == reason
			for _, part := range parts {
				found = found && strings.Contains(event.Note, part)
			}
			if found {
				return nil
			}
		}
		return fmt.Errorf("not among %q", all)
	})
}

// startDryRun runs all three controllers as a dry run, with a role that may only read, and through a ledger.
func startDryRun(t *testing.T) (*kit.Process, *ledger) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"dryRun: [approver, signer]\ncleaning: {retention: {denied: 1s}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, l := readOnly(t), newLedger(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	p := kit.StartManager(t, l.config(cfg), "--leader-elect=false", "--config", file, "--dry-run=*")
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	return p, l
}

// TestDryRun goes through every outcome, and proves with the ledger that only Events and reviews were written.
func TestDryRun(t *testing.T) {
	kit.Parallel(t)
	kit.GrantJoining(t, "joiner")
	kit.Grant(t, "stranger", kit.MayCreate)
	kit.EventuallyAllowed(t, "joiner", true)
	p, l := startDryRun(t)

	agreed := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "dry-a"))
	tells(t, agreed, "Normal", "WouldApprove", "AutoApproved: Auto approving kubelet client certificate after SubjectAccessReview.")
	kit.Approve(t, agreed)
	tells(t, agreed, "Normal", "WouldIssue", "would sign the request")

	differs := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-b"))
	tells(t, differs, "Warning", "WouldWait", "NotAuthorized: ", `user "stranger"`)
	kit.Approve(t, differs)
	tells(t, differs, "Normal", "WouldIssue", "would sign the request")

	given := kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "dry-c"))
	tells(t, given, "Warning", "WouldWait", "NotAuthorized")

	broken := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "dry-d", func(obj *kit.Request) {
		obj.Spec.SignerName, obj.Spec.Usages = certificatesv1.KubeAPIServerClientSignerName, append(obj.Spec.Usages, "server auth")
	}))
	kit.Approve(t, broken)
	tells(t, broken, "Warning", "WouldFail", "SignerValidationFailure: ")

	due := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "dry-e", func(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" }))
	kit.Decide(t, due, certificatesv1.CertificateDenied)
	tells(t, due, "Normal", "WouldDelete", "Due: the request is Denied and due for deletion since ")

	const signer = `signer="kubernetes.io/kube-apiserver-client-kubelet"`
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK,
		`csr_approver_dry_run_total{reason="AutoApproved",`+signer+`,verdict="Approve"} 1`,
		`csr_approver_dry_run_total{reason="NotAuthorized",`+signer+`,verdict="Wait"} 2`,
		`csr_signer_dry_run_total{outcome="Issued",reason="",`+signer+`} 2`,
		`csr_signer_dry_run_total{outcome="Failed",reason="SignerValidationFailure",signer="kubernetes.io/kube-apiserver-client"} 1`,
		`csr_cleaner_dry_run_total{reason="Due",state="Denied"} 1`)
	// Only now: an attempt that overlaps the deletion would report and count the outcome again.
	if err := kit.Admin(t).Delete(t.Context(), given); err != nil {
		t.Fatal(err)
	}
	for _, obj := range []*kit.Request{agreed, differs, broken, due} {
		before := obj.ResourceVersion
		if kit.Reload(t, obj).ResourceVersion != before || len(obj.Status.Certificate) > 0 {
			t.Errorf("%s was written: %+v", obj.Name, obj.Status)
		}
	}
	besides(t, p, signer)
	checkStop(t, p) // the log shows that no forbidden call was attempted
	l.onlyTold(t)
}

// besides runs a manager that approves and signs next to the dry run. Often it is faster. The dry run judges each request
// nevertheless, without an Event for each.
func besides(t *testing.T, dry *kit.Process, signer string) {
	t.Helper()
	const many = 40
	live := kit.StartManager(t, kit.ManagerConfig(t), "--leader-elect=false", "--controllers=approver,signer", "--self-check-interval=0")
	var all []*kit.Request
	for i := range many {
		all = append(all, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, fmt.Sprintf("dry-%d", i))))
	}
	for _, obj := range all {
		kit.Reaches(t, obj, csr.Issued)
	}
	dry.Answers(t, dry.Metrics, "/metrics", http.StatusOK,
		fmt.Sprintf(`csr_approver_dry_run_total{reason="AutoApproved",%s,verdict="Approve"} %d`, signer, many+1),
		fmt.Sprintf(`csr_signer_dry_run_total{outcome="Issued",reason="",%s} %d`, signer, many+2))
	if err := live.Stop(); err != nil {
		t.Error(err)
	}
	told := 0
	for _, obj := range all {
		for _, event := range kit.EventsOf(t.Context(), t, obj) {
			if event.Reason == "WouldApprove" || event.Reason == "WouldIssue" {
				told++
			}
		}
	}
	if told > 22 { // ten at once for each of the two controllers, and one a minute
		t.Errorf("%d Events about %d successes", told, many)
	}
}

// onlyTold fails if anything other than Events and reviews was written.
func (l *ledger) onlyTold(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	events, reviews := 0, 0
	for what, times := range l.writes {
		switch {
		case strings.HasPrefix(what, "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"), strings.HasPrefix(what, "POST /apis/authorization.k8s.io/v1/selfsubject"):
			reviews += times
		case strings.HasPrefix(what, "POST /apis/events.k8s.io/v1/namespaces/"), strings.HasPrefix(what, "PATCH /apis/events.k8s.io/v1/namespaces/"):
			events += times
		default:
			t.Errorf("%d times %s", times, what)
		}
	}
	if events < 6 || reviews < 3 {
		t.Errorf("the ledger has only seen %d Events and %d reviews: %v", events, reviews, l.writes)
	}
}
