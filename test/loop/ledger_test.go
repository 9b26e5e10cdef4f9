package loop

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
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/kit/ledger"
)

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
	if err := ring.WriteTo(secret.Data); err != nil {
		t.Fatal(err)
	}
	if err := kit.Admin(t).Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	kit.HasEvent(t, waiting, "LedgerUnavailable", "the account does not exist")
	spoilt := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: books.BookName(secret.Name)},
		Data:       map[string]string{kit.Load(t, made).KeyID(): `{"signers":{},"sealed":"no"}`},
	}
	kit.Create(t, kit.Admin(t), spoilt)
	kit.HasEvent(t, waiting, "LedgerUnavailable", "read the account of key")
	if err := kit.Admin(t).Delete(t.Context(), spoilt); err != nil {
		t.Fatal(err)
	}
	book := books.NewBook(kit.Admin(t), kit.Admin(t), client.ObjectKeyFromObject(secret), clock.RealClock{})
	if err := book.Open(t.Context(), kit.Load(t, made).KeyID()); err != nil {
		t.Fatal(err)
	}
	issued := kit.Reaches(t, waiting, csr.Issued)
	kit.IssuedBy(t, issued, made)
	certificate := kit.Leaf(t, issued)
	if left := time.Until(certificate.NotAfter); left > time.Hour {
		t.Errorf("it lives for %s", left)
	}
	accounts, err := book.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range accounts {
		if end := account.Signers[waiting.Spec.SignerName]; end.Before(certificate.NotAfter) {
			t.Errorf("the ledger says %s of a certificate until %s", end, certificate.NotAfter)
		}
	}
	if len(accounts) != 1 {
		t.Errorf("the ledger says %v", accounts)
	}
}
