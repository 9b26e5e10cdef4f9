package manager

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// ownRights returns the rights that a manager with the shipped configuration checks.
func ownRights(t *testing.T) []check.Right {
	t.Helper()
	c := config.Default()
	c.Signing.Secret, c.MetricsSecure = kit.SystemNamespace+"/csr-signer", true
	rights := controllers.Rights(c, kit.SystemNamespace)
	return rights
}

// reviewsAs returns a client for reviews that acts as user, or as the administrator if user is empty.
func reviewsAs(t *testing.T, user string) reviewsv1.AuthorizationV1Interface {
	t.Helper()
	cfg := rest.CopyConfig(kit.ControlPlane(t).Config)
	if user != "" {
		cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	api, err := reviewsv1.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// allow grants rights to user, with one role for each namespace.
func allow(t *testing.T, user string, rights []check.Right) {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, right := range rights {
		rule := rbacv1.PolicyRule{APIGroups: []string{right.Group}, Resources: []string{right.Resource}, Verbs: []string{right.Verb}}
		if right.Name != "" {
			rule.ResourceNames = []string{right.Name}
		}
		rules[right.Namespace] = append(rules[right.Namespace], rule)
	}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	for namespace, list := range rules {
		meta := metav1.ObjectMeta{Name: "of-" + user, Namespace: namespace}
		ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
		if namespace != "" {
			kit.Create(t, kit.Admin(t), &rbacv1.Role{ObjectMeta: meta, Rules: list})
			kit.Create(t, kit.Admin(t), &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects})
			continue
		}
		ref.Kind = "ClusterRole"
		kit.Create(t, kit.Admin(t), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: list})
		kit.Create(t, kit.Admin(t), &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: subjects})
	}
}

// TestCheckOwnRights checks a user with all rights, and users who lack one right each. Exactly the missing right is named. Each right costs as
// many reviews as there are rights, so every eighth one is enough here: TestLostRights in test/rotation takes all of them.
func TestCheckOwnRights(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t) // for the namespace
	rights := ownRights(t)
	for missing := -1; missing < len(rights); missing += 8 {
		var given []check.Right
		for i, right := range rights {
			if i != missing {
				given = append(given, right)
			}
		}
		user := fmt.Sprintf("check-lacks-%d", missing+1)
		allow(t, user, given)
		c := reviewsAs(t, user)
		kit.Eventually(t, user, func(ctx context.Context) error {
			return lacksOnly(check.Rights(ctx, c.SelfSubjectAccessReviews(), rights), rights, missing)
		})
	}
}

// lacksOnly returns an error unless exactly the right with that index is missing. -1 means none.
func lacksOnly(results []check.Result, rights []check.Right, missing int) error {
	if len(results) != len(rights) {
		return fmt.Errorf("%d results for %d rights", len(results), len(rights))
	}
	for i, result := range results {
		want := check.OK
		if i == missing {
			want = check.Failed
		}
		name := "own-rights"
		if rights[i].Optional {
			name = "optional-rights"
		}
		if result.Check != name || result.Status != want || result.Subject != rights[i].String() {
			return fmt.Errorf("%s: %q is %s (%s), want %s of %s", result.Check, result.Subject, result.Status, result.Evidence, want, name)
		}
	}
	return nil
}

// TestCheckKubeletRights checks groups that can't join or renew, and that the suggested commands help.
func TestCheckKubeletRights(t *testing.T) {
	kit.Parallel(t)
	bootstrappers := []string{"system:bootstrappers:check-one", "system:bootstrappers:check-two"}
	nodes := []string{"check-nodes"}
	look := func(ctx context.Context) []check.Result {
		return check.Kubelets(ctx, reviewsAs(t, "").SubjectAccessReviews(), bootstrappers, nodes)
	}
	results := look(t.Context())
	if len(results) != 2 {
		t.Fatalf("%+v", results)
	}
	for _, result := range results {
		if result.Status != check.Failed || !strings.Contains(result.Evidence, "may not create certificatesigningrequests") {
			t.Errorf("%+v", result)
		}
		runCommands(t, result.NextStep)
	}
	if !strings.Contains(results[1].Evidence, "are lost when their certificates expire") || !strings.Contains(results[1].Evidence, "selfnodeclient") {
		t.Errorf("the outage to come is not named: %s", results[1].Evidence)
	}
	kit.Eventually(t, "the commands help", func(ctx context.Context) error {
		if results := look(ctx); check.Worst(results) != check.OK {
			return fmt.Errorf("%+v", results)
		}
		return nil
	})

	// Rights that the Node authorizer grants to system:nodes are not missing.
	for _, result := range check.Kubelets(t.Context(), reviewsAs(t, "").SubjectAccessReviews(), bootstrappers, []string{"system:nodes"}) {
		if strings.Contains(result.NextStep, "system:node-bootstrapper") {
			t.Errorf("%+v", result)
		}
	}
	// A user without the right to ask gets unknown results.
	for _, result := range check.Kubelets(t.Context(), reviewsAs(t, "check-nobody").SubjectAccessReviews(), bootstrappers, nodes) {
		if result.Status != check.Unknown || !strings.Contains(result.Evidence, "could not ask") {
			t.Errorf("%+v", result)
		}
	}
}

// runCommands runs the kubectl commands at the beginning of a next step unchanged, and removes the created objects.
func runCommands(t *testing.T, step string) {
	t.Helper()
	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig("check-admin", kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	step, _, _ = strings.Cut(step, ";")
	for _, command := range strings.Split(step, " && ") {
		args := strings.Fields(command)
		run := exec.Command(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), args[0]), append(args[1:], "--kubeconfig", kubeconfig)...)
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		t.Cleanup(func() {
			binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: args[3]}}
			if err := kit.Admin(t).Delete(context.Background(), binding); err != nil {
				t.Error(err)
			}
		})
	}
}
