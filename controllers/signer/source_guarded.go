package signer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// Guarded is a Secret whose CA is rotated, laid out as a keypair.Ring: only the pair signs that is proven to be
// trusted, only for the signers that it is proven for, and only what its ledger knows of.
type Guarded Secret

// Ledger notes what is to be issued, before it is: ledger.Book.
type Ledger interface {
	Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error
}

// guard is what a KeyPair of a Guarded source has beside its Authority; permit belongs to that.
type guard struct {
	ledger Ledger
	permit keypair.Permit
}

func (g Guarded) describe() (string, client.Object) { return Secret(g).describe() }

func (g Guarded) runnable(mgr manager.Manager, pair *KeyPair) (manager.Runnable, error) {
	if pair.ledger == nil {
		pair.ledger = ledger.NewBook(mgr.GetClient(), mgr.GetAPIReader(), types.NamespacedName(g), pair.clock)
	}
	return Secret(g).runnable(mgr, pair)
}

func (g Guarded) readOnce(ctx context.Context, reader client.Reader, pair *KeyPair) error {
	return Secret(g).readOnce(ctx, reader, pair)
}

func (k *KeyPair) guarded() bool {
	_, guarded := k.source.(Guarded)
	return guarded
}

// offerRing loads the pair that signs; tls.crt and tls.key, which a person may have replaced, are not looked at.
func (k *KeyPair) offerRing(data map[string][]byte) {
	ring, err := keypair.ParseRing(data)
	switch {
	case err != nil:
		k.Refuse("CAInvalid", fmt.Sprintf("%s can't be used: %v", k.name, err))
	case ring.Signing.Empty():
		k.refuse(&Unavailable{Reason: "CANotProven", Awaited: true,
			Message: k.name + " holds no CA yet that is proven to be trusted: kubectl get signingauthorities -o wide says what is waited for"})
	default:
		k.loadPermitted(ring)
	}
}

// loadPermitted changes what signs and what it may sign at once, or neither.
func (k *KeyPair) loadPermitted(ring keypair.Ring) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.load(ring.Signing.Cert, ring.Signing.Key, nil)
	if k.problem != nil || k.permit.Equal(ring.Permit) {
		return
	}
	k.permit = ring.Permit
	k.log.Info("May sign", "source", k.name, "authority", k.permit.Authority, "signers", k.permit.Signers, "lifetimeCap", k.permit.LifetimeCap)
	k.wake()
}

// authorityFor is Authority for one signer, with the longest that its certificates may live now if there is a limit.
func (k *KeyPair) authorityFor(signerName string, now time.Time) (*ca.Authority, time.Duration, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	authority, err := k.authorityAt(now)
	if err != nil {
		return nil, 0, err
	}
	if k.guarded() && !slices.Contains(k.permit.Signers, signerName) {
		return nil, 0, &Unavailable{Reason: "CANotProven", Message: fmt.Sprintf("the CA in %s is not proven to be trusted by those who verify certificates of signer %s: "+
			"that signer must be among spec.signers of its SigningAuthority %s before the CA begins to sign", k.name, signerName, k.permit.Authority)}
	}
	return authority, k.permit.LifetimeCap, nil
}

// cover returns nil when the signing of a certificate until notAfter may follow.
func (k *KeyPair) cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	if !k.guarded() {
		return nil
	}
	return k.ledger.Cover(ctx, keyID, signerName, notAfter)
}
