package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// demand is the sum of the certificates that several callers want covered in one entry.
type demand struct {
	count    int
	notAfter time.Time
	done     chan struct{} // closed when err is set
	err      error
}

// write covers demands until no demand waits.
func (b *Book) write(ctx context.Context) {
	for {
		b.mu.Lock()
		wanted := b.waiting
		b.waiting = map[entryKey]*demand{}
		b.serve(wanted)
		b.writing = len(wanted) > 0
		known := b.claim(wanted)
		b.mu.Unlock()
		if len(wanted) == 0 {
			return
		}
		b.commit(ctx, wanted, known)
	}
}

// serve answers and removes the demands for which certificates were reserved after the demand was made. The caller
// holds mu.
func (b *Book) serve(wanted map[entryKey]*demand) {
	for key, one := range wanted {
		known := b.entries[key]
		if !known.covers(one.count, one.notAfter, b.clock.Now()) {
			continue
		}
		known.left -= one.count
		close(one.done)
		delete(wanted, key)
	}
}

// claim returns the reserves for the entries of wanted. commit must store at least these entries, even if their
// account was lost and created again. claim takes the remaining certificates, so that no other caller uses them
// meanwhile. The caller holds mu.
func (b *Book) claim(wanted map[entryKey]*demand) map[entryKey]reserve {
	claimed := map[entryKey]reserve{}
	for key := range wanted {
		if one := b.entries[key]; one != nil {
			claimed[key] = *one
			one.left = 0
		}
	}
	return claimed
}

// commit stores entries that cover wanted, with one write, or without a write if the reserves suffice. It answers
// wanted.
func (b *Book) commit(ctx context.Context, wanted map[entryKey]*demand, claimed map[entryKey]reserve) {
	now := b.clock.Now()
	var stored map[entryKey]reserve
	var broken map[string]error
	err := b.store.update(ctx, func(data map[string]string) (bool, error) {
		stored, broken = map[entryKey]reserve{}, map[string]error{}
		changed := false
		for key, one := range wanted {
			account, err := accountIn(data, key.keyID)
			if err != nil {
				broken[key.keyID] = fmt.Errorf("ConfigMap %s: %w", b.store.name, err)
				continue
			}
			if account.Sealed {
				stored[key] = reserve{sealed: true}
				continue
			}
			reserved, more := one.reserveIn(account, key.signerName, claimed[key], now)
			stored[key] = reserved
			if !more {
				continue
			}
			if err := encode(data, key.keyID, account); err != nil {
				return false, err
			}
			changed = true
		}
		return changed, nil
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, one := range wanted {
		b.answer(key, one, stored[key], claimed[key].left, errors.Join(err, broken[key.keyID]))
	}
}

// reserveIn raises the entry of account to cover d, and reports whether that changed it. It then adds more than d
// needs, for later callers.
func (d *demand) reserveIn(
	account Account, signerName string, claimed reserve, now time.Time,
) (reserved reserve, changed bool) {
	changed = account.raise(signerName, claimed.Entry)
	entry, left := account.Signers[signerName], claimed.left
	if short := d.count - left; short > 0 {
		entry.Count += max(short, block)
		left += max(short, block)
		changed = true
	}
	if entry.NotAfter.Before(d.notAfter) {
		ahead := min(max(d.notAfter.Sub(now)/strideOf, minStride), maxStride)
		entry.NotAfter = wholeSecond(d.notAfter.Add(ahead))
		changed = true
	}
	account.Signers[signerName] = entry
	return reserve{Entry: entry, left: left - d.count, until: now.Add(reserveFor)}, changed
}

// answer answers the callers of one, and keeps the remaining reserve for later callers. If nothing was stored, the
// remaining reserve is the claimed reserve. The caller holds mu.
func (b *Book) answer(key entryKey, one *demand, stored reserve, claimed int, err error) {
	defer close(one.done)
	if err != nil {
		b.entry(key).left += claimed
		if errors.Is(err, ErrNoAccount) {
			for other, known := range b.entries {
				if other.keyID == key.keyID {
					known.left = 0 // no certificate of this key is covered without a write; the stored entries are remembered
				}
			}
		}
		one.err = fmt.Errorf("record the certificate in the ledger: %w", err)
		return
	}
	known := b.entry(key)
	known.Count = max(known.Count, stored.Count)
	if stored.NotAfter.After(known.NotAfter) {
		known.NotAfter = stored.NotAfter
	}
	known.left, known.until, known.sealed = stored.left, stored.until, stored.sealed
	if stored.sealed {
		one.err = fmt.Errorf("issue by key %s: %w", key.keyID, ErrSealed)
	}
}

// entry returns the reserve of key, and creates it if necessary. The caller holds mu.
func (b *Book) entry(key entryKey) *reserve {
	if b.entries[key] == nil {
		b.entries[key] = &reserve{}
	}
	return b.entries[key]
}
