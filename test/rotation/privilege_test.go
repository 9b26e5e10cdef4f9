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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// afterLoss is how long after its loss a right is reported, if the manager checks its rights every two seconds. By default
// it checks them every hour: TestSelfCheckRepeats in controllers.
const afterLoss = time.Minute

// splitConfig switches on each controller and source that a role in testdata/every-role is for.
const splitConfig = `signing: {createIfMissing: true}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: cluster-api, clusterName: lab}
nodeBlockList: ` + kit.BlockListName + `
rotation: {enabled: true}
`

// TestLostRightsAreNamed runs the managers of startSplit. The rights must be enough for a rotation. Then the managers lose
// their rights in the cluster, and those in namespaces next. Metrics, readiness and an Event must name exactly what is
// missing. TestRightsAreWhatIsGranted in controllers checks that the roles grant what the self-check asks for.
func TestLostRightsAreNamed(t *testing.T) {
	kit.Parallel(t)
	r, shipped, managers := startSplit(t)
	r.rotates(t)
	all := func(missing bool) {
		for _, m := range managers {
			m.shows(t, missing)
		}
	}
	all(false)
	wereAllowed(t, managers...)
	for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
		var giveBack []func()
		for _, binding := range shipped {
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

// startSplit runs the four managers of config/overlays/split, each with the flags of its Deployment, a token of its
// ServiceAccount, and every role that it can have. It returns the objects that were made.
func startSplit(t *testing.T) (r *rotating, shipped []*unstructured.Unstructured, managers []*deployed) {
	t.Helper()
	r = startRotating(t)
	shipped = kit.CreateMissing(t, r.admin, kit.Rendered(t, "../test/rotation/testdata/every-role"))
	r.bring(t, "csr-signer", r.CA)
	kit.BlockList(t, "")
	kit.NewNamespace(t, "kube-node-lease")
	kit.InstallKind(t, kit.ClusterAPI)
	file := kit.Configure(t, splitConfig)
	for _, obj := range shipped {
		if obj.GetKind() == "Deployment" {
			deployment := &appsv1.Deployment{}
			kit.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, deployment))
			pod := deployment.Spec.Template.Spec
			cfg := kit.TokenOf(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: pod.ServiceAccountName}})
			managers = append(managers, deploy(t, obj.GetName(), cfg, append(pod.Containers[0].Args, file)...))
		}
	}
	kit.Require(t, len(managers) == 4, "there are %d Deployments", len(managers))
	return r, shipped, managers
}

var splitTrust = v1alpha1.TrustEntry{Namespace: kit.SystemNamespace, Name: "csr-trust", Key: "ca.crt"}

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
		kit.Within(t, kit.Patience+books.QuietAfter, "the bundle is published", func(context.Context) error {
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
	r.hasEvent(t, name, "RotationRefused", "certificates of kubernetes.io/kube-apiserver-client from the CA "+old.KeyID+" are valid until") // by the ledger
	r.does(t, name, v1alpha1.OperationAccept)
	r.completes(t, name)
	trustPublished(1)
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.isTakenFor(t, after, "after")
	kit.Check(t, !strings.Contains(string(r.secret(t, "csr-signer").Data["tls.key"]), string(r.CA.KeyPEM)),
		"the Secret still holds the old key")
}

// deployed is a running manager.
type deployed struct {
	*kit.Process
	name string
	// asked are the rights that its self-check asks for, and reviews asks the API server for them as its user.
	asked   []check.Right
	reviews reviewsv1.SelfSubjectAccessReviewInterface
	// get reads the page with its metrics.
	get func(ctx context.Context, address, path string) (int, string)
}

// deploy runs a manager as cfg's user, once its roles are in effect.
func deploy(t *testing.T, name string, cfg *rest.Config, args ...string) *deployed {
	t.Helper()
	// Without the right to update its Lease, the manager keeps it until the test has seen the loss.
	args = append(args, "--self-check-interval=2s", "--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s")
	c := kit.Must(config.Load(slices.Concat(kit.StandardArgs, args), cel.New))(t)
	asking := rest.CopyConfig(cfg)
	asking.QPS = -1
	as := kit.Must(reviewsv1.NewForConfig(asking))(t)
	d := &deployed{name: name, asked: kit.Rights(c), reviews: as.SelfSubjectAccessReviews(), get: cluster.Get}
	kit.Eventually(t, "the roles are in effect", func(ctx context.Context) error {
		if results := check.Rights(ctx, d.reviews, d.asked); check.Worst(results) != check.OK {
			return fmt.Errorf("%+v", results)
		}
		return nil
	})
	d.Process = kit.StartNamed(t, name, cfg, args...)
	return d
}

// wereAllowed checks that the API server has refused no call of managers.
func wereAllowed(t *testing.T, managers ...*deployed) {
	t.Helper()
	for _, m := range managers {
		kit.Check(t, !strings.Contains(m.Output(t), " is forbidden: "), "%s: calls were refused with all roles", m.name)
	}
}

// shows waits until the API server denies rights or none, among them those in taken, and until metrics and readiness name
// exactly what it denies.
func (d *deployed) shows(t *testing.T, missing bool, taken ...string) {
	t.Helper()
	kit.Within(t, afterLoss, fmt.Sprintf("%s names what it lacks without %q", d.name, taken), func(ctx context.Context) error {
		// First what costs less: each review is a call. A probe's text is cut after 512 bytes.
		status, text := cluster.Get(ctx, d.Probes, "/readyz/own-rights")
		named := func(right check.Right) bool {
			return right.Optional || strings.Contains(text, right.String()) || len(text) > 500
		}
		for _, right := range d.asked {
			if slices.Contains(taken, right.String()) && !named(right) || !missing && status != http.StatusOK {
				return fmt.Errorf("want %s: %d %s", right, status, text)
			}
		}
		denied, shown, failed := map[string]int{}, map[string]int{}, map[string]bool{}
		for i, result := range check.Rights(ctx, d.reviews, d.asked) {
			right := d.asked[i]
			switch {
			case result.Status == check.OK && slices.Contains(taken, right.String()):
				return fmt.Errorf("the API server still allows %s", right)
			case result.Status != check.OK && !named(right):
				return fmt.Errorf("%q is not in: %s", right, text)
			case result.Status != check.OK:
				denied[fmt.Sprintf("csr_check_missing_rights{cluster=\"\",resource=%q,verb=%q}", right.GroupResource(), right.Verb)]++
				failed[result.Check] = true
			}
		}
		if (len(denied) > 0) != missing || (status == http.StatusOK) == failed[check.OwnRights] {
			return fmt.Errorf("denied are %v, readiness: %d %s", denied, status, text)
		}
		_, page := d.get(ctx, d.Metrics, "/metrics")
		for line := range strings.Lines(page) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if n, err := strconv.Atoi(value); err == nil && n > 0 && strings.HasPrefix(name, "csr_check_missing_rights{") {
				shown[name] = n
			}
		}
		for _, name := range []string{check.OwnRights, check.OptionalRights} {
			if is := strings.Contains(page, fmt.Sprintf("csr_check_result{check=%q,result=\"failed\"} 1", name)); is != failed[name] {
				return fmt.Errorf("%s failed: %t, want %t", name, is, failed[name])
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
	role := kit.Get(t, splitTrust.Namespace, "csr-trust", &rbacv1.Role{})
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
