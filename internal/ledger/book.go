// Package ledger keeps, in ConfigMaps, how much may have been issued by each signing key and until when it lives, so
// that a key is destroyed only after its certificates have ended, or after the owner has accepted their loss. The
// ledger never counts too few certificates, because it is written before the signing that it covers. It holds no key
// material and knows no controller.
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
	// ErrSealed is what Cover returns, wrapped, for a key that nothing may be issued by any more.
	ErrSealed = errors.New("its account is closed")
	// ErrNoAccount is what is returned, wrapped, for a key without an account. If the key has signed, then the account is
	// lost, and one that began anew would say that nothing else was issued: only who knows otherwise may Open it.
	ErrNoAccount = errors.New("there is none")
)

const (
	// block is how many certificates are reserved at a time.
	block = 64
	// The mark is written ahead by a part of the lifetime, so that it need not be written for each certificate, and a
	// completion waits only a little longer than it must.
	strideOf             = 16
	minStride, maxStride = time.Minute, 24 * time.Hour
	// reserveFor is how long what is reserved may be used without another look at the account, which may be closed by
	// then.
	reserveFor = 5 * time.Second
)

// QuietAfter is the time after Seal from which no Book covers a certificate any more. All reserves have ended by then,
// and all writes that were under way have arrived. A covered certificate is signed and stored at once, unless the
// process stands still in between.
const QuietAfter = reserveFor + timeout + 5*time.Second

// Book is the ledger of one Secret with signing keys: a ConfigMap of its name and -ledger, with an Account for each
// key. Only Open and Import make an account; whatever else changes one returns ErrNoAccount, wrapped, where there is
// none, and writes nothing. Several may work on the same ConfigMap, in several processes. It is safe for concurrent
// use; NewBook makes one.
type Book struct {
	store store
	clock clock.PassiveClock

	mu      sync.Mutex
	keyID   string // of the last Cover
	entries map[entryKey]*reserve
	waiting map[entryKey]*demand // who came while a write was under way
	writing bool
}

type entryKey struct{ keyID, signerName string }

// reserve is the least that is stored for an entry. left counts the certificates of it that have not been signed yet.
// They may be signed until the instant until.
type reserve struct {
	Entry
	left   int
	until  time.Time
	sealed bool
}

// covers reports whether count more certificates that live until notAfter can be signed at now without reading the
// account.
func (r *reserve) covers(count int, notAfter, now time.Time) bool {
	return r != nil && !r.sealed && r.left >= count && !r.NotAfter.Before(notAfter) && now.Before(r.until)
}

// NewBook returns the ledger of the Secret secret. It writes with writer, and reads with reader, which must not be a
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

// Cover returns nil when it is stored that signerName may issue one more certificate by the key keyID that lives until
// notAfter: then it may be signed. It returns an error that wraps ErrSealed when the key's account is closed. Those who
// call it at the same time share one write, and ctx ends the waiting of its caller only. That an account is closed or
// gone is seen within seconds: what was reserved is used until then, and what was stored is stored again once there is
// an account.
func (b *Book) Cover(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	key := entryKey{keyID, signerName}
	b.mu.Lock()
	if b.keyID != keyID { // an account that was removed meanwhile must not be trusted if that key ever comes back
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
		return ctx.Err() // what is reserved for it is left unused
	}
}

// Open makes an empty account for keyID: before it signs, so that from then on having none means that the ledger is
// lost, or when it is lost, and what was issued is accounted for elsewhere. It changes no account that there is: one
// that is closed stays so.
func (b *Book) Open(ctx context.Context, keyID string) error {
	return b.store.update(ctx, func(data map[string]string) (bool, error) { return openIn(data, keyID) })
}

// Seal closes the account of keyID, for good once the key is destroyed: by that a CA that has retired is known when it
// comes back. What Read returns after it is all that will ever have been covered: a Book that has reserved before may
// go on to cover, within those counts and ends, until QuietAfter.
func (b *Book) Seal(ctx context.Context, keyID string) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		changed := !account.Sealed
		account.Sealed = true
		return changed
	})
}

