package manifests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// auditRecord is what the page manifests.md promises of a record in the API server's audit log.
type auditRecord struct {
	Verb      string
	User      struct{ Username string }
	SourceIPs []string
	ObjectRef struct{ Resource, Subresource, Namespace, Name string }
	// The objects are empty if the policy leaves them out.
	RequestObject, ResponseObject struct {
		Metadata struct{ Name string }
		Spec     certificatesv1.CertificateSigningRequestSpec
		Status   certificatesv1.CertificateSigningRequestStatus
		Data     map[string][]byte
	}
}

// TestAuditPolicy starts an API server with the shipped audit policy, takes a request through its life as four users, and
// reads the Secret. It compares the records with what docs/reference/manifests.md promises.
func TestAuditPolicy(t *testing.T) {
	t.Parallel()
	var tokens []cluster.Token
	for _, user := range []string{"joiner", "approver", "signer", "cleaner"} {
		tokens = append(tokens, cluster.Token{Token: user + "-token", User: user, UID: user, Groups: "system:masters"})
	}
	policy, err := filepath.Abs(filepath.Join(root, "config/audit-policy/policy.yaml"))
	kit.NoError(t, err)
	logFile := filepath.Join(t.TempDir(), "audit.log")
	c, err := cluster.StartConfigured(func(_ string, args *envtest.Arguments) {
		args.Set("audit-policy-file", policy).Set("audit-log-path", logFile)
	}, tokens...)
	kit.NoError(t, err)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	as := func(user string) client.Client {
		cfg := rest.AnonymousClientConfig(c.Config)
		cfg.BearerToken = user + "-token"
		return kit.ClientOf(t, cfg)
	}

	obj := kit.NodeRequest(t, "audited")
	try := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	try("ask", as("joiner").Create(t.Context(), obj))
	obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "ByHand"}}
	try("approve", as("approver").SubResource("approval").Update(t.Context(), obj))
	obj.Status.Certificate = c.CA.CertPEM
	try("sign", as("signer").Status().Update(t.Context(), obj))
	try("read it", as("cleaner").Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
	try("delete", as("cleaner").Delete(t.Context(), obj))
	try("make the namespace", as("signer").Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}))
	secret := kit.SigningSecret(c.CA.CertPEM, c.CA.KeyPEM)
	try("make the Secret", as("signer").Create(t.Context(), secret))
	try("read the Secret", as("cleaner").Get(t.Context(), client.ObjectKeyFromObject(secret), secret))

	const csrs = "certificatesigningrequests"
	var records map[string]auditRecord
	kit.Within(t, 10*time.Second, "six records", func(context.Context) error {
		if records, err = readAudit(logFile); err == nil && len(records) != 6 {
			err = fmt.Errorf("there are %d: %v", len(records), records)
		}
		return err
	})
	asked, approved, signed := records["joiner create "+csrs], records["approver update "+csrs+"/approval"], records["signer update "+csrs+"/status"]
	for what, ok := range map[string]bool{
		"who asked, from where":      len(asked.SourceIPs) == 1,
		"what was asked":             bytes.Equal(asked.RequestObject.Spec.Request, obj.Spec.Request),
		"the name":                   asked.ResponseObject.Metadata.Name == obj.Name,
		"who approved what, and why": approved.ObjectRef.Name == obj.Name && len(approved.RequestObject.Status.Conditions) == 1 && approved.RequestObject.Status.Conditions[0].Reason == "ByHand",
		"the certificate":            bytes.Equal(signed.RequestObject.Status.Certificate, c.CA.CertPEM),
		"who deleted":                records["cleaner delete "+csrs].ObjectRef.Name == obj.Name,
		"who made the Secret":        records["signer create secrets"].ObjectRef.Namespace == systemNamespace,
		"who read the Secret":        records["cleaner get secrets"].ObjectRef.Name == signingSecret,
		"no content of the Secret":   len(records["signer create secrets"].RequestObject.Data)+len(records["cleaner get secrets"].ResponseObject.Data) == 0,
	} {
		if !ok {
			t.Errorf("the records do not show %s: %+v", what, records)
		}
	}
}

// readAudit returns the records of users of the test, by user, verb and resource.
func readAudit(file string) (map[string]auditRecord, error) {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	records := map[string]auditRecord{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		var record auditRecord
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("%w in %q", err, lines.Bytes())
		}
		resource := record.ObjectRef.Resource
		if record.ObjectRef.Subresource != "" {
			resource += "/" + record.ObjectRef.Subresource
		}
		records[record.User.Username+" "+record.Verb+" "+resource] = record
	}
	return records, nil
}
