package explain

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"flag"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var updateExplained = flag.Bool("update-explained", false, "rewrite testdata/explain and the rows of docs/reference/reasons.md")

const (
	apiServerClient = certificatesv1.KubeAPIServerClientSignerName
	kubeletServing  = certificatesv1.KubeletServingSignerName
	serverAuth      = certificatesv1.UsageServerAuth
	signature       = certificatesv1.UsageDigitalSignature
)

// approverScenarios has a scenario for each reason of the approver that needs no inventory. The key is the reason.
func approverScenarios(t testing.TB) map[string]scenario {
	all := servingScenarios(t)
	maps.Copy(all, map[string]scenario{
		"AutoApproved":         {obj: explainRequest(t), grants: []string{"nodeclient"}},
		"NotAuthorized":        {obj: explainRequest(t), stored: []client.Object{goodSecret(t), refusedEvent()}},
		"ShapeMismatch":        {obj: explainRequest(t, forSigner(certificatesv1.KubeAPIServerClientKubeletSignerName, signature, serverAuth)), grants: []string{"nodeclient"}},
		"Malformed":            {obj: explainRequest(t, func(obj *request) { obj.Spec.Request = []byte("hello") })},
		"RequestTooLarge":      {obj: explainRequest(t, tooManyUnits(t))},
		"KeyNotPermitted":      {obj: explainRequest(t, ofP224(t))},
		"NodeBlocked":          {obj: explainRequest(t), grants: []string{"nodeclient"}, args: blocking, stored: []client.Object{goodSecret(t), blockedNodes("a")}},
		"CertificateBlocked":   {obj: explainRequest(t, madeWith("X509SHA256="+stolen)), grants: []string{"nodeclient"}, args: blocking, stored: []client.Object{goodSecret(t), blockedCertificate(stolen)}},
		"InventoryUnavailable": {obj: explainRequest(t), grants: []string{"nodeclient"}, args: blocking, stored: []client.Object{goodSecret(t)}},
	})
	return all
}

// blocking is the flag for the block list that blockedNodes returns.
var blocking = []string{"--node-block-list=ns/blocked"}

func blockedNodes(names string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"}, Data: map[string]string{"nodes": names}}
}

func blockedCertificate(sha256Hex string) client.Object {
	obj := blockedNodes("").(*corev1.ConfigMap)
	obj.Data["certificates"] = sha256Hex
	return obj
}

