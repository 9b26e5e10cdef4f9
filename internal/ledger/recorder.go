package ledger

import (
	"context"
	"errors"
	"sync"
	"time"
)

// flushEvery is how long what was seen may wait to be stored.
const flushEvery = 5 * time.Second

// Recorder notes certificates that are found issued, by whomever, and stores them in batches.
type Recorder struct {
	Book  *Book
	Nodes *Nodes

	flushing sync.Mutex // whoever waits for a Flush waits for the one under way too
	mu       sync.Mutex
	pending  map[entryKey]time.Time // the latest end
}

// Note keeps certificate for the next Flush, and for the Nodes.
func (r *Recorder) Note(certificate Certificate) {
	r.Nodes.Note(certificate)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteEnd(entryKey{certificate.KeyID, certificate.Signer}, certificate.NotAfter)
}

// noteEnd keeps what is later. The caller holds mu.
func (r *Recorder) noteEnd(key entryKey, notAfter time.Time) {
	if r.pending == nil {
		r.pending = map[entryKey]time.Time{}
	}
	if notAfter.After(r.pending[key]) {
		r.pending[key] = notAfter
	}
}

// Flush stores the ends that have been noted; what can't be stored is kept for the next one. After it, without an error,
// Book.Read knows of all that was noted before. That a key has no account is no error: then what was noted of it waits for
// one, and Read has none of it either. The Nodes, of which nothing is decided, keep nobody waiting: Run stores them.
func (r *Recorder) Flush(ctx context.Context) error {
	r.flushing.Lock()
	defer r.flushing.Unlock()
	r.mu.Lock()
	noted := r.pending
	r.pending = nil
	r.mu.Unlock()
	var errs []error
	for key, notAfter := range noted {
		if err := r.Book.Raise(ctx, key.keyID, key.signerName, notAfter); err != nil {
			if !errors.Is(err, ErrNoAccount) {
				errs = append(errs, err)
			}
			r.mu.Lock()
			r.noteEnd(key, notAfter)
			r.mu.Unlock()
		}
	}
	return errors.Join(errs...)
}

// store stores all that has been noted.
func (r *Recorder) store(ctx context.Context) error {
	return errors.Join(r.Flush(ctx), r.Nodes.Flush(ctx))
}

// Run stores what has been noted every few seconds until ctx ends, and then once more. tell is called with what could not be
// stored.
func (r *Recorder) Run(ctx context.Context, tell func(error)) {
	ticker := time.NewTicker(flushEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
			defer cancel()
			if err := r.store(last); err != nil {
				tell(err)
			}
			return
		case <-ticker.C:
			if err := r.store(ctx); err != nil && ctx.Err() == nil {
				tell(err)
			}
		}
	}
}
