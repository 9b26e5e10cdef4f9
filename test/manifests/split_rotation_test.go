package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	// splitRotation is config/overlays/split with the rotation component.
	splitRotation = "../test/manifests/testdata/split-rotation"
	rotator       = "csr-rotation"
)

// TestSplitRotationSame compares it with the chart, object by object. Only the chart labels the objects of
// config/rotation; TestRotationChart checks these labels.
func TestSplitRotationSame(t *testing.T) {
	t.Parallel()
	want, got := kustomize(t, splitRotation), helm(t, "--set=split=true", rotated)
	delete(want, "Namespace /"+systemNamespace)
	for name := range kustomize(t, "rotation") {
		if want[name] == nil || got[name] == nil {
			t.Fatalf("%s: in the overlay %t, in the chart %t", name, want[name] != nil, got[name] != nil)
		}
		want[name].SetLabels(nil)
		got[name].SetLabels(nil)
		annotations := got[name].GetAnnotations()
		delete(annotations, "helm.sh/resource-policy")
		got[name].SetAnnotations(annotations)
	}
	if diff := cmp.Diff(plain(t, want), plain(t, got)); diff != "" {
		t.Errorf("(-kustomize +helm):\n%s", diff)
	}
}

var fourOfThem = []string{approver, signer, cleaner, rotator}

// splitRotationQuestions name those of the four identities that may make the request.
var splitRotationQuestions = []question{
	{"get", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"list", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"watch", "", "secrets", systemNamespace, "csr-signer", []string{signer}},
	{"update", "", "secrets", systemNamespace, "csr-signer", []string{rotator}},
	{"patch", "", "secrets", systemNamespace, "csr-signer", nil},
	{"delete", "", "secrets", systemNamespace, "csr-signer", nil},
	{"create", "", "secrets", systemNamespace, "", []string{rotator}},
	{"create", "", "secrets", "kube-system", "", nil},
	{"list", "", "secrets", systemNamespace, "", nil},
	{"get", "", "secrets", systemNamespace, "other", nil},
	{"update", "", "configmaps", systemNamespace, "csr-signer-ledger", []string{signer, rotator}},
	{"delete", "", "configmaps", systemNamespace, "csr-signer-ledger", nil},
	{"update", "", "configmaps", systemNamespace, "csr-signer-nodes-0f", []string{rotator}},
	{"create", "", "configmaps", systemNamespace, "", []string{rotator}},
	{"patch", "", "configmaps", systemNamespace, "csr-trust", []string{rotator}},
	{"get", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{signer, rotator}},
	{"update", "", "configmaps", "kube-system", "extension-apiserver-authentication", []string{rotator}},
	{"watch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator}},
	{"patch", "csr-controller-manager.io", "signingauthorities", "", "", []string{rotator}},
	{"update", "csr-controller-manager.io", "signingauthorities/status", "", "", []string{rotator}},
	{"update", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"create", "csr-controller-manager.io", "signingauthorities", "", "", nil},
	{"watch", "certificates.k8s.io", "certificatesigningrequests", "", "", fourOfThem},
	{"update", "certificates.k8s.io", "certificatesigningrequests/approval", "", "", []string{approver}},
	{"update", "certificates.k8s.io", "certificatesigningrequests/status", "", "", []string{signer}},
	{"delete", "certificates.k8s.io", "certificatesigningrequests", "", "", []string{cleaner}},
	{"approve", "certificates.k8s.io", "signers", "", kubelet, []string{approver}},
	{"sign", "certificates.k8s.io", "signers", "", kubelet, []string{signer}},
	{"attest", "certificates.k8s.io", "signers", "", kubelet, []string{rotator}},
	{"create", "authentication.k8s.io", "tokenreviews", "", "", fourOfThem},
	{"create", "authorization.k8s.io", "subjectaccessreviews", "", "", fourOfThem},
	{"create", "events.k8s.io", "events", "default", "", []string{approver, signer, rotator}},
	{"create", "coordination.k8s.io", "leases", systemNamespace, "", fourOfThem},
	{"update", "coordination.k8s.io", "leases", systemNamespace, approver, []string{approver}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, signer, []string{signer}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, cleaner, []string{cleaner}},
	{"update", "coordination.k8s.io", "leases", systemNamespace, rotator, []string{rotator}},
	{"create", "", "pods", systemNamespace, "", nil},
	{"create", "", "serviceaccounts/token", systemNamespace, "", nil},
	{"update", "admissionregistration.k8s.io", "validatingadmissionpolicies", "", "csr-rotation-spec", nil},
	{"bind", "rbac.authorization.k8s.io", "clusterroles", "", rotator, nil},
	{"impersonate", "", "users", "", "system:admin", nil},
	{"*", "*", "*", "", "", nil},
}

// TestSplitRotationRights installs all four, and then checks their rights. With the rotation, the other three keep
// their rights, and the signer may also record what it issues.
func TestSplitRotationRights(t *testing.T) {
	all := kustomize(t, splitRotation)
	apply(t, all)
	const of = "system:serviceaccount:" + systemNamespace + ":"
	identities, others := map[string][]string{}, map[string][]string{}
	for _, name := range fourOfThem {
		identities[of+name] = []string{name}
		if name != rotator {
			others[of+name] = []string{name}
		}
	}
	ask(t, splitRotationQuestions, identities)
	ask(t, questions, others)
	common := slices.DeleteFunc(slices.Clone(splitRotationQuestions), func(q question) bool { return q.resource == "leases" })
	ask(t, common, map[string][]string{of + "csr-controller-manager": nil})
	for name, obj := range all {
		if !strings.HasSuffix(obj.GetKind(), "RoleBinding") {
			continue
		}
		for _, bound := range subjects(t, objects{name: obj}) {
			if !slices.Contains(fourOfThem, bound) {
				t.Errorf("%s: bound to %s", name, bound)
			}
		}
	}
}

// TestSplitRotationDryRun checks that a dry run has no Deployment for rotation, which would have nothing to run.
func TestSplitRotationDryRun(t *testing.T) {
	t.Parallel()
	all := overlay(t, "overlays/split", "overlays/split/rotation", dryRun)
	if loaded := load(t, all); len(loaded) != 3 || loaded[rotator] != nil {
		t.Errorf("%d Deployments: %v", len(loaded), slices.Collect(maps.Keys(loaded)))
	}
	if all["PodDisruptionBudget "+systemNamespace+"/"+rotator] != nil {
		t.Error("a disruption budget is left")
	}
}
