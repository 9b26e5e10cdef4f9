package loop

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/kit/ledger"
)

// TestCreateIfMissing runs two managers under the shipped roles that create one CA. At first they may not, and report
// that. If the Secret is deleted while its CA signs, no new CA is created.
func TestCreateIfMissing(t *testing.T) {
	kit.Alone(t)
	name := client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	creating := csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Secret(name))(o)
		for _, one := range o.Signer.Signers {
			one.KeyPair.Create = &keypair.Creation{Algorithm: ca.ECDSAP384, Lifetime: 24 * time.Hour}
		}
	}}
	kit.StartLoop(t, creating)
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "waiting")), csr.Approved)
	kit.HasEvent(t, secret, "CAMissing", "can't be created", "forbidden")
	kit.ApplyAll(t, kit.BoundTo(t, kit.SignerAccount, kit.Rendered(t, "create-ca")))
	kit.StartLoop(t, creating, "signer") // it creates the CA at once; the other retries later
	kit.Reaches(t, waiting, csr.Issued)
	kit.NoError(t, kit.Admin(t).Get(t.Context(), name, secret))
	made := &csrenv.CA{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]}
	kit.IssuedBy(t, waiting, made)
	if subject := kit.Certificate(t, made).Subject.CommonName; !strings.HasPrefix(subject, "csr-controller-manager:csr-signer:") {
		t.Errorf("the CA is called %s", subject)
	}
	kit.AnEvent(t, secret, "CACreated", func(*eventsv1.Event) bool { return true })

	// Once deleted, the only copy stays until its finalizer is removed, and signs. An administrator can still save it.
	holds := func() error {
		secret = &corev1.Secret{}
		err := kit.Admin(t).Get(t.Context(), name, secret)
		if err == nil && (!bytes.Equal(secret.Data["tls.key"], made.KeyPEM) || !slices.Contains(secret.Finalizers, keypair.Finalizer)) {
			err = fmt.Errorf("another key, or finalizers %q", secret.Finalizers)
		}
		return err
	}
	rejected := func() int {
		return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
	}
	before := rejected()
	kit.Remove(t, secret)
	kit.NoError(t, holds())
	signs(t, made)
	restore := savedByPage(t)
	kit.NoError(t, kit.Admin(t).Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	kit.Eventually(t, "both notice the loss", func(context.Context) error {
		if got := rejected() - before; got < 2 {
			return fmt.Errorf("%d did", got)
		}
		return nil
	})
	signs(t, made)
	if err := holds(); !apierrors.IsNotFound(err) {
		t.Errorf("it is back: error %v", err)
	}
	restore()
	kit.NoError(t, holds())
}

// savedByPage saves the Secret of the CA with the command of docs/how-to/back-up-the-ca.md. The returned function runs the
// command that restores it.
func savedByPage(t *testing.T) (restore func()) {
	t.Helper()
	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig("saves", kit.ControlPlane(t).Config)
	kit.NoError(t, err)
	file := filepath.Join(t.TempDir(), "csr-signer.yaml")
	kit.Write(t, file, []byte(kit.Kubectl(t, kubeconfig, "-n", kit.SystemNamespace, "get", "secret", "csr-signer", "-o", "yaml")))
	page, err := os.ReadFile("../../docs/how-to/back-up-the-ca.md")
	kit.NoError(t, err)
	line := regexp.MustCompile(`(?m)^sed -E .* csr-signer.yaml \| kubectl create -f -$`).FindString(string(page))
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl") + " --kubeconfig=" + kubeconfig + " "
	script := strings.NewReplacer(" csr-signer.yaml ", " "+file+" ", "kubectl ", kubectl).Replace(line)
	return func() {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil || line == "" {
			t.Fatalf("%q: %v\n%s", script, err, out)
		}
	}
}

// TestIntermediates gets a serving and a client certificate from an intermediate CA. Who knows only the root can verify both
// with the certificates that come with them.
func TestIntermediates(t *testing.T) {
	kit.Parallel(t)
	root := kit.IssueCA(t, "root", kit.NewKey(t), nil, 24*time.Hour)
	upper := kit.IssueCA(t, "upper", kit.NewKey(t), root, 24*time.Hour)
	lower := kit.IssueCA(t, "lower", kit.NewKey(t), upper, 24*time.Hour)
	secret := kit.SigningSecret(slices.Concat(lower.PEM(), upper.PEM()), lower.KeyPEM(t))
	secret.Data["ca.crt"] = root.PEM()
	kit.Create(t, kit.Admin(t), secret)
	kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))})
	serving := kit.CreateRequest(t, kit.Admin(t), kit.ServingRequest(t, "chained", "chained.example.com"))
	kit.Approve(t, serving)
	roots := x509.NewCertPool()
	roots.AddCert(root.Cert)
	for obj, usage := range map[*kit.Request]x509.ExtKeyUsage{
		serving: x509.ExtKeyUsageServerAuth, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "chained")): x509.ExtKeyUsageClientAuth,
	} {
		certs, err := ca.ParseCertificates(kit.Reaches(t, obj, csr.Issued).Status.Certificate)
		if err != nil || len(certs) != 3 {
			t.Fatalf("%d certificates, error %v; want the leaf and two CAs", len(certs), err)
		}
		between := x509.NewCertPool()
		between.AddCert(certs[1])
		between.AddCert(certs[2])
		if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
}

