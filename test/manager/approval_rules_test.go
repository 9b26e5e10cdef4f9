package manager

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// grantRole binds a new ClusterRole with one rule to a user.
func grantRole(t *testing.T, user string, rule rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{rule}}
	kit.Create(t, kit.Admin(t), role)
	kit.Grant(t, user, role.Name)
}

// TestApprovalRulesWithoutARight runs the manager with rules for two signers. It may approve for one of them: the rules of the other are
// off and reported, and the manager is ready. Once it has the right, the rules are on. The audit log and the metrics name the rule.
func TestApprovalRulesWithoutARight(t *testing.T) {
	kit.Parallel(t)
	dir, own := t.TempDir(), kit.NewCA(t)
	kit.Write(t, filepath.Join(dir, "own.crt"), own.CertPEM)
	kit.Write(t, filepath.Join(dir, "own.key"), own.KeyPEM)
	kit.Write(t, filepath.Join(dir, "config.yaml"), []byte(strings.ReplaceAll(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  signers:
  - {name: example.com/one, certFile: DIR/own.crt, keyFile: DIR/own.key, usages: [digital signature, server auth], duration: 1h}
approval:
  rules:
  - {name: one, signerName: example.com/one, preset: serviceNames}
  - {name: two, signerName: example.com/two, preset: serviceNames}
  - {name: open, signerName: example.com/two, usages: [server auth], maxDuration: 1h, allow: [names], conditions: [{expression: "true"}]}
`, "DIR", dir)))
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	manager := kit.ManagerConfig(t)
	kit.Apply(t, "approval-rules")
	account := serviceaccount.MakeUsername(kit.SystemNamespace, kit.ManagerAccount)
	signers := func(verb, name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{name}, Verbs: []string{verb}}
	}
	grantRole(t, account, signers("sign", "example.com/one"))
	grantRole(t, account, signers("approve", "example.com/one"))

	kit.NewNamespace(t, "shop")
	kit.Create(t, kit.Admin(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	kit.Create(t, kit.Admin(t), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	})
	user := serviceaccount.MakeUsername("shop", "web")
	kit.Grant(t, user, kit.MayCreate)
	grantRole(t, user, rbacv1.PolicyRule{APIGroups: []string{"csr-controller-manager.io"}, Resources: []string{"approvalrules"}, ResourceNames: []string{"one", "two"}, Verbs: []string{"use"}})
	web := kit.ClientOf(t, kit.TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}))
	ask := func(signer string) *kit.Request {
		return kit.CreateRequest(t, web, kit.NodeRequest(t, "", func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages = signer, []certificatesv1.KeyUsage{"digital signature", "server auth"}
			obj.Spec.Request, obj.Spec.ExpirationSeconds = kit.Payload(t, x509.CertificateRequest{DNSNames: []string{"api.shop.svc"}}), new(int32(3600))
		}))
	}
	audit := filepath.Join(dir, "audit.log")
	p := kit.StartManager(t, manager, "--config", filepath.Join(dir, "config.yaml"), "--leader-elect=false", "--audit-log-path", audit)
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

	grantRole(t, account, signers("approve", "example.com/two"))
	// The request is judged again after a pause as long as its age.
	kit.Within(t, 4*kit.Patience, "the rules are on again", func(ctx context.Context) error {
		if err := kit.Admin(t).Get(ctx, client.ObjectKeyFromObject(off), off); err != nil || csr.StateOf(off) == csr.Approved {
			return err
		}
		return errors.New("it waits")
	})
}
