package postquantum

import (
	"context"
	"crypto"
	"crypto/mldsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const (
	// clients renew their certificates all the time, perSecond of them in a second.
	clients   = 8
	perSecond = 2
	// lifetime is that of the certificates.
	lifetime = ca.ShortestLifetime + time.Second
	// expired is the time after which no certificate is outstanding: the ledger stores an end a minute ahead. It must be less than the five
	// minutes by which certificates are backdated.
	expired = lifetime + time.Minute + time.Second
	// authorityName is the name of the SigningAuthority.
	authorityName = "cluster"
)

// fleet is a control plane whose signing CA rotates, with kubelets.
type fleet struct {
	*kit.Plane
	ahead   kit.AheadClock
	members []*member
	refused atomic.Int64
}

// member is a kubelet.
type member struct {
	*kubelet.Node
	newKey func() (crypto.Signer, error)
	holds  atomic.Pointer[tls.Certificate]
}

// TestRotation rotates a CA from an ECDSA key to an ML-DSA key and back, while kubelets renew and call the API server. None is ever refused,
// and before the end of a rotation the API server identifies the holders of old and of new certificates. If the API server cannot verify
// ML-DSA, the rotation does not go on, says why, and can be given up.
func TestRotation(t *testing.T) {
	kit.Parallel(t)
	goVersion, knows := builtWith(t)
	f := startFleet(t, knows)
	if knows {
		f.rotates(t, "MLDSA65", x509.MLDSA)
		f.rotates(t, ca.ECDSAP256, x509.ECDSA)
		return
	}
	before := f.status(t).Signing
	f.setAlgorithm(t, "MLDSA65")
	f.plugin(t, 1, "start --timeout=15s", "not done within 15s: Preparing", "answers 401 to a client certificate of this CA; it is built with "+goVersion+
		", and only Go 1.27 and later can verify ML-DSA")
	f.plugin(t, 1, "complete --yes", "rotation complete is refused: the phase is Preparing")
	f.eachRenews(t, before)
	f.plugin(t, 0, "rollback --yes --timeout=2m", "done: Completed")
	kit.Equal(t, "the CA that signs", f.status(t).Signing.KeyID, before.KeyID)
	f.eachRenews(t, before)
}

// rotates rotates to a CA with a key by algorithm. At the end it sets the clock of the rotation ahead, by which all old certificates have
// expired. It stays there, so a second rotation has nothing to wait for.
func (f *fleet) rotates(t *testing.T, algorithm ca.Algorithm, want x509.PublicKeyAlgorithm) {
	t.Helper()
	var old []*tls.Certificate
	for _, m := range f.members {
		old = append(old, m.holds.Load())
	}
	f.setAlgorithm(t, algorithm)
	f.plugin(t, 0, "start --timeout=2m", "done: Prepared")
	signing := f.status(t).Signing
	kit.Equal(t, "key of the new CA", kit.Must(ca.ParseCertificates([]byte(signing.Certificate)))(t)[0].PublicKeyAlgorithm, want)
	f.eachRenews(t, signing)
	for i, m := range f.members {
		for _, pair := range []*tls.Certificate{old[i], m.holds.Load()} {
			user, err := kit.WhoIs(t.Context(), f.Config, pair)
			kit.Check(t, user == m.User(), "the API server takes %s for %q, error %v", m.User(), user, err)
		}
	}
	f.ahead.Set(expired)
	kit.Eventually(t, "nothing is outstanding", func(context.Context) error {
		return kit.OrError(len(f.status(t).Outstanding) == 0, "%+v", f.status(t).Outstanding)
	})
	f.plugin(t, 0, "complete --yes --timeout=2m", "done: Completed")
	for _, pair := range old {
		user, err := kit.WhoIs(t.Context(), f.Config, pair)
		kit.Check(t, apierrors.IsUnauthorized(err), "the API server knows the holder of a certificate of the old CA as %q, error %v", user, err)
	}
	f.eachRenews(t, signing)
}

// eachRenews waits until each member has a new certificate of one.
func (f *fleet) eachRenews(t *testing.T, one *v1alpha1.CAStatus) {
	t.Helper()
	authority := kit.Must(ca.ParseCertificates([]byte(one.Certificate)))(t)[0]
	before := map[*member]*tls.Certificate{}
	for _, m := range f.members {
		before[m] = m.holds.Load()
	}
	for _, m := range f.members {
		kit.Eventually(t, m.User()+" renews", func(context.Context) error {
			now := m.holds.Load()
			return errors.Join(kit.OrError(now != before[m], "it has the same certificate"), now.Leaf.CheckSignatureFrom(authority))
		})
	}
}

