package manifests

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// The controllers, each with its own identity in overlays/split.
const approver, signer, cleaner, rotator = "csr-approver", "csr-signer", "csr-cleaner", "csr-rotation"

// account is the beginning of the user names of the identities.
const account = "system:serviceaccount:" + systemNamespace + ":"

// question is a request to the API server, with the controllers that may make it.
type question struct {
	verb, group, resource, namespace, name string
	may                                    []string
}

const kubeletClient = "kubernetes.io/kube-apiserver-client-kubelet"

// everyone are all controllers, and three are those that run without rotation.
var (
	everyone = []string{approver, signer, cleaner, rotator}
	three    = everyone[:3]
)

// questions are asked for each identity. A question without names must be denied to all of them.
var questions = []question{
	{"watch", "certificates.k8s.io", "certificatesigningrequests", "", "", everyone},
	{"update", "certificates.k8s.io", "certificatesigningrequests/approval", "", "", []string{approver}},
	{"update", "certificates.k8s.io", "certificatesigningrequests/status", "", "", []string{signer}},
	{"delete", "certificates.k8s.io", "certificatesigningrequests", "", "", []string{cleaner}},
	{"create", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"update", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"deletecollection", "certificates.k8s.io", "certificatesigningrequests", "", "", nil},
	{"approve", "certificates.k8s.io", "signers", "", kubeletClient, []string{approver}},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kube-apiserver-client", nil},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/*", nil},
	{"approve", "certificates.k8s.io", "signers", "", "", nil},
	{"sign", "certificates.k8s.io", "signers", "", kubeletClient, []string{signer}},
	{"sign", "certificates.k8s.io", "signers", "", "kubernetes.io/kubelet-serving", []string{signer}},
	{"sign", "certificates.k8s.io", "signers", "", "example.com/web", nil},
	{"sign", "certificates.k8s.io", "signers", "", "", nil},
	{"create", "certificates.k8s.io", "certificatesigningrequests/nodeclient", "", "", nil},
	{"get", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"list", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"watch", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"update", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"patch", "", "secrets", systemNamespace, "csr-signer", nil},
	{"delete", "", "secrets", systemNamespace, "csr-signer", nil},
	{"create", "", "secrets", systemNamespace, "", []string{rotator}},
	{"create", "", "secrets", "kube-system", "", nil},
	{"get", "", "secrets", systemNamespace, "other", nil},
	{"list", "", "secrets", systemNamespace, "", nil},
	{"list", "", "secrets", "", "", nil},
	{"get", "", "secrets", "kube-system", "csr-signer", nil},
	{"create", "events.k8s.io", "events", "default", "", []string{approver, signer, rotator}},
	{"create", "events.k8s.io", "events", "kube-system", "", nil},
	{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", everyone},
	{"create", "authentication.k8s.io", "tokenreviews", "", "", everyone},
	{"get", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{signer, rotator}},
	{"get", "", "configmaps", "kube-system", "kube-root-ca.crt", []string{signer}},
	{"list", "discovery.k8s.io", "endpointslices", "default", "", []string{rotator}},
	{"get", "", "configmaps", "kube-system", "kubeadm-config", nil},
	{"create", "", "configmaps", systemNamespace, "", []string{rotator}},
	{"list", "", "configmaps", systemNamespace, "", nil},
	{"update", "", "configmaps", systemNamespace, "csr-controller-manager-config", nil},
	{"create", "coordination.k8s.io", "leases", systemNamespace, "", everyone},
	{"create", "coordination.k8s.io", "leases", "kube-system", "", nil},
	{"delete", "coordination.k8s.io", "leases", systemNamespace, "", nil},
	{"watch", "coordination.k8s.io", "leases", systemNamespace, "csr-controller-manager", nil},
	{"approve", "certificates.k8s.io", "signers", "", "kubernetes.io/kubelet-serving", nil},
	{"list", "", "nodes", "", "", []string{"operator"}}, // components grant more: componentQuestions
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

// ownLeases are the Leases of overlays/split. Without a split there is one for all.
var ownLeases = []question{
	{"update", "coordination.k8s.io", "leases", systemNamespace, approver, []string{approver}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, signer, []string{signer}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, cleaner, []string{cleaner}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, rotator, []string{rotator}},
}

// without returns the questions about other resources.
func without(all []question, resource string) []question {
	return slices.DeleteFunc(slices.Clone(all), func(q question) bool { return q.resource == resource })
}

// ownIdentities maps the ServiceAccount of each controller to the controller.
func ownIdentities(controllers []string) map[string][]string {
	identities := map[string][]string{}
	for _, name := range controllers {
		identities[account+name] = []string{name}
	}
	return identities
}

// TestRights installs default, then split over it, then the static pod's roles. After each it checks the rights of
// all identities.
func TestRights(t *testing.T) {
	apply(t, kustomize(t, "default"))
	common := map[string][]string{account + "csr-controller-manager": three}
	ask(t, questions, common)
	ask(t, []question{
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-controller-manager", three},
		{"update", "coordination.k8s.io", "leases", systemNamespace, "csr-signer", nil},
	}, common)

	apply(t, kustomize(t, "overlays/split"))
	ask(t, questions, ownIdentities(three))
	ask(t, ownLeases, ownIdentities(three))

	// The common identity keeps only its Lease.
	ask(t, without(questions, "leases"), map[string][]string{account + "csr-controller-manager": nil})

	apply(t, kustomize(t, "overlays/static-pod"))
	static := slices.DeleteFunc(without(questions, "leases"), func(q question) bool { return q.resource == "events" && q.namespace == "kube-system" })
	for i := range static { // its CA is in files
		if static[i].resource == "secrets" {
			static[i].may = nil
		}
	}
	file := map[string][]string{"system:csr-controller-manager": three}
	ask(t, static, file)
	ask(t, []question{
		{"update", "coordination.k8s.io", "leases", "kube-system", "csr-controller-manager", three},
		{"update", "coordination.k8s.io", "leases", "kube-system", "kube-controller-manager", nil},
		{"update", "", "configmaps", "kube-system", "extension-apiserver-authentication", nil},
	}, file)
}

// TestMetricsReader binds the reader's role to a user as an administrator would.
func TestMetricsReader(t *testing.T) {
	apply(t, kustomize(t, "default"))
	bind(t, "csr-metrics-reader", "scraper")
	path := func(user, path string) authorizationv1.SubjectAccessReviewSpec {
		return authorizationv1.SubjectAccessReviewSpec{User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: "get", Path: path}}
	}
	becomes(t, path("scraper", "/metrics"), true)
	for _, spec := range []authorizationv1.SubjectAccessReviewSpec{path("stranger", "/metrics"), path("scraper", "/logs")} {
		if allowed(t.Context(), t, spec) {
			t.Errorf("%s may get %s", spec.User, spec.NonResourceAttributes.Path)
		}
	}
}

