// Package ledger records, in ConfigMaps, when the last certificate of each signing key and signer expires. A key is then
// destroyed only after its certificates have expired, or after the owner has accepted their loss.
//
// The ledger is never too early, because it is written before the certificates are signed. It holds no key material and
// knows no controller.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	strictjson "sigs.k8s.io/json"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var (
	// ErrSealed is wrapped by the error of Cover for a key whose account is closed.
	ErrSealed = errors.New("its account is closed")
	// ErrNoAccount is wrapped by errors about a key without an account. If the key has signed, its account is lost. A
	// new account would claim that the key has issued no other certificates. So call Open only if the earlier
	// certificates are recorded elsewhere.
	ErrNoAccount = errors.New("the account does not exist")
)

const (
	// An end is stored ahead by a part of the lifetime. Then most certificates need no write, and a completion waits only
	// a little longer than necessary.
	strideOf             = 16
	minStride, maxStride = time.Minute, 24 * time.Hour
	// trustFor is how long a stored end is used without reading the account again. The account may have been closed
	// meanwhile.
	trustFor = 5 * time.Second
)

// quietAfter is the time after Seal from which no Book covers a certificate any more: all stored ends have been read
// again, and the calls of Cover that were under way have ended.
const quietAfter = trustFor + call.Timeout + 5*time.Second

// QuietAfter is the time after Seal from which no certificate of the key is stored any more. A covered certificate is
// recorded in the audit log and stored at once, by one more call, unless the process is suspended in between.
const QuietAfter = quietAfter + call.Timeout + 5*time.Second

// Book is the ledger of one Secret with signing keys: a ConfigMap with an Account for each key. The name of the
// ConfigMap is the name of the Secret and -ledger. Only Open creates an account. Other changes of a missing account
// write nothing and return an error that wraps ErrNoAccount. Several Books, in several processes, may use the same
// ConfigMap. Book is safe for concurrent use. Create it with NewBook.
type Book struct {
	store  store
	clock  clock.PassiveClock
	writes singleflight.Group // by entryKey

	mu   sync.Mutex
	ends map[entryKey]storedEnd
}

type entryKey struct{ keyID, signerName string }

// storedEnd is the end that is stored for a signer. It may be relied on before the instant until.
type storedEnd struct{ notAfter, until time.Time }

// NewBook returns the ledger of the Secret secret. It writes with writer and reads with reader. reader must not be a
// cache.
func NewBook(writer client.Client, reader client.Reader, secret types.NamespacedName, clock clock.PassiveClock) *Book {
	secret.Name = BookName(secret.Name)
	return &Book{
		store: store{writer, reader, secret}, clock: clock, ends: map[entryKey]storedEnd{},
	}
}

// BookName returns the name of the ConfigMap with the ledger of a Secret.
func BookName(secret string) string { return secret + "-ledger" }

// Cover records that the key keyID issues a certificate of signerName that is valid until notAfter. When Cover returns
// nil, that is recorded and the certificate may be stored. If the key's account is closed, the error wraps ErrSealed.
// Concurrent callers share one write, and ctx ends only the waiting of its caller. Cover notices within seconds that
// an account was closed or lost.
func (b *Book) Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	key := entryKey{keyID, signerName}
	detached := context.WithoutCancel(ctx)
	for !b.covers(key, notAfter) {
		written := b.writes.DoChan(keyID+" "+signerName, func() (any, error) { return b.extend(detached, key, notAfter) })
		select {
		case result := <-written:
			if result.Err != nil {
				return fmt.Errorf("record the certificate in the ledger: %w", result.Err)
			}
			if end, _ := result.Val.(time.Time); !end.Before(notAfter) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// covers reports whether a certificate until notAfter may be signed without reading the account.
func (b *Book) covers(key entryKey, notAfter time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	end := b.ends[key]
	return !end.notAfter.Before(notAfter) && b.clock.Now().Before(end.until)
}

// extend stores an end that is later than notAfter, unless a later one is stored. It returns what is stored.
func (b *Book) extend(ctx context.Context, key entryKey, notAfter time.Time) (time.Time, error) {
	now, sealed := b.clock.Now(), false
	end := storedEnd{until: now.Add(trustFor)}
	err := b.change(ctx, key.keyID, func(account *Account) bool {
		sealed, end.notAfter = account.Sealed, account.Signers[key.signerName]
		if sealed || !end.notAfter.Before(notAfter) {
			return false
		}
		ahead := min(max(notAfter.Sub(now)/strideOf, minStride), maxStride)
		account.raise(key.signerName, notAfter.Add(ahead))
		end.notAfter = account.Signers[key.signerName]
		return true
	})
	if err == nil && sealed {
		err = fmt.Errorf("issue by key %s: %w", key.keyID, ErrSealed)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ends, key)
	if err == nil {
		b.ends[key] = end
	}
	return end.notAfter, err
}

// Open creates an empty account for keyID. Call it before the key signs: from then on, a missing account means that
// the ledger is lost. Or call it when the ledger is lost and the issued certificates are recorded elsewhere. Open
// changes no existing account: a closed account stays closed.
func (b *Book) Open(ctx context.Context, keyID string) error {
	return b.store.update(ctx, func(data map[string]string) (bool, error) {
		if _, found := data[keyID]; found {
			return false, nil
		}
		return true, encode(data, keyID, Account{Signers: map[string]time.Time{}})
	})
}

// Seal closes the account of keyID. The account of a destroyed key stays closed, so that a retired CA is recognized
// if it returns. A Read after Seal returns an upper bound of all that is ever covered. A Book may continue to cover,
// within that bound, until QuietAfter.
func (b *Book) Seal(ctx context.Context, keyID string) error { return b.setSealed(ctx, keyID, true) }

// Unseal reverts Seal.
func (b *Book) Unseal(ctx context.Context, keyID string) error { return b.setSealed(ctx, keyID, false) }

func (b *Book) setSealed(ctx context.Context, keyID string, sealed bool) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		changed := account.Sealed != sealed
		account.Sealed = sealed
		return changed
	})
}

