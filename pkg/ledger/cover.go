package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// demand is what several callers want covered in one entry.
type demand struct {
	count    int
	notAfter time.Time
	done     chan struct{} // closed when err is set
	err      error
}

func (d *demand) join(notAfter time.Time) {
	d.count++
	if notAfter.After(d.notAfter) {
		d.notAfter = notAfter
	}
}

// write covers what is waited for, until nothing is.
func (b *Book) write(ctx context.Context) {
	for {
		b.mu.Lock()
		wanted := b.waiting
		b.waiting = map[entryKey]*demand{}
		b.serve(wanted)
		b.writing = len(wanted) > 0
		known := b.known(wanted)
		b.mu.Unlock()
		if len(wanted) == 0 {
			return
		}
		b.commit(ctx, wanted, known)
	}
}

// serve answers, and takes out, what has been reserved since it was asked for. The caller holds mu.
func (b *Book) serve(wanted map[entryKey]*demand) {
	for key, one := range wanted {
		known := b.entries[key]
		if known == nil || known.sealed || known.left < one.count || known.NotAfter.Before(one.notAfter) {
			continue
		}
		known.left -= one.count
		close(one.done)
		delete(wanted, key)
	}
}

// known is what must be stored at least for the entries of wanted, even if their account was lost and made anew. The
// caller holds mu.
func (b *Book) known(wanted map[entryKey]*demand) map[entryKey]Entry {
	known := map[entryKey]Entry{}
	for key := range wanted {
		if one := b.entries[key]; one != nil {
			known[key] = one.Entry
		}
	}
	return known
}

// commit stores what covers wanted, with one write, and answers it.
func (b *Book) commit(ctx context.Context, wanted map[entryKey]*demand, known map[entryKey]Entry) {
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
			stored[key] = one.reserveIn(account, key.signerName, known[key], now)
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
		b.answer(key, one, stored[key], errors.Join(err, broken[key.keyID]))
	}
}

// reserveIn adds what d wants, and some more, to the entry of account.
func (d *demand) reserveIn(account Account, signerName string, known Entry, now time.Time) reserve {
	account.raise(signerName, known)
	entry := account.Signers[signerName]
	more := max(d.count, block)
	entry.Count += more
	if entry.NotAfter.Before(d.notAfter) {
		entry.NotAfter = wholeSecond(d.notAfter.Add(stride(d.notAfter.Sub(now))))
	}
	account.Signers[signerName] = entry
	return reserve{Entry: entry, left: more - d.count}
}

func stride(lifetime time.Duration) time.Duration {
	return min(max(lifetime/strideOf, minStride), maxStride)
}

// answer tells who waits for one, and keeps what is left for the next. The caller holds mu.
func (b *Book) answer(key entryKey, one *demand, stored reserve, err error) {
	defer close(one.done)
	if err != nil {
		if errors.Is(err, ErrNoAccount) {
			b.unreserve(key.keyID)
		}
		one.err = fmt.Errorf("note what is to be issued: %w", err)
		return
	}
	known := b.learn(key, stored.Entry)
	known.sealed = stored.sealed
	known.left += stored.left
	if stored.sealed {
		known.left = 0
		one.err = fmt.Errorf("issue by key %s: %w", key.keyID, ErrSealed)
	}
}

// unreserve leaves nothing to take for keyID without a write; what was stored once is remembered. The caller holds mu.
func (b *Book) unreserve(keyID string) {
	for key, known := range b.entries {
		if key.keyID == keyID {
			known.left = 0
		}
	}
}

// learn keeps what is stored at least. The caller holds mu.
func (b *Book) learn(key entryKey, stored Entry) *reserve {
	known := b.entries[key]
	if known == nil {
		known = &reserve{}
		b.entries[key] = known
	}
	known.Count = max(known.Count, stored.Count)
	if stored.NotAfter.After(known.NotAfter) {
		known.NotAfter = stored.NotAfter
	}
	return known
}
