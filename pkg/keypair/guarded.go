package keypair

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// Guarded is a Secret whose CA is rotated, laid out as a Ring. Only the pair signs that its verifiers are proven to
// trust, only for the signers that this is proven for, and only what its ledger knows of.
type Guarded struct {
	Secret
	// Ledger records what is to be issued, before it is signed. Nil is the ledger beside the Secret.
	Ledger Ledger
}

// Ledger records certificates before they are signed.
type Ledger interface {
	Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error
}

// guard is what a KeyPair of a Guarded source holds beside its Authority; permit belongs to that.
type guard struct {
	ledger Ledger
	permit Permit
}

// SetupWithManager implements Source.
func (g Guarded) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	if pair.guard.ledger == nil {
		pair.guard.ledger = ledger.NewBook(mgr.GetClient(), mgr.GetAPIReader(), types.NamespacedName(g.Secret), pair.Clock)
	}
	return g.Secret.SetupWithManager(mgr, pair)
}

// offerRing loads the pair that signs. It ignores tls.crt and tls.key, which a person may have replaced.
func (k *KeyPair) offerRing(data map[string][]byte) {
	ring, err := ParseRing(data)
	switch {
	case err != nil:
		k.Refuse(unavailable("CAInvalid", "%s can't be used: %v", k.name, err))
		return
	case ring.Signing.Empty():
		k.Refuse(unavailable("CANotProven", "%s holds no CA yet that is proven to be trusted: "+
			"kubectl get signingauthorities -o wide says what is waited for", k.name).awaited())
		return
	}
	// What signs and what it may sign change at once, or neither does.
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(ring.Signing.Cert, ring.Signing.Key, nil)
	if k.problem != nil || k.guard.permit.Equal(ring.Permit) {
		return
	}
	k.guard.permit = ring.Permit
	k.Log.Info("May sign", "source", k.name,
		"authority", ring.Permit.Authority, "signers", ring.Permit.Signers, "lifetimeCap", ring.Permit.LifetimeCap)
	k.notify()
}

// Cover records, if the source is Guarded, a certificate until notAfter. It must not be signed if that fails.
func (k *KeyPair) Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	if k.guard == nil {
		return nil
	}
	return k.guard.ledger.Cover(ctx, keyID, signerName, notAfter)
}
