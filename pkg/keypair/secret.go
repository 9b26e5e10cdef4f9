package keypair

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informers"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// Secret is a key pair in a Secret of type kubernetes.io/tls: tls.crt, which may hold several certificates, tls.key,
// and perhaps ca.crt, which holds those that the chain ends in. It is watched by name, so that a role for that one
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
	var synced atomic.Bool
	secrets, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(),
		Scheme:     mgr.GetScheme(),
		Mapper:     informers.Mapper(corev1.SchemeGroupVersion.WithKind("Secret")),
		DefaultWatchErrorHandler: func(ctx context.Context, reflector *toolscache.Reflector, err error) {
			// Once it has been read, what was read counts, and the reflector writes to its own log.
			if apierrors.IsForbidden(err) && !synced.Load() {
				pair.Refuse(unavailable("CAMissing", "%s can't be read: %v", pair.name, err))
			}
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		},
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{s.Namespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", s.Name),
		}},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", pair.name, err)
	}
	return mgr.Add(everywhere(func(ctx context.Context) error { return s.watch(ctx, secrets, pair, &synced) }))
}

func (s Secret) watch(ctx context.Context, secrets cache.Cache, pair *KeyPair, synced *atomic.Bool) error {
	informer, err := informers.Get(ctx, secrets, &corev1.Secret{}, pair.Log, func(err error) {
		if err != nil {
			pair.Refuse(unavailable("CAMissing", "%s can't be read: %v", pair.name, err))
		}
	})
	if err != nil {
		return nil // ctx has ended
	}
	changed := make(chan struct{}, 1)
	enqueue := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: enqueue, UpdateFunc: func(_, obj any) { enqueue(obj) }, DeleteFunc: enqueue,
	}); err != nil {
		return fmt.Errorf("watch %s: %w", pair.name, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- secrets.Start(ctx) }()
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	// A Secret that does not exist causes no event, so it is read once when the informer has synced.
	synced.Store(toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced))
	for {
		s.load(ctx, secrets, pair)
		select {
		case err := <-stopped:
			return err
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (s Secret) load(ctx context.Context, secrets client.Reader, pair *KeyPair) {
	secret := &corev1.Secret{}
	err := secrets.Get(ctx, types.NamespacedName(s), secret)
	pair.mu.Lock()
	pair.object = s.reference(secret.UID)
	pair.mu.Unlock()
	switch {
	case ctx.Err() != nil:
	case client.IgnoreNotFound(err) != nil:
		pair.Refuse(unavailable("CAMissing", "%s can't be read: %v", pair.name, err))
	default:
		pair.offer(secret, err == nil)
	}
}

// ReadOnce implements Source.
func (s Secret) ReadOnce(ctx context.Context, reader client.Reader, pair *KeyPair) error {
	secret := &corev1.Secret{}
	err := reader.Get(ctx, types.NamespacedName(s), secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get %s: %w", pair.name, err)
	}
	pair.offer(secret, err == nil)
	return nil
}

// offer loads the key pair in secret, if the Secret was found.
func (k *KeyPair) offer(secret *corev1.Secret, found bool) {
	switch {
	case !found:
		k.Refuse(k.missing())
	case secret.Type != corev1.SecretTypeTLS:
		k.Refuse(unavailable("CAInvalid", "%s has type %q, want %q", k.name, secret.Type, corev1.SecretTypeTLS))
	case k.guard != nil:
		k.offerRing(secret.Data)
	default:
		k.Load(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], secret.Data[rootsKey])
	}
}

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
