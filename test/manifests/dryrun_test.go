package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

const dryRun = "dry-run"

// overlay renders a kustomization as a user would write it.
func overlay(t *testing.T, resource string, components ...string) objects {
	t.Helper()
	text := "resources:\n- ../" + resource + "\ncomponents:\n- ../" + strings.Join(components, "\n- ../") + "\n"
	return inFolder(t, root, map[string]string{"kustomization.yaml": text})
}

// rulesOf returns the rules of each role.
func rulesOf(t *testing.T, all objects) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules, _ := rights(t, all)
	return rules
}

// withoutWrites returns the rules of each role without those to write requests.
func withoutWrites(t *testing.T, all objects) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := rulesOf(t, all)
	for name := range rules {
		kept := []rbacv1.PolicyRule{}
		for _, rule := range rules[name] {
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool {
				return slices.Contains([]string{"approve", "sign", "delete"}, verb) || verb == "update" && strings.HasPrefix(rule.Resources[0], "certificatesigningrequests/")
			})
			if len(rule.Verbs) > 0 {
				kept = append(kept, rule)
			}
		}
		rules[name] = kept
	}
	return rules
}

// TestDryRunHasNoRightToWrite compares the roles of the component and the chart with those of a manager that writes.
func TestDryRunHasNoRightToWrite(t *testing.T) {
	t.Parallel()
	const enabled = `--set=config.approval.kubeletServing.enabled=true`
	for folder, split := range map[string]string{"default": "--set=split=false", "overlays/split": "--set=split=true"} {
		want := withoutWrites(t, overlay(t, folder, serving))
		all := overlay(t, folder, serving, dryRun)
		if diff := cmp.Diff(want, rulesOf(t, all)); diff != "" {
			t.Errorf("%s (-want +component):\n%s", folder, diff)
		}
		chart := helm(t, split, enabled, `--set-json=config.dryRun=["*"]`)
		if diff := cmp.Diff(want, rulesOf(t, chart)); diff != "" {
			t.Errorf("%s (-want +chart):\n%s", folder, diff)
		}
		accept(t, all)
		accept(t, chart)
		for _, objs := range []objects{all, chart} {
			if objs["RoleBinding default/csr-cleaner"] == nil {
				t.Errorf("%s: a cleaner may write no Events", folder)
			}
			for name, loaded := range load(t, objs) {
				if !loaded.DryRuns(config.ApproverController) || !loaded.DryRuns(config.SignerController) || !loaded.DryRuns(config.CleanerController) {
					t.Errorf("%s: %s is no dry run", folder, name)
				}
			}
		}
	}
	some := rulesOf(t, helm(t, `--set-json=config.dryRun=["csrsigning"]`, `--set-json=config.signing.signers=[{"name":"example.com/web","secret":"`+systemNamespace+`/web","usages":["server auth"]}]`))
	usual := rulesOf(t, helm(t))
	const signing, secret = "ClusterRole /csr-signer", "Role " + systemNamespace + "/csr-signing-secret"
	usual[signing] = withoutWrites(t, helm(t))[signing]
	delete(usual, secret)
	delete(some, secret)
	if diff := cmp.Diff(usual, some); diff != "" {
		t.Errorf("a signer alone (-want +chart):\n%s", diff)
	}
}

// TestSplitDryRun checks that Events of the cleaner are for its own identity, and that rotation, which a dry run has not, has no Deployment.
func TestSplitDryRun(t *testing.T) {
	t.Parallel()
	all := overlay(t, "overlays/split", "overlays/split/"+dryRun)
	if got := subjects(t, objects{"": all["RoleBinding default/csr-cleaner"]}); !cmp.Equal([]string{cleaner}, got) {
		t.Errorf("Events of the cleaner are for %v", got)
	}
	all = overlay(t, "overlays/split", "overlays/split/rotation", dryRun)
	if loaded := load(t, all); len(loaded) != 3 || loaded[rotator] != nil {
		t.Errorf("%d Deployments: %v", len(loaded), slices.Collect(maps.Keys(loaded)))
	}
	if all["PodDisruptionBudget "+systemNamespace+"/"+rotator] != nil {
		t.Error("a disruption budget is left")
	}
}

// TestDryRunRights checks the rights with the API server.
func TestDryRunRights(t *testing.T) {
	all := overlay(t, "default", dryRun)
	apply(t, kustomize(t, "default"))
	apply(t, all)
	defer func() {
		apply(t, kustomize(t, "default"))
		if err := admin.Delete(t.Context(), all["RoleBinding default/csr-cleaner"]); err != nil {
			t.Error(err)
		}
	}()
	const user = account + "csr-controller-manager"
	asked := without(questions, "events")
	for i, q := range asked {
		if q.resource == "signers" || strings.HasPrefix(q.resource, "certificatesigningrequests") && q.verb != "watch" {
			asked[i].may = nil
		}
	}
	for _, q := range asked {
		if q.may == nil { // the authorizer sees the change after a moment
			becomes(t, q.of(user), false)
		}
	}
	ask(t, asked, map[string][]string{user: three})
}

// TestMoreEgress adds rules to the chart's NetworkPolicy.
func TestMoreEgress(t *testing.T) {
	t.Parallel()
	const name = "csr-controller-manager"
	usual := typed[networkingv1.NetworkPolicy](t, helm(t), "NetworkPolicy")[name]
	all := helm(t, `--set-json=networkPolicy.egress=[{"to":[{"ipBlock":{"cidr":"192.0.2.1/32"}}],"ports":[{"protocol":"TCP","port":8443}]}]`)
	got := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")[name]
	if len(got.Spec.Egress) != 2 || got.Spec.Egress[1].To[0].IPBlock.CIDR != "192.0.2.1/32" {
		t.Errorf("%+v", got.Spec.Egress)
	}
	if diff := cmp.Diff(usual.Spec.Egress, got.Spec.Egress[:1]); diff != "" {
		t.Errorf("way to the API server (-usual +now):\n%s", diff)
	}
	accept(t, all)
}