// signerScenarios has a scenario for each reason of the signer. The key is the reason.
func signerScenarios(t testing.TB) map[string]scenario {
	soon := explainNow.AddDate(0, 1, 0)
	_, soonCert, soonKey := explainCA(t, soon)
	_, endedCert, endedKey := explainCA(t, explainNow.Add(-time.Minute))
	_, _, goodKey := explainCA(t, explainNow.AddDate(1, 0, 0))
	masters := x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}}
	refusal := "missing required usage for client certificate: client auth"
	return map[string]scenario{
		"SignerValidationFailure": {obj: explainRequest(t, forSigner(apiServerClient, signature), autoApproved, withCondition(certificatesv1.CertificateFailed, "SignerValidationFailure", refusal, time.Minute))},
		"UsagesNotPermitted":      {obj: explainRequest(t, forSigner("example.com/custom", "fly"), autoApproved), args: []string{"--config=testdata/custom.yaml"}},
		"KeyTooWeak": {obj: explainRequest(t, autoApproved, func(obj *request) {
			obj.Spec.Request = explainPayload(t, &x509.CertificateRequest{Subject: nodeName()}, explainWeakKey())
		})},
		"RequestTooLarge":     {obj: explainRequest(t, tooManyUnits(t), autoApproved)},
		"KeyNotPermitted":     {obj: explainRequest(t, ofP224(t), autoApproved)},
		"NameNotPermitted":    {obj: explainRequest(t, forSigner(apiServerClient), asking(t, x509.CertificateRequest{DNSNames: []string{"a, DNS:b"}}), autoApproved)},
		"SubjectNotPermitted": {obj: explainRequest(t, forSigner(apiServerClient), asking(t, masters), autoApproved)},
		"CATrustUnknown":      {obj: explainRequest(t, hookRequest(t)...), args: []string{"--config=testdata/custom.yaml"}},
		"Malformed":           {obj: explainRequest(t, autoApproved, forged)},
		"RequestTooOld":       {obj: explainRequest(t, withCondition(certificatesv1.CertificateApproved, "ByHand", "Yes.", 61*time.Minute))},
		"CAMissing":           {obj: explainRequest(t, autoApproved), stored: []client.Object{}},
		"CAInvalid":           {obj: explainRequest(t, autoApproved), stored: []client.Object{explainSecret([]byte("garbage"), goodKey)}},
		"CAExpired":           {obj: explainRequest(t, autoApproved), stored: []client.Object{explainSecret(endedCert, endedKey)}},
		"CANotProven":         {obj: explainRequest(t, autoApproved), args: []string{"--config=testdata/rotation.yaml"}},
		"LifetimeCut": {stored: []client.Object{explainSecret(soonCert, soonKey)},
			obj: explainRequest(t, autoApproved, withCertificate(t, soon, soon, explainKey(t, "node").Public()))},
		"CALoaded":             {obj: explainRequest(t, autoApproved)},
		"NodeBlocked":          {obj: explainRequest(t, autoApproved), args: blocking, stored: []client.Object{goodSecret(t), blockedNodes("a")}},
		"CertificateBlocked":   {obj: explainRequest(t, autoApproved, madeWith("X509SHA256="+stolen)), args: blocking, stored: []client.Object{goodSecret(t), blockedCertificate(stolen)}},
		"InventoryUnavailable": {obj: explainRequest(t, autoApproved), args: blocking, stored: []client.Object{goodSecret(t)}},
	}
}

// hookRequest asks for a server's certificate from a custom signer.
func hookRequest(t testing.TB) []func(*request) {
	return []func(*request){autoApproved, forSigner("example.com/hook", signature, serverAuth),
		asking(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "hook"}, DNSNames: []string{"hook.default.svc"}})}
}