// TestSecretGoes removes first the Role and then the signing Secret from a loop under the shipped roles. The last good CA
// continues to sign. At most one Event reports each loss.
func TestSecretGoes(t *testing.T) {
	kit.Parallel(t)
	first, second := kit.NewCA(t), kit.NewCA(t)
	secret, options := signingSecret(t, first)
	account := kit.ManagerConfig(t)
	w, cfg := &kit.Wire{}, rest.CopyConfig(account)
	cfg.Dial, cfg.WrapTransport = w.Dial, w.Count
	kit.StartLoopAs(t, cfg, options)
	signs(t, first)

	kit.Remove(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-signing-secret"}})
	kit.Eventually(t, "the Secret is out of reach", func(ctx context.Context) error {
		if err := kit.ClientOf(t, account).Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("read it: %w", err)
		}
		return nil
	})
	w.Cut() // only a new watch is refused
	kit.Eventually(t, "the loop was refused the Secret, twice", func(context.Context) error {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		if w.Refused < 2 {
			return fmt.Errorf("%d times", w.Refused)
		}
		return nil
	})
	signs(t, first)

	secret = kit.ReplaceSecret(t, secret, second)
	kit.InstallRBAC(t)
	kit.HasLoaded(t, secret)
	signs(t, second)
	kit.Remove(t, secret)
	gone := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}}
	kit.HasEvent(t, gone, "CAMissing", "does not exist", "the last good CA stays in use")
	signs(t, second)
	kit.HasLoaded(t, kit.ReplaceSecret(t, secret, first)) // so no Event is pending
	signs(t, first)
	told := map[string]int{}
	for _, event := range kit.EventsOf(t.Context(), t, gone) {
		switch {
		case event.Series != nil:
			t.Errorf("told %d times: %s: %s", event.Series.Count, event.Reason, event.Note)
		case strings.Contains(event.Note, "can't be read"):
			told["unreadable"]++
		default:
			told[event.Reason]++
		}
	}
	if told["CALoaded"] != 3 || told["CAMissing"] != 1 || told["CAShared"] != 1 || told["unreadable"] > 1 {
		t.Errorf("Events %v", told)
	}
}

// TestLedgerSeal checks with a real API server that the ledger of a closed key includes everything that is ever
// covered.
func TestLedgerSeal(t *testing.T) {
	kit.Parallel(t)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
	kit.Create(t, kit.Admin(t), space)
	secret := types.NamespacedName{Namespace: space.Name, Name: "ca"}
	ledgertest.Seal(t, "0123456789abcdef", time.Now(), func() *books.Book {
		return books.NewBook(kit.Admin(t), kit.Admin(t), secret, clock.RealClock{})
	})
}

// TestGuardedSigner checks that a plain Secret signs nothing, and neither does a CA without a ledger or with a spoilt one. A
// Secret that a rotation wrote signs for the permitted signers and lifetimes, and each certificate is in the ledger first.
func TestGuardedSigner(t *testing.T) {
	kit.Parallel(t)
	made := kit.NewCA(t)
	secret := kit.SigningSecret(made.CertPEM, made.KeyPEM)
	secret.Name = "guarded"
	kit.Create(t, kit.Admin(t), secret)
	kit.ApplyAll(t, kit.RolesForSecret(t, secret.Name, kit.SignerAccount))
	kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Guarded{Secret: keypair.Secret(client.ObjectKeyFromObject(secret))})})
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "guarded")), csr.Approved)
	kit.HasEvent(t, waiting, "CANotProven", "holds no CA yet that its verifiers are proven to trust")

	ring := keypair.Ring{
		TLS: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM}, Signing: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM},
		Permit: keypair.Permit{Authority: "guarded", Signers: []string{waiting.Spec.SignerName}, LifetimeCap: time.Hour},
	}
	kit.NoError(t, ring.WriteTo(secret.Data))
	kit.Update(t, secret)
	kit.HasEvent(t, waiting, "LedgerUnavailable", "the account does not exist")
	spoilt := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: books.BookName(secret.Name)},
		Data:       map[string]string{kit.Load(t, made).KeyID(): `{"signers":{},"sealed":"no"}`},
	}
	kit.Create(t, kit.Admin(t), spoilt)
	kit.HasEvent(t, waiting, "LedgerUnavailable", "read the account of key")
	kit.Remove(t, spoilt)
	book := books.NewBook(kit.Admin(t), kit.Admin(t), client.ObjectKeyFromObject(secret), clock.RealClock{})
	kit.NoError(t, book.Open(t.Context(), kit.Load(t, made).KeyID()))
	issued := kit.Reaches(t, waiting, csr.Issued)
	kit.IssuedBy(t, issued, made)
	end := kit.Leaf(t, issued).NotAfter
	if left := time.Until(end); left > time.Hour {
		t.Errorf("it lives for %s", left)
	}
	accounts, err := book.Read(t.Context())
	if err != nil || len(accounts) != 1 {
		t.Fatalf("the ledger says %v, error %v", accounts, err)
	}
	for _, account := range accounts {
		if said := account.Signers[waiting.Spec.SignerName]; said.Before(end) {
			t.Errorf("the ledger says %s of a certificate until %s", said, end)
		}
	}
}
