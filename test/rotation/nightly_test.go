//go:build nightly

package rotation

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	certificates "k8s.io/client-go/util/certificate"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// TestOlderClusterTrustBundles uses an API server that serves only an older version, and then one that is down.
func TestOlderClusterTrustBundles(t *testing.T) {
	kit.Parallel(t)
	version := map[string]string{"v1": "v1beta1", "": "v1alpha1"}[kit.BundlesByDefault(t)] // v1alpha1 was removed in 1.37
	kit.WithAPIServer(t, nil, func(_ string, args *envtest.Arguments) {
		args.Set("feature-gates", "ClusterTrustBundle=true,ClusterTrustBundleProjection=true")
		const group = "certificates.k8s.io/"
		args.Set("runtime-config", group+"v1=false,"+group+"v1beta1=false,"+group+"v1alpha1=false,"+group+version+"=true")
	})
	p := publisher(t, kit.ControlPlane(t).Config)
	wanted := publish.Wanted{Bundle: kit.NewCA(t).CertPEM, Suffix: "csr-signer", Signers: []string{userSigner}}
	wantProblems(t, "published", publishOnce(t, p, wanted))
	spoil(t, wantBundle(t, version, trust.BundleName(userSigner, "csr-signer"), userSigner, wanted.Bundle))
	wantProblems(t, "spoilt", unpublished(t, p, wanted), "is not up to date")
	wantProblems(t, "put right", publishOnce(t, p, wanted))
	kit.NoError(t, kit.ControlPlane(t).Env.ControlPlane.GetAPIServer().Stop())
	wantProblems(t, "nobody answers", unpublished(t, p, wanted), "ClusterTrustBundles can't be discovered")
}