// otherScenarios have no reason of their own.
func otherScenarios(t testing.TB) map[string]scenario {
	end := explainNow.AddDate(1, 0, 0).Add(-6 * time.Minute)
	caEnd := explainNow.AddDate(10, 0, 0)
	const unlisted = `usages ["digital signature" "server auth"] are for servers, but API servers trust the CA of signer example.com/hook for clients: ` +
		"list the permitted names in the signer's allowedNames"
	all := map[string]scenario{
		"failed-by-trust": {args: []string{"--config=testdata/custom.yaml"}, obj: explainRequest(t, append(hookRequest(t),
			withCondition(certificatesv1.CertificateFailed, "NameNotPermitted", unlisted, time.Minute))...)},
		"issued":            {obj: explainRequest(t, autoApproved, withCertificate(t, caEnd, end, explainKey(t, "node").Public()))},
		"issued-to-another": {obj: explainRequest(t, autoApproved, withCertificate(t, caEnd, end, ed25519Key().Public())), args: []string{"--controllers=approver,cleaner"}},
		"approvable-renewal": {grants: []string{"selfnodeclient"}, obj: explainRequest(t, func(obj *request) {
			obj.Spec.Username, obj.Spec.Groups = "system:node:a", []string{"system:nodes"}
		})},
		"approvable-and-cut": {obj: explainRequest(t), grants: []string{"nodeclient"}, stored: []client.Object{shortLived(t)}},
		"denied":             {stored: []client.Object{goodSecret(t), olderEvent(), refusedEvent()}, obj: explainRequest(t, withCondition(certificatesv1.CertificateDenied, "KubectlDeny", "No.", time.Minute))},
		"denied-by-the-approver": {args: []string{"--config=testdata/denial.yaml"}, obj: explainRequest(t, func(obj *request) { obj.Spec.Request = []byte("hello") },
			withCondition(certificatesv1.CertificateDenied, "Malformed", "spec.request is not a PEM block of type CERTIFICATE REQUEST; a new request is needed", time.Minute))},
		"to-be-denied":            {args: []string{"--config=testdata/denial.yaml"}, obj: explainRequest(t, func(obj *request) { obj.Spec.Request = []byte("hello") })},
		"kept":                    {args: []string{"--config=testdata/denial.yaml"}, obj: explainRequest(t, forSigner("example.com/kept"))},
		"failed-by-another":       {obj: explainRequest(t, autoApproved, withCondition(certificatesv1.CertificateFailed, "Other", "No.", time.Minute))},
		"not-ours":                {obj: explainRequest(t, forSigner("example.com/client"))},
		"ledger-unavailable":      {obj: explainRequest(t, autoApproved), args: []string{"--config=testdata/rotation.yaml"}, stored: []client.Object{explainRing(t), unnotedEvent()}},
		"no-rule":                 {obj: explainRequest(t, forSigner(kubeletServing, signature, serverAuth), asking(t, servingRequest()))},
		"never-permitted-subject": {obj: explainRequest(t, forSigner(apiServerClient), asking(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "x", Organization: []string{"system:masters"}}}))},
		"unknown-rights":          {obj: explainRequest(t), forbidden: []string{"subjectaccessreviews", "secrets", "events"}},
		"no-ca-configured":        {obj: explainRequest(t, autoApproved), noCA: true},
		"blocked-another":         {obj: explainRequest(t, autoApproved), args: blocking, stored: []client.Object{goodSecret(t), blockedNodes("b")}},
		"dry-run":                 {obj: explainRequest(t), args: []string{"--dry-run=*"}, grants: []string{"nodeclient"}},
		"switched-off":            {obj: explainRequest(t), args: []string{"--controllers=signer"}},
		"offline":                 {obj: explainRequest(t), file: true},
		"offline-serving":         {obj: explainRequest(t, forSigner(kubeletServing, signature, serverAuth), ofNodeA, asking(t, nodeServing())), file: true, args: servingOn},
		"offline-failing":         {obj: explainRequest(t, forSigner(apiServerClient, signature), autoApproved), file: true, noCA: true},
		"offline-by-hand": {file: true, noCA: true, obj: explainRequest(t, func(obj *request) {
			obj.ObjectMeta = metav1.ObjectMeta{Name: "by-hand"}
			obj.Spec.Username, obj.Spec.Groups = "", nil
		})},
		"timeline":        {obj: explainRequest(t, autoApproved, withCertificate(t, caEnd, end, explainKey(t, "node").Public()), managed)},
		"json":            {obj: explainRequest(t, hostile(t)), grants: []string{}, stored: []client.Object{goodSecret(t), hostileEvent()}, format: "json"},
		"yaml":            {obj: explainRequest(t, hostile(t)), grants: []string{}, stored: []client.Object{goodSecret(t), hostileEvent()}, format: "yaml"},
		"manager-differs": {obj: explainRequest(t), grants: []string{"nodeclient"}, stored: []client.Object{goodSecret(t), refusedEvent()}},
		"hostile-name": {obj: explainRequest(t, forSigner(kubeletServing, signature, serverAuth), asking(t, servingRequest()),
			func(obj *request) { obj.Name = "-a\": Issued; $(reboot)'\x1b" })},
		"rate-limited": {obj: explainRequest(t), grants: []string{"nodeclient"}, stored: []client.Object{goodSecret(t), limitedEvent()}},
		"hostile":      {obj: explainRequest(t, hostile(t)), grants: []string{}, stored: []client.Object{goodSecret(t), hostileEvent()}},
	}
	maps.Copy(all, renewalScenarios(t))
	return all
}

// tooManyUnits requests more subject attributes than the limit permits.
func tooManyUnits(t testing.TB) func(*request) {
	subject := nodeName()
	subject.OrganizationalUnit = slices.Repeat([]string{"unit"}, 300)
	return asking(t, x509.CertificateRequest{Subject: subject})
}

