package rotation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// afterLoss is how long after its loss a right is reported, if the manager checks its rights every two seconds. By default
// it checks them every hour: TestSelfCheckTimes in controllers.
const afterLoss = time.Minute

// splitConfig switches on each controller and source that a role in testdata/every-role is for.
const splitConfig = `signing: {createIfMissing: true}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: cluster-api, clusterName: lab}
nodeBlockList: ` + kit.BlockListName + `
rotation: {enabled: true}
`

// TestLostRightsAreNamed runs the four managers of config/overlays/split, each with the flags of its Deployment, a token of
// its ServiceAccount, and every role that it can have. The rights must be enough for a rotation. Then the managers lose
// their rights in the cluster, and those in namespaces next. Metrics, readiness and an Event must name exactly what is
// missing. TestRightsAreWhatIsGranted in controllers checks that the roles grant what the self-check asks for.
func TestLostRightsAreNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	shipped := kit.CreateMissing(t, r.admin, kit.Rendered(t, "../test/rotation/testdata/every-role"))
	r.bring(t, "csr-signer", r.CA)
	kit.BlockList(t, "")
	kit.NewNamespace(t, "kube-node-lease")
	kit.InstallKind(t, kit.ClusterAPI)
	file := kit.Configure(t, splitConfig)
	var bindings []*unstructured.Unstructured
	var managers []*deployed
	for _, obj := range shipped {
		switch {
		case kit.IsBinding(obj):
			bindings = append(bindings, obj)
		case obj.GetKind() == "Deployment":
			managers = append(managers, deploy(t, obj, file))
		}
	}
	if len(managers) != 4 {
		t.Fatalf("there are %d Deployments", len(managers))
	}
	r.rotates(t)
	all := func(missing bool) {
		for _, m := range managers {
			m.shows(t, missing)
		}
	}
	all(false)
	for _, m := range managers {
		if strings.Contains(m.Output(t), " is forbidden: ") {
			t.Errorf("%s: calls were refused with all roles", m.name)
		}
	}
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		var giveBack []func()
		for _, binding := range bindings {
			if binding.GetKind() == kind {
				giveBack = append(giveBack, kit.TakeRole(t, binding))
			}
		}
		all(true)
		for _, give := range giveBack {
			give()
		}
		all(false)
	}
	kit.HasEvent(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: kit.SystemNamespace}}, "RightsMissing", "missing rights: ")
	r.losesTrust(t)
}

var splitTrust = v1alpha1.ConfigMapKey{Namespace: kit.SystemNamespace, Name: "csr-trust", Key: "ca.crt"}

// rotates adopts the CA of the control plane, and goes through a rotation.
func (r *rotating) rotates(t *testing.T) {
	t.Helper()
	const name = "cluster"
	r.authority(t, name, "csr-signer", splitTrust)
	old := r.reaches(t, name, v1alpha1.Completed, nil).Signing
	r.user(t, "before", old)
	r.does(t, name, v1alpha1.OperationAttest)
	r.ask(t, name, v1alpha1.OperationStart)
	trustPublished := func(count int) {
		kit.Eventually(t, "the bundle is published", func(context.Context) error {
			bundle := r.bundle(t, splitTrust)
			if strings.Count(bundle, "BEGIN CERTIFICATE") != count {
				return errors.New(bundle)
			}
			return r.trust(bundle)
		})
	}
	trustPublished(2)
	after := r.user(t, "after", r.reaches(t, name, v1alpha1.Prepared, nil).Signing)
	r.does(t, name, v1alpha1.OperationComplete)
	r.tells(t, name, "RotationRefused", "certificates of kubernetes.io/kube-apiserver-client from the CA "+old.KeyID+" are valid until") // by the ledger
	r.does(t, name, v1alpha1.OperationAccept)
	r.completes(t, name)
	trustPublished(1)
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.isTakenFor(t, after, "after")
	if strings.Contains(string(r.secret(t, "csr-signer").Data["tls.key"]), string(r.CA.KeyPEM)) {
		t.Error("the Secret still holds the old key")
	}
}

// deployed is the running manager of a Deployment.
type deployed struct {
	*kit.Process
	name string
	// asked are the rights that its self-check asks for, and reviews asks the API server for them as its ServiceAccount.
	asked   []check.Right
	reviews reviewsv1.SelfSubjectAccessReviewInterface
}

