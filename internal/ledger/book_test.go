package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/kit/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/slow"
)

var (
	now    = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	secret = types.NamespacedName{Namespace: "ns", Name: "ca"}
)

const key, other, node, web = "0123456789abcdef", "fedcba9876543210", "kubernetes.io/kubelet-serving", "example.com/web"

// ends are ends by signer name.
type ends = map[string]time.Time

// world is a fake API server that counts requests, and the Book of one process. before, if set, is called before each
// write.
type world struct {
	client.Client
	*ledger.Book
	t             testing.TB
	clock         *clocktesting.FakePassiveClock
	reads, writes atomic.Int64
	before        func() error
}

// newWorld returns a world with an empty account for each of keyIDs.
func newWorld(t testing.TB, keyIDs ...string) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakePassiveClock(now)}
	write := func(do func() error) error {
		if w.writes.Add(1); w.before != nil {
			if err := w.before(); err != nil {
				return err
			}
		}
		return do()
	}
	w.Client = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
			w.reads.Add(1)
			return c.Get(ctx, key, obj, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, obj, options...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, obj, options...) })
		},
	}).Build()
	w.Book = w.another()
	for _, keyID := range keyIDs {
		w.succeed(w.Open(t.Context(), keyID))
	}
	w.reads.Store(0)
	w.writes.Store(0)
	return w
}

func (w *world) another() *ledger.Book { return ledger.NewBook(w, w, secret, w.clock) }

func (w *world) ahead(after time.Duration) { w.clock.SetTime(now.Add(after)) }

// cover covers one certificate of the key that ends that long after now.
func (w *world) cover(signer string, after time.Duration) error {
	return w.Cover(w.t.Context(), key, signer, now.Add(after))
}

// configMap returns a ConfigMap as it is stored, or an empty one.
func (w *world) configMap(name string) *corev1.ConfigMap {
	w.t.Helper()
	obj := &corev1.ConfigMap{}
	w.succeed(client.IgnoreNotFound(w.Get(w.t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, obj)))
	return obj
}

func (w *world) lose() { w.succeed(w.Delete(w.t.Context(), w.configMap("ca-ledger"))) }

// open creates the account of the key as another process.
func (w *world) open() { w.succeed(w.another().Open(w.t.Context(), key)) }

func (w *world) succeed(errs ...error) {
	w.t.Helper()
	expect.NoError(w.t, errors.Join(errs...))
}

func (w *world) fails(what string, err, want error) {
	w.t.Helper()
	expect.True(w.t, errors.Is(err, want), "%s: %v, want %v", what, err, want)
}

func (w *world) stored() map[string]ledger.Account {
	w.t.Helper()
	accounts, err := w.another().Read(w.t.Context())
	w.succeed(err)
	return accounts
}

// has checks the end of a signer in the account of the key.
func (w *world) has(what, signer string, after time.Duration) {
	w.t.Helper()
	expect.Equal(w.t, what+": stored", w.stored()[key].Signers[signer], now.Add(after))
}

// TestCover checks that an end is stored ahead by a sixteenth of the lifetime, between a minute and a day.
func TestCover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, key)
	for _, step := range []struct {
		what, signer string
		after        time.Duration
		writes       int64
		wantAhead    time.Duration // after now
	}{
		{"the first", web, 16 * time.Hour, 1, 17 * time.Hour},
		{"the same again", web, 16 * time.Hour, 0, 17 * time.Hour},
		{"shorter", web, time.Hour, 0, 17 * time.Hour},
		{"up to the mark", web, 17 * time.Hour, 0, 17 * time.Hour},
		{"beyond the mark", web, 17*time.Hour + time.Second, 1, 18*time.Hour + 3*time.Minute + 47*time.Second},
		{"another signer, a year", node, 365 * 24 * time.Hour, 1, 366 * 24 * time.Hour},
		{"ten minutes", "example.com/short", 10 * time.Minute, 1, 11 * time.Minute},
		{"what has ended", "example.com/ended", -time.Hour, 1, -59 * time.Minute},
	} {
		before := w.writes.Load()
		w.succeed(w.cover(step.signer, step.after))
		expect.Equal(t, step.what+": writes", w.writes.Load()-before, step.writes)
		w.has(step.what, step.signer, step.wantAhead)
	}
}

// TestBurst lets the 20 workers of the signer issue 5,000 certificates, which end within seconds: one write, or a second one
// for who joined the first with a later end, and at most one read by each worker, which may begin before the first one has an answer.
func TestBurst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, key)
	work := make(chan int)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for n := range work {
				if err := w.cover(node, time.Hour+time.Duration(n)*time.Millisecond); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range 5000 {
		work <- n
	}
	close(work)
	workers.Wait()
	writes, reads := w.writes.Load(), w.reads.Load()
	if end := w.stored()[key].Signers[node]; writes > 2 || reads > 20 || end.Before(now.Add(time.Hour+4999*time.Millisecond)) {
		t.Errorf("%d writes, %d reads, stored %s", writes, reads, end)
	}
}