// bind gives the users a ClusterRole.
func bind(t *testing.T, role string, users ...string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
	for _, user := range users {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user})
	}
	kit.NoError(t, admin.Create(t.Context(), binding))
}

// rights returns the rules of the roles in all by "KIND NAMESPACE/NAME", and whom the bindings in all bind to each role. An identity of
// the manager is called by its name.
func rights(t *testing.T, all objects) (rules map[string][]rbacv1.PolicyRule, bound map[string][]string) {
	t.Helper()
	rules, bound = map[string][]rbacv1.PolicyRule{}, map[string][]string{}
	for name, obj := range all {
		switch obj.GetKind() {
		case "ClusterRole", "Role":
			rules[name] = as[rbacv1.ClusterRole](t, obj).Rules
		case "ClusterRoleBinding", "RoleBinding":
			binding := as[rbacv1.ClusterRoleBinding](t, obj)
			role := binding.RoleRef.Kind + " " + obj.GetNamespace() + "/" + binding.RoleRef.Name
			for _, subject := range binding.Subjects {
				who := subject.Kind + " " + subject.Namespace + "/" + subject.Name
				bound[role] = append(bound[role], strings.TrimPrefix(who, "ServiceAccount "+systemNamespace+"/"))
			}
			slices.Sort(bound[role])
			bound[role] = slices.Compact(bound[role])
		}
	}
	return rules, bound
}

// subjects returns whom the bindings in all bind.
func subjects(t *testing.T, all objects) []string {
	t.Helper()
	_, bound := rights(t, all)
	names := slices.Concat(slices.Collect(maps.Values(bound))...)
	slices.Sort(names)
	return slices.Compact(names)
}

// TestNoWildcard reads every rule, including generated roles.
func TestNoWildcard(t *testing.T) {
	t.Parallel()
	fewest := map[string]int{"default": 8, "overlays/control-plane": 8, "overlays/split": 8, "overlays/static-pod": 8, approverOnly: 7, splitRotation: 20}
	for name := range splitOwners {
		fewest[name] = 1
	}
	for folder, fewest := range fewest {
		roles, _ := rights(t, kustomize(t, folder))
		for name, rules := range roles {
			for _, rule := range rules {
				noWildcard(t, folder+": "+name, rule)
			}
		}
		if len(roles) < fewest {
			t.Errorf("%s: only %d roles", folder, len(roles))
		}
	}
}

// TestRecommendedInstallKeepsApprovalFromSigning checks the first install that README and docs/how-to/deploy.md name.
// It must be one command, and give no identity both the right to approve and the right to sign.
func TestRecommendedInstallKeepsApprovalFromSigning(t *testing.T) {
	t.Parallel()
	installs := map[string]objects{"chart": helm(t, "--set=split=true")}
	for _, page := range []string{"README.md", "docs/how-to/deploy.md"} {
		found := regexp.MustCompile(`(?m)^ *kubectl apply -k config/(\S+)$`).FindSubmatch(read(t, filepath.Join(root, page)))
		if found == nil {
			t.Fatalf("%s names no install", page)
		}
		installs[page] = kustomize(t, string(found[1]))
	}
	for what, all := range installs {
		if both := approvesAndSigns(t, all); both != nil {
			t.Errorf("%s: %q may approve and sign", what, both)
		}
	}
	if both := approvesAndSigns(t, kustomize(t, "default")); both == nil {
		t.Error("nobody may approve and sign in config/default: this test finds nothing")
	}
}

