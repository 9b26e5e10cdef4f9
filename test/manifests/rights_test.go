package manifests

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The three controllers, each with its own identity in overlays/split.
const approver, signer, cleaner = "csr-approver", "csr-signer", "csr-cleaner"

// question is a request to the API server, with the controllers that may make it.
type question struct {
	verb, group, resource, namespace, name string
	may                                    []string
}

const kubelet = "kubernetes.io/kube-apiserver-client-kubelet"

var everyone = []string{approver, signer, cleaner}

// questions are asked for each identity. A question without names must be denied to all of them.
var questions = []question{
	{"watch", "certificates.k8s.io", "certificatesigningrequests", "", "", everyone},
	{"update", "certificates.k8s.io", "certificatesigningrequests/approval", "", "", []string{approver}},
	{"update", "certificates.k8s.io", "certificatesigningrequests/status", "", "", []string{signer}},
	{"delete", "certificates.k8s.io", "certificatesigningrequests", "", "", []string{cleaner}},
	{"create", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"update", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"deletecollection", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"approve", "certificates.k8s.io", "signers", "", kubelet, []string{approver}},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kube-apiserver-client", nil},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/*", nil},
	{"approve", "certificates.k8s.io", "signers", "", "", nil},
	{"sign", "certificates.k8s.io", "signers", "", kubelet, []string{signer}},
	{"sign", "certificates.k8s.io", "signers", "", "kubernetes.io/kubelet-serving", []string{signer}},
	{"sign", "certificates.k8s.io", "signers", "", "example.com/web", nil},
	{"sign", "certificates.k8s.io", "signers", "", "", nil},
	{"create", "certificates.k8s.io", "certificatesigningrequests/nodeclient", "", "", nil},
	{"get", "", "secrets", systemNamespace, "csr-signer", nil},
	{"list", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"watch", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"update", "", "secrets", systemNamespace, "csr-signer", nil},
	{"create", "", "secrets", systemNamespace, "", nil},
	{"get", "", "secrets", systemNamespace, "other", nil},
	{"list", "", "secrets", systemNamespace, "", nil},
	{"list", "", "secrets", "", "", nil},
	{"get", "", "secrets", "kube-system", "csr-signer", nil},
	{"create", "events.k8s.io", "events", "default", "", []string{approver, signer}},
	{"create", "events.k8s.io", "events", "kube-system", "", nil},
	{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", everyone},
	{"create", "authentication.k8s.io", "tokenreviews", "", "", everyone},
	{"get", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{signer}},
	{"get", "", "configmaps", "kube-system", "kube-root-ca.crt", []string{signer}},
	{"list", "discovery.k8s.io", "endpointslices", "default", "", nil},
	{"get", "", "configmaps", "kube-system", "kubeadm-config", nil},
	{"create", "", "configmaps", systemNamespace, "", nil},
	{"list", "", "configmaps", systemNamespace, "", nil},
	{"update", "", "configmaps", systemNamespace, "csr-controller-manager-config", nil},
	{"create", "coordination.k8s.io", "leases", systemNamespace, "", everyone},
	{"create", "coordination.k8s.io", "leases", "kube-system", "", nil},
	{"delete", "coordination.k8s.io", "leases", systemNamespace, "", nil},
	{"watch", "coordination.k8s.io", "leases", systemNamespace, "csr-controller-manager", nil},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kubelet-serving", nil},
	{"list", "", "nodes", "", "", nil}, // components grant more: componentQuestions
	{"list", "", "services", "", "", nil},
	{"list", "coordination.k8s.io", "leases", "kube-node-lease", "", nil},
	{"get", "", "configmaps", "kube-public", "cluster-info", nil},
	{"get", "", "serviceaccounts", "kube-system", "any", nil},
	{"create", "", "pods", systemNamespace, "", nil},
	{"create", "", "serviceaccounts/token", systemNamespace, "", nil},
	{"impersonate", "", "users", "", "system:admin", nil},
	{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", "", nil},
	{"*", "*", "*", "", "", nil},
}

// TestRights installs default, then split over it, then the static pod's roles. After each it checks the rights of
// all identities.
func TestRights(t *testing.T) {
	apply(t, kustomize(t, "default"))
	const common = "system:serviceaccount:" + systemNamespace + ":csr-controller-manager"
	ask(t, questions, map[string][]string{common: everyone})
	ask(t, []question{
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-controller-manager", everyone},
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-signer", nil},
	}, map[string][]string{common: everyone})

	apply(t, kustomize(t, "overlays/split"))
	identities := map[string][]string{}
	for _, name := range everyone {
		identities["system:serviceaccount:"+systemNamespace+":"+name] = []string{name}
	}
	ask(t, questions, identities)
	ask(t, []question{
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-approver", []string{approver}},
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-signer", []string{signer}},
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-cleaner", []string{cleaner}},
	}, identities)

	// The common identity keeps only its Lease.
	ask(t, slices.DeleteFunc(slices.Clone(questions), func(q question) bool { return q.resource == "leases" }), map[string][]string{common: nil})

	apply(t, kustomize(t, "overlays/static-pod"))
	static := slices.DeleteFunc(slices.Clone(questions), func(q question) bool {
		return q.resource == "leases" || q.resource == "events" && q.namespace == "kube-system"
	})
	for i := range static { // its CA is in files
		if static[i].resource == "secrets" {
			static[i].may = nil
		}
	}
	const file = "system:csr-controller-manager"
	ask(t, static, map[string][]string{file: everyone})
	ask(t, []question{
		{"update", "coordination.k8s.io", "leases", "kube-system", "csr-controller-manager", everyone},
		{"update", "coordination.k8s.io", "leases", "kube-system", "kube-controller-manager", nil},
		{"update", "", "configmaps", "kube-system", "extension-apiserver-authentication", nil},
	}, map[string][]string{file: everyone})
}

// TestMetricsReader binds the reader's role to a user as an administrator would.
func TestMetricsReader(t *testing.T) {
	apply(t, kustomize(t, "default"))
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-scraper-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "csr-metrics-reader"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "scraper"}},
	}
	if err := admin.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	path := func(user, path string) authorizationv1.SubjectAccessReviewSpec {
		return authorizationv1.SubjectAccessReviewSpec{User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: path}}
	}
	await(t, path("scraper", "/metrics"))
	for _, spec := range []authorizationv1.SubjectAccessReviewSpec{path("stranger", "/metrics"), path("scraper", "/logs")} {
		if allowed(t.Context(), t, spec) {
			t.Errorf("%s may get %s", spec.User, spec.NonResourceAttributes.Path)
		}
	}
}