// TestSeal checks that a read after a seal returns all that is ever covered.
func TestSeal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for round := range 3 {
		ledgertest.Seal(t, fmt.Sprintf("%016x", round), now, w.another)
	}
}

// TestSealed checks that a Book notices within seconds that another process has closed the account, and stops covering, and
// that a closed account is read each time, because another process may open it.
func TestSealed(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, key, other), t.Context()
	idle := w.another()
	anHour := func(book *ledger.Book) error { return book.Cover(ctx, key, web, now.Add(time.Hour)) }
	w.succeed(anHour(w.Book), anHour(idle), w.another().Seal(ctx, key))
	w.ahead(4 * time.Second)
	w.succeed(anHour(w.Book), anHour(idle)) // by the end that is stored
	for range 2 {
		w.fails("beyond the mark", w.cover(web, 48*time.Hour), ledger.ErrSealed)
		w.fails("once it is known", anHour(w.Book), ledger.ErrSealed)
	}
	w.ahead(6 * time.Second)
	w.fails("seconds later", anHour(idle), ledger.ErrSealed)
	w.has("while it is closed", web, time.Hour+3*time.Minute+45*time.Second)
	w.succeed(w.Cover(ctx, other, web, now.Add(time.Hour)))
	w.succeed(w.another().Raise(ctx, key, ends{web: now.Add(72 * time.Hour)})) // also in a closed account
	w.open()                                                                   // Open is for a missing account
	expect.True(t, w.stored()[key].Sealed, "Open has unsealed it")
	w.succeed(w.another().Unseal(ctx, key), w.cover(web, 48*time.Hour))
	want := ledger.Account{Signers: map[string]time.Time{web: now.Add(72 * time.Hour)}}
	expect.Equal(t, "account", w.stored()[key], want)
}

// TestBrokenIsNeverOverwritten checks that an invalid account is not overwritten, and neither is one whose content
// would be lost.
func TestBrokenIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", `{"signers":{},"more":1}`, `{} {}`, `{"signers":{"a.b/c":"tomorrow"}}`} {
		w, ctx := newWorld(t, key, other), t.Context()
		obj := w.configMap("ca-ledger")
		obj.Data[key] = text
		w.succeed(w.Update(ctx, obj))
		_, readErr := w.Read(ctx)
		for what, err := range map[string]error{
			"read": readErr, "cover": w.cover(web, 0), "seal": w.Seal(ctx, key), "unseal": w.Unseal(ctx, key),
			"raise": w.Raise(ctx, key, ends{web: now}),
		} {
			expect.True(t, err != nil && strings.Contains(err.Error(), "ConfigMap ns/ca-ledger: read the account of key "+key),
				"%q: %s: %v", text, what, err)
		}
		w.succeed(w.Cover(ctx, other, web, now)) // the account of another key is not affected
		expect.Equal(t, "overwritten", w.configMap("ca-ledger").Data[key], text)
	}
}

// TestCancellation checks that a caller that gives up does not affect other callers, even if its call started the
// write.
func TestCancellation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, key)
	writing, release := make(chan struct{}), make(chan struct{})
	w.before = sync.OnceValue(func() error { close(writing); <-release; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error), make(chan error)
	go func() { first <- w.Cover(ctx, key, web, now.Add(time.Hour)) }()
	<-writing
	go func() { second <- w.cover(web, time.Hour) }()
	cancel()
	w.fails("the first", <-first, context.Canceled)
	close(release)
	w.succeed(<-second)
}

// TestRetriesAreBounded checks that retries end, and that nothing is covered, if the API server refuses each write.
func TestRetriesAreBounded(t *testing.T) {
	t.Parallel()
	for err, most := range map[error]int64{
		apierrors.NewConflict(schema.GroupResource{}, "ca-ledger", errors.New("changed")): 8,
		apierrors.NewForbidden(schema.GroupResource{}, "ca-ledger", nil):                  1,
	} {
		w := newWorld(t, key)
		w.before = func() error { return err }
		if w.fails("cover", w.cover(web, 0), err); w.writes.Load() > most {
			t.Errorf("%v: %d writes", err, w.writes.Load())
		}
		w.before = nil
		w.succeed(w.cover(web, 0))
	}
}

