// Package ledger records, in ConfigMaps, an upper bound of the certificates that each signing key has issued, and of
// their expiry. A key is then destroyed only after its certificates have expired, or after the owner has accepted
// their loss.
//
// The ledger never counts too few certificates, because it is written before the certificates are signed. It holds no
// key material and knows no controller.
package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	// block is the number of certificates that are reserved at a time.
	block = 64
	// NotAfter is stored ahead by a part of the lifetime. Then most certificates need no write, and a completion waits
	// only a little longer than necessary.
	strideOf             = 16
	minStride, maxStride = time.Minute, 24 * time.Hour
	// reserveFor is how long a reserve may be used without reading the account again. The account may have been
	// closed meanwhile.
	reserveFor = 5 * time.Second
)

// QuietAfter is the time after Seal from which no Book covers a certificate any more. By then all reserves have
// expired, and all concurrent writes have arrived. A covered certificate is signed and stored at once, unless the
// process is suspended in between.
const QuietAfter = reserveFor + timeout + 5*time.Second

// Book is the ledger of one Secret with signing keys: a ConfigMap with an Account for each key. The name of the
// ConfigMap is the name of the Secret and -ledger. Only Open and Import create an account. Other changes of a missing
// account write nothing and return an error that wraps ErrNoAccount. Several Books, in several processes, may use the
// same ConfigMap. Book is safe for concurrent use. Create it with NewBook.
type Book struct {
	store store
	clock clock.PassiveClock

	mu      sync.Mutex
	keyID   string // of the last Cover
	entries map[entryKey]*reserve
	waiting map[entryKey]*demand // callers that arrived during a write
	writing bool
}

type entryKey struct{ keyID, signerName string }

// reserve is a lower bound of the stored entry. left counts its certificates that have not been signed yet. They may
// be signed before the instant until.
type reserve struct {
	Entry
	left   int
	until  time.Time
	sealed bool
}

// covers reports whether count more certificates that are valid until notAfter can be signed at now without reading
// the account.
func (r *reserve) covers(count int, notAfter, now time.Time) bool {
	return r != nil && !r.sealed && r.left >= count && !r.NotAfter.Before(notAfter) && now.Before(r.until)
}

// NewBook returns the ledger of the Secret secret. It writes with writer and reads with reader. reader must not be a
// cache.
func NewBook(writer client.Client, reader client.Reader, secret types.NamespacedName, clock clock.PassiveClock) *Book {
	secret.Name = BookName(secret.Name)
	return &Book{
		store: store{writer: writer, reader: reader, name: secret}, clock: clock,
		entries: map[entryKey]*reserve{}, waiting: map[entryKey]*demand{},
	}
}

// BookName returns the name of the ConfigMap with the ledger of a Secret.
func BookName(secret string) string { return secret + "-ledger" }

// Cover reserves one more certificate of signerName by the key keyID, valid until notAfter. When Cover returns nil,
// the reservation is stored and the certificate may be signed. If the key's account is closed, the error wraps
// ErrSealed. Concurrent callers share one write, and ctx ends only the waiting of its caller.
//
// Cover notices within seconds that an account was closed or lost. Until then reserves are used. What was stored in a
// lost account is stored again once there is a new account.
func (b *Book) Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	key := entryKey{keyID, signerName}
	b.mu.Lock()
	if b.keyID != keyID { // an account that was removed meanwhile must not be trusted if that key ever returns
		maps.DeleteFunc(b.entries, func(key entryKey, _ *reserve) bool { return key.keyID == b.keyID })
		b.keyID = keyID
	}
	if known := b.entries[key]; known.covers(1, notAfter, b.clock.Now()) {
		known.left--
		b.mu.Unlock()
		return nil
	}
	wanted := b.waiting[key]
	if wanted == nil {
		wanted = &demand{done: make(chan struct{})}
		b.waiting[key] = wanted
	}
	wanted.count++
	if notAfter.After(wanted.notAfter) {
		wanted.notAfter = notAfter
	}
	if !b.writing {
		b.writing = true
		go b.write(context.WithoutCancel(ctx))
	}
	b.mu.Unlock()
	select {
	case <-wanted.done:
		return wanted.err
	case <-ctx.Done():
		return ctx.Err() // its reserved certificate remains unused
	}
}