// startFleet starts a manager that rotates its own CA, and kubelets that renew with ML-DSA keys too if the API server knows them.
func startFleet(t *testing.T, knows bool) *fleet {
	t.Helper()
	f := &fleet{Plane: kit.PlaneOf(t)}
	f.runManager(t)
	f.followTrust(t)
	at := v1alpha1.TrustEntry{Namespace: kit.SystemNamespace, Name: "csr-trust", Key: "ca.crt"}
	server := strings.Trim(strings.TrimPrefix(f.Config.Host, "https://"), "/")
	kit.NoError(t, f.Admin.Create(t.Context(), &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: authorityName},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:       v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: "csr-signer"},
			Signers:      []string{certificatesv1.KubeAPIServerClientKubeletSignerName},
			Trust:        v1alpha1.Trust{ConfigMaps: []v1alpha1.TrustEntry{at}},
			Verification: v1alpha1.Verification{APIServers: []string{server}, ServerName: "localhost", SettleFor: &metav1.Duration{Duration: time.Second}},
		},
	}))
	f.plugin(t, 0, "wait --timeout=2m", "Completed, generation 1")
	kubelets, pace := bootstrap(t), flowcontrol.NewTokenBucketRateLimiter(perSecond, perSecond)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
		kit.Check(t, f.refused.Load() == 0, "members were refused %d times", f.refused.Load())
	})
	for i := range clients {
		m := &member{Node: kubelets(fmt.Sprintf("member-%02d", i)), newKey: func() (crypto.Signer, error) { return kit.NewKey(t), nil }}
		if each := i % (len(parameters) + 1); knows && each < len(parameters) {
			m.newKey = func() (crypto.Signer, error) { return mldsa.GenerateKey(parameters[each]) }
		}
		m.Key = kit.Must(m.newKey())(t)
		m.holds.Store(m.Join(t))
		f.members = append(f.members, m)
		running.Go(func() {
			for pace.Wait(ctx) == nil {
				if err := f.renew(ctx, m); err != nil && ctx.Err() == nil {
					f.refused.Add(1)
					t.Logf("%s: %v", m.User(), err)
				}
			}
		})
	}
	return f
}

// renew gets a new certificate for m, and presents it to the API server.
func (f *fleet) renew(ctx context.Context, m *member) error {
	key, err := m.newKey()
	if err != nil {
		return err
	}
	renewed, err := m.Renew(ctx, m.holds.Load(), key)
	if err != nil {
		return err
	}
	user, err := kit.WhoIs(ctx, f.Config, renewed)
	if err != nil || user != m.User() {
		return fmt.Errorf("the API server takes it for %q, error %w", user, err)
	}
	m.holds.Store(renewed)
	return nil
}

// runManager runs the approver, the signer and the rotation under the shipped roles, until the test ends.
func (f *fleet) runManager(t *testing.T) {
	t.Helper()
	cfg := kit.ManagerConfigOn(t, f.Config, f.Admin, true)
	kit.CreateMissing(t, f.Admin, kit.Rendered(t, "rotation/published"))
	mgr := kit.NewManager(t, cfg, manager.Options{Scheme: kit.Scheme})
	pair := keypair.New(keypair.Guarded{Secret: keypair.Secret{Namespace: kit.SystemNamespace, Name: "csr-signer"}})
	const name = certificatesv1.KubeAPIServerClientKubeletSignerName
	profile := kit.Must(ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime, MinLifetime: lifetime}))(t)
	options := controllers.Options{
		Approver: &approver.Reconciler{Judges: map[string]approver.Judge{name: approver.KubeletClient{}}},
		Signer:   &signer.Reconciler{Signers: map[string]signer.Signer{name: {Profile: profile, KeyPair: pair}}},
		Rotation: &rotation.Reconciler{Clock: &f.ahead},
	}
	kit.NoError(t, options.SetupWithManager(mgr))
	kit.Run(t, mgr)
}

// followTrust copies the trust bundle to the API server's client CA file, until the test ends.
func (f *fleet) followTrust(t *testing.T) {
	t.Helper()
	users := kit.Must(os.ReadFile(f.ClientCAFile()))(t)
	watching := kit.Must(f.Admin.Watch(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(kit.SystemNamespace)))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watching.ResultChan() {
			if obj, is := event.Object.(*corev1.ConfigMap); is && obj.Name == "csr-trust" {
				if err := f.TrustClients(slices.Concat(users, []byte(obj.Data["ca.crt"]))); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	t.Cleanup(func() { watching.Stop(); <-ended })
}

// plugin runs a subcommand of kubectl csr rotation as the administrator.
func (f *fleet) plugin(t *testing.T, want int, command string, parts ...string) {
	t.Helper()
	name, flags, _ := strings.Cut(command, " ")
	output, code := kit.RunPlugin(t, f.Config, append([]string{"rotation", name, authorityName}, strings.Fields(flags)...)...)
	kit.Says(t, output, code, want, parts...)
}

func (f *fleet) status(t *testing.T) *v1alpha1.SigningAuthorityStatus {
	t.Helper()
	return &kit.Get(t, "", authorityName, &v1alpha1.SigningAuthority{}).Status
}

// setAlgorithm sets the algorithm of the key of the next CA.
func (f *fleet) setAlgorithm(t *testing.T, algorithm ca.Algorithm) {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: authorityName}}
	patch := fmt.Sprintf(`{"spec":{"ca":{"keyAlgorithm":%q}}}`, algorithm)
	kit.NoError(t, f.Admin.Patch(t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(patch))))
}
