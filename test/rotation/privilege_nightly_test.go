//go:build nightly

package rotation

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const checkInterval = "--self-check-interval=2s"

// privilegeConfig switches on every controller and every source that a shipped role is for.
const privilegeConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing: {createIfMissing: true}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: cluster-api, clusterName: lab}
nodeBlockList: ` + kit.BlockListName + `
rotation: {enabled: true}
`

// unasked are the rights that the self-check does not ask for. Only a SigningAuthority names the ConfigMap of the
// trust, and its condition Published reports what is missing: losesTrust. The shipped role names the bundle of kubelet-serving
// also where another Secret signs for it. The others are for secure metrics: losesSecureMetrics.
var unasked = regexp.MustCompile(`^(get|create|patch) configmaps csr-trust in |kubernetes.io:kubelet-serving:csr-signer$|^create tokenreviews|^create subjectaccessreviews`)

// ofAllAccounts returns the rights that Kubernetes grants to every ServiceAccount: those of
// system:cluster-trust-bundle-discovery, if it serves ClusterTrustBundles.
func ofAllAccounts(t *testing.T) []check.Right {
	t.Helper()
	if bundlesByDefault(t) == "" {
		return nil
	}
	return []check.Right{
		{Verb: "get", Group: certificatesv1.GroupName, Resource: "clustertrustbundles"},
		{Verb: "list", Group: certificatesv1.GroupName, Resource: "clustertrustbundles"},
	}
}

// TestEachLostRightIsNamed runs the four managers of config/overlays/split with every role that they can have. It takes
// each verb of each rule from the running manager: every second one at a time, and then the others, or one after the other
// if EVERY_VERB is set. Metrics, readiness and an Event must name exactly what is missing.
func TestEachLostRightIsNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	holders := giveRoles(t, "../test/rotation/testdata/every-role", "csr-approver", "csr-signer", "csr-cleaner", "csr-rotation")
	r.bring(t, "csr-signer", r.CA)
	kit.BlockList(t, "")
	kit.NewNamespace(t, "kube-node-lease")
	kit.InstallKind(t, kit.ClusterAPI)
	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, []byte(privilegeConfig))
	for _, h := range holders {
		h.cfg = kit.TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: h.subject.Name}})
		h.start(t, checkInterval, "--config", file, "--controllers", strings.TrimPrefix(h.subject.Name, "csr-"), "--leader-elect-resource-name", h.subject.Name)
	}
	r.authority(t, "cluster", "csr-signer", splitTrust)
	r.reaches(t, "cluster", v1alpha1.Completed, nil)
	for _, h := range holders {
		h.Answers(t, h.Probes, "/readyz", http.StatusOK)
	}
	for _, h := range holders {
		t.Run(h.subject.Name, func(t *testing.T) {
			t.Parallel()
			h.loses(t)
		})
	}
}

// roleHolder is an identity that shipped roles are bound to, and its running manager.
type roleHolder struct {
	*kit.Process
	subject rbacv1.Subject
	// given are the rights that the shipped roles grant, one for each verb, resource and name of each rule.
	given []check.Right
	// asked are the rights that the self-check asks for.
	asked []check.Right
	// namespace is the manager's namespace, which Events about missing rights name.
	namespace string
	cfg       *rest.Config
	args      []string
	// scraper is the token of somebody who may read secure metrics. It is empty if the metrics are not secure.
	scraper string
}

// giveRoles installs the roles in a folder of config, and returns the identities. Each gets roles of its own with the same
// rules, so that the test can take a right from one identity alone.
func giveRoles(t *testing.T, folder string, names ...string) []*roleHolder {
	t.Helper()
	var holders []*roleHolder
	all := kit.Rendered(t, folder)
	given := shippedRights(t, all)
	for _, obj := range all {
		switch obj.GetKind() {
		case "Namespace", "ConfigMap", "ServiceAccount":
			if err := kit.Admin(t).Create(t.Context(), obj); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	for _, name := range names {
		h := &roleHolder{subject: rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: kit.SystemNamespace, Name: name}, given: given[name]}
		if strings.HasPrefix(name, "system:") {
			h.subject = rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}
		}
		if len(h.given) < 10 {
			t.Fatalf("%s has only %v", name, h.given)
		}
		for namespace, rules := range h.without(nil) {
			role, binding := roleOf(name, namespace, rules)
			kit.Create(t, kit.Admin(t), role)
			switch binding := binding.(type) {
			case *rbacv1.RoleBinding:
				binding.Subjects = []rbacv1.Subject{h.subject}
			case *rbacv1.ClusterRoleBinding:
				binding.Subjects = []rbacv1.Subject{h.subject}
			}
			kit.Create(t, kit.Admin(t), binding)
		}
		holders = append(holders, h)
	}
	return holders
}

// roleOf returns a role in namespace, or a ClusterRole if namespace is empty, and its binding.
func roleOf(name, namespace string, rules []rbacv1.PolicyRule) (role, binding client.Object) {
	meta := metav1.ObjectMeta{Name: "every-role-" + name, Namespace: namespace}
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name}
	if namespace != "" {
		return &rbacv1.Role{ObjectMeta: meta, Rules: rules}, &rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref}
	}
	ref.Kind = "ClusterRole"
	return &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref}
}

// shippedRights returns the rights that the roles in all grant, by ServiceAccount.
func shippedRights(t *testing.T, all []*unstructured.Unstructured) map[string][]check.Right {
	t.Helper()
	key := func(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }
	rules := map[string][]rbacv1.PolicyRule{
		// A Role of Kubernetes. The manager needs only this of it.
		key("Role", metav1.NamespaceSystem, "extension-apiserver-authentication-reader"): {{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"extension-apiserver-authentication"}, Verbs: []string{"get"},
		}},
	}
	for _, obj := range all {
		if role := (rbacv1.ClusterRole{}); strings.HasSuffix(obj.GetKind(), "Role") {
			kit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role))
			rules[key(obj.GetKind(), obj.GetNamespace(), obj.GetName())] = role.Rules
		}
	}
	rights := map[string][]check.Right{}
	for _, obj := range all {
		binding := rbacv1.ClusterRoleBinding{}
		if !kit.IsBinding(obj) {
			continue
		}
		kit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding))
		granted, found := rules[key(binding.RoleRef.Kind, obj.GetNamespace(), binding.RoleRef.Name)]
		if !found {
			t.Errorf("%s %s is bound and not shipped", binding.RoleRef.Kind, binding.RoleRef.Name)
		}
		for _, subject := range binding.Subjects {
			rights[subject.Name] = append(rights[subject.Name], single(granted, obj.GetNamespace())...)
		}
	}
	return rights
}

// single returns a right for each verb, resource and name of rules.
func single(rules []rbacv1.PolicyRule, namespace string) (rights []check.Right) {
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, name := range names {
					for _, verb := range rule.Verbs {
						rights = append(rights, check.Right{Verb: verb, Group: group, Resource: resource, Namespace: namespace, Name: name})
					}
				}
			}
		}
	}
	return rights
}

// without returns the rules of h without the rights in taken, by namespace.
func (h *roleHolder) without(taken []check.Right) map[string][]rbacv1.PolicyRule {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, right := range h.given {
		rule := rbacv1.PolicyRule{Verbs: []string{right.Verb}, APIGroups: []string{right.Group}, Resources: []string{right.Resource}}
		if right.Name != "" {
			rule.ResourceNames = []string{right.Name}
		}
		rules[right.Namespace] = append(rules[right.Namespace], rule)
		if slices.Contains(taken, right) {
			rules[right.Namespace] = slices.Delete(rules[right.Namespace], len(rules[right.Namespace])-1, len(rules[right.Namespace]))
		}
	}
	return rules
}

// missing returns the rights that the manager asks for and that h lacks without the rights in taken.
func (h *roleHolder) missing(t *testing.T, taken []check.Right) (lost []check.Right) {
	t.Helper()
	granted := ofAllAccounts(t)
	for _, right := range h.given {
		if !slices.Contains(taken, right) {
			granted = append(granted, right)
		}
	}
	for _, asked := range h.asked {
		if !slices.ContainsFunc(granted, func(right check.Right) bool { return covers(right, asked) }) {
			lost = append(lost, asked)
		}
	}
	return lost
}

// covers reports whether a rule for right grants asked.
func covers(right, asked check.Right) bool {
	return right.Verb == asked.Verb && right.Group == asked.Group && right.Resource == asked.Resource &&
		(right.Namespace == "" || right.Namespace == asked.Namespace) && (right.Name == "" || right.Name == asked.Name)
}

// start runs the manager as h.cfg's user.
func (h *roleHolder) start(t *testing.T, args ...string) {
	t.Helper()
	// Without the right to update its Lease, the manager keeps it until the test has seen the loss.
	h.args = append(args, "--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s")
	c, err := config.Load(append(slices.Clone(kit.StandardArgs), h.args...))
	if err == nil {
		h.namespace = controllers.LeaseNamespace(c)
		h.asked = controllers.Rights(c, h.namespace)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, right := range h.given {
		if !slices.ContainsFunc(h.asked, func(asked check.Right) bool { return covers(right, asked) }) && !unasked.MatchString(right.String()) {
			t.Errorf("%s has the right to %s, which it never asks for", h.subject.Name, right)
		}
	}
	h.Process = kit.StartNamed(t, "every-role-"+h.subject.Name, h.cfg, h.args...)
}

// loses takes each right from the manager.
func (h *roleHolder) loses(t *testing.T) {
	t.Helper()
	h.names(t, "everything is there", nil)
	if strings.Contains(h.Output(t), " is forbidden: ") {
		t.Error("calls were refused with all roles")
	}
	required := h.find(func(right string) bool {
		return strings.HasPrefix(right, "list certificatesigningrequests") || strings.HasPrefix(right, "get secrets")
	})
	h.names(t, "one right", required[:1])
	kit.HasEvent(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: h.namespace}}, "RightsMissing", "missing rights: "+required[0].String()+": ")

	all := map[string][]check.Right{}
	lists := regexp.MustCompile(`-nodes-0[0-9a-f]`) // the sixteen lists of nodes
	for i, right := range h.find(func(right string) bool { return !unasked.MatchString(right) }) {
		name := fmt.Sprintf("every second right from number %d", i%2)
		if os.Getenv("EVERY_VERB") != "" {
			name = lists.ReplaceAllString(right.String(), "-nodes-*")
		}
		all[name] = append(all[name], right)
	}
	for name, taken := range all {
		h.names(t, name, taken)
	}
	h.names(t, "everything is back", nil)
}

func (h *roleHolder) find(is func(right string) bool) (found []check.Right) {
	for _, right := range h.given {
		if is(right.String()) {
			found = append(found, right)
		}
	}
	return found
}

// take takes rights, and gives all others back.
func (h *roleHolder) take(t *testing.T, rights []check.Right) {
	t.Helper()
	for namespace, rules := range h.without(rights) {
		role, _ := roleOf(h.subject.Name, namespace, rules)
		kit.NoError(t, kit.Admin(t).Update(t.Context(), role))
	}
}

// names takes rights, gives all others back, and waits until the manager names exactly what it lacks.
func (h *roleHolder) names(t *testing.T, what string, taken []check.Right) {
	t.Helper()
	h.take(t, taken)
	loss, lost := time.Now(), h.missing(t, taken)
	kit.Within(t, afterLoss, fmt.Sprintf("%s, without %v", what, taken), func(ctx context.Context) error { return h.shows(ctx, lost) })
	t.Logf("%s: shown after %s", what, time.Since(loss).Round(10*time.Millisecond))
}

// scrape returns the manager's metrics.
func (h *roleHolder) scrape(ctx context.Context) string {
	get := cluster.Get
	if h.scraper != "" {
		get = func(ctx context.Context, address, path string) (int, string) {
			return kit.SecureGet(ctx, address, path, h.scraper)
		}
	}
	_, page := get(ctx, h.Metrics, "/metrics")
	return page
}

// shows returns an error unless metrics and readiness name exactly the lost rights.
func (h *roleHolder) shows(ctx context.Context, lost []check.Right) error {
	want, needed, failed := map[string]int{}, []string(nil), map[string]bool{"own-rights": false, "optional-rights": false}
	for _, right := range lost {
		want[fmt.Sprintf("csr_check_missing_rights{resource=%q,verb=%q}", right.GroupResource(), right.Verb)]++
		if failed["optional-rights"] = failed["optional-rights"] || right.Optional; !right.Optional {
			failed["own-rights"], needed = true, append(needed, right.String())
		}
	}
	// The page of metrics costs more, so readiness comes first.
	status, text := cluster.Get(ctx, h.Probes, "/readyz/own-rights")
	switch names := "missing rights: " + strings.Join(needed, ", "); {
	case len(needed) == 0 && status != http.StatusOK:
		return fmt.Errorf("not ready: %s", text)
	case len(needed) > 0 && !strings.Contains(text, names[:min(len(names), 512)]): // a probe's reason is at most that long
		return fmt.Errorf("%q is not in: %s", names, text)
	}
	page := h.scrape(ctx)
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(name, "csr_check_missing_rights{") {
			if strconv.Itoa(want[name]) != value {
				return fmt.Errorf("%s is %s, want %d", name, value, want[name])
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("not in the metrics: %v", want)
	}
	for name, want := range failed {
		if is := strings.Contains(page, fmt.Sprintf("csr_check_result{check=%q,result=\"failed\"} 1", name)); is != want {
			return fmt.Errorf("%s failed: %t, want %t", name, is, want)
		}
	}
	return nil
}

// oneManagerConfig switches on what the roles in testdata/one-manager are for.
const oneManagerConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  signers:
  - {name: kubernetes.io/kube-apiserver-client, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kube-apiserver-client-kubelet, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kubelet-serving, secret: ` + kit.SystemNamespace + `/csr-kubelet-serving-ca}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: openshift}
rotation: {enabled: true}
`

