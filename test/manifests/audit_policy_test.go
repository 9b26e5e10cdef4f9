package manifests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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

var auditUsers = []string{"audited-joiner", "audited-approver", "audited-signer", "audited-cleaner"}

func auditTokens() (tokens []cluster.Token) {
	for _, user := range auditUsers {
		tokens = append(tokens, cluster.Token{Token: user + "-token", User: user, UID: user, Groups: "system:masters"})
	}
	return tokens
}

// TestAuditPolicy takes a request through its life as four users, and reads a Secret. It compares the records with what
// docs/reference/manifests.md promises.
func TestAuditPolicy(t *testing.T) {
	t.Parallel()
	as := func(user string) client.Client {
		cfg := rest.AnonymousClientConfig(shared.Config)
		cfg.BearerToken = "audited-" + user + "-token"
		return kit.ClientOf(t, cfg)
	}
	ctx, obj := t.Context(), kit.NodeRequest(t, "audited")
	secret := kit.SigningSecret(shared.CA.CertPEM, shared.CA.KeyPEM)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}
	kit.NoError(t, client.IgnoreAlreadyExists(admin.Create(ctx, namespace)))
	kit.NoError(t, as("joiner").Create(ctx, obj))
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", time.Time{})
	kit.NoError(t, as("approver").SubResource("approval").Update(ctx, obj))
	obj.Status.Certificate = shared.CA.CertPEM
	kit.NoError(t, as("signer").Status().Update(ctx, obj))
	kit.NoError(t, as("cleaner").Get(ctx, client.ObjectKeyFromObject(obj), obj))
	kit.NoError(t, as("cleaner").Delete(ctx, obj))
	kit.NoError(t, as("signer").Create(ctx, secret))
	kit.NoError(t, as("cleaner").Get(ctx, client.ObjectKeyFromObject(secret), secret))

	const csrs = "certificatesigningrequests"
	var records map[string]auditRecord
	kit.Within(t, 10*time.Second, "six records", func(context.Context) (err error) {
		if records, err = readAudit(); err == nil && len(records) != 6 {
			err = fmt.Errorf("there are %d: %v", len(records), records)
		}
		return err
	})
	asked, approved, signed := records["joiner create "+csrs], records["approver update "+csrs+"/approval"], records["signer update "+csrs+"/status"]
	why := approved.RequestObject.Status.Conditions
	for what, ok := range map[string]bool{
		"who asked, from where":      len(asked.SourceIPs) == 1,
		"what was asked":             bytes.Equal(asked.RequestObject.Spec.Request, obj.Spec.Request),
		"the name":                   asked.ResponseObject.Metadata.Name == obj.Name,
		"who approved what, and why": approved.ObjectRef.Name == obj.Name && len(why) == 1 && why[0].Reason == "ByHand",
		"the certificate":            bytes.Equal(signed.RequestObject.Status.Certificate, shared.CA.CertPEM),
		"who deleted":                records["cleaner delete "+csrs].ObjectRef.Name == obj.Name,
		"who made the Secret":        records["signer create secrets"].ObjectRef.Namespace == systemNamespace,
		"who read the Secret":        records["cleaner get secrets"].ObjectRef.Name == signingSecret,
		"no content of the Secret":   len(records["signer create secrets"].RequestObject.Data)+len(records["cleaner get secrets"].ResponseObject.Data) == 0,
	} {
		kit.Check(t, ok, "the records do not show %s: %+v", what, records)
	}
}

// readAudit returns the records of auditUsers, by user, verb and resource.
func readAudit() (map[string]auditRecord, error) {
	file, err := os.Open(auditLog)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	records := map[string]auditRecord{}
	for lines := json.NewDecoder(file); lines.More(); {
		var record auditRecord
		if err := lines.Decode(&record); err != nil {
			return nil, err
		}
		if !slices.Contains(auditUsers, record.User.Username) {
			continue
		}
		resource := record.ObjectRef.Resource
		if record.ObjectRef.Subresource != "" {
			resource += "/" + record.ObjectRef.Subresource
		}
		records[record.User.Username[len("audited-"):]+" "+record.Verb+" "+resource] = record
	}
	return records, nil
}
