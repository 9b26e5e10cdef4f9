package manager

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// filesOf writes the files of a CA, and returns the fields of a configuration that name them.
func filesOf(t *testing.T, of *csrenv.CA) string {
	t.Helper()
	cert, key := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	kit.Write(t, cert, of.CertPEM)
	kit.Write(t, key, of.KeyPEM)
	return "certFile: " + cert + ", keyFile: " + key
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
	file := filepath.Join(t.TempDir(), "audit.log")
	p := startAs(t, manager, "--self-check-interval=1s", "--audit-log-path", file, kit.Configure(t, `signing:
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
	kit.HasEvent(t, off, "RightsMissing", "the approval rules for this signer are off")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `csr_check_missing_rights{cluster="",resource="signers.certificates.k8s.io",verb="approve"} 1`,
		`csr_approver_rule_total{rule="one",verdict="Approve"} 1`)
	found := false
	for _, record := range kit.ReadAudit(t, file) {
		found = found || record.Event == "Decided" && record.Verdict == "Approve" && record.Rule == "one"
		kit.Check(t, record.Event != audit.NotStored, "an approval was written without the right: %+v", record)
	}
	if output := p.Output(t); !found || !strings.Contains(output, "approval rule open never looks at the requester") {
		t.Errorf("no audit record with the rule: %t; the manager's log:\n%s", !found, output)
	}

	kit.GrantRule(t, account, certificatesv1.GroupName, "signers", "approve", "example.com/*")
	kit.Reaches(t, off, csr.Approved) // the request is judged again after a pause as long as its age
}

// TestRequestLimitsPolicy checks that the policy in config/request-limits refuses requests of more bytes than the
// manager reads and requests with a finalizer, and nothing else. Without the policy, subjects of 60,000 attributes, which used to
// keep a manager busy for minutes, cost nothing.
func TestRequestLimitsPolicy(t *testing.T) {
	kit.Parallel(t)
	manager := startJoinable(t, kit.ManagerConfig(t))
	kit.Grant(t, "stranger", kit.MayCreate)
	costly := kit.NodeRequest(t, "a")
	costly.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:a", Organization: []string{csr.NodeGroup}, OrganizationalUnit: slices.Repeat([]string{"u"}, 60_000),
	}})
	before := manager.CPUSeconds(t)
	var all []*kit.Request
	for range 4 {
		all = append(all, kit.CreateRequest(t, kit.As(t, "stranger"), costly.DeepCopy()))
	}
	for _, obj := range all {
		isRefused(t, obj, "RequestTooLarge", "spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)")
	}
	kit.Reaches(t, joins(t, "good"), csr.Issued)
	kit.Approve(t, all[0])
	kit.Equal(t, "reason once approved", kit.Reaches(t, all[0], csr.Failed).Status.Conditions[1].Reason, "RequestTooLarge")
	if used := manager.CPUSeconds(t) - before; used > 5 {
		t.Errorf("four requests took %.1f CPU-seconds", used)
	}

	kit.Apply(t, "request-limits")
	usual := kit.NodeRequest(t, "a")
	ask := func(change func(*kit.Request)) string {
		obj := usual.DeepCopy()
		change(obj)
		if err := kit.Admin(t).Create(t.Context(), obj, client.DryRunAll); err != nil {
			return err.Error()
		}
		return ""
	}
	sized := func(size int) func(*kit.Request) {
		return func(obj *kit.Request) {
			obj.Spec.Request = append(obj.Spec.Request, strings.Repeat("#", max(0, size-len(obj.Spec.Request)))...)
		}
	}
	kit.Eventually(t, "the policy holds", func(context.Context) error { return kit.OrError(ask(sized(200_000)) != "", "nothing is refused") })
	const (
		tooLarge = "RequestTooLarge: spec.request has more than 131072 bytes"
		badName  = "RequestTooLarge: metadata.name has more than 253 bytes, or other characters than printable ASCII without spaces"
		tooMany  = "RequestTooLarge: metadata.labels, annotations or ownerReferences has more than 1000 entries"
		tooLong  = "RequestTooLarge: labels, annotations and owners have more than 65536 characters"
	)
	annotated := func(bytes int) func(*kit.Request) {
		return func(obj *kit.Request) { obj.Annotations = map[string]string{"a": strings.Repeat("x", bytes-1)} }
	}
	for name, test := range map[string]struct {
		change func(*kit.Request)
		want   string // empty means that it is accepted
	}{
		"as it is":               {sized(0), ""},
		"131,070 bytes":          {sized(131_070), ""},
		"131,071 bytes":          {sized(131_071), ""},
		"131,072 bytes":          {sized(131_072), ""},
		"131,073 bytes":          {sized(131_073), tooLarge},
		"a megabyte":             {sized(1 << 20), tooLarge},
		"a finalizer":            {func(obj *kit.Request) { obj.Finalizers = []string{"example.com/kept"} }, "no finalizers"},
		"a name of 253 bytes":    {named(strings.Repeat("a", 253)), ""},
		"a name of kubeadm":      {named("csr-x7k2p:node.example.com"), ""},
		"a name of 254 bytes":    {named(strings.Repeat("a", 254)), badName},
		"a control character":    {named("a\x01"), badName},
		"two bytes in a letter":  {named("\u00e4"), badName},
		"a space":                {named("a b"), badName},
		"400,000 controls":       {named(strings.Repeat("\x01", 400_000)), badName},
		"a generated name":       {func(obj *kit.Request) { obj.Name, obj.GenerateName = "", "csr-" }, ""},
		"a long generateName":    {func(obj *kit.Request) { obj.GenerateName = strings.Repeat("g", 300_000) }, "metadata.generateName has more than 253"},
		"1000 labels":            {func(obj *kit.Request) { obj.Labels = numbered(1000) }, ""},
		"1001 labels":            {func(obj *kit.Request) { obj.Labels = numbered(1001) }, tooMany},
		"10,000 labels":          {func(obj *kit.Request) { obj.Labels = numbered(10_000) }, tooMany},
		"1001 annotations":       {func(obj *kit.Request) { obj.Annotations = numbered(1001) }, tooMany},
		"1001 owners":            {func(obj *kit.Request) { obj.OwnerReferences = ownedBy(slices.Sorted(maps.Keys(numbered(1001)))...) }, tooMany},
		"65,536 bytes":           {annotated(65_536), ""},
		"65,537 bytes":           {annotated(65_537), tooLong},
		"200,000 bytes":          {annotated(200_000), tooLong},
		"an owner's long name":   {func(obj *kit.Request) { obj.OwnerReferences = ownedBy(strings.Repeat("n", 300_000)) }, tooLong},
		"together above 64 KiB":  {func(obj *kit.Request) { annotated(60_000)(obj); obj.Labels = numbered(1000) }, tooLong},
		"a usual owner, a label": {func(obj *kit.Request) { obj.OwnerReferences, obj.Labels = ownedBy("a"), numbered(1) }, ""},
	} {
		if got := ask(test.change); !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%s: %.300q, want %q", name, got, test.want)
		}
	}
}

// named names a request, instead of a generated name.
func named(name string) func(*kit.Request) {
	return func(obj *kit.Request) { obj.GenerateName, obj.Name = "", name }
}

// numbered returns n labels.
func numbered(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprintf("example.com/%d", i)] = fmt.Sprint(i)
	}
	return all
}

// ownedBy returns owners.
func ownedBy(names ...string) (all []metav1.OwnerReference) {
	for i, name := range names {
		all = append(all, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: types.UID(fmt.Sprint(i))})
	}
	return all
}

// TestRequestsAboveTheLimits has requests with labels and names that the cache does not hold. A condition of the manager leaves all of
// the rest in them. A request whose name fits into no URL is reported and not retried, and goes as docs/runbooks says.
func TestRequestsAboveTheLimits(t *testing.T) {
	kit.Parallel(t)
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	p := startJoinable(t, proxy.Config, kit.Configure(t, `approval: {denial: Permanent}
cleaning: {signers: [{name: example.com/foreign, retention: {pending: 1s}}]}
`))
	kit.Grant(t, "stranger", kit.MayCreate)
	const entries = "metadata.labels has more than 1000 entries (requestLimits.maxEntries)"
	for name, test := range map[string]struct {
		change func(*kit.Request)
		signer string
		state  csr.State
		want   string
	}{
		"10,000 labels, denied": {func(obj *kit.Request) { obj.Labels = numbered(10_000) }, certificatesv1.KubeAPIServerClientKubeletSignerName, csr.Denied,
			entries + "; a new request is needed, or a higher limit"},
		"10,000 labels, failed": {func(obj *kit.Request) { obj.Labels = numbered(10_000) }, certificatesv1.KubeAPIServerClientSignerName, csr.Failed, entries},
		"annotations, failed": {func(obj *kit.Request) {
			obj.Annotations = map[string]string{"a": strings.Repeat("x", 200_000)}
			obj.OwnerReferences, obj.Finalizers = ownedBy("a"), []string{"example.com/kept"}
		}, certificatesv1.KubeAPIServerClientSignerName, csr.Failed, "the metadata, usages and requester have more than 65536 bytes (requestLimits.maxObjectBytes)"},
		"a name of 2000 bytes, denied": {named(strings.Repeat("n", 2000)), certificatesv1.KubeAPIServerClientKubeletSignerName, csr.Denied,
			"metadata.name has more than 253 bytes; a new request is needed, with a shorter name"},
	} {
		created := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "a", test.change, signerName(test.signer)))
		if len(created.Finalizers) > 0 {
			kit.AtEnd(t, func() error { return kit.Admin(t).Patch(context.Background(), created.DeepCopy(), kit.NoFinalizers) })
		}
		if test.state == csr.Failed {
			kit.Approve(t, created)
		}
		now := kit.Reaches(t, created.DeepCopy(), test.state)
		condition := now.Status.Conditions[len(now.Status.Conditions)-1]
		kit.Equal(t, name, condition.Reason+": "+condition.Message, "RequestTooLarge: "+test.want)
		now.ManagedFields, now.ResourceVersion, now.Status = created.ManagedFields, created.ResourceVersion, created.Status
		kit.Equal(t, name+": the rest", now, created)
	}

	large := kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "a", func(obj *kit.Request) {
		obj.Labels, obj.Annotations = numbered(100), map[string]string{"a": strings.Repeat("x", 50_000)}
	}))
	now := kit.Reaches(t, large.DeepCopy(), csr.Issued)
	now.ManagedFields, now.ResourceVersion, now.Status = large.ManagedFields, large.ResourceVersion, large.Status
	kit.Equal(t, "within the limits, but not in the cache: the rest", now, large)

	for name, signer := range map[string]string{
		strings.Repeat("\x01", 400_000): certificatesv1.KubeAPIServerClientKubeletSignerName,
		strings.Repeat("\x02", 400_000): "example.com/foreign",
		strings.Repeat("n", 300_000):    certificatesv1.KubeAPIServerClientKubeletSignerName,
	} {
		obj := kit.NodeRequest(t, "a", named(name), signerName(signer))
		kit.NoError(t, kit.As(t, "stranger").Create(t.Context(), obj))
		kit.Eventually(t, "an Event", func(ctx context.Context) error {
			var events eventsv1.EventList
			err := kit.Admin(t).List(ctx, &events)
			return kit.OrError(slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
				return event.Regarding.UID == obj.UID && event.Reason == "RequestTooLarge" && len(event.Regarding.Name) < 300 && event.Size() < 3000
			}), "%d Events, %w", len(events.Items), err)
		})
	}
	for _, call := range proxy.Calls() {
		kit.Check(t, len(call.Path) < 10_000, "%s of a path with %d bytes", call.Verb, len(call.Path))
	}
	if output := p.Output(t); len(output) > 60_000 {
		t.Errorf("a log of %d bytes", len(output))
	}
	kubeconfig := kit.Kubeconfig(t, "administrator", kit.ControlPlane(t).Config)
	for _, signer := range []string{"example.com/foreign", certificatesv1.KubeAPIServerClientKubeletSignerName} {
		kit.Kubectl(t, kubeconfig, "delete", "--raw", "/apis/certificates.k8s.io/v1/certificatesigningrequests?fieldSelector=spec.signerName="+signer)
	}
	left := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), left))
	for _, obj := range left.Items {
		kit.Equal(t, "signer of what is left", obj.Spec.SignerName, certificatesv1.KubeAPIServerClientSignerName)
	}
}

// TestFinishedRequestsAreNotTouched has requests that are issued, failed or denied, or are for a signer of others. The manager
// sees them trimmed: when it starts, when they change, and when its CA changes. It makes no call about them, and all of
// them stay as they are.
func TestFinishedRequestsAreNotTouched(t *testing.T) {
	kit.Parallel(t)
	proxy := kit.ThroughFaults(t, kit.ManagerConfig(t))
	p := startJoinable(t, proxy.Config)
	issued, failed := kit.CreateMarked(t, "issued", 10), kit.CreateMarked(t, "failed", 10, kit.WrongUsage)
	denied, foreign := kit.CreateMarked(t, "denied", 10, kit.WrongUsage), kit.CreateMarked(t, "foreign", 10, signerName("example.com/foreign"))
	kit.Decide(t, denied, certificatesv1.CertificateDenied)
	kit.Approve(t, failed)
	kit.Approve(t, foreign)
	finished := []*kit.Request{issued, failed, denied, foreign}
	for i, want := range []csr.State{csr.Issued, csr.Failed, csr.Denied, csr.Approved} {
		kit.Reaches(t, finished[i], want)
	}
	kit.NoError(t, p.Stop())

	calls := len(proxy.Calls())
	kit.StartManager(t, proxy.Config, "--leader-elect=false")
	kit.Reaches(t, joins(t, "started"), csr.Issued)
	for _, obj := range finished {
		obj.Labels["example.com/changed"] = "yes"
		kit.Update(t, obj)
	}
	kit.Reaches(t, joins(t, "changed"), csr.Issued)
	kit.Remove(t, kit.SigningSecret(nil, nil))
	next := kit.NewCA(t)
	another := kit.SigningSecret(next.CertPEM, next.KeyPEM)
	kit.Create(t, kit.Admin(t), another)
	kit.AnEvent(t, another, "CALoaded", func(*eventsv1.Event) bool { return true })
	kit.Reaches(t, joins(t, "another-ca"), csr.Issued)
	names := map[string]bool{}
	for _, before := range finished {
		names[before.Name] = true
		kit.Equal(t, before.Name, kit.Reload(t, before.DeepCopy()), before)
	}
	for _, call := range proxy.Calls()[calls:] {
		kit.Check(t, !names[call.Name], "the manager called %s %s", call.Verb, call.Path)
	}
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
		return kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}
			obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}})
		})))
	}
	issued := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	kit.IssuedBy(t, issued, own)
	if cert := kit.Leaf(t, issued); cert.NotAfter.Sub(cert.NotBefore) != time.Hour+5*time.Minute || cert.DNSNames[0] != "hook.default.svc" {
		t.Errorf("certificate lives for %s, names %q", cert.NotAfter.Sub(cert.NotBefore), cert.DNSNames)
	}
	failed := kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageClientAuth), csr.Failed).Status.Conditions[1]
	const message = `usage "client auth" is not permitted: signer example.com/webhook permits ["digital signature" "server auth"]`
	kit.Equal(t, "failure", failed.Reason+": "+failed.Message, "UsagesNotPermitted: "+message)
	kubernetes := ask(certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageClientAuth)
	kit.IssuedBy(t, kit.Reaches(t, kubernetes, csr.Issued), kit.ControlPlane(t).CA)
	foreign := ask("example.com/somebody-elses", certificatesv1.UsageServerAuth)
	kit.Reaches(t, ask("example.com/webhook", certificatesv1.UsageServerAuth), csr.Issued)
	kit.IsIn(t, foreign, csr.Approved)
}

// startWithBlockList runs a manager that reads a block list. It approves serving certificates, and renewals.
func startWithBlockList(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	kit.Apply(t, "kubelet-serving")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	config := kit.Configure(t, "nodeBlockList: "+kit.BlockListName+"\napproval: {kubeletServing: {enabled: true}}\n")
	return start(t, append([]string{config}, args...)...)
}

// block changes the ConfigMap.
func block(t *testing.T, obj *corev1.ConfigMap, nodes, certificates string) {
	t.Helper()
	obj.Data = map[string]string{"nodes": nodes, "certificates": certificates}
	kit.Update(t, obj)
}

// TestBlockList starts without the right to read the list, blocks a node and unblocks it. Meanwhile neither the approver nor the
// signer serves it, whatever the signer and whoever approved. Changes of the list and of Nodes wake the requests that wait for
// them. After the list is deleted, its last version stays in use. TestChanges in pkg/blocklist has more versions of the list.
func TestBlockList(t *testing.T) {
	kit.Parallel(t)
	p := startWithBlockList(t)
	const a, b = "block-a", "block-b"
	held, byHand := joins(t, a), kit.Approve(t, joins(t, b))
	byCertificate := kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, "a-user"))) // the administrator has a client certificate
	byToken := kit.Approve(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.ClientRequest(t, "a-user")))
	for _, obj := range []*kit.Request{held, byHand, byCertificate, byToken} {
		kit.HasEvent(t, obj, "InventoryUnavailable", "ConfigMap "+kit.BlockListName+": it can't be read", "is forbidden")
	}
	p.Answers(t, p.Probes, "/readyz?verbose", http.StatusInternalServerError, "[-]block-list failed", "[-]own-rights failed")
	list := kit.BlockList(t, "Block-A # taken over\nnot a name\n")
	kit.Apply(t, "node-block-list")
	kit.Reaches(t, byHand, csr.Issued)
	kit.Reaches(t, byCertificate, csr.Issued)
	kit.Reaches(t, byToken, csr.Issued)
	kit.HasEvent(t, list, "BlockListInvalid", `line 2: "not a name" is not a node name`)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 1")
	p.Answers(t, p.Probes, "/readyz/block-list", http.StatusOK)

	node := kit.NewNode(t, a, "192.0.2.60", "192.0.2.61")
	pending := []*kit.Request{held, kit.CreateRequest(t, kit.KubeletOf(t, a), kit.NodeRequest(t, a)), asksFor(t, a, "192.0.2.60")}
	approved := kit.Approve(t, joins(t, a))
	for _, obj := range append(pending, approved) {
		kit.HasEvent(t, obj, "NodeBlocked", `node "`+a+`" is on the block list, ConfigMap `+kit.BlockListName)
		if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending && obj != approved || state == csr.Issued || state == csr.Failed {
			t.Errorf("it is %s", state)
		}
	}
	// All other nodes are served, although the blocked one reports their addresses.
	other := asksFor(t, b, "192.0.2.61")
	kit.HasEvent(t, other, "NodeNotFound", b)
	issuedSoon(t, other, func() { kit.NewNode(t, b, "192.0.2.61") })
	kit.Reaches(t, kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), kit.ClientRequest(t, a))), csr.Issued)

	backdate(t, pending...)
	block(t, list, "", "")
	for _, obj := range append(pending, approved) {
		kit.Reaches(t, obj, csr.Issued)
	}
	other = asksFor(t, b, "192.0.2.61")
	isRefused(t, other, "SANContested", `192.0.2.61 is claimed by node "`+b+`" and by Node `+a)
	issuedSoon(t, other, func() { kit.Publish(t, node, "192.0.2.60") })

	block(t, list, a, "")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_nodes 1", "csr_block_list_problems 0")
	kit.Remove(t, list)
	gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: list.Name}}
	kit.HasEvent(t, gone, "BlockListMissing", "the last version stays in use: blocked nodes: "+a)
	kit.HasEvent(t, joins(t, a), "NodeBlocked")
	kit.Reaches(t, joins(t, "block-c"), csr.Issued)
	kit.NoError(t, p.Stop())
}

// TestEachTextIsStored changes the text of an outcome within seconds. The API server changes no note, so each text must be an Event of
// its own, about a request as about a ConfigMap, and explain shows the newest. A name that no URL can carry is shortened in Events.
func TestEachTextIsStored(t *testing.T) {
	kit.Parallel(t)
	kit.Grant(t, "stranger", kit.MayCreate)
	p := startWithBlockList(t)
	held := joins(t, "a")
	kit.HasEvent(t, held, "InventoryUnavailable", "is forbidden")
	kit.Apply(t, "node-block-list")
	kit.HasEvent(t, held, "InventoryUnavailable", "it does not exist")
	plugin(t, 0, "explain "+held.Name, "it does not exist")

	list := kit.BlockList(t, "")
	want := []string{"BlockListRead blocked nodes: none; blocked users: none; blocked certificates: none"}
	says := func(more ...string) {
		t.Helper()
		want = append(want, more...)
		kit.Eventually(t, "Events about the block list", func(ctx context.Context) error {
			var got []string
			for _, event := range eventsAbout(ctx, t, list.UID) {
				got = append(got, event.Reason+" "+event.Note)
			}
			return kit.OrError(slices.Equal(got, want), "%q, want %q", got, want)
		})
	}
	says()
	block(t, list, "w1", "")
	says("BlockListRead blocked nodes: w1; blocked users: none; blocked certificates: none")
	block(t, list, "", "")
	says("BlockListRead blocked nodes: none; blocked users: none; blocked certificates: none")
	const rest = "BlockListInvalid what is invalid is ignored, and the rest applies: nodes, line "
	block(t, list, "not a name", "")
	says(rest + `1: "not a name" is not a node name`)
	block(t, list, "\nneither this", "")
	says(rest + `2: "neither this" is not a node name`)

	names := []string{
		strings.Repeat("\x01", 400_000), "--server=evil\n\x1b[2J" + strings.Repeat("é", 200), "-f $(reboot)", strings.Repeat("a", 253),
	}
	for _, name := range names {
		obj := kit.NodeRequest(t, "b", func(obj *kit.Request) {
			obj.GenerateName, obj.Name, obj.Labels = "", name, map[string]string{"named": "badly"}
		})
		kit.NoError(t, kit.As(t, "stranger").Create(t.Context(), obj))
		kit.AtEnd(t, func() error { // no URL holds some of the names
			return kit.Admin(t).DeleteAllOf(context.Background(), obj, client.MatchingLabels{"named": "badly"})
		})
		kit.Eventually(t, "an Event about a request with a bad name", func(ctx context.Context) error {
			found := eventsAbout(ctx, t, obj.UID)
			if len(found) == 0 {
				return errors.New("none")
			}
			regarding := found[0].Regarding.Name
			return kit.OrError(len(regarding) <= 253 && strings.HasPrefix(name, strings.TrimSuffix(regarding, "...")), "it is about %.300q", regarding)
		})
	}
	kit.NoError(t, p.Stop())
}

// eventsAbout returns the Events about an object, the oldest first.
func eventsAbout(ctx context.Context, t *testing.T, uid types.UID) []eventsv1.Event {
	t.Helper()
	var all eventsv1.EventList
	kit.NoError(t, kit.Admin(t).List(ctx, &all))
	found := slices.DeleteFunc(all.Items, func(event eventsv1.Event) bool { return event.Regarding.UID != uid })
	slices.SortFunc(found, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	return found
}

// credentialID is the key under which the API server records the credential of a requester.
const credentialID = "authentication.kubernetes.io/credential-id"

// holder is a client with a certificate of node a.
type holder struct {
	client.Client
	obj    *kit.Request // with the certificate
	sha256 string       // of the certificate, in hex
}

// renewedBy requests a certificate of node a with c. The request names another credential, which the API server ignores.
func renewedBy(t *testing.T, c client.Client) holder {
	t.Helper()
	key := kit.NewKey(t)
	obj := kit.CreateRequest(t, c, kit.NodeRequest(t, "a", func(obj *kit.Request) {
		subject := pkix.Name{CommonName: "system:node:a", Organization: []string{csr.NodeGroup}}
		obj.Spec.Request = kit.Must(certutil.MakeCSR(key, &subject, nil, nil))(t)
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{credentialID: {"X509SHA256=0a"}}
	}))
	kit.Reaches(t, obj, csr.Issued)
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.CertData, cfg.KeyData, cfg.QPS = obj.Status.Certificate, kit.Must(keyutil.MarshalPrivateKeyToPEM(key))(t), -1
	return holder{kit.ClientOf(t, cfg), obj, fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, obj).Raw))}
}

// TestRenewalsAreBoundToTheirCertificates renews a certificate twice. The API server records in each request the
// certificate with which it was made. The audit log names it, explain shows it, and the block list blocks it,
// but not the certificates before and after it.
func TestRenewalsAreBoundToTheirCertificates(t *testing.T) {
	kit.Parallel(t)
	kit.Apply(t, "node-block-list")
	list, file := kit.BlockList(t, ""), filepath.Join(t.TempDir(), "audit.log")
	p := startWithBlockList(t, "--audit-log-path", file)
	first := renewedBy(t, kit.As(t, "joiner"))
	second := renewedBy(t, first)
	third := renewedBy(t, second)
	plugin(t, 0, "explain "+second.obj.Name, fmt.Sprintf("made with     %q", first.sha256), fmt.Sprintf("SHA-256       %q", second.sha256))

	block(t, list, "", second.sha256+" # stolen\n")
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, "csr_block_list_certificates 1", "csr_block_list_nodes 0", "csr_block_list_problems 0")
	pending := kit.CreateRequest(t, second, kit.NodeRequest(t, "a"))
	byHand := kit.Approve(t, kit.CreateRequest(t, second, kit.NodeRequest(t, "a")))
	for controller, obj := range map[string]*kit.Request{"csr-approver": pending, "csr-signer": byHand} {
		kit.HasEventBy(t, obj, controller, "CertificateBlocked")
		kit.HasEvent(t, obj, "CertificateBlocked", "client certificate "+second.sha256+" is on the block list, ConfigMap "+kit.BlockListName)
	}
	plugin(t, 0, "explain "+pending.Name, "csr-approver CertificateBlocked", "Nothing, or remove its SHA-256 from the list.")
	plugin(t, 1, "approve "+pending.Name+" --yes", "not approved: CertificateBlocked: client certificate "+second.sha256+" is on the block list")
	for _, by := range []client.Client{first, third, kit.As(t, "joiner")} {
		renewedBy(t, by)
	}
	kit.IsIn(t, pending, csr.Pending)
	kit.IsIn(t, byHand, csr.Approved)
	issuedSoon(t, pending, func() { block(t, list, "", "") })
	kit.Reaches(t, byHand, csr.Issued)
	kit.NoError(t, p.Stop())

	// The records of each request name the certificate before it, by the SHA-256 that the record of that certificate has.
	var want []string
	for i, each := range []holder{first, second, third} {
		kit.Equal(t, fmt.Sprint("credential of certificate ", i), each.obj.Spec.Extra[credentialID], want)
		events, issued := "", false
		for _, record := range kit.ReadAudit(t, file) {
			if record.UID != each.obj.UID {
				continue
			}
			events += string(record.Event) + " "
			kit.Equal(t, fmt.Sprintf("record %s of certificate %d", record.Event, i), record.Requester.CredentialIDs, want)
			if record.Event == audit.Signed && record.CertificateSHA256 == each.sha256 { // a stale cache may cause another, Discarded
				issued = true
			}
		}
		kit.Check(t, strings.Contains(events, string(audit.Decided)) && issued, "records %sof certificate %d: issued %t", events, i, issued)
		want = []string{"X509SHA256=" + each.sha256}
	}
}