// deploy runs the manager of a Deployment, with another configuration.
func deploy(t *testing.T, obj *unstructured.Unstructured, file string) *deployed {
	t.Helper()
	deployment := &appsv1.Deployment{}
	kit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, deployment))
	pod := deployment.Spec.Template.Spec
	// Without the right to update its Lease, the manager keeps it until the test has seen the loss.
	args := append(pod.Containers[0].Args, file, "--self-check-interval=2s", "--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s")
	c, err := config.Load(slices.Concat(kit.StandardArgs, args))
	kit.NoError(t, err)
	cfg := kit.TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: pod.ServiceAccountName}})
	as, err := reviewsv1.NewForConfig(cfg)
	kit.NoError(t, err)
	d := &deployed{name: obj.GetName(), asked: controllers.Rights(c, kit.SystemNamespace), reviews: as.SelfSubjectAccessReviews()}
	kit.Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		if results := check.Rights(ctx, d.reviews, d.asked); check.Worst(results) != check.OK {
			return fmt.Errorf("%+v", results)
		}
		return nil
	})
	d.Process = kit.StartNamed(t, d.name, cfg, args...)
	return d
}

// shows waits until metrics and readiness name exactly the rights that the API server denies.
func (d *deployed) shows(t *testing.T, missing bool) {
	t.Helper()
	kit.Within(t, afterLoss, d.name+" names what it lacks", func(ctx context.Context) error {
		status, text := cluster.Get(ctx, d.Probes, "/readyz/own-rights")
		if (status == http.StatusOK) == missing { // first, as it costs less than what follows
			return fmt.Errorf("readiness: %d %s", status, text)
		}
		denied, shown := map[string]int{}, map[string]int{}
		for i, result := range check.Rights(ctx, d.reviews, d.asked) {
			if right := d.asked[i]; result.Status != check.OK {
				denied[fmt.Sprintf("csr_check_missing_rights{resource=%q,verb=%q}", right.GroupResource(), right.Verb)]++
				if !right.Optional && !strings.Contains(text, right.String()) && len(text) < 500 { // a longer text is cut
					return fmt.Errorf("%q is not in: %s", right, text)
				}
			}
		}
		_, page := cluster.Get(ctx, d.Metrics, "/metrics")
		for line := range strings.Lines(page) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.Atoi(value); err == nil && n > 0 && strings.HasPrefix(name, "csr_check_missing_rights{") {
				shown[name] = n
			}
		}
		if diff := cmp.Diff(denied, shown); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// losesTrust takes the rights on the ConfigMap of the trust bundle. The self-check doesn't ask for them, because only a
// SigningAuthority names the ConfigMap. The condition Published must name the verb, the ConfigMap and what to grant.
func (r *rotating) losesTrust(t *testing.T) {
	t.Helper()
	role := &rbacv1.Role{}
	kit.NoError(t, r.admin.Get(t.Context(), client.ObjectKey{Namespace: splitTrust.Namespace, Name: "csr-trust"}, role))
	all := role.Rules[0].Verbs
	for _, verb := range []string{"get", "patch"} {
		role.Rules[0].Verbs = slices.DeleteFunc(slices.Clone(all), func(each string) bool { return each == verb })
		kit.Update(t, role)
		if verb == "patch" { // each reconcile reads the ConfigMap, and writes it only if it differs
			obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: splitTrust.Namespace, Name: splitTrust.Name}}
			kit.NoError(t, r.admin.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(`{"data":{"ca.crt":""}}`))))
		}
		r.publishes(t, metav1.ConditionFalse, fmt.Sprintf("cannot %s resource \"configmaps\"", verb),
			"ConfigMap "+kit.SystemNamespace+"/csr-trust can't be brought up to date: grant the manager get, create and patch on configmaps csr-trust")
		role.Rules[0].Verbs = all
		kit.Update(t, role)
		r.publishes(t, metav1.ConditionTrue)
	}
}

// publishes waits until the condition Published has status and contains each of parts.
func (r *rotating) publishes(t *testing.T, status metav1.ConditionStatus, parts ...string) {
	t.Helper()
	kit.Within(t, afterLoss, "Published is "+string(status), func(context.Context) error {
		found := meta.FindStatusCondition(r.get(t, "cluster").Status.Conditions, v1alpha1.ConditionPublished)
		if found == nil || found.Status != status || slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(found.Message, part) }) {
			return fmt.Errorf("it is %+v, want %q", found, parts)
		}
		return nil
	})
}
