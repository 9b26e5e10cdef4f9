package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// TestRecommendedInstallKeepsApprovalFromSigning checks the first install that README and docs/how-to/deploy.md name.
// It must be one command, and give no identity both the right to approve and the right to sign.
func TestRecommendedInstallKeepsApprovalFromSigning(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "docs/how-to/deploy.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^ *kubectl apply -k config/(\S+)$`).FindSubmatch(text)
		if found == nil {
			t.Fatalf("%s names no install", page)
		}
		if both := approvesAndSigns(t, kustomize(t, string(found[1]))); both != nil {
			t.Errorf("%s: %q may approve and sign", page, both)
		}
	}
	if both := approvesAndSigns(t, helm(t, "--set=split=true")); both != nil {
		t.Errorf("chart: %q may approve and sign", both)
	}
	if both := approvesAndSigns(t, kustomize(t, "default")); both == nil {
		t.Error("nobody may approve and sign in config/default: this test finds nothing")
	}
}

// approvesAndSigns returns the ServiceAccounts that have both verbs on signers.
func approvesAndSigns(t *testing.T, all objects) (both []string) {
	t.Helper()
	roles, verbs := typed[rbacv1.ClusterRole](t, all, "ClusterRole"), map[string][]string{}
	for _, binding := range typed[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding") {
		for _, subject := range binding.Subjects {
			for _, rule := range roles[binding.RoleRef.Name].Rules {
				if slices.Contains(rule.Resources, "signers") {
					verbs[subject.Name] = append(verbs[subject.Name], rule.Verbs...)
				}
			}
		}
	}
	for name, may := range verbs {
		if slices.Contains(may, "approve") && slices.Contains(may, "sign") {
			both = append(both, name)
		}
	}
	return both
}
