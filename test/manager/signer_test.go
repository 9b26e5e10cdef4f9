package manager

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// filesOf writes the files of a CA, and returns the fields of a configuration that name them.
func filesOf(t *testing.T, of *csrenv.CA) string {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	kit.Write(t, cert, of.CertPEM)
	kit.Write(t, key, of.KeyPEM)
	return "certFile: " + cert + ", keyFile: " + key
}

// TestCustomSigner serves a custom signer, with its own CA and usages, beside Kubernetes' signers.
func TestCustomSigner(t *testing.T) {
	kit.Parallel(t)
	own := kit.NewCA(t)
	kit.MaySign(t, kit.ManagerAccount, "example.com/webhook")
	start(t, kit.Configure(t, `controllers: ["*", -approver]
signing:
  signers:
  - {name: example.com/webhook, `+filesOf(t, own)+`, usages: [digital signature, server auth], duration: 1h, maxDuration: 2h}
`))
	ask := func(signer string, usage certificatesv1.KeyUsage) *kit.Request {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}
			obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}})
		}))
		kit.Approve(t, obj)
		return obj
	}
	issued := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	kit.IssuedBy(t, issued, own)
	if cert := kit.Leaf(t, issued); cert.NotAfter.Sub(cert.NotBefore) != time.Hour+5*time.Minute || cert.DNSNames[0] != "hook.default.svc" {
		t.Errorf("certificate lives for %s, names %q", cert.NotAfter.Sub(cert.NotBefore), cert.DNSNames)
	}
	failed := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageClientAuth), csr.Failed).Status.Conditions[1]
	const message = `usage "client auth" is not permitted: signer example.com/webhook permits ["digital signature" "server auth"]`
	if failed.Reason != "UsagesNotPermitted" || failed.Message != message {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
	kit.IssuedBy(t, kit.Reaches(t, ask(certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth), csr.Issued), kit.ControlPlane(t).CA)
	foreign := ask("example.com/somebody-elses", certificatesv1.UsageServerAuth)
	kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	if got := csr.StateOf(kit.Reload(t, foreign)); got != csr.Approved {
		t.Errorf("another signer's request is %s, want Approved", got)
	}
}

// TestApprovalRulesWithoutARight runs the manager with rules for two signers. It may approve for one of them: the rules of the other are
// off and reported, and the manager is ready. Once it has the right, the rules are on. The audit log and the metrics name the rule.
func TestApprovalRulesWithoutARight(t *testing.T) {
	kit.Parallel(t)
	manager := kit.ManagerConfig(t)
	kit.Apply(t, "approval-rules")
	account := serviceaccount.MakeUsername(kit.SystemNamespace, kit.ManagerAccount)
	kit.MaySign(t, kit.ManagerAccount, "example.com/one")
	kit.GrantRule(t, account, certificatesv1.GroupName, "signers", "approve", "example.com/one")

	kit.NewNamespace(t, "shop")
	kit.Create(t, kit.Admin(t), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	})
	_, web := accountThatAsks(t, "shop", "web")
	kit.GrantRule(t, serviceaccount.MakeUsername("shop", "web"), "csr-controller-manager.io", "approvalrules", "use", "one", "two")
	ask := func(signer string) *kit.Request {
		return kit.CreateRequest(t, web, kit.NodeRequest(t, "", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{"digital signature", "server auth"}
			obj.Spec.Request, obj.Spec.ExpirationSeconds = kit.Payload(t, x509.CertificateRequest{DNSNames: []string{"api.shop.svc"}}), new(int32(3600))
		}))
	}
	audit := filepath.Join(t.TempDir(), "audit.log")
	p := startAs(t, manager, "--self-check-interval=1s", "--audit-log-path", audit, kit.Configure(t, `signing:
  signers:
  - {name: example.com/one, `+filesOf(t, kit.NewCA(t))+`, usages: [digital signature, server auth], duration: 1h}
approval:
  rules:
  - {name: one, signerName: example.com/one, preset: serviceNames}
  - {name: two, signerName: example.com/two, preset: serviceNames}
  - {name: open, signerName: example.com/two, usages: [server auth], maxDuration: 1h, allow: [names], conditions: [{expression: "true"}]}
`))
	p.Answers(t, p.Probes, "/readyz", http.StatusOK)
	kit.Reaches(t, ask("example.com/one"), csr.Issued)
	off := ask("example.com/two")
	kit.HasEvent(t, off, "NotStored", "the API server refuses to store the verdict Approve")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `csr_check_missing_rights{resource="signers.certificates.k8s.io",verb="approve"} 1`,
		`csr_approver_rule_total{rule="one",verdict="Approve"} 1`)
	found := false
	for _, record := range kit.ReadAudit(t, audit) {
		found = found || record.Event == "Decided" && record.Verdict == "Approve" && record.Rule == "one"
	}
	if output := p.Output(t); !found || !strings.Contains(output, "approval rule open never looks at the requester") {
		t.Errorf("no audit record with the rule: %t; the manager's log:\n%s", !found, output)
	}

	kit.GrantRule(t, account, certificatesv1.GroupName, "signers", "approve", "example.com/two")
	kit.Reaches(t, off, csr.Approved) // the request is judged again after a pause as long as its age
}

