package rotation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
)

// keys are the Secret of an authority, as it was read.
type keys struct {
	object *corev1.Secret // with an empty UID when there is none yet
	ring   keyring.Ring
	// loaded are the CAs that can be used.
	tls, signing, candidate, retiring *ca.Authority
}

func secretName(obj *v1alpha1.SigningAuthority) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
}

// readKeys reads the Secret of obj, and what it holds of CAs.
func (r *Reconciler) readKeys(ctx context.Context, obj *v1alpha1.SigningAuthority) (*keys, RingFacts, error) {
	name := secretName(obj)
	k := &keys{object: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Type: corev1.SecretTypeTLS}}
	err := r.Live.Get(ctx, name, k.object)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return nil, RingFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
	case err == nil && k.object.Type != corev1.SecretTypeTLS:
		return nil, RingFacts{}, fmt.Errorf("its Secret %s has type %q, want %q", name, k.object.Type, corev1.SecretTypeTLS)
	}
	if k.ring, err = keyring.Parse(k.object.Data); err != nil {
		return nil, RingFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	facts := RingFacts{Told: k.ring.Permit.Signers}
	for _, each := range []struct {
		pair   keyring.Pair
		loaded **ca.Authority
		facts  **CAFacts
	}{
		{k.ring.Signing, &k.signing, &facts.Signing},
		{k.ring.Candidate, &k.candidate, &facts.Candidate},
		{k.ring.Retiring, &k.retiring, &facts.Retiring},
		{k.ring.TLS, &k.tls, &facts.TLS},
	} {
		if each.pair.Empty() {
			continue
		}
		*each.loaded, err = each.pair.Load()
		if err != nil && each.loaded != &k.tls {
			return nil, RingFacts{}, fmt.Errorf("read Secret %s: %w", name, err)
		}
		if err != nil {
			facts.TLSProblem = err.Error()
			continue
		}
		*each.facts = factsOf(*each.loaded)
	}
	return k, facts, nil
}

func factsOf(authority *ca.Authority) *CAFacts {
	fingerprint := sha256.Sum256(authority.Certificate().Raw)
	return &CAFacts{
		KeyID: authority.KeyID(), Fingerprint: hex.EncodeToString(fingerprint[:]),
		Certificate: string(authority.CertificatePEM()), NotAfter: authority.Certificate().NotAfter,
	}
}

// writeKeys takes an action that changes the Secret, in one write that fails if somebody else has changed it since.
func (r *Reconciler) writeKeys(ctx context.Context, obj *v1alpha1.SigningAuthority, k *keys, action Action, made keyring.Pair) error {
	ring, err := turn(k.ring, action, made, r.permit(obj, action))
	if err != nil {
		return err
	}
	changed := k.object.DeepCopy()
	if changed.Data == nil {
		changed.Data = map[string][]byte{}
	}
	if err := ring.WriteTo(changed.Data); err != nil {
		return err
	}
	if !made.Empty() && changed.DeletionTimestamp == nil {
		controllerutil.AddFinalizer(changed, keyring.Finalizer)
	}
	if changed.UID == "" {
		if err := r.Client.Create(ctx, changed); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create Secret: %w", err)
		}
		return nil // what else is there by now is looked at next
	}
	if maps.EqualFunc(changed.Data, k.object.Data, bytes.Equal) {
		return nil
	}
	if err := r.Client.Update(ctx, changed); err != nil {
		return fmt.Errorf("update Secret: %w", err)
	}
	return nil
}

// permit is what the signer is told with action.
func (r *Reconciler) permit(obj *v1alpha1.SigningAuthority, action Action) keyring.Permit {
	lifetime := r.OldLifetimeCap
	if own := obj.Spec.Lifetimes.OldCap; own != nil {
		lifetime = own.Duration
	}
	return keyring.Permit{Authority: obj.Name, Signers: permittedSigners(&obj.Spec, &obj.Status, action), LifetimeCap: max(lifetime, shortestCap)}
}

// shortestCap keeps certificates from being due for renewal the moment that they are issued.
const shortestCap = 2 * ca.ShortestLifetime

// newPair is a CA that was made just now.
type newPair struct {
	keyring.Pair
	keyID string
}

// newPair makes a CA for the generation that obj is at. Its name is its own, so that a verifier never tries one CA for
// another.
func (r *Reconciler) newPair(obj *v1alpha1.SigningAuthority) (newPair, error) {
	lifetime := ca.DefaultAuthorityLifetime
	if own := obj.Spec.CA.Duration; own != nil {
		lifetime = own.Duration
	}
	now := r.Clock.Now()
	authority, key, err := ca.New(ca.NewOptions{
		CommonName: commonName(obj.Name, obj.Status.Generation, now.Unix()),
		Algorithm:  ca.Algorithm(obj.Spec.CA.KeyAlgorithm),
		Lifetime:   lifetime,
	}, now)
	if err != nil {
		return newPair{}, fmt.Errorf("make a CA: %w", err)
	}
	return newPair{keyring.Pair{Cert: authority.CertificatePEM(), Key: key}, authority.KeyID()}, nil
}

// commonName fits into X.520's 64 letters.
func commonName(authority string, generation, at int64) string {
	suffix := fmt.Sprintf("-g%d-%d", generation, at)
	return authority[:min(len(authority), 64-len(suffix))] + suffix
}
