// Package rotation tests the rotation of signing CAs, on a real control plane.
package rotation

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

func TestMain(m *testing.M) { kit.Main(m, 3, "../../config/crd") }

const (
	userSigner    = "kubernetes.io/kube-apiserver-client"
	kubeletSigner = "kubernetes.io/kube-apiserver-client-kubelet"
)

// rotating is a control plane whose API server trusts only the published CAs and its administrator's CA.
type rotating struct {
	*cluster.Cluster
	admin client.WithWatch
	// users is the administrator's CA in the API server's client CA file.
	users []byte
}

func published(authority string) v1alpha1.TrustEntry {
	return v1alpha1.TrustEntry{Namespace: metav1.NamespaceSystem, Name: authority + publishedSuffix, Key: "ca.crt"}
}

const publishedSuffix = "-client-ca"

func startRotating(t *testing.T) *rotating {
	t.Helper()
	p := kit.PlaneOf(t)
	all := kit.Must(os.ReadFile(p.ClientCAFile()))(t)
	block, _ := pem.Decode(all)
	return &rotating{Cluster: p.Cluster, admin: p.Admin, users: pem.EncodeToMemory(block)}
}

// feed copies everything that authorities publish to the API server's client CA file, until stop is called or the
// test ends.
func (r *rotating) feed(t *testing.T) (stop func()) {
	t.Helper()
	watching := kit.Must(r.admin.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(metav1.NamespaceSystem)))(t)
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
			if err := r.trust(strings.Join(slices.Collect(maps.Values(bundles)), "")); err != nil {
				t.Error(err)
			}
		}
	}()
	stop = func() { watching.Stop(); <-ended }
	t.Cleanup(stop)
	return stop
}

func (r *rotating) trust(bundle string) error {
	return r.TrustClients(slices.Concat(r.users, []byte(bundle)))
}

// bring creates the Secret of an authority, with a CA to adopt.
func (r *rotating) bring(t *testing.T, secret string, brought *csrenv.CA) {
	t.Helper()
	obj := kit.SigningSecret(brought.CertPEM, brought.KeyPEM)
	obj.Name = secret
	kit.NoError(t, r.admin.Create(t.Context(), obj))
}

// authority creates an authority whose API server is r's, and grants the manager its rights.
func (r *rotating) authority(t *testing.T, name, secret string, at v1alpha1.TrustEntry, servers ...string) {
	t.Helper()
	if len(servers) == 0 {
		servers = []string{strings.Trim(strings.TrimPrefix(r.Config.Host, "https://"), "/")}
	}
	r.grantSecret(t, secret)
	roles := kit.Renamed(t, kit.Rendered(t, "rotation/published"), "csr-trust", at.Name)
	for _, obj := range roles {
		obj.SetNamespace(at.Namespace)
	}
	kit.CreateMissing(t, r.admin, roles)
	kit.NoError(t, r.admin.Create(t.Context(), &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:       v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: secret},
			Signers:      []string{userSigner, kubeletSigner},
			Trust:        v1alpha1.Trust{ConfigMaps: []v1alpha1.TrustEntry{at}},
			Verification: v1alpha1.Verification{APIServers: servers, ServerName: "localhost", SettleFor: &metav1.Duration{Duration: time.Second}},
		},
	}))
}

// grantSecret grants the manager what it needs for a CA in the Secret called name.
func (r *rotating) grantSecret(t *testing.T, name string) {
	t.Helper()
	kit.CreateMissing(t, r.admin, kit.RolesForSecret(t, name, kit.ManagerAccount))
}

// run runs options under the shipped roles, until the test ends.
func (r *rotating) run(t *testing.T, options controllers.Options) {
	t.Helper()
	mgr := kit.NewManager(t, kit.ManagerConfigOn(t, r.Config, r.admin, true), manager.Options{Scheme: r.admin.Scheme()})
	kit.NoError(t, options.SetupWithManager(mgr))
	kit.Run(t, mgr)
}

// signing returns the options of a manager that rotates, and signs for users with the guarded CA of a Secret. It grants the
// manager the rights on the Secret.
func (r *rotating) signing(t *testing.T, secret string, lifetime time.Duration) controllers.Options {
	t.Helper()
	r.grantSecret(t, secret)
	profile := kit.Must(ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime, MinLifetime: lifetime}))(t)
	pair := keypair.New(keypair.Guarded{Secret: keypair.Secret{Namespace: kit.SystemNamespace, Name: secret}})
	return controllers.Options{
		Signer:   &signer.Reconciler{Signers: map[string]signer.Signer{userSigner: {Profile: profile, KeyPair: pair}}},
		Rotation: &rotation.Reconciler{},
	}
}

func (r *rotating) get(t *testing.T, name string) *v1alpha1.SigningAuthority {
	t.Helper()
	return kit.Get(t, "", name, &v1alpha1.SigningAuthority{})
}

func (r *rotating) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	return kit.Get(t, kit.SystemNamespace, name, &corev1.Secret{})
}