// TestRequestLimitsPolicy checks that the policy in config/request-limits refuses requests of more bytes than the
// manager reads and requests with a finalizer, and nothing else.
func TestRequestLimitsPolicy(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "request-limits")
	ask := func(data []byte) error {
		obj := kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Spec.Request = data })
		return kit.Admin(t).Create(t.Context(), obj, client.DryRunAll)
	}
	fill := func(data []byte, size int) []byte { return append(data, strings.Repeat("#", size-len(data))...) }
	small := kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}})
	kit.Eventually(t, "the policy holds", func(context.Context) error {
		if ask(fill(small, 200_000)) == nil {
			return errors.New("nothing is refused")
		}
		return nil
	})
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"a usual request":      {data: small},
		"as many bytes as fit": {data: fill(small, 131_072)},
		"one byte too many":    {fill(small, 131_073), "RequestTooLarge: spec.request has more than 131072 bytes"},
		"one byte less":        {data: fill(small, 131_071)},
		"two bytes less":       {data: fill(small, 131_070)},
		"far too many bytes":   {fill(small, 1<<20), "RequestTooLarge: spec.request has more than 131072 bytes"},
	} {
		err := ask(test.data)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
	kept := kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Finalizers = []string{"example.com/kept"} })
	if err := kit.Admin(t).Create(t.Context(), kept, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "no finalizers") {
		t.Errorf("a request with a finalizer: error %v", err)
	}
}

// TestCostlySubjectsCostNothing has a user who may only create requests, and who requests subjects of 60,000
// attributes. They used to keep a manager busy for minutes. Another request is served meanwhile.
func TestCostlySubjectsCostNothing(t *testing.T) {
	kit.Parallel(t)
	manager := startJoinable(t, kit.ManagerConfig(t))
	kit.Grant(t, "stranger", kit.MayCreate)
	costly := kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:a", Organization: []string{csr.NodeGroup}, OrganizationalUnit: slices.Repeat([]string{"u"}, 60_000),
	}})

	before := manager.CPUSeconds(t)
	var all []*kit.Request
	for range 4 {
		all = append(all, kit.CreateRequest(t, kit.As(t, "stranger"), kit.NodeRequest(t, "a", func(obj *kit.Request) { obj.Spec.Request = costly })))
	}
	for _, obj := range all {
		kit.HasEvent(t, obj, "RequestTooLarge", "spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)")
		isPending(t, obj)
	}
	kit.Reaches(t, joins(t, "good"), csr.Issued)
	kit.Approve(t, all[0])
	if failed := kit.Reaches(t, all[0], csr.Failed).Status.Conditions[1]; failed.Reason != "RequestTooLarge" {
		t.Errorf("once approved it is Failed with %s, want RequestTooLarge", failed.Reason)
	}
	if used := manager.CPUSeconds(t) - before; used > 5 {
		t.Errorf("four requests took %.1f CPU-seconds", used)
	}
}