// Open creates an empty account for keyID. Call it before the key signs: from then on, a missing account means that
// the ledger is lost. Or call it when the ledger is lost and the issued certificates are recorded elsewhere. Open
// changes no existing account: a closed account stays closed.
func (b *Book) Open(ctx context.Context, keyID string) error {
	return b.store.update(ctx, func(data map[string]string) (bool, error) { return openIn(data, keyID) })
}

// Seal closes the account of keyID. The account of a destroyed key stays closed, so that a retired CA is recognized
// if it returns. A Read after Seal returns an upper bound of all that is ever covered. A Book with reserves may
// continue to cover, within that bound, until QuietAfter.
func (b *Book) Seal(ctx context.Context, keyID string) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		changed := !account.Sealed
		account.Sealed = true
		return changed
	})
}

// Unseal reverts Seal.
func (b *Book) Unseal(ctx context.Context, keyID string) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		changed := account.Sealed
		account.Sealed = false
		return changed
	})
}

// Raise records a certificate of keyID that was issued without Cover, for example by another signer. It changes a
// closed account too. It reads the account each time, and writes only if the stored expiry is earlier.
func (b *Book) Raise(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		stored := account.Signers[signerName]
		return stored.NotAfter.Before(notAfter) && account.raise(signerName,
			Entry{Count: stored.Count + 1, NotAfter: notAfter})
	})
}

// Import creates the account of keyID, if there is none. It raises the account to at least the entries of signerNames
// in from, an account of another ledger. For the zero Account, which Read returns for a key without an account, the
// error wraps ErrNoAccount.
func (b *Book) Import(ctx context.Context, keyID string, from Account, signerNames []string) error {
	if from.Signers == nil {
		return fmt.Errorf("import the account of key %s: %w", keyID, ErrNoAccount)
	}
	return b.store.update(ctx, func(data map[string]string) (bool, error) {
		made, err := openIn(data, keyID)
		if err != nil {
			return false, err
		}
		raised, err := b.changeIn(data, keyID, func(account *Account) bool {
			changed := false
			for _, signerName := range signerNames {
				if entry, found := from.Signers[signerName]; found && account.raise(signerName, entry) {
					changed = true
				}
			}
			return changed
		})
		return made || raised, err
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
	return b.store.update(ctx, func(data map[string]string) (bool, error) { return b.changeIn(data, keyID, change) })
}

func (b *Book) changeIn(data map[string]string, keyID string, change func(*Account) bool) (changed bool, err error) {
	account, err := accountIn(data, keyID)
	if err != nil {
		return false, fmt.Errorf("ConfigMap %s: %w", b.store.name, err)
	}
	if !change(&account) {
		return false, nil
	}
	return true, encode(data, keyID, account)
}

// Entry bounds the certificates that one signer has issued by one key.
type Entry struct {
	// Count is an upper bound of the covered certificates. It includes expired certificates, and reserved
	// certificates that were not issued. Of certificates by other issuers it includes only some.
	Count int `json:"count"`
	// NotAfter is at least the latest expiry of these certificates.
	NotAfter time.Time `json:"notAfter"`
}

// Account bounds the certificates that one key has issued.
type Account struct {
	// Signers has an entry for each signer name.
	Signers map[string]Entry `json:"signers"`
	// Sealed reports that no more certificates are covered.
	Sealed bool `json:"sealed,omitempty"`
}

// SignerNames returns the signer names that have an entry, sorted.
func (a Account) SignerNames() []string { return slices.Sorted(maps.Keys(a.Signers)) }

// raise raises the entry of signerName to at least least, and reports whether that changed it.
func (a Account) raise(signerName string, least Entry) bool {
	entry, found := a.Signers[signerName]
	raised := entry
	raised.Count = max(raised.Count, least.Count)
	if least.NotAfter.After(raised.NotAfter) {
		raised.NotAfter = wholeSecond(least.NotAfter)
	}
	a.Signers[signerName] = raised
	return !found || raised.Count != entry.Count || !raised.NotAfter.Equal(entry.NotAfter)
}

// wholeSecond rounds at up to a whole second, in UTC, because certificates hold whole seconds.
func wholeSecond(at time.Time) time.Time {
	whole := at.UTC().Truncate(time.Second)
	if whole.Before(at) {
		whole = whole.Add(time.Second)
	}
	return whole
}

// accountIn parses the account of keyID in data. It fails if it could not write the text back unchanged. A missing
// account is unknown, not empty: the error wraps ErrNoAccount.
func accountIn(data map[string]string, keyID string) (Account, error) {
	account := Account{}
	text, found := data[keyID]
	err := ErrNoAccount
	if found {
		err = strictly(text, &account)
	}
	if err != nil {
		return Account{}, fmt.Errorf("read the account of key %s: %w", keyID, err)
	}
	if account.Signers == nil {
		account.Signers = map[string]Entry{}
	}
	for signerName, entry := range account.Signers {
		if entry.Count < 0 {
			return Account{}, fmt.Errorf("read the account of key %s: negative count %d for signer %s",
				keyID, entry.Count, signerName)
		}
	}
	return account, nil
}

// openIn creates the account of keyID in data, unless there is one.
func openIn(data map[string]string, keyID string) (made bool, err error) {
	if _, found := data[keyID]; found {
		return false, nil
	}
	return true, encode(data, keyID, Account{Signers: map[string]Entry{}})
}

func strictly(text string, into any) error {
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}

func encode(data map[string]string, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", key, err)
	}
	data[key] = string(text)
	return nil
}

// timeout bounds one change, with all its retries.
const timeout = 10 * time.Second

// store is one ConfigMap that is changed by compare-and-swap. It remembers the last version, so that a change costs
// one request, unless another process wrote meanwhile.
type store struct {
	writer client.Client
	reader client.Reader // without a cache
	name   types.NamespacedName

	mu   sync.Mutex // held during a change
	last *corev1.ConfigMap
}

// get reads the ConfigMap. A missing ConfigMap is returned without a resourceVersion.
func (s *store) get(ctx context.Context) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	if err := s.reader.Get(ctx, s.name, obj); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", s.name, err)
	} else if err != nil {
		obj = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}}
	}
	return obj, nil
}