// Unseal takes back Seal.
func (b *Book) Unseal(ctx context.Context, keyID string) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		changed := account.Sealed
		account.Sealed = false
		return changed
	})
}

// Raise notes a certificate of keyID that was issued without Cover, for example by another signer. It changes a closed
// account too. It writes only if the stored end is earlier, and reads it each time.
func (b *Book) Raise(ctx context.Context, keyID, signerName string, notAfter time.Time) error {
	return b.change(ctx, keyID, func(account *Account) bool {
		stored := account.Signers[signerName]
		return stored.NotAfter.Before(notAfter) && account.raise(signerName,
			Entry{Count: stored.Count + 1, NotAfter: notAfter})
	})
}

// Import makes the account of keyID, if there is none, and has it say at least what from, of another ledger, says of
// signerNames. The zero Account, which Read has of a key without one, is refused with ErrNoAccount, wrapped.
func (b *Book) Import(ctx context.Context, keyID string, from Account, signerNames []string) error {
	if from.Signers == nil {
		return fmt.Errorf("take over the account of key %s: %w", keyID, ErrNoAccount)
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

// Read returns the accounts by key id, as they are stored now.
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

// change changes the account of keyID and stores it, unless there is nothing to change.
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

// Entry is what one signer may have issued by one key.
type Entry struct {
	// Count is how many certificates were covered at most: those that have ended count on, and those that were reserved
	// and not made. Of those that others issued, only some are in it.
	Count int `json:"count"`
	// NotAfter is the latest end of any of them, or later.
	NotAfter time.Time `json:"notAfter"`
}

// Account is what may have been issued by one key.
type Account struct {
	// Signers has an entry for each signer name.
	Signers map[string]Entry `json:"signers"`
	// Sealed means that nothing more is covered.
	Sealed bool `json:"sealed,omitempty"`
}

// SignerNames returns the signer names that have an entry, sorted.
func (a Account) SignerNames() []string { return slices.Sorted(maps.Keys(a.Signers)) }

// raise makes the entry of signerName at least least, and reports whether it was less.
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

// wholeSecond rounds at up to a whole second, in UTC, as certificates have it.
func wholeSecond(at time.Time) time.Time {
	whole := at.UTC().Truncate(time.Second)
	if whole.Before(at) {
		whole = whole.Add(time.Second)
	}
	return whole
}

// accountIn reads the account of keyID from data, and refuses what it would not write back unchanged. A missing account
// is unknown, not empty: ErrNoAccount.
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
			return Account{}, fmt.Errorf("read the account of key %s: a count of %d for signer %s",
				keyID, entry.Count, signerName)
		}
	}
	return account, nil
}

// openIn makes the account of keyID in data, unless there is one.
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
		return errors.New("something follows the JSON object")
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

// store is one ConfigMap that is changed by compare-and-swap. It keeps the version that it saw last, so that a change
// costs one request unless another process wrote meanwhile.
type store struct {
	writer client.Client
	reader client.Reader // past any cache
	name   types.NamespacedName

	mu   sync.Mutex // held during a change
	last *corev1.ConfigMap
}

// get reads what is stored; a ConfigMap that does not exist is one without a resourceVersion.
func (s *store) get(ctx context.Context) (*corev1.ConfigMap, error) {
	obj := &corev1.ConfigMap{}
	if err := s.reader.Get(ctx, s.name, obj); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get ConfigMap %s: %w", s.name, err)
	} else if err != nil {
		obj = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.name.Namespace, Name: s.name.Name}}
	}
	return obj, nil
}

// update calls change with the stored data, and stores the result if change reports a change. It calls change again
// with newer data if another process wrote meanwhile. It does so too if change failed or changed nothing, and the data
// may have been old.
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
		if outdated(err) && remembered { // somebody else has written since
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

// outdated says whether a write was refused because something else is stored than was known.
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