// TestSecondSignerIsReported stores a certificate of another CA while the manager's own write for the same request is on its
// way. A certificate of the manager's own CA, which an earlier leader may store, is not reported.
func TestSecondSignerIsReported(t *testing.T) {
	kit.Parallel(t)
	signingSecret(t)
	proxy := kit.ThroughFaults(t, kit.RoleConfig(t, "signer"))
	records := filepath.Join(t.TempDir(), "audit.log")
	p := kit.StartManager(t, proxy.Config, "--leader-elect=false", "--controllers=signer", "--audit-log-path", records)
	own := kit.Reaches(t, kit.ApprovedClient(t, "second-own"), csr.Issued)
	if !slices.ContainsFunc(own.ManagedFields, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Subresource == "status" && entry.Manager == signer.FieldManager
	}) {
		t.Errorf("who stores certificates: %+v", own.ManagedFields)
	}

	other := kit.IssueCA(t, "other", kit.NewKey(t), nil, time.Hour)
	outrun := func(user string, certificate []byte) *kit.Request {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, user))
		// Use ends the watches. So the manager may repeat a write for an earlier request, which must not use up the rule.
		proxy.Use(faults.Rule{Path: regexp.MustCompile("/" + obj.Name + "/status$"), Times: 1, Do: faults.Delay(3 * time.Second)})
		kit.Approve(t, obj)
		kit.Eventually(t, "the manager writes", func(context.Context) error {
			if proxy.Applied()[0] == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		obj.Status.Certificate = certificate
		if err := kit.Admin(t).Status().Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "the manager's certificate is discarded", func(context.Context) error {
			if !slices.ContainsFunc(kit.ReadAudit(t, records), func(record audit.Record) bool {
				return record.UID == obj.UID && record.Event == audit.Discarded
			}) {
				return errors.New("it is not")
			}
			return nil
		})
		return obj
	}
	replica := outrun("second-replica", own.Status.Certificate)
	theirs := outrun("second-theirs", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Leaf(t, "theirs").Certificate[0]}))
	kit.HasEvent(t, theirs, "SecondSigner", fmt.Sprintf("another program has stored the certificate of this request, issued by the CA %+q",
		other.Cert.Subject.String()), "this manager signs for "+theirs.Spec.SignerName+" too")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, fmt.Sprintf("csr_signer_foreign_certificates_total{signer=%q} 1\n", own.Spec.SignerName))
	for _, obj := range []*kit.Request{own, replica} {
		for _, event := range kit.EventsOf(t.Context(), t, obj) {
			t.Errorf("an Event about a certificate of its own CA: %s %s", event.Reason, event.Note)
		}
	}
}

// TestFinishedRequestsAreNotTouched has requests that are issued, failed or denied, or are for a signer of others. The manager
// sees them trimmed: when it starts, when they change, and when its CA changes. It makes no call about them, and all of
// them stay as they are.
func TestFinishedRequestsAreNotTouched(t *testing.T) {
	kit.Parallel(t)
	finish := func(name string) []*kit.Request {
		issued, failed, denied := kit.CreateMarked(t, name+"-issued", 10), kit.CreateMarked(t, name+"-failed", 10, kit.WrongUsage), kit.CreateMarked(t, name+"-denied", 10, kit.WrongUsage)
		foreign := kit.CreateMarked(t, name+"-foreign", 10, func(obj *kit.Request) { obj.Spec.SignerName = "example.com/foreign" })
		kit.Decide(t, denied, certificatesv1.CertificateDenied)
		for _, obj := range []*kit.Request{failed, foreign} {
			kit.Approve(t, obj)
		}
		return []*kit.Request{issued, failed, denied, foreign}
	}
	first := finish("first")
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	p := startJoinable(t, proxy.Config)
	finished := append(first, finish("second")...)
	for i, want := range []csr.State{csr.Issued, csr.Failed, csr.Denied, csr.Approved, csr.Issued, csr.Failed, csr.Denied, csr.Approved} {
		kit.Reaches(t, finished[i], want)
	}
	stops(t, p)

	calls := len(proxy.Calls())
	kit.StartManager(t, proxy.Config, "--leader-elect=false")
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	for _, change := range []func(){
		func() {}, // the manager has started
		func() {
			for _, obj := range finished {
				obj.Labels["example.com/changed"] = "yes"
				kit.Update(t, obj)
			}
		},
		func() { another := kit.NewCA(t); kit.HasLoaded(t, kit.ReplaceSecret(t, secret, another)) },
	} {
		change()
		kit.Reaches(t, joins(t, "later"), csr.Issued)
	}
	names := map[string]bool{}
	for _, before := range finished {
		names[before.Name] = true
		after := kit.Reload(t, before.DeepCopy())
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s (-before +after):\n%s", before.Name, diff)
		}
	}
	for _, call := range proxy.Calls()[calls:] {
		if names[call.Name] {
			t.Errorf("the manager called %s %s", call.Verb, call.Path)
		}
	}
}