func ofP224(t testing.TB) func(*request) {
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return func(obj *request) {
		obj.Spec.Request = explainPayload(t, &x509.CertificateRequest{Subject: nodeName()}, key)
	}
}

func shortLived(t testing.TB) *corev1.Secret {
	_, cert, key := explainCA(t, explainNow.Add(30*24*time.Hour))
	return explainSecret(cert, key)
}

func servingRequest() x509.CertificateRequest {
	return x509.CertificateRequest{
		Subject: nodeName(), DNSNames: []string{"a", "a.example.com"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}},
	}
}

// nasty holds text that could control a terminal or mislead a reader.
const nasty = "a\x1b[31mred\x1b[0m\r\nstate  Approved\t\u202egnp.exe\u2066\u00a0\u0000\x9b2J\xff'\"`$(reboot)\\ שלום"

func hostile(t testing.TB) func(*request) {
	return func(obj *request) {
		long := strings.Repeat("x", 5000)
		seconds := int32(-5)
		obj.Spec.Request = explainPayload(t, &x509.CertificateRequest{
			Subject:  pkix.Name{CommonName: "system:node:" + strings.ToValidUTF8(nasty, "?"), Organization: []string{long}},
			DNSNames: []string{"a\nb", "c\x1b]0;title\x07"}, EmailAddresses: []string{"x@y\r"},
			URIs: []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/\u202e\n"}},
		}, ed25519Key())
		obj.Spec.Username, obj.Spec.Groups = nasty, []string{nasty, long}
		madeWith("", nasty, long, "X509SHA256="+stolen)(obj)
		for range 30 {
			obj.Spec.Groups = append(obj.Spec.Groups, "system:bootstrappers")
		}
		obj.Spec.Usages = append(obj.Spec.Usages, "fly\x1b[2J")
		obj.Spec.ExpirationSeconds = &seconds
		withCondition("Odd\x1b[5m", nasty, nasty+long, time.Minute)(obj)
		obj.Status.Conditions[0].Status = "Maybe\n"
	}
}

func refusedEvent() client.Object {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}, InvolvedObject: corev1.ObjectReference{UID: "uid-1"},
		Type: "Warning", Reason: "NotAuthorized", ReportingController: "csr-approver", EventTime: metav1.NewMicroTime(explainNow.Add(-time.Minute)),
		Message: `user "system:bootstrap:abcdef" with groups ["system:bootstrappers" "system:authenticated"] requests subject ` +
			`"CN=system:node:a,O=system:nodes" but may not create certificatesigningrequests/nodeclient (API group certificates.k8s.io): ` +
			"if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within five minutes",
	}
}

func unnotedEvent() client.Object {
	event := refusedEvent().(*corev1.Event)
	event.Reason, event.ReportingController = "LedgerUnavailable", "csr-signer"
	event.Message = "the certificate is not signed, because the CA's ledger cannot record it: record the certificate in the ledger: no route"
	return event
}

func limitedEvent() client.Object {
	event := refusedEvent().(*corev1.Event)
	event.Reason, event.Message = "RateLimited", "too many requests of this requester were approved"
	return event
}

// managed adds the managedFields of an approval by kubectl and of a certificate by the signer.
func managed(obj *request) {
	entry := func(manager, subresource, fields string, age time.Duration) metav1.ManagedFieldsEntry {
		at := metav1.NewTime(explainNow.Add(-age))
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "certificates.k8s.io/v1", Time: &at,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource,
		}
	}
	obj.ManagedFields = []metav1.ManagedFieldsEntry{
		entry("kubelet", "", `{"f:spec":{"f:request":{}}}`, 5*time.Minute),
		entry("kubectl\x1b", "approval", `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Approved\"}":{".":{},"f:reason":{}}}}}`, 4*time.Minute),
		entry("csr-controller-manager", "status", `{"f:status":{"f:certificate":{}}}`, 3*time.Minute-7*time.Second),
	}
}

