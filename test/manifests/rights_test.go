package manifests

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// The identities: common is that of config/default, the others are those of overlays/split.
const (
	common                               = "csr-controller-manager"
	approver, signer, cleaner, rotator   = "csr-approver", "csr-signer", "csr-cleaner", "csr-rotation"
	account                              = "system:serviceaccount:" + systemNamespace + ":"
	staticUser                           = "system:csr-controller-manager"
	caSecret, ledger, kubeletClient      = "the CA's Secret", "the ledger", "kubernetes.io/kube-apiserver-client-kubelet"
	certificates, leases, authentication = "certificates.k8s.io", "coordination.k8s.io", "extension-apiserver-authentication"
)

// leaseOf names the right to renew the Lease of an identity.
func leaseOf(identity string) string { return "Lease " + identity }

var (
	everyone = []string{approver, signer, cleaner, rotator}
	three    = everyone[:3] // run without rotation
	anyLease = []string{leaseOf(common), leaseOf(approver), leaseOf(signer), leaseOf(cleaner), leaseOf(rotator)}
)

// question is a request to the API server. may names what gives the right: a controller, a component, a Lease, or a role of people. Nobody
// may ask a question without names. A resource that begins with / is a path.
type question struct {
	verb, group, resource, namespace, name string
	may                                    []string
}