// TestNoWildcard reads every rule, including generated roles.
func TestNoWildcard(t *testing.T) {
	t.Parallel()
	fewest := map[string]int{"default": 8, "overlays/control-plane": 8, "overlays/split": 8, "overlays/static-pod": 8, approverOnly: 7, splitRotation: 20}
	for _, name := range components {
		fewest[name] = 1
	}
	for folder, fewest := range fewest {
		all := kustomize(t, folder)
		roles := 0
		for name, obj := range all {
			if !slices.Contains([]string{"ClusterRole", "Role"}, obj.GetKind()) {
				continue
			}
			roles++
			for _, role := range typed[rbacv1.ClusterRole](t, objects{name: obj}, obj.GetKind()) {
				for _, rule := range role.Rules {
					noWildcard(t, folder+": "+name, rule)
				}
			}
		}
		if roles < fewest {
			t.Errorf("%s: only %d roles", folder, roles)
		}
	}
}

func noWildcard(t *testing.T, role string, rule rbacv1.PolicyRule) {
	t.Helper()
	for _, word := range slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs) {
		if strings.Contains(word, "*") {
			t.Errorf("%s: %v", role, rule)
		}
	}
	named := []string{"secrets", "signers", "configmaps"}
	if len(rule.ResourceNames) == 0 && !slices.Equal(rule.Verbs, []string{"create"}) && // a new object has no name yet
		slices.ContainsFunc(rule.Resources, func(r string) bool { return slices.Contains(named, r) }) {
		t.Errorf("%s is for all %v, not by name", role, rule.Resources)
	}
}

// apply installs all objects except workloads, because nothing here could run them.
func apply(t *testing.T, all objects) {
	t.Helper()
	kinds := []string{"Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}
	for _, kind := range kinds {
		for name, obj := range all {
			if obj.GetKind() != kind {
				continue
			}
			err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
}

// ask asks the API server all questions for each identity, which is some of the controllers. A right may take a
// moment, because the authorizer watches roles. Once the rights are there, the other requests must stay denied.
func ask(t *testing.T, questions []question, identities map[string][]string) {
	t.Helper()
	for _, want := range []bool{true, false} {
		for user, controllers := range identities {
			for _, q := range questions {
				may := slices.ContainsFunc(controllers, func(name string) bool { return slices.Contains(q.may, name) })
				switch {
				case may != want:
				case want:
					await(t, q.of(user))
				case allowed(t.Context(), t, q.of(user)):
					t.Errorf("%s may %+v", user, q)
				}
			}
		}
	}
}

func (q question) of(user string) authorizationv1.SubjectAccessReviewSpec {
	resource, sub, _ := strings.Cut(q.resource, "/")
	spec := authorizationv1.SubjectAccessReviewSpec{User: user, Groups: []string{"system:authenticated"}, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Verb: q.verb, Group: q.group, Resource: resource, Subresource: sub, Namespace: q.namespace, Name: q.name,
	}}
	if strings.HasPrefix(user, "system:serviceaccount:") {
		spec.Groups = append(spec.Groups, "system:serviceaccounts", "system:serviceaccounts:"+systemNamespace)
	}
	return spec
}

func await(t *testing.T, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 10*time.Second, true, func(ctx context.Context) (bool, error) {
		return allowed(ctx, t, spec), nil
	})
	if err != nil {
		t.Errorf("%s may not %v%v", spec.User, spec.ResourceAttributes, spec.NonResourceAttributes)
	}
}

func allowed(ctx context.Context, t *testing.T, spec authorizationv1.SubjectAccessReviewSpec) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	if err := admin.Create(ctx, review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}
