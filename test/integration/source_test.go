package integration

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
	unshared(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	startLoop(t, csrenv.Options{Customize: signingFrom(keypair.Files{Cert: certFile, Key: keyFile})})
	waiting := reaches(t, createRequest(t, admin(t), nodeRequest(t, "one")), csr.Approved)
	hasEvent(t, waiting, "CAMissing", "no such file")

	first, second := newCA(t), newCA(t)
	write(t, keyFile, first.KeyPEM)
	write(t, certFile, first.CertPEM)
	issuedBy(t, reaches(t, waiting, csr.Issued), first)

	write(t, keyFile, second.KeyPEM) // half of the new pair
	issuedBy(t, reaches(t, createRequest(t, admin(t), nodeRequest(t, "two")), csr.Issued), first)

	write(t, certFile, append(append([]byte("# old and new\n"), first.CertPEM...), second.CertPEM...))
	eventually(t, "the new CA signs", func(context.Context) error {
		obj := createRequest(t, admin(t), nodeRequest(t, "three"))
		if err := leaf(t, reaches(t, obj, csr.Issued)).CheckSignatureFrom(certificate(t, second)); err != nil {
			return fmt.Errorf("another one signs: %w", err)
		}
		return nil
	})
	// A missing CA is reported once, and the last good CA continues to sign.
	rejected := func() int { return counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"}) }
	before := rejected()
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loss is noticed", func(context.Context) error {
		if rejected() == before {
			return errors.New("it is not")
		}
		return nil
	})
	issuedBy(t, reaches(t, createRequest(t, admin(t), nodeRequest(t, "four")), csr.Issued), second)
	if got := rejected() - before; got != 1 {
		t.Errorf("refused %d times, want once", got)
	}
}

// TestSecretGoes removes first the Role and then the signing Secret from a loop under the shipped roles. The last
// good CA continues to sign, and at most one Event reports each loss.
func TestSecretGoes(t *testing.T) {
	parallel(t)
	installRBAC(t)
	if err := admin(t).DeleteAllOf(t.Context(), &eventsv1.Event{}, client.InNamespace(systemNamespace)); err != nil {
		t.Fatal(err)
	}
	first, second := newCA(t), newCA(t)
	secret := signingSecret(first.CertPEM, first.KeyPEM)
	create(t, admin(t), secret)
	account := serviceAccountConfig(t)
	w, cfg := &wire{}, rest.CopyConfig(account)
	cfg.Dial, cfg.WrapTransport = w.dial, w.count
	startLoopAs(t, cfg, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))})
	signs := func(by *csrenv.CA) {
		t.Helper()
		issuedBy(t, reaches(t, createRequest(t, admin(t), nodeRequest(t, "any")), csr.Issued), by)
	}
	signs(first)

	loseRole(t, w, account, secret)
	signs(first)

	// The role is back, and the Secret is another one.
	secret = replaceSecret(t, secret, second)
	installRBAC(t)
	hasLoaded(t, secret)
	signs(second)

	// The Secret is deleted.
	if err := admin(t).Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	gone := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret.Name}}
	hasEvent(t, gone, "CAMissing", "does not exist", "the last good CA stays in use")
	signs(second)
	hasLoaded(t, replaceSecret(t, secret, first)) // so no Event is pending
	signs(first)
	checkEventsOf(t, gone)
}

// loseRole removes the right to read secret from account. It returns once the loop was refused, which happens when it
// opens a new watch.
func loseRole(t *testing.T, w *wire, account *rest.Config, secret *corev1.Secret) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "csr-signing-secret"}}
	if err := admin(t).Delete(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	c := clientOf(t, account)
	eventually(t, "the Secret is out of reach", func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("read it: %w", err)
		}
		return nil
	})
	w.cut()
	eventually(t, "the loop was refused the Secret, twice", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused < 2 {
			return fmt.Errorf("%d times", w.refused)
		}
		return nil
	})
}

// replaceSecret deletes secret and creates another one of that name.
func replaceSecret(t *testing.T, secret *corev1.Secret, with *csrenv.CA) *corev1.Secret {
	t.Helper()
	if err := client.IgnoreNotFound(admin(t).Delete(t.Context(), secret)); err != nil {
		t.Fatal(err)
	}
	another := signingSecret(with.CertPEM, with.KeyPEM)
	create(t, admin(t), another)
	return another
}

// hasLoaded waits for the Event that the CA in secret signs.
func hasLoaded(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	eventually(t, "the CA is loaded", func(ctx context.Context) error {
		found := eventsOf(ctx, t, secret)
		for _, event := range found {
			if event.Reason == "CALoaded" {
				return nil
			}
		}
		return fmt.Errorf("not among %+v", found)
	})
}

// checkEventsOf checks the Events of the Secrets: three CALoaded, each of another Secret, one CAMissing for the
// missing Secret, at most one for the unreadable Secret, and one CAShared.
func checkEventsOf(t *testing.T, secret *corev1.Secret) {
	t.Helper()
	told := map[string]int{}
	for _, event := range eventsOf(t.Context(), t, secret) {
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