// Raise adds no custom signer to an account that has maxSigners names: the end is stored as that of otherSigners. Without this bound, a
// user who may sign for any name could fill the object, and no rotation could go on.
const (
	maxSigners   = 20
	otherSigners = "other signers"
)

// Raise records certificates of keyID that were issued without Cover, for example by another signer. ends has the end of the last one
// by the signer's name. Raise changes a closed account too. It reads the account each time, and writes only if a stored end is earlier.
func (b *Book) Raise(ctx context.Context, keyID string, ends map[string]time.Time) error {
	return b.change(ctx, keyID, func(account *Account) (changed bool) {
		for signer, notAfter := range ends {
			_, known := account.Signers[signer]
			if _, builtin := csr.BuiltinSigner(signer); !known && !builtin && len(account.Signers) >= maxSigners {
				signer = otherSigners
			}
			changed = account.raise(signer, notAfter) || changed
		}
		return changed
	})
}

// Read returns the stored accounts by key ID.
func (b *Book) Read(ctx context.Context) (map[string]Account, error) {
	obj, err := b.store.get(ctx)
	if err != nil {
		return nil, err
	}
	accounts := map[string]Account{}
	for keyID := range obj.Data {
		if accounts[keyID], err = accountIn(obj.Data, keyID); err != nil {
			return nil, fmt.Errorf("ConfigMap %s: %w", b.store.name, err)
		}
	}
	return accounts, nil
}

// change changes the account of keyID, and stores it if it has changed.
func (b *Book) change(ctx context.Context, keyID string, change func(*Account) bool) error {
	return b.store.update(ctx, func(data map[string]string) (bool, error) {
		account, err := accountIn(data, keyID)
		if err != nil || !change(&account) {
			return false, err
		}
		return true, encode(data, keyID, account)
	})
}

// Account bounds the certificates that one key has issued.
type Account struct {
	// Signers has for each signer name an instant that is not before the end of any of its certificates, unless that of otherSigners is.
	Signers map[string]time.Time `json:"signers"`
	// Sealed reports that no more certificates are covered.
	Sealed bool `json:"sealed,omitempty"`
}

// SignerNames returns the signer names that have an end, sorted.
func (a Account) SignerNames() []string { return slices.Sorted(maps.Keys(a.Signers)) }

// raise raises the end of signerName to at least notAfter, and reports whether that changed it.
func (a Account) raise(signerName string, notAfter time.Time) bool {
	known, found := a.Signers[signerName]
	if found && !known.Before(notAfter) {
		return false
	}
	whole := notAfter.UTC().Truncate(time.Second) // certificates hold whole seconds
	if whole.Before(notAfter) {
		whole = whole.Add(time.Second)
	}
	a.Signers[signerName] = whole
	return true
}

// accountIn parses the account of keyID in data. It fails if it could not write the text back unchanged. A missing
// account is unknown, not empty: the error wraps ErrNoAccount.
func accountIn(data map[string]string, keyID string) (Account, error) {
	account, err := Account{Signers: map[string]time.Time{}}, ErrNoAccount
	if text, found := data[keyID]; found {
		strict, wrong := strictjson.UnmarshalStrict([]byte(text), &account)
		err = errors.Join(append(strict, wrong)...)
	}
	if err != nil {
		return Account{}, fmt.Errorf("read the account of key %s: %w", keyID, err)
	}
	return account, nil
}

func encode(data map[string]string, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	data[key] = string(text)
	return nil
}

// store is one ConfigMap that is changed by compare-and-swap. reader has no cache.
type store struct {
	writer client.Client
	reader client.Reader
	name   types.NamespacedName
}

// get reads the ConfigMap. A missing ConfigMap is returned without a resourceVersion.
func (s store) get(ctx context.Context) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	if err := call.Get(ctx, s.reader, s.name, obj); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", s.name, err)
	}
	obj.Namespace, obj.Name = s.name.Namespace, s.name.Name
	if obj.Data == nil {
		obj.Data = map[string]string{}
	}
	return obj, nil
}

// update calls change with the stored data, and stores the result if change reports a change. If another process
// wrote meanwhile, update starts again.
func (s store) update(ctx context.Context, change func(data map[string]string) (changed bool, err error)) error {
	outdated := func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
	}
	retries := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 8}
	return retry.OnError(retries, outdated, func() error {
		obj, err := s.get(ctx)
		if err != nil {
			return err
		}
		if changed, err := change(obj.Data); err != nil {
			return fmt.Errorf("ConfigMap %s: %w", s.name, err)
		} else if !changed {
			return nil
		}
		if obj.ResourceVersion == "" {
			err = call.Write(ctx, s.writer.Create, obj)
		} else {
			err = call.Write(ctx, s.writer.Update, obj)
		}
		if err != nil {
			return fmt.Errorf("write ConfigMap %s: %w", s.name, err)
		}
		return nil
	})
}
