package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// signingFrom configures every signer to sign with the CA from source.
func signingFrom(source keypair.Source) func(*controllers.Options) {
	return func(o *controllers.Options) {
		pair := keypair.New(source)
		for name, one := range o.Signer.Signers {
			one.KeyPair = pair
			o.Signer.Signers[name] = one
		}
	}
}

// TestFilesAreReloaded replaces the CA files as an administrator would. Waiting requests are signed at once, a
// half-written pair changes nothing, and one file may hold several certificates.
func TestFilesAreReloaded(t *testing.T) {
	kit.Alone(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Files{Cert: certFile, Key: keyFile})})
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "one")), csr.Approved)
	kit.HasEvent(t, waiting, "CAMissing", "no such file")

	first, second := kit.NewCA(t), kit.NewCA(t)
	kit.Write(t, keyFile, first.KeyPEM)
	kit.Write(t, certFile, first.CertPEM)
	kit.IssuedBy(t, kit.Reaches(t, waiting, csr.Issued), first)

	kit.Write(t, keyFile, second.KeyPEM) // half of the new pair
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "two")), csr.Issued), first)

	kit.Write(t, certFile, append(append([]byte("# old and new\n"), first.CertPEM...), second.CertPEM...))
	kit.Eventually(t, "the new CA signs", func(context.Context) error {
		obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "three"))
		if err := kit.Leaf(t, kit.Reaches(t, obj, csr.Issued)).CheckSignatureFrom(kit.Certificate(t, second)); err != nil {
			return fmt.Errorf("another one signs: %w", err)
		}
		return nil
	})
	// A missing CA is reported once, and the last good CA continues to sign.
	rejected := func() int {
		return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
	}
	before := rejected()
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the loss is noticed", func(context.Context) error {
		if rejected() == before {
			return errors.New("it is not")
		}
		return nil
	})
	kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "four")), csr.Issued), second)
	if got := rejected() - before; got != 1 {
		t.Errorf("refused %d times, want once", got)
	}
}

// TestSecretGoes removes first the Role and then the signing Secret from a loop under the shipped roles. The last
// good CA continues to sign, and at most one Event reports each loss.
func TestSecretGoes(t *testing.T) {
	kit.Parallel(t)
	kit.InstallRBAC(t)
	if err := kit.Admin(t).DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace(kit.SystemNamespace)); err != nil {
		t.Fatal(err)
	}
	first, second := kit.NewCA(t), kit.NewCA(t)
	secret := kit.SigningSecret(first.CertPEM, first.KeyPEM)
	kit.Create(t, kit.Admin(t), secret)
	account := kit.ServiceAccountConfig(t)
	w, cfg := &kit.Wire{}, rest.CopyConfig(account)
	cfg.Dial, cfg.WrapTransport = w.Dial, w.Count
	kit.StartLoopAs(t, cfg, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))})
	signs := func(by *csrenv.CA) {
		t.Helper()
		kit.IssuedBy(t, kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "any")), csr.Issued), by)
	}
	signs(first)

	loseRole(t, w, account, secret)
	signs(first)

	// The role is back, and the Secret is another one.
	secret = kit.ReplaceSecret(t, secret, second)
	kit.InstallRBAC(t)
	kit.HasLoaded(t, secret)
	signs(second)

	// The Secret is deleted.
	if err := kit.Admin(t).Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	gone := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}}
	kit.HasEvent(t, gone, "CAMissing", "does not exist", "the last good CA stays in use")
	signs(second)
	kit.HasLoaded(t, kit.ReplaceSecret(t, secret, first)) // so no Event is pending
	signs(first)
	checkEventsOf(t, gone)
}

// loseRole removes the right to read secret from account. It returns once the loop was refused, which happens when it
// opens a new watch.
func loseRole(t *testing.T, w *kit.Wire, account *rest.Config, secret *corev1.Secret) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-signing-secret"}}
	if err := kit.Admin(t).Delete(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	c := kit.ClientOf(t, account)
	kit.Eventually(t, "the Secret is out of reach", func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("read it: %w", err)
		}
		return nil
	})
	w.Cut()
	kit.Eventually(t, "the loop was refused the Secret, twice", func(context.Context) error {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		if w.Refused < 2 {
			return fmt.Errorf("%d times", w.Refused)
		}
		return nil
	})
}

// checkEventsOf checks the Events of the Secrets: three CALoaded, each of another Secret, one CAMissing for the
// missing Secret, at most one for the unreadable Secret, and one CAShared.
func checkEventsOf(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	told := map[string]int{}
	for _, event := range kit.EventsOf(t.Context(), t, secret) {
		if event.Series != nil {
			t.Errorf("told %d times: %s: %s", event.Series.Count, event.Reason, event.Note)
		}
		if event.Reason == "CANotTrusted" { // the API server knows none of these CAs
			continue
		}
		told[event.Reason]++
		if strings.Contains(event.Note, "can't be read") {
			told["CAMissing"]--
		}
	}
	if want := map[string]int{"CALoaded": 3, "CAMissing": 1, "CAShared": 1}; !maps.Equal(told, want) {
		t.Errorf("Events are %v, want %v", told, want)
	}
}
