//go:build nightly

package rotation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestEachLostRightIsNamed takes each right of each role from the running managers of startSplit. Metrics, readiness and an
// Event must name exactly what is missing.
func TestEachLostRightIsNamed(t *testing.T) {
	kit.Parallel(t)
	r, shipped, managers := startSplit(t)
	r.authority(t, "cluster", "csr-signer", splitTrust)
	r.reaches(t, "cluster", v1alpha1.Completed, nil)
	loseEach(t, singleRules(t, shipped), kit.SystemNamespace, managers...)
}

// TestLostRightsOfOneManager is TestEachLostRightIsNamed for the shipped roles that the four managers cannot have, with all
// controllers in one manager: OpenShift's Machines, and an authority of its own for serving certificates.
func TestLostRightsOfOneManager(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	kit.NewNamespace(t, "kube-node-lease")
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	shipped := kit.CreateMissing(t, r.admin, kit.Rendered(t, "../test/rotation/testdata/one-manager"))
	r.bring(t, "csr-signer", r.CA)
	r.bring(t, "csr-kubelet-serving-ca", kit.NewCA(t))
	const text = `signing:
  signers:
  - {name: kubernetes.io/kube-apiserver-client, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kube-apiserver-client-kubelet, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kubelet-serving, secret: ` + kit.SystemNamespace + `/csr-kubelet-serving-ca}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: openshift}
rotation: {enabled: true}
`
	one := deploy(t, "one-manager", kit.ServiceAccountConfig(t), kit.Configure(t, text), "--signing-secret=")
	loseEach(t, singleRules(t, shipped), kit.SystemNamespace, one)
}

// TestLostRightsOfTheStaticPod is TestEachLostRightIsNamed for the user of the static Pod. Without the rights to find out who
// scrapes, nobody can read its metrics, so that loss shows in the log.
func TestLostRightsOfTheStaticPod(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	roles := singleRules(t, kit.CreateMissing(t, r.admin, kit.Rendered(t, "overlays/static-pod")))
	user, err := r.Env.AddUser(envtest.User{Name: "system:csr-controller-manager"}, nil)
	kit.NoError(t, err)
	dir := t.TempDir()
	kit.Write(t, filepath.Join(dir, "ca.crt"), r.CA.CertPEM)
	kit.Write(t, filepath.Join(dir, "ca.key"), r.CA.KeyPEM)
	kit.Create(t, r.admin, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
	kit.Grant(t, "joiner", "test-metrics-reader")
	pod := deploy(t, "static-pod", user.Config(), "--signing-secret=", "--cluster-signing-cert-file="+filepath.Join(dir, "ca.crt"),
		"--cluster-signing-key-file="+filepath.Join(dir, "ca.key"), "--leader-elect-resource-namespace=kube-system", "--metrics-secure")
	pod.get = func(ctx context.Context, address, path string) (int, string) {
		return kit.SecureGet(ctx, address, path, "joiner-token")
	}
	loseEach(t, roles, metav1.NamespaceSystem, pod)
	for _, right := range []string{"create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"} {
		before := len(pod.Output(t))
		take(t, roles, right)
		kit.Within(t, afterLoss, "the log names the loss", func(context.Context) error {
			if !strings.Contains(pod.Output(t)[before:], right) {
				return fmt.Errorf("%q is not in the log", right)
			}
			return nil
		})
	}
}

// singleRules returns the rules of each role in all, by right: one for each verb, resource and name.
func singleRules(t *testing.T, all []*unstructured.Unstructured) map[*unstructured.Unstructured]map[string]rbacv1.PolicyRule {
	t.Helper()
	roles := map[*unstructured.Unstructured]map[string]rbacv1.PolicyRule{}
	for _, obj := range all {
		if !strings.HasSuffix(obj.GetKind(), "Role") {
			continue
		}
		role := rbacv1.ClusterRole{}
		kit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role))
		roles[obj] = map[string]rbacv1.PolicyRule{}
		for _, rule := range role.Rules {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, name := range names {
						for _, verb := range rule.Verbs {
							right := check.Right{Verb: verb, Group: group, Resource: resource, Namespace: obj.GetNamespace(), Name: name}
							single := rbacv1.PolicyRule{Verbs: []string{verb}, APIGroups: []string{group}, Resources: []string{resource}}
							if name != "" {
								single.ResourceNames = []string{name}
							}
							roles[obj][right.String()] = single
						}
					}
				}
			}
		}
	}
	return roles
}

// take takes rights from all roles, and gives all others back.
func take(t *testing.T, roles map[*unstructured.Unstructured]map[string]rbacv1.PolicyRule, rights ...string) {
	t.Helper()
	for obj, rules := range roles {
		role := &rbacv1.ClusterRole{}
		for right, rule := range rules {
			if !slices.Contains(rights, right) {
				role.Rules = append(role.Rules, rule)
			}
		}
		changed, err := runtime.DefaultUnstructuredConverter.ToUnstructured(role)
		kit.NoError(t, err)
		obj.Object["rules"] = changed["rules"]
		kit.Update(t, obj)
	}
}

// loseEach takes the rights of roles from managers: every second one at a time, and then the others, or one after the other
// if EVERY_VERB is set. The managers' Events are about namespace.
func loseEach(t *testing.T, roles map[*unstructured.Unstructured]map[string]rbacv1.PolicyRule, namespace string, managers ...*deployed) {
	t.Helper()
	loses := func(what string, rights ...string) {
		take(t, roles, rights...)
		t.Run(what, func(t *testing.T) {
			for _, m := range managers {
				t.Run(m.name, func(t *testing.T) {
					t.Parallel()
					var taken []string
					for _, right := range m.asked {
						if slices.Contains(rights, right.String()) {
							taken = append(taken, right.String())
						}
					}
					m.shows(t, len(taken) > 0, taken...)
				})
			}
		})
	}
	loses("nothing")
	wereAllowed(t, managers...)
	const first = "list certificatesigningrequests.certificates.k8s.io"
	loses("one right", first)
	kit.HasEvent(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "RightsMissing", "missing rights: "+first+": ")

	// Every ServiceAccount may read ClusterTrustBundles if Kubernetes serves them. Without reviews, nobody can read secure metrics.
	lasting := regexp.MustCompile(`^(get|list) clustertrustbundles\.|^create (token|subjectaccess)reviews`)
	lists := regexp.MustCompile(`-nodes-0[0-9a-f]`) // the sixteen lists of nodes
	all, groups := sets.Set[string]{}, map[string][]string{}
	for _, rules := range roles {
		all = all.Union(sets.KeySet(rules))
	}
	for i, right := range sets.List(all) {
		name := fmt.Sprintf("every second right from number %d", i%2)
		if os.Getenv("EVERY_VERB") != "" {
			name = lists.ReplaceAllString(right, "-nodes-*")
		}
		if !lasting.MatchString(right) {
			groups[name] = append(groups[name], right)
		}
	}
	for name, rights := range groups {
		loses(name, rights...)
	}
	loses("nothing again")
}