// TestALostAccountIsNotMadeUp checks that a client that knows only a part of the certificates does not recreate a
// lost ledger.
func TestALostAccountIsNotMadeUp(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, key), t.Context()
	w.succeed(w.cover(node, 365*24*time.Hour), w.Raise(ctx, key, ends{web: now.Add(time.Hour)}))
	w.lose()
	for name, book := range map[string]*ledger.Book{"restarted": w.another(), "running": w.Book} {
		for what, err := range map[string]error{
			"cover": book.Cover(ctx, key, web, now.Add(time.Hour)),
			"raise": book.Raise(ctx, key, ends{web: now.Add(time.Hour)}), // although it has recorded this end before
			"seal":  book.Seal(ctx, key), "unseal": book.Unseal(ctx, key),
		} {
			w.fails(name+": "+what, err, ledger.ErrNoAccount)
		}
	}
	w.ahead(6 * time.Second)
	w.fails("what it has stored, seconds later", w.cover(node, time.Hour), ledger.ErrNoAccount)
	expect.Equal(t, "written", w.stored(), map[string]ledger.Account{})
	w.open()
	w.succeed(w.Raise(ctx, key, ends{web: now.Add(time.Hour - time.Millisecond)}), w.cover(node, 16*time.Hour)) // rounded up
	writes := w.writes.Load()
	w.succeed(w.Raise(ctx, key, ends{web: now.Add(time.Minute)}))
	expect.Equal(t, "writes, after an end that is late enough", w.writes.Load(), writes)
	w.has("raised again", web, time.Hour)
	w.has("stored again", node, 17*time.Hour)
	w.lose()
	w.open()
	w.ahead(12 * time.Second) // the account was lost and opened while it was relied on
	w.succeed(w.cover(node, 16*time.Hour))
	w.has("stored again after seconds", node, 17*time.Hour)
}

// TestReadAgain checks that a Book that reads the account again writes nothing if the stored end is late enough, also
// after a write that failed, and also if the answer takes longer than the account may be relied on.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, key)
	w.succeed(w.cover(web, time.Hour))
	away := errors.New("away")
	w.before = func() error { return away }
	w.fails("what could not be written", w.cover(web, 48*time.Hour), away)
	w.writes.Store(0)
	w.before = nil
	for i := range 3 {
		w.ahead(time.Duration(i+1) * time.Minute / 2)
		w.succeed(w.cover(web, time.Hour))
	}
	expect.Equal(t, "writes", w.writes.Load(), 0)
	w.before = func() error { w.ahead(time.Hour / 2); return nil }
	w.succeed(w.cover(web, 2*time.Hour))
	expect.Equal(t, "writes with a slow answer", w.writes.Load(), 1)
}

// TestSlowAnswers checks that each change waits for answers that take 25 seconds, also while other processes write.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, conflicts := newWorld(t, key), 3
		client := slow.New(w)
		recorder := ledger.NewRecorder(client, client, secret, w.clock)
		w.before = func() error {
			if conflicts--; conflicts >= 0 {
				return apierrors.NewConflict(schema.GroupResource{}, "ca-ledger", errors.New("changed"))
			}
			return nil
		}
		w.succeed(recorder.Cover(t.Context(), key, web, now.Add(16*time.Hour)), recorder.Seal(t.Context(), key))
		w.has("covered", web, 17*time.Hour)
		recorder.Note(certificateOf("a", node, key, time.Hour))
		began := time.Now()
		if w.succeed(recorder.FlushMoved(t.Context(), key)); time.Since(began) > 2*call.Timeout {
			t.Errorf("a flush took %s", time.Since(began))
		}
		expect.Equal(t, "moved", w.moved()["a"], "kubelet-serving")
		w.succeed(recorder.Flush(t.Context()))
		w.has("noted", node, time.Hour)
	})
}

// TestQuietAfter checks that no Book covers for longer than QuietAfter after a Seal, whatever the time that its answers take,
// and that some Book does for almost as long.
func TestQuietAfter(t *testing.T) {
	t.Parallel()
	longest := time.Duration(0)
	for _, late := range []time.Duration{0, time.Second, 25 * time.Second, call.Timeout - time.Second, call.Timeout + time.Second} {
		synctest.Test(t, func(t *testing.T) {
			w, real := newWorld(t, key), clock.RealClock{}
			answersLate := interceptor.NewClient(w.Client.(client.WithWatch), interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
					err := c.Get(ctx, key, obj, options...)
					if time.Sleep(late); ctx.Err() != nil {
						return ctx.Err()
					}
					return err
				},
			})
			book := ledger.NewBook(w, answersLate, secret, real)
			w.succeed(w.another().Raise(t.Context(), key, ends{web: time.Now().Add(24 * time.Hour)}))
			sealed := time.Now().Add(time.Second / 2)
			go func() {
				time.Sleep(time.Until(sealed))
				w.succeed(w.another().Seal(t.Context(), key))
			}()
			for range 1000 {
				err := book.Cover(t.Context(), key, web, time.Now().Add(time.Hour))
				if errors.Is(err, ledger.ErrSealed) || errors.Is(err, context.DeadlineExceeded) {
					break
				}
				w.succeed(err)
				longest = max(longest, time.Since(sealed))
				time.Sleep(time.Second / 3)
			}
			synctest.Wait()
		})
	}
	const most = 55 * time.Second // then the certificate is stored by one more call of 45 s
	expect.True(t, longest <= most && longest >= most-15*time.Second && ledger.QuietAfter == 105*time.Second,
		"covered for %s after the account was closed, want at most %s; quiet after %s", longest, most, ledger.QuietAfter)
}