var questions = []question{
	{"watch", certificates, "certificatesigningrequests", "", "", append(everyone, "joiner")},
	{"update", certificates, "certificatesigningrequests/approval", "", "", []string{approver}},
	{"update", certificates, "certificatesigningrequests/status", "", "", []string{signer}},
	{"delete", certificates, "certificatesigningrequests", "", "", []string{cleaner}},
	{"create", certificates, "certificatesigningrequests", "", "", []string{"joiner"}},
	{"update", certificates, "certificatesigningrequests", "", "", nil},
	{"deletecollection", certificates, "certificatesigningrequests", "", "", nil},
	{"create", certificates, "certificatesigningrequests/nodeclient", "", "", []string{"joiner"}},
	{"create", certificates, "certificatesigningrequests/selfnodeclient", "", "", []string{"node"}},
	{"approve", certificates, "signers", "", kubeletClient, []string{approver}},
	{"approve", certificates, "signers", "", "kubernetes.io/kubelet-serving", []string{serving}},
	{"approve", certificates, "signers", "", "kubernetes.io/kube-apiserver-client", nil},
	{"approve", certificates, "signers", "", "", nil},
	{"approve", certificates, "signers", "", "kubernetes.io/*", nil},
	{"sign", certificates, "signers", "", kubeletClient, []string{signer}},
	{"sign", certificates, "signers", "", "kubernetes.io/kubelet-serving", []string{signer}},
	{"sign", certificates, "signers", "", "example.com/web", nil},
	{"sign", certificates, "signers", "", "", nil},
	{"attest", certificates, "signers", "", kubeletClient, []string{rotator}},
	{"attest", certificates, "signers", "", "example.com/web", nil},
	{"patch", certificates, "clustertrustbundles", "", "kubernetes.io:kubelet-serving:csr-signer", []string{rotator}},
	{"patch", certificates, "clustertrustbundles", "", "kubernetes.io:kubelet-serving:other", nil},

	{"list", "", "secrets", systemNamespace, "csr-signer", []string{caSecret}},
	{"get", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"update", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"patch", "", "secrets", systemNamespace, "csr-signer", nil},
	{"delete", "", "secrets", systemNamespace, "csr-signer", nil},
	{"create", "", "secrets", systemNamespace, "", []string{rotator, createCA}},
	{"get", "", "secrets", systemNamespace, "other", nil},
	{"list", "", "secrets", systemNamespace, "", nil},
	{"list", "", "secrets", "", "", nil},
	{"create", "", "secrets", "kube-system", "", nil},
	{"get", "", "secrets", "kube-system", "csr-signer", nil},
	{"get", "", "secrets", "kube-system", "bootstrap-token-abcdef", nil},

	{"get", "", "configmaps", "kube-system", authentication, []string{signer, rotator}},
	{"update", "", "configmaps", "kube-system", authentication, []string{rotator}},
	{"get", "", "configmaps", "kube-system", "kube-root-ca.crt", []string{signer}},
	{"get", "", "configmaps", "kube-public", "cluster-info", []string{identity}},
	{"get", "", "configmaps", systemNamespace, "csr-node-block-list", []string{blocked, authorizationFiles}},
	{"block", "", "configmaps", systemNamespace, "csr-node-block-list", nil},
	{"block", "", "configmaps", systemNamespace, "csr-node-block-list-status", []string{enforced}},
	{"patch", "", "configmaps", systemNamespace, "csr-node-block-list-status", []string{enforced}},
	{"delete", "", "configmaps", systemNamespace, "csr-node-block-list-status", nil},
	{"update", "", "configmaps", systemNamespace, "csr-node-block-list", nil},
	{"create", "", "configmaps", systemNamespace, "", []string{rotator}},
	{"update", "", "configmaps", systemNamespace, "csr-controller-manager-config", nil},
	{"get", "", "configmaps", systemNamespace, "csr-signer-moved", []string{rotator, "operator"}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-moved", []string{rotator}},
	{"update", "", "configmaps", systemNamespace, "csr-signer-ledger", []string{ledger, rotator}},
	{"delete", "", "configmaps", systemNamespace, "csr-signer-ledger", nil},
	{"update", "", "configmaps", "kube-system", "kubeadm-config", nil},
	{"list", "", "configmaps", systemNamespace, "", nil},
	{"patch", "", "configmaps", systemNamespace, "csr-trust", []string{rotator}},

	{"create", leases, "leases", systemNamespace, "", anyLease},
	{"update", leases, "leases", systemNamespace, common, []string{leaseOf(common)}},
	{"update", leases, "leases", systemNamespace, approver, []string{leaseOf(approver)}},
	{"update", leases, "leases", systemNamespace, signer, []string{leaseOf(signer)}},
	{"update", leases, "leases", systemNamespace, cleaner, []string{leaseOf(cleaner)}},
	{"update", leases, "leases", systemNamespace, rotator, []string{leaseOf(rotator)}},
	{"delete", leases, "leases", systemNamespace, "", nil},
	{"update", leases, "leases", "kube-system", common, []string{staticUser}},
	{"update", leases, "leases", "kube-system", "kube-controller-manager", nil},
	{"list", leases, "leases", "kube-node-lease", "", []string{identity}},

	{"create", "events.k8s.io", "events", "default", "", []string{approver, signer, rotator}},
	{"create", "events.k8s.io", "events", "kube-system", "", nil},
	{"list", "", "events", "default", "", nil},
	{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", everyone},
	{"create", "authentication.k8s.io", "tokenreviews", "", "", everyone},
	{"get", "", "/metrics", "", "", []string{"scraper"}},
	{"get", "", "/logs", "", "", nil},
	{"list", "", "nodes", "", "", []string{serving, identity, "operator", "mover"}},
	{"update", "", "nodes", "", "", nil},
	{"list", "", "services", "", "", []string{serving}},
	{"get", "", "services", "any", "any", []string{ruled}},
	{"watch", "discovery.k8s.io", "endpointslices", "default", "", []string{serving}},
	{"list", "discovery.k8s.io", "endpointslices", "default", "", []string{serving, rotator, enforced}},
	{"watch", "cluster.x-k8s.io", "machines", "", "", []string{clusterAPI}},
	{"update", "cluster.x-k8s.io", "machines", "", "", nil},
	{"watch", "machine.openshift.io", "machines", "openshift-machine-api", "", []string{openshift}},

	{"watch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator, "operator", "admin", "view"}},
	{"patch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator, "operator", "admin"}},
	{"update", "csr-controller-manager.io", "signingauthorities/status", "", "", []string{rotator}},
	{"create", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"delete", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"patch", "csr-controller-manager.io", "signingauthorities/status", "", "", nil},
	{"update", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"update", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "csr-rotation-spec", nil},

	{"get", "", "serviceaccounts", "kube-system", "any", []string{identity, ruled}},
	{"create", "", "serviceaccounts/token", "kube-system", "any", nil},
	{"create", "", "pods", systemNamespace, "", []string{"mover"}},
	{"delete", "", "pods", systemNamespace, "any", nil},
	{"create", "", "pods/exec", systemNamespace, "any", nil},
	{"delete", "", "namespaces", "", "csr-move-nodes", []string{"mover"}},
	{"delete", "", "namespaces", "", systemNamespace, nil},
	{"patch", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "csr-move-nodes", []string{"mover"}},
	{"patch", "admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "csr-rotation-spec", nil},
	{"impersonate", "", "users", "", "system:admin", nil},
	{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", "", nil},
	{"bind", "rbac.authorization.k8s.io", "clusterroles", "", rotator, nil},
	{"*", "*", "*", "", "", nil},
}

// ownIdentities returns what each controller may do with an identity of its own, and with more.
func ownIdentities(controllers []string, more ...string) map[string][]string {
	identities := map[string][]string{account + common: {leaseOf(common)}} // what config/default has bound before
	for _, name := range controllers {
		identities[account+name] = []string{name, leaseOf(name)}
	}
	identities[account+signer] = append(identities[account+signer], append(more, caSecret)...)
	return identities
}

// TestRights installs one after the other what users install, and asks the API server what each identity may do. TestRightsAreWhatIsGranted
// compares the rules themselves with the code.
func TestRights(t *testing.T) {
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "openshift-machine-api"}}
	kit.NoError(t, admin.Create(t.Context(), space))
	withRotation := ownIdentities(everyone, ledger)
	maps.Copy(withRotation, map[string][]string{"operator": {"operator"}, "mover": {"mover"}, "admin": {"admin"}, "view": {"view"}, "scraper": {"scraper"}})
	all := append(slices.Clone(three), leaseOf(common), caSecret)
	components := slices.Sorted(maps.Keys(splitOwners))
	withComponents := map[string][]string{account + common: append(all, components...), "joiner": {"joiner"}, "node": {"node"}, "stranger": nil}
	for _, step := range []struct {
		what       string
		objects    objects
		identities map[string][]string
	}{
		{"default", kustomize(t, "default"), map[string][]string{account + common: all}},
		{"split", kustomize(t, "overlays/split"), ownIdentities(three)},
		{"split, with rotation", kustomize(t, splitRotation), withRotation},
		{"default, with each component", overlay(t, "default", append(components, "node-bootstrap")...), withComponents},
		{"static Pod", kustomize(t, "overlays/static-pod"), map[string][]string{staticUser: append(slices.Clone(three), staticUser)}},
		{"authorization files", kustomize(t, "overlays/authorization-files"), map[string][]string{
			"system:serviceaccount:" + authorizationFiles + ":" + authorizationFiles: {authorizationFiles},
		}},
		{"authorization files of a static Pod", kustomize(t, "overlays/static-pod/authorization-files"), map[string][]string{
			"csr-controller-manager.io:authorization-files": {authorizationFiles},
		}},
	} {
		t.Run(step.what, func(t *testing.T) {
			apply(t, step.objects)
			for user, role := range map[string]string{
				"operator": "csr-rotation-operator", "mover": "csr-node-mover", "admin": "csr-signing-authorities-operate", "view": "csr-signing-authorities-view",
				"scraper": "csr-metrics-reader",
			} {
				if step.identities[user] != nil {
					bind(t, role, user)
				}
			}
			ask(t, step.identities)
		})
	}
}

// apply installs all objects except workloads, because nothing here could run them.
func apply(t *testing.T, all objects) {
	t.Helper()
	for _, kind := range []string{"Namespace", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"} {
		applyAll(t, objectsOf(all, kind))
	}
}

// bind gives a user a ClusterRole.
func bind(t *testing.T, role, user string) {
	t.Helper()
	kit.NoError(t, admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}))
}

// ask asks the API server all questions for each user, whose rights have the names. A right may take a moment, because the authorizer watches
// roles. Once the rights are there, no other may be.
func ask(t *testing.T, users map[string][]string) {
	t.Helper()
	for _, want := range []bool{true, false} {
		for user, names := range users {
			for _, q := range questions {
				may := slices.ContainsFunc(names, func(name string) bool { return slices.Contains(q.may, name) })
				if may != want {
					continue
				}
				kit.Within(t, 10*time.Second, "the rights of "+user, func(ctx context.Context) error {
					review := &authorizationv1.SubjectAccessReview{Spec: q.of(user)}
					if err := admin.Create(ctx, review); err != nil || review.Status.Allowed != may {
						return fmt.Errorf("%+v: allowed: %t, want %t, error %w", q, review.Status.Allowed, may, err)
					}
					return nil
				})
			}
		}
	}
}

// groups are those of users who have their rights by a group.
var groups = map[string]string{"joiner": "system:bootstrappers:kubeadm:default-node-token", "node": "system:nodes"}

func (q question) of(user string) authorizationv1.SubjectAccessReviewSpec {
	spec := authorizationv1.SubjectAccessReviewSpec{User: user, Groups: []string{"system:authenticated"}}
	if group := groups[user]; group != "" {
		spec.Groups = append(spec.Groups, group)
	}
	if strings.HasPrefix(user, account) {
		spec.Groups = append(spec.Groups, "system:serviceaccounts", "system:serviceaccounts:"+systemNamespace)
	}
	if strings.HasPrefix(q.resource, "/") {
		spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: q.verb, Path: q.resource}
		return spec
	}
	resource, sub, _ := strings.Cut(q.resource, "/")
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Verb: q.verb, Group: q.group, Resource: resource, Subresource: sub, Namespace: q.namespace, Name: q.name,
	}
	return spec
}

