package loop

import (
	"bytes"
	"context"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		if err := kit.Admin(t).Get(t.Context(), name, secret); err != nil {
			return err
		}
		keeps := bytes.Equal(secret.Data["tls.key"], made.KeyPEM) && slices.Contains(secret.Finalizers, keypair.Finalizer)
		return kit.OrError(keeps, "another key, or finalizers %q", secret.Finalizers)
	}
	rejected := func() int {
		return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
	}
	before := rejected()
	kit.Remove(t, secret)
	kit.NoError(t, holds())
	signs(t, made)
	restore := savedByPage(t)
	kit.NoError(t, kit.Admin(t).Patch(t.Context(), secret, kit.NoFinalizers))
	kit.Eventually(t, "both notice the loss", func(context.Context) error {
		got := rejected() - before
		return kit.OrError(got >= 2, "%d did", got)
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
	kubeconfig := kit.Kubeconfig(t, "saves", kit.ControlPlane(t).Config)
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