// TestRootAboveIsNamed checks that the completion is refused while an API server trusts a CA above the retiring one,
// because the completion would never end.
func TestRootAboveIsNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	root := kit.IntermediateOf(t, kit.NewCA(t)) // it may have CAs below it
	first, second := kit.IntermediateOf(t, root), kit.IntermediateOf(t, root)
	kit.NoError(t, r.trust(string(root.CertPEM)))
	const name = "below"
	r.run(t, r.signing(t, name, 10*time.Minute))
	r.bring(t, name, first)
	r.authority(t, name, name, published(name))
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.does(t, name, v1alpha1.OperationAttest)
	before := r.user(t, "before", r.get(t, name).Status.Signing)
	r.edit(t, name, second.CertPEM, second.KeyPEM)
	remove := fmt.Sprintf("remove %q from", kit.Certificate(t, root).Subject)
	named := func(s *v1alpha1.SigningAuthorityStatus) bool {
		return strings.Contains(strings.Join(s.WaitingFor, "\n"), remove)
	}
	r.reaches(t, name, v1alpha1.Prepared, named)
	r.does(t, name, v1alpha1.OperationAccept)
	r.does(t, name, v1alpha1.OperationComplete)
	r.hasEvent(t, name, "RotationRefused", remove)
	r.isTakenFor(t, before, "before")

	// Its owner removes it from both.
	r.feed(t)
	r.reaches(t, name, v1alpha1.Prepared, named) // it stays in the ConfigMap
	kit.Eventually(t, "the API server trusts the bundle, and not the root", func(context.Context) error {
		return publisher(t, r.Config).Prune(t.Context(), kit.Certificate(t, root))
	})
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Retiring == nil })
	r.isTakenFor(t, before, "")
}

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
	user := kit.Must(r.Env.AddUser(envtest.User{Name: "system:csr-controller-manager"}, nil))(t)
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
			return kit.OrError(strings.Contains(pod.Output(t)[before:], right), "%q is not in the log", right)
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
		changed := kit.Must(runtime.DefaultUnstructuredConverter.ToUnstructured(role))(t)
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
	for _, m := range managers { // only then each has made all of its calls
		m.Answers(t, m.Probes, "/readyz", 200)
	}
	wereAllowed(t, managers...)
	const first = "list certificatesigningrequests.certificates.k8s.io"
	loses("one right", first)
	kit.HasEvent(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, "RightsMissing", "missing rights: "+first+": ")

	// Every ServiceAccount may read ClusterTrustBundles if Kubernetes serves them. Without reviews, nobody can read secure metrics.
	lasting := regexp.MustCompile(`^(get|list) clustertrustbundles\.|^create (token|subjectaccess)reviews`)
	all, groups := sets.Set[string]{}, map[string][]string{}
	for _, rules := range roles {
		all = all.Union(sets.KeySet(rules))
	}
	for i, right := range sets.List(all) {
		name := fmt.Sprintf("every second right from number %d", i%2)
		if os.Getenv("EVERY_VERB") != "" {
			name = right
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

const (
	// fleetSize is the number of certificate managers.
	fleetSize = 200
	// A member renews when 70 to 90 % of fleetLifetime and of the five minutes before it have passed: 0 to 86 s after
	// the issuance.
	fleetLifetime = ca.ShortestLifetime + time.Second
	allRenewed    = 90*time.Second + kit.Patience
	joined        = 2 * kit.Patience
	// perSecond is how often all members call the API server, each time over a new connection.
	perSecond = 20
	// step is the time by which the rotation's clock is advanced once all members have moved, so that certificates of
	// the old CA expire sooner. It is less than the five minutes by which certificates are backdated.
	step = 4 * time.Minute
)

// fleet simulates the certificates of many kubelets.
type fleet struct {
	*rotating
	members         []*member
	refused, failed atomic.Int64
}

type member struct {
	name    string
	manager certificates.Manager
	known   atomic.Int64 // how often the API server accepted its certificate
}

// TestFleet has client-go's certificate managers that call the API server while the certificate of its client CA is renewed, and
// then while the CA is replaced, until no certificate of the old CA is left.
func TestFleet(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	stolen := signedBy(t, kit.Load(t, r.CA), pkix.Name{CommonName: "stolen"}, time.Hour)
	r.bring(t, "signing-ca", r.CA)
	f, ahead := r.joinFleet(t)
	r.isTakenFor(t, stolen, "stolen")
	renewed := f.renew(t)
	certs := kit.Must(ca.ParseCertificates([]byte(r.bundle(t, published("cluster")))))(t)
	kit.Check(t, len(certs) == 2 && trust.SameCA(certs[0], certs[1]), "%d certificates are published", len(certs))

	began := time.Now()
	r.ask(t, "cluster", v1alpha1.OperationStart)
	prepared := r.reaches(t, "cluster", v1alpha1.Prepared, nil)
	t.Logf("the new CA signs %s after start", time.Since(began).Round(time.Second))
	f.allBy(t, prepared.Signing, allRenewed)
	t.Logf("all %d have moved %s after start", fleetSize, time.Since(began).Round(time.Second))
	ahead.Set(step)
	f.complete(t)
	t.Logf("the old CA is gone %s after start", time.Since(began).Round(time.Second))

	f.eachKnown(t)
	r.isTakenFor(t, stolen, "")
	_, held, err := publisher(t, r.Config).ClientCAs(t.Context())
	left := slices.ContainsFunc(slices.Concat(held, kit.Must(ca.ParseCertificates([]byte(r.bundle(t, published("cluster")))))(t)), func(one *x509.Certificate) bool {
		return ca.KeyID(one.RawSubjectPublicKeyInfo) == renewed.KeyID
	})
	kit.Check(t, err == nil && !left, "a certificate of the old CA is still published, error %v", err)
	f.wasNeverRefused(t)
}

// TestFleetOutlivesACertificate renews the certificate of a CA that ends minutes later, and waits until it has ended.
func TestFleetOutlivesACertificate(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	old := kit.IssueCA(t, "growing old", kit.NewKey(t), nil, 6*time.Minute)
	r.bringSigning(t, "signing-ca", "cluster", old)
	f, _ := r.joinFleet(t)
	f.renew(t)
	time.Sleep(time.Until(old.Cert.NotAfter) + time.Second)
	for _, m := range f.members {
		end := m.manager.Current().Leaf.NotAfter
		kit.Check(t, end.After(old.Cert.NotAfter), "%s has a certificate until %s", m.name, end)
	}
	f.eachKnown(t)
	kit.Eventually(t, "the old certificate is not published any more", func(context.Context) error {
		bundle, status := r.bundle(t, published("cluster")), r.get(t, "cluster").Status
		return kit.OrError(bundle == status.Signing.Certificate && len(status.Signing.Earlier) == 0, "%s", bundle)
	})
	f.wasNeverRefused(t)
}

// joinFleet starts a fleet with certificates of the CA in the Secret signing-ca. The clock is that of the rotation.
func (r *rotating) joinFleet(t *testing.T) (*fleet, *kit.AheadClock) {
	t.Helper()
	r.feed(t)
	options, ahead := r.signing(t, "signing-ca", fleetLifetime), &kit.AheadClock{}
	options.Approver = &approver.Reconciler{Judges: map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{}}}
	options.Signer.Signers[kubeletSigner] = options.Signer.Signers[userSigner]
	options.Rotation.Clock = ahead
	r.run(t, options)
	r.authority(t, "cluster", "signing-ca", published("cluster"))
	adopted := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	f := r.startFleet(t)
	f.allBy(t, adopted.Signing, joined)
	f.eachKnown(t)
	return f, ahead
}

// renew renews the certificate of the CA, and returns the CA.
func (f *fleet) renew(t *testing.T) *v1alpha1.CAStatus {
	t.Helper()
	began, old := time.Now(), f.get(t, "cluster").Status.Signing
	f.ask(t, "cluster", v1alpha1.OperationRenewCertificate)
	renewed := f.reaches(t, "cluster", v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return !v1alpha1.SameCA(s.Signing, old) }).Signing
	kit.Check(t, renewed.KeyID == old.KeyID && renewed.NotAfter.After(old.NotAfter.Time), "it is %+v", renewed)
	t.Logf("the renewed certificate signs %s after renew-certificate", time.Since(began).Round(time.Second))
	f.eachKnown(t)
	return renewed
}