// roundTrip is a http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// TestManagerHasAShareOfItsOwn checks, as the manager, by which FlowSchema a real API server handles its requests.
// Reviews of requesters must use config/priority-and-fairness. TokenReviews, which any pod can cause, must use
// another FlowSchema.
func TestManagerHasAShareOfItsOwn(t *testing.T) {
	ctx := t.Context()
	all := kustomize(t, "priority-and-fairness")
	applyAll(t, all)
	t.Cleanup(func() {
		for _, obj := range all {
			_ = admin.Delete(context.Background(), obj)
		}
	})
	own := string(all["FlowSchema /"+common].GetUID())
	var taken string
	cfg := impersonating(account+common, "system:serviceaccounts")
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				taken = response.Header.Get("X-Kubernetes-Pf-Flowschema-Uid")
			}
			return response, err
		})
	})
	manager := kit.ClientOf(t, cfg)
	kit.Eventually(t, "the FlowSchema of a SubjectAccessReview", func(ctx context.Context) error {
		_ = manager.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "a"}}) // denied
		return kit.OrError(taken == own && own != "", "%q, want %s", taken, own)
	})
	_ = manager.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: "a"}})
	kit.Check(t, taken != "" && taken != own, "a TokenReview is taken by FlowSchema %q, as the manager's writes are", taken)
}
