package lab

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	ruleSigner  = "example.com/bench"
	ruleName    = "bench"
	ruleAccount = "bench-rules" // a ServiceAccount in the namespace default
)

// Ruled returns the configuration of a manager with an approval rule. condition is its only condition. It signs with the default
// CA.
func (l *Lab) Ruled(condition string) string {
	cert, key := l.caFiles(DefaultCA)
	return fmt.Sprintf(`apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  signers:
  - {name: %s, certFile: %s, keyFile: %s, usages: [digital signature, server auth], allowedNames: ["*.default.svc"], duration: 24h}
approval:
  rules:
  - {name: %s, signerName: %[1]s, usages: [digital signature, server auth], maxDuration: 24h, allow: [names], conditions: [{expression: %[5]q}]}
`, ruleSigner, cert, key, ruleName, condition)
}

// SeedRule creates the ServiceAccount that may use the rule, and its client.
func (l *Lab) SeedRule(ctx context.Context) error {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: ruleAccount}}
	accounts := l.Admin.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	if _, err := accounts.Create(ctx, account, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create ServiceAccount: %w", err)
	}
	token, err := accounts.CreateToken(ctx, ruleAccount, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create token: %w", err)
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: ruleAccount},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"csr-controller-manager.io"}, Resources: []string{"approvalrules"}, ResourceNames: []string{ruleName}, Verbs: []string{"use"}},
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create"}},
		},
	}
	if _, err := l.Admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create role: %w", err)
	}
	if _, err := l.Admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ruleAccount},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: ruleAccount},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: ruleAccount}},
	}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("bind role: %w", err)
	}
	cfg := rest.AnonymousClientConfig(l.Cluster.Config)
	cfg.BearerToken = token.Status.Token
	l.account, err = newClient(cfg)
	return err
}

// UnderRule returns requests of the ServiceAccount for a server certificate, which a rule approves.
func (l *Lab) UnderRule(count int) ([]Request, error) {
	requests, prefix := make([]Request, count), l.prefix()
	for i := range requests {
		payload, err := newPayload("", func(t *x509.CertificateRequest) { t.Subject, t.DNSNames = pkix.Name{}, []string{"api.default.svc"} })
		if err != nil {
			return nil, err
		}
		requests[i] = newRequest(fmt.Sprintf("%s-%d", prefix, i), user{}, ruleSigner, payload, certificatesv1.UsageServerAuth)
		requests[i].byAccount = true
	}
	return requests, nil
}