// update calls change with the stored data, and stores the result if change reports a change. If another process
// wrote meanwhile, update calls change again with newer data. It does the same if change failed or changed nothing
// and the data may have been old.
func (s *store) update(ctx context.Context, change func(data map[string]string) (changed bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	retries := wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 8}
	var last error
	err := wait.ExponentialBackoffWithContext(ctx, retries, func(ctx context.Context) (done bool, err error) {
		remembered := s.last != nil
		done, err = s.once(ctx, change)
		if outdated(err) && remembered { // another process has written since
			done, err = s.once(ctx, change)
		}
		if outdated(err) {
			last, err = err, nil
		}
		return done, err
	})
	if wait.Interrupted(err) && last != nil {
		return fmt.Errorf("write ConfigMap %s: %w", s.name, last)
	}
	return err
}

// outdated reports whether a write was refused because the stored version differs from the known version.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

func (s *store) once(ctx context.Context, change func(map[string]string) (bool, error)) (done bool, err error) {
	known := s.last
	s.last = nil // until it is known again
	fresh := known == nil
	if fresh {
		if known, err = s.get(ctx); err != nil {
			return false, err
		}
	}
	obj := known.DeepCopy()
	if obj.Data == nil {
		obj.Data = map[string]string{}
	}
	changed, err := change(obj.Data)
	switch {
	case (err != nil || !changed) && !fresh:
		return s.once(ctx, change)
	case err != nil:
		return false, err
	case !changed:
		s.last = known
		return true, nil
	case obj.ResourceVersion == "":
		err = s.writer.Create(ctx, obj)
	default:
		err = s.writer.Update(ctx, obj)
	}
	if err != nil {
		return false, err
	}
	s.last = obj
	return true, nil
}
