package rotation

import (
	"context"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// rotating is a control plane whose API server trusts only the published CAs and its administrator's CA.
type rotating struct {
	*cluster.Cluster
	admin client.WithWatch
	// users is the administrator's CA in the API server's client CA file.
	users []byte
}

// published returns the place where the bundle of an authority is published.
func published(authority string) v1alpha1.ConfigMapKey {
	return v1alpha1.ConfigMapKey{Namespace: metav1.NamespaceSystem, Name: authority + publishedSuffix, Key: "ca.crt"}
}

const publishedSuffix = "-client-ca"

// startRotating installs a CA in the Secret signing-ca that the API server trusts.
func startRotating(t *testing.T) *rotating {
	t.Helper()
	p := kit.PlaneOf(t)
	r := &rotating{Cluster: p.Cluster, admin: p.Admin}
	all, err := os.ReadFile(r.ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(all)
	r.users = pem.EncodeToMemory(block)
	r.bring(t, "signing-ca", p.CA)
	return r
}

// feed copies everything that authorities publish to the API server's client CA file, until stop is called or the
// test ends.
func (r *rotating) feed(t *testing.T) (stop func()) {
	t.Helper()
	watching, err := r.admin.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(metav1.NamespaceSystem))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		bundles := map[string]string{}
		for event := range watching.ResultChan() {
			obj, ok := event.Object.(*corev1.ConfigMap)
			if !ok || event.Type == watch.Deleted || !strings.HasSuffix(obj.Name, publishedSuffix) || obj.Data["ca.crt"] == "" {
				continue
			}
			bundles[obj.Name] = obj.Data["ca.crt"]
			if err := r.trust([]byte(strings.Join(slices.Collect(maps.Values(bundles)), ""))); err != nil {
				t.Error(err)
			}
		}
	}()
	stop = func() { watching.Stop(); <-ended }
	t.Cleanup(stop)
	return stop
}

// trust makes the API server trust the administrator's CA and bundle.
func (r *rotating) trust(bundle []byte) error {
	return r.TrustClients(slices.Concat(r.users, bundle))
}

// bring creates the Secret of an authority, with a CA to adopt.
func (r *rotating) bring(t *testing.T, secret string, brought *csrenv.CA) {
	t.Helper()
	r.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: secret}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": brought.CertPEM, "tls.key": brought.KeyPEM},
	})
}

// authority creates an authority whose API server is r's.
func (r *rotating) authority(t *testing.T, name, secret string, change func(*v1alpha1.SigningAuthoritySpec)) {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:  v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: secret},
			Signers: []string{"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet"},
			Trust:   v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{published(name)}},
			Verification: v1alpha1.Verification{
				APIServers: []string{strings.Trim(strings.TrimPrefix(r.Config.Host, "https://"), "/")},
				ServerName: "localhost",
				SettleFor:  &metav1.Duration{Duration: time.Second},
			},
		},
	}
	if change != nil {
		change(&obj.Spec)
	}
	r.grantSecret(t, secret)
	for _, at := range obj.Spec.Trust.ConfigMaps {
		r.grantConfigMap(t, at)
	}
	r.create(t, obj)
}

// managerConfig is the function of that name for r, with the roles of config/rotation.
func (r *rotating) managerConfig(t *testing.T) *rest.Config {
	t.Helper()
	return kit.ManagerConfigOn(t, r.Config, r.admin, true)
}

// grantSecret grants the manager what it needs for a CA in the Secret called name.
func (r *rotating) grantSecret(t *testing.T, name string) {
	t.Helper()
	kit.CreateMissing(t, r.admin, kit.RolesForSecret(t, name, kit.ManagerAccount))
}

// grantConfigMap grants the manager what it needs to publish a trust bundle, with copies of the shipped roles.
func (r *rotating) grantConfigMap(t *testing.T, at v1alpha1.ConfigMapKey) {
	t.Helper()
	roles := kit.Renamed(t, kit.Rendered(t, "rotation/published"), "csr-trust", at.Name)
	for _, obj := range roles {
		obj.SetNamespace(at.Namespace)
	}
	kit.CreateMissing(t, r.admin, roles)
}

// create creates obj, which is removed with the control plane.
func (r *rotating) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := r.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func (r *rotating) get(t *testing.T, name string) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	if err := r.admin.Get(t.Context(), client.ObjectKey{Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// ask requests operation.
func (r *rotating) ask(t *testing.T, name string, operation v1alpha1.Operation) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.OperationAnnotation, operation)
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := r.admin.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

// does requests operation, and waits until the manager has accepted it and reconciled again. Before that, the same
// operation would not count as a new one.
func (r *rotating) does(t *testing.T, name string, operation v1alpha1.Operation) {
	t.Helper()
	r.ask(t, name, operation)
	kit.Eventually(t, fmt.Sprintf("%s of %s is taken", operation, name), func(context.Context) error {
		obj := r.get(t, name)
		if left := obj.Annotations[v1alpha1.OperationAnnotation]; left != "" || obj.Status.Answered() {
			return fmt.Errorf("%q is there, and the last one is %+v", left, obj.Status.LastOperation)
		}
		return nil
	})
}

// reaches waits until the authority is in phase, without an operation.
func (r *rotating) reaches(t *testing.T, name string, phase v1alpha1.Phase, also func(*v1alpha1.SigningAuthority) bool) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	kit.Within(t, kit.Patience+books.QuietAfter, fmt.Sprintf("%s is %s", name, phase), func(ctx context.Context) error {
		if err := r.admin.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
			return fmt.Errorf("%w; before: %+v", err, obj.Status)
		}
		if obj.Status.Phase != phase || obj.Annotations[v1alpha1.OperationAnnotation] != "" || also != nil && !also(obj) {
			return fmt.Errorf("it is %q, with operation %q, and waits for %q: %+v", obj.Status.Phase, obj.Annotations[v1alpha1.OperationAnnotation], obj.Status.WaitingFor, obj.Status.Conditions)
		}
		return nil
	})
	return obj
}

// waitsFor checks that the authority in phase waits for all parts.
func (r *rotating) waitsFor(t *testing.T, name string, phase v1alpha1.Phase, parts ...string) *v1alpha1.SigningAuthority {
	t.Helper()
	return r.reaches(t, name, phase, func(obj *v1alpha1.SigningAuthority) bool {
		waiting := strings.Join(obj.Status.WaitingFor, "\n")
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(waiting, part) })
	})
}

// bundle returns the published bundle of the authority.
func (r *rotating) bundle(t *testing.T, name string) []byte {
	t.Helper()
	obj, at := &corev1.ConfigMap{}, published(name)
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: at.Namespace, Name: at.Name}, obj); err != nil {
		t.Fatal(err)
	}
	return []byte(obj.Data[at.Key])
}

// tells waits for an Event about the authority.
func (r *rotating) tells(t *testing.T, name, reason, part string) {
	t.Helper()
	authority := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	kit.AnEvent(t, authority, reason, func(event *eventsv1.Event) bool {
		return event.Regarding.Kind == "SigningAuthority" && strings.Contains(event.Note, part)
	})
}