func olderEvent() client.Object {
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, InvolvedObject: corev1.ObjectReference{UID: "uid-1"},
		Type: "Warning", Reason: "Other", Source: corev1.EventSource{Component: "another"}, LastTimestamp: metav1.NewTime(explainNow.Add(-time.Hour)),
		Message: "It is older.",
	}
}

func hostileEvent() client.Object {
	event := refusedEvent().(*corev1.Event)
	event.Reason, event.ReportingController, event.Message = nasty, nasty, nasty
	return event
}

// TestExplain compares every scenario with its golden file.
func TestExplain(t *testing.T) {
	for folder, scenarios := range map[string]map[string]scenario{
		"approver": approverScenarios(t), "signer": signerScenarios(t), "other": otherScenarios(t),
	} {
		for name, scenario := range scenarios {
			t.Run(folder+"/"+name, func(t *testing.T) {
				goldenFile(t, folder+"-"+name, scenario.explain(t))
			})
		}
	}
}

func goldenFile(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "explain", name+".golden")
	if *updateExplained {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if at := strings.IndexFunc(got, forbiddenChar); at >= 0 {
		t.Errorf("%q at %d can fool a terminal", got[at], at)
	}
}

// TestExplainKnowsEveryReason checks that each reason of docs/reference/reasons.md has a golden file with the reason
// and its meaning, except explainedThere and notExplained. Each golden file must belong to a scenario.
func TestExplainKnowsEveryReason(t *testing.T) {
	made := map[string]bool{}
	for folder, scenarios := range map[string]map[string]scenario{
		"approver": approverScenarios(t), "signer": signerScenarios(t), "other": otherScenarios(t),
	} {
		for name := range scenarios {
			made[folder+"-"+name+".golden"] = true
		}
	}
	type key [2]string
	rows := map[key]advice{}
	for section, table := range reasonTables {
		for reason, row := range table {
			rows[key{section, reason}] = row
		}
	}
	for key, row := range rows {
		file := strings.ToLower(key[0]) + "-" + key[1] + ".golden"
		text, err := os.ReadFile(filepath.Join("testdata", "explain", file))
		if explainedThere[key] || notExplained[key[1]] {
			if err == nil {
				t.Errorf("%s has a golden file, and need not be left out", key)
			}
			continue
		}
		if err != nil || !made[file] {
			t.Errorf("no golden file for %s: %v", key, err)
			continue
		}
		flat := strings.Join(strings.Fields(string(text)), " ")
		if !strings.Contains(flat, " "+key[1]) || row.todo != nothing && !strings.Contains(flat, " meaning "+row.meaning) {
			t.Errorf("%s does not explain %s", file, key[1])
		}
	}
	files, err := filepath.Glob(filepath.Join("testdata", "explain", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !made[filepath.Base(file)] {
			t.Errorf("%s is left over", file)
		}
	}
}

// forbiddenChar reports whether char must not reach a terminal.
func forbiddenChar(char rune) bool {
	switch {
	case char == '\n':
		return false
	case char < ' ', char >= 0x7f && char <= 0xa0, char == '\ufffd', char == 0x61c:
		return true
	case char >= 0x200b && char <= 0x200f, char >= 0x2028 && char <= 0x202e, char >= 0x2060 && char <= 0x206f, char == '\ufeff':
		return true
	default:
		return false
	}
}

// TestExplainPage compares the example of docs/reference/explain.md with the output of explain.
func TestExplainPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "reference", "explain.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := approverScenarios(t)["NotAuthorized"].explain(t)
	before, rest, found := strings.Cut(string(page), "```\n$ kubectl csr explain csr-1\n")
	_, after, closed := strings.Cut(rest, "\n```\n")
	if !found || !closed {
		t.Fatal("docs/reference/explain.md has no example")
	}
	whole := before + "```\n$ kubectl csr explain csr-1\n" + want + "```\n" + after
	if *updateExplained {
		if err := os.WriteFile(path, []byte(whole), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if whole != string(page) {
		t.Errorf("docs/reference/explain.md does not have:\n%s", want)
	}
}