// TestLostRightsOfOneManager is TestEachLostRightIsNamed for the shipped roles that the four managers cannot have, with all
// controllers in one manager: OpenShift's Machines, an authority of its own for serving certificates, and the static Pod.
func TestLostRightsOfOneManager(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	kit.NewNamespace(t, "kube-node-lease")
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	r.bring(t, "csr-signer", r.CA)
	r.bring(t, "csr-kubelet-serving-ca", kit.NewCA(t))

	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, []byte(oneManagerConfig))
	one := giveRoles(t, "../test/rotation/testdata/one-manager", "csr-controller-manager")[0]
	one.cfg = kit.ServiceAccountConfig(t)
	one.start(t, "--config", file, "--signing-secret=", checkInterval)

	pod := giveRoles(t, "overlays/static-pod", "system:csr-controller-manager")[0]
	user, err := r.Env.AddUser(envtest.User{Name: pod.subject.Name}, nil)
	kit.NoError(t, err)
	pod.cfg = user.Config()
	cert, key := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	kit.Write(t, cert, r.CA.CertPEM)
	kit.Write(t, key, r.CA.KeyPEM)
	pod.scraper = "joiner-token"
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
	kit.Grant(t, "joiner", "test-metrics-reader")
	pod.start(t, "--signing-secret=", "--cluster-signing-cert-file="+cert, "--cluster-signing-key-file="+key,
		"--leader-elect-resource-namespace=kube-system", "--metrics-secure", checkInterval)

	for _, h := range []*roleHolder{one, pod} {
		h.Answers(t, h.Probes, "/readyz", http.StatusOK)
		t.Run(h.subject.Name, func(t *testing.T) {
			t.Parallel()
			h.loses(t)
			if h == pod {
				h.losesSecureMetrics(t)
			}
		})
	}
}

// losesSecureMetrics takes the rights to find out who scrapes. Then nobody can read the metrics, so the loss shows in check
// and in the log.
func (h *roleHolder) losesSecureMetrics(t *testing.T) {
	t.Helper()
	for _, right := range []string{"create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"} {
		before := len(h.Output(t))
		h.take(t, h.find(func(each string) bool { return each == right }))
		kit.Within(t, afterLoss, "the log names the loss", func(context.Context) error {
			if !strings.Contains(h.Output(t)[before:], right) {
				return fmt.Errorf("%q is not in the log", right)
			}
			return nil
		})
	}
}