func (r *rotating) edit(t *testing.T, name string, cert, key []byte) {
	t.Helper()
	obj := r.secret(t, name)
	obj.Data["tls.crt"], obj.Data["tls.key"] = cert, key
	kit.Update(t, obj)
}

func (r *rotating) bundle(t *testing.T, at v1alpha1.TrustEntry) string {
	t.Helper()
	return kit.Get(t, at.Namespace, at.Name, &corev1.ConfigMap{}).Data[at.Key]
}

func (r *rotating) ask(t *testing.T, name string, operation v1alpha1.Operation) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.OperationAnnotation, operation)
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	kit.NoError(t, r.admin.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// does requests operation, and waits until the manager has answered it and reconciled again. Before that, the same
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

// reaches waits until the authority is in phase, without an operation, and returns its status.
func (r *rotating) reaches(
	t *testing.T, name string, phase v1alpha1.Phase, also func(*v1alpha1.SigningAuthorityStatus) bool,
) (status v1alpha1.SigningAuthorityStatus) {
	t.Helper()
	kit.Within(t, kit.Patience+books.QuietAfter, fmt.Sprintf("%s is %s", name, phase), func(context.Context) error {
		obj := r.get(t, name)
		status = obj.Status
		if status.Phase != phase || obj.Annotations[v1alpha1.OperationAnnotation] != "" || also != nil && !also(&status) {
			return fmt.Errorf("it is %q, with %q, and waits for %q: %+v", status.Phase, obj.Annotations, status.WaitingFor, status.Conditions)
		}
		return nil
	})
	return status
}

// completes requests the completion until the manager knows enough to begin. After a refusal it requests again once the
// bundle is published, because each change of the authority interrupts a publication.
func (r *rotating) completes(t *testing.T, name string) {
	t.Helper()
	asked := false
	kit.Eventually(t, name+" begins to complete", func(context.Context) error {
		obj := r.get(t, name)
		if obj.Status.Phase != v1alpha1.Prepared {
			return nil
		}
		if !asked || meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionPublished) {
			r.does(t, name, v1alpha1.OperationComplete)
			asked = true
		}
		return fmt.Errorf("it waits for %q, and the last operation is %+v", obj.Status.WaitingFor, obj.Status.LastOperation)
	})
}

func (r *rotating) hasEvent(t *testing.T, name, reason, part string) {
	t.Helper()
	authority := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	kit.AnEvent(t, authority, reason, func(event *eventsv1.Event) bool {
		return event.Regarding.Kind == "SigningAuthority" && strings.Contains(event.Note, part)
	})
}

// user returns a certificate for a user by the CA one, once the signer uses it.
func (r *rotating) user(t *testing.T, name string, one *v1alpha1.CAStatus) (pair tls.Certificate) {
	t.Helper()
	certs := kit.Must(ca.ParseCertificates([]byte(one.Certificate)))(t)
	kit.Eventually(t, "a certificate by "+one.KeyID, func(context.Context) error {
		obj, key := kit.ClientRequest(t, name), kit.NewKey(t)
		obj.Spec.Request = kit.Must(certutil.MakeCSR(key, &pkix.Name{CommonName: name}, nil, nil))(t)
		kit.NoError(t, r.admin.Create(t.Context(), obj))
		kit.Approve(t, obj)
		pair = pairOf(t, kit.Reaches(t, obj, csr.Issued).Status.Certificate, key)
		return pair.Leaf.CheckSignatureFrom(certs[0])
	})
	return pair
}

// signedBy returns a client certificate without a request, as the holder of the key can make it.
func signedBy(t *testing.T, authority *ca.Authority, subject pkix.Name, lifetime time.Duration) tls.Certificate {
	t.Helper()
	key := kit.NewKey(t)
	profile := kit.Must(ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime}))(t)
	made, err := authority.Issue(profile, ca.Request{
		PublicKey: key.Public(), Subject: subject,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, time.Now())
	kit.NoError(t, err)
	return pairOf(t, made.PEM, key)
}

func pairOf(t *testing.T, certPEM []byte, key crypto.Signer) tls.Certificate {
	t.Helper()
	certs := kit.Must(ca.ParseCertificates(certPEM))(t)
	pair := tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, cert := range certs {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// isTakenFor checks that the API server identifies the holder of pair as user. An empty user means that it refuses
// the certificate.
func (r *rotating) isTakenFor(t *testing.T, pair tls.Certificate, user string) {
	t.Helper()
	switch got, err := kit.WhoIs(t.Context(), r.Config, &pair); {
	case user == "" && !apierrors.IsUnauthorized(err):
		t.Errorf("the certificate of %s is not refused: the API server knows %q, error %v", pair.Leaf.Subject, got, err)
	case user != "" && (err != nil || got != user):
		t.Errorf("the API server takes the certificate of %s for %q, error %v, want %q", pair.Leaf.Subject, got, err, user)
	}
}
