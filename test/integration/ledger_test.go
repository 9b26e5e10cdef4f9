package integration

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/ledger"
)

// TestLedgerSeal checks with a real API server that the ledger of a closed key includes everything that is ever
// covered.
func TestLedgerSeal(t *testing.T) {
	parallel(t)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
	create(t, admin(t), space)
	secret := types.NamespacedName{Namespace: space.Name, Name: "ca"}
	ledgertest.Seal(t, "0123456789abcdef", time.Now(), func() *books.Book {
		return books.NewBook(admin(t), admin(t), secret, clock.RealClock{})
	})
}

// TestGuardedSigner checks that a plain Secret signs nothing, and neither does a CA without a ledger or with a spoilt one. A
// Secret that a rotation wrote signs for the permitted signers and lifetimes, and each certificate is in the ledger first.
func TestGuardedSigner(t *testing.T) {
	parallel(t)
	made := newCA(t)
	secret := signingSecret(made.CertPEM, made.KeyPEM)
	secret.Name = "guarded"
	create(t, admin(t), secret)
	applyAll(t, rolesForSecret(t, secret.Name, signerAccount))
	startLoop(t, csrenv.Options{Customize: signingFrom(keypair.Guarded{Secret: keypair.Secret(client.ObjectKeyFromObject(secret))})})
	waiting := reaches(t, createRequest(t, admin(t), nodeRequest(t, "guarded")), csr.Approved)
	hasEvent(t, waiting, "CANotProven", "holds no CA yet that its verifiers are proven to trust")

	ring := keypair.Ring{
		TLS: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM}, Signing: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM},
		Permit: keypair.Permit{Authority: "guarded", Signers: []string{waiting.Spec.SignerName}, LifetimeCap: time.Hour},
	}
	if err := ring.WriteTo(secret.Data); err != nil {
		t.Fatal(err)
	}
	if err := admin(t).Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	hasEvent(t, waiting, "LedgerUnavailable", "the account does not exist")
	spoilt := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: books.BookName(secret.Name)},
		Data:       map[string]string{load(t, made).KeyID(): `{"signers":{},"sealed":"no"}`},
	}
	create(t, admin(t), spoilt)
	hasEvent(t, waiting, "LedgerUnavailable", "read the account of key")
	if err := admin(t).Delete(t.Context(), spoilt); err != nil {
		t.Fatal(err)
	}
	book := books.NewBook(admin(t), admin(t), client.ObjectKeyFromObject(secret), clock.RealClock{})
	if err := book.Open(t.Context(), load(t, made).KeyID()); err != nil {
		t.Fatal(err)
	}
	issued := reaches(t, waiting, csr.Issued)
	issuedBy(t, issued, made)
	certificate := leaf(t, issued)
	if left := time.Until(certificate.NotAfter); left > time.Hour {
		t.Errorf("it lives for %s", left)
	}
	accounts, err := book.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range accounts {
		if entry := account.Signers[waiting.Spec.SignerName]; entry.Count != 64 || entry.NotAfter.Before(certificate.NotAfter) {
			t.Errorf("the ledger says %+v of a certificate until %s", entry, certificate.NotAfter)
		}
	}
	if len(accounts) != 1 {
		t.Errorf("the ledger says %v", accounts)
	}
}