// approvesAndSigns returns the identities that have both verbs on signers.
func approvesAndSigns(t *testing.T, all objects) (both []string) {
	t.Helper()
	rules, bound := rights(t, all)
	verbs := map[string][]string{}
	for role, names := range bound {
		for _, rule := range rules[role] {
			for _, name := range names {
				if slices.Contains(rule.Resources, "signers") {
					verbs[name] = append(verbs[name], rule.Verbs...)
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

// rotationQuestions are about rights that only config/rotation gives. They name the permitted controllers, and people: an operator, and users
// of the roles that are aggregated into admin or view.
var rotationQuestions = []question{
	{"watch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator, "operator", "admin", "view"}},
	{"patch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator, "operator", "admin"}},
	{"update", "csr-controller-manager.io", "signingauthorities/status", "", "", []string{rotator}},
	{"patch", "csr-controller-manager.io", "signingauthorities/status", "", "", nil},
	{"create", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"delete", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"update", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"get", "", "configmaps", systemNamespace, "csr-signer-nodes-0f", []string{rotator, "operator"}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-nodes-0f", []string{rotator}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-ledger", []string{signer, rotator}},
	{"delete", "", "configmaps", systemNamespace, "csr-signer-ledger", nil},
	{"patch", "", "configmaps", systemNamespace, "csr-trust", []string{rotator}},
	{"update", "", "configmaps", systemNamespace, "csr-trust", nil},
	{"update", "", "configmaps", systemNamespace, "other", nil},
	{"update", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{rotator}},
	{"update", "", "configmaps", "kube-system", "kubeadm-config", nil},
	{"patch", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:csr-signer", []string{rotator}},
	{"create", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:csr-signer", []string{rotator}},
	{"patch", "certificates.k8s.io", "clustertrustbundles", "", "kubernetes.io:kubelet-serving:other", nil},
	{"create", "certificates.k8s.io", "clustertrustbundles", "", "", nil},
	{"attest", "certificates.k8s.io", "signers", "", kubeletClient, []string{rotator}},
	{"attest", "certificates.k8s.io", "signers", "", "example.com/web", nil},
	{"list", "apiregistration.k8s.io", "apiservices", "", "", nil},
	{"list", "", "events", "default", "", nil},
	{"update", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "csr-rotation-spec", nil},
	{"bind", "rbac.authorization.k8s.io", "clusterroles", "", rotator, nil},
}

// TestRotationRights installs overlays/split with rotation, and checks the rights of the four identities and of people. With the rotation,
// the other three keep their rights, and the signer may also record what it issues.
func TestRotationRights(t *testing.T) {
	all := kustomize(t, splitRotation)
	apply(t, all)
	for user, role := range map[string]string{"operator": "csr-rotation-operator", "admin": "csr-signing-authorities-operate", "view": "csr-signing-authorities-view"} {
		bind(t, role, user)
	}
	// kube-controller-manager, which does not run here, aggregates these roles.
	for name, label := range map[string]string{"csr-signing-authorities-operate": "admin", "csr-signing-authorities-view": "view"} {
		want := map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + label: "true"}
		if diff := cmp.Diff(want, all["ClusterRole /"+name].GetLabels()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	both := slices.Concat(questions, rotationQuestions)
	ask(t, slices.Concat(both, ownLeases), ownIdentities(everyone))
	ask(t, both, map[string][]string{"operator": {"operator"}, "admin": {"admin"}, "view": {"view"}})
	ask(t, without(both, "leases"), map[string][]string{account + "csr-controller-manager": nil})
	for _, bound := range subjects(t, all) {
		if !slices.Contains(everyone, bound) {
			t.Errorf("rights are bound to %s", bound)
		}
	}
}

// apply installs all objects except workloads, because nothing here could run them.
func apply(t *testing.T, all objects) {
	t.Helper()
	for _, kind := range []string{"Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"} {
		applyAll(t, objectsOf(all, kind))
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
					becomes(t, q.of(user), true)
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

// becomes waits until the request in spec is allowed, or no longer is: the authorizer knows a change after a moment.
func becomes(t *testing.T, spec authorizationv1.SubjectAccessReviewSpec, want bool) {
	t.Helper()
	kit.Within(t, 10*time.Second, "the rights of "+spec.User, func(ctx context.Context) error {
		if allowed(ctx, t, spec) != want {
			return fmt.Errorf("want %t: %v%v", want, spec.ResourceAttributes, spec.NonResourceAttributes)
		}
		return nil
	})
}

func allowed(ctx context.Context, t *testing.T, spec authorizationv1.SubjectAccessReviewSpec) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	kit.NoError(t, admin.Create(ctx, review))
	return review.Status.Allowed
}
