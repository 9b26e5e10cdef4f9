package keypair

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// Secret is a key pair in a Secret of type kubernetes.io/tls. tls.crt may hold several certificates. ca.crt, if
// present, holds the certificates in which the chain ends. The Secret is watched by name, so that a role for that one
// Secret is enough.
type Secret types.NamespacedName

func (s Secret) String() string { return types.NamespacedName(s).String() }

// Describe implements Source.
func (s Secret) Describe() (string, client.Object) { return "Secret " + s.String(), s.reference("") }

// reference returns the Secret without its data.
func (s Secret) reference(uid types.UID) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name, UID: uid}}
}

// SetupWithManager implements Source.
func (s Secret) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	api, err := corev1client.NewForConfigAndClient(pair.Home.GetConfig(), pair.Home.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("watch %s: %w", pair.name, err)
	}
	w := &secretWatch{name: s, pair: pair, changed: make(chan struct{}, 1)}
	resource := informer.Of(corev1.SchemeGroupVersion.WithResource("secrets"), api.Secrets(s.Namespace))
	w.secret = informer.One(resource, types.NamespacedName(s), pair.Log.WithValues("source", pair.name), w.wake, w.fail)
	return mgr.Add(everywhere(w.run))
}

// secretWatch feeds a KeyPair from a Secret. While the Secret can't be read, its last content stays in use. A signer
// that dropped its CA then could not sign until the API server is back.
type secretWatch struct {
	name    Secret
	secret  *informer.Informer[*corev1.Secret]
	pair    *KeyPair
	changed chan struct{}
}

// recheck is the interval at which a Secret is offered again without an event, because a certificate may become valid.
const recheck = 30 * time.Second

// run watches the Secret until ctx ends.
func (w *secretWatch) run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { _ = w.secret.Start(ctx) }) // it returns no error
	elected := w.pair.elected
	for ctx.Err() == nil {
		w.offer(ctx)
		select {
		case <-ctx.Done():
		case <-w.changed:
		case <-elected: // the leader creates what is missing
			elected = nil
		case <-time.After(recheck):
		}
	}
	return nil
}

// wake requests another offer.
func (w *secretWatch) wake(*corev1.Secret) {
	select {
	case w.changed <- struct{}{}:
	default: // it is already requested
	}
}

// offer offers the current Secret, or creates one that is missing.
func (w *secretWatch) offer(ctx context.Context) {
	secret, found, err := w.secret.Get(w.name.Namespace, w.name.Name)
	if err != nil {
		return // the next read wakes it
	}
	reference := w.name.reference("")
	if found {
		reference.UID = secret.UID
	}
	w.pair.mu.Lock()
	w.pair.object = reference
	w.pair.mu.Unlock()
	w.pair.Offer(secret)
	if !found {
		w.pair.create(ctx, w.name)
	}
}

// fail reports a right that has been missing since the start. Failures after the first read are only logged.
func (w *secretWatch) fail(err error) {
	if state := w.pair.value.State(); apierrors.IsForbidden(err) && !state.Known && state.Problem == nil {
		w.pair.Refuse(unavailable("CAMissing", "%s can't be read: %v", w.pair.name, err))
	}
}

// Offer loads the key pair in secret. A nil secret means that the Secret does not exist.
func (k *KeyPair) Offer(secret *corev1.Secret) {
	switch {
	case secret == nil:
		k.Refuse(k.missing())
	case secret.Type != corev1.SecretTypeTLS:
		k.Refuse(unavailable("CAInvalid", "%s has type %q, want %q", k.name, secret.Type, corev1.SecretTypeTLS))
	case k.guarded:
		k.offerRing(secret.Data)
	default:
		k.Load(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[rootsKey])
	}
}

// Guarded is a Secret whose CA is rotated, laid out as a Ring. Only a pair that its verifiers are proven to trust
// signs, and only for the signers that this is proven for. Each certificate is recorded in the ledger first.
type Guarded struct {
	Secret
	// Ledger records certificates before they are signed. Nil means the ledger that is stored beside the Secret.
	Ledger Ledger
}

// Ledger records certificates before they are signed.
type Ledger interface {
	Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error
}

// SetupWithManager implements Source.
func (g Guarded) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	if pair.ledger == nil {
		pair.ledger = ledger.NewBook(pair.Home.GetClient(), pair.Home.GetAPIReader(), types.NamespacedName(g.Secret), pair.Clock)
	}
	return g.Secret.SetupWithManager(mgr, pair)
}

// offerRing loads the signing pair. It ignores tls.crt and tls.key, which the owner may have replaced.
func (k *KeyPair) offerRing(data map[string][]byte) {
	ring, err := ParseRing(data)
	switch {
	case err != nil:
		k.Refuse(unavailable("CAInvalid", "%s can't be used: %v", k.name, err))
	case ring.Signing.Empty():
		k.Refuse(unavailable("CANotProven", "%s holds no CA yet that its verifiers are proven to trust: "+
			"kubectl get signingauthorities -o wide shows what it waits for", k.name).awaited())
	default:
		k.offerPair(ring.Signing.Cert, ring.Signing.Key, nil, ring.Permit)
	}
}

// Cover records a certificate that is valid until notAfter, if the source is Guarded. If Cover fails, the certificate
// must not be signed.
func (k *KeyPair) Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	if !k.guarded {
		return nil
	}
	return k.ledger.Cover(ctx, keyID, signerName, notAfter)
}