// wasNeverRefused checks that the API server has answered and known each member each time.
func (f *fleet) wasNeverRefused(t *testing.T) {
	t.Helper()
	if refused, failed := f.refused.Load(), f.failed.Load(); refused > 0 || failed > 0 {
		t.Errorf("the API server did not know a member %d times, and did not answer one %d times", refused, failed)
	}
	known := int64(0)
	for _, m := range f.members {
		known += m.known.Load()
	}
	t.Logf("the API server knew the members %d times", known)
}

// complete completes the rotation once the ledger has no valid certificate of the old CA.
func (f *fleet) complete(t *testing.T) {
	t.Helper()
	f.does(t, "cluster", v1alpha1.OperationAttest)
	kit.Within(t, 2*kit.Patience, "nothing is outstanding", func(context.Context) error {
		if obj := f.get(t, "cluster"); len(obj.Status.Outstanding) > 0 {
			return fmt.Errorf("there is %+v", obj.Status.Outstanding)
		}
		return nil
	})
	f.completes(t, "cluster")
	f.reaches(t, "cluster", v1alpha1.Completed, nil)
}

// startFleet joins the members with a token. They call the API server until the test ends.
func (r *rotating) startFleet(t *testing.T) *fleet {
	t.Helper()
	kit.GrantJoining(t, "joiner")
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	f := &fleet{rotating: r}
	ctx, stop := context.WithCancel(t.Context())
	var talking sync.WaitGroup
	t.Cleanup(func() {
		stop()
		talking.Wait()
	})
	for i := range fleetSize {
		name := fmt.Sprintf("fleet-%03d", i)
		dir := filepath.Join(r.Dir, name) // not the test's own, as a manager does not say when it has stopped
		kit.NoError(t, os.Mkdir(dir, 0o700))
		node := kubelet.Node{Name: name, Dir: dir, Bootstrap: kit.TokenConfig(t, "joiner")}
		manager := node.Rotation(ctx, t)
		manager.Start()
		f.members = append(f.members, &member{name: node.User(), manager: manager})
	}
	for _, m := range f.members {
		talking.Go(func() { f.talk(ctx, t, m) })
	}
	return f
}

// talk calls WhoAmI as m repeatedly, each time over a new connection.
func (f *fleet) talk(ctx context.Context, t *testing.T, m *member) {
	ticker := time.NewTicker(time.Duration(len(f.members)) * time.Second / perSecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		current := m.manager.Current()
		if current == nil {
			continue // it has not joined yet
		}
		switch user, err := kit.WhoIs(ctx, f.Config, current); {
		case ctx.Err() != nil:
		case err == nil && user == m.name:
			m.known.Add(1)
		case err == nil || apierrors.IsUnauthorized(err):
			f.refused.Add(1)
			t.Logf("the API server takes %s for %q, error %v; its certificate is of %q and ends at %s", m.name, user, err, current.Leaf.Issuer, current.Leaf.NotAfter)
		default:
			f.failed.Add(1)
			t.Logf("%s has no answer: %v", m.name, err)
		}
	}
}

// eachKnown waits until the API server has accepted each member once more.
func (f *fleet) eachKnown(t *testing.T) {
	t.Helper()
	before := map[*member]int64{}
	for _, m := range f.members {
		before[m] = m.known.Load()
	}
	for _, m := range f.members {
		kit.Within(t, 2*kit.Patience, m.name+" is known", func(context.Context) error {
			return kit.OrError(m.known.Load() != before[m], "%d times so far", before[m])
		})
	}
}

// allBy waits until each member has a certificate of one.
func (f *fleet) allBy(t *testing.T, one *v1alpha1.CAStatus, bound time.Duration) {
	t.Helper()
	certs := kit.Must(ca.ParseCertificates([]byte(one.Certificate)))(t)
	end := time.Now().Add(bound)
	for _, m := range f.members {
		kit.Within(t, time.Until(end), m.name+" has a certificate by "+one.KeyID, func(context.Context) error {
			current := m.manager.Current()
			if current == nil {
				return errors.New("it has none")
			}
			return current.Leaf.CheckSignatureFrom(certs[0])
		})
	}
}
