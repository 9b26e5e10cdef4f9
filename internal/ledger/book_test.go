package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/ledger"
)

var (
	now    = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	secret = types.NamespacedName{Namespace: "ns", Name: "ca"}
)

const key, other, node, web = "0123456789abcdef", "fedcba9876543210", "kubernetes.io/kubelet-serving", "example.com/web"

// server is a fake API server that counts requests. before, if set, is called before each write.
type server struct {
	client.Client
	reads, writes atomic.Int64
	before        func() error
}

func newServer(objs ...client.Object) *server {
	s := &server{}
	write := func(do func() error) error {
		s.writes.Add(1)
		if s.before != nil {
			if err := s.before(); err != nil {
				return err
			}
		}
		return do()
	}
	s.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objs...).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, options ...client.GetOption) error {
			s.reads.Add(1)
			return c.Get(ctx, key, obj, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.CreateOption) error {
			return write(func() error { return c.Create(ctx, obj, options...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, options ...client.UpdateOption) error {
			return write(func() error { return c.Update(ctx, obj, options...) })
		},
	}).Build()
	return s
}

func (s *server) book() *ledger.Book {
	return ledger.NewBook(s, s, secret, clocktesting.NewFakePassiveClock(now))
}

func (s *server) stored(t testing.TB) map[string]ledger.Account {
	t.Helper()
	accounts, err := s.book().Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return accounts
}

func stored(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca-ledger"}, Data: data}
}

// empty returns a ledger with empty accounts.
func empty(keyIDs ...string) *corev1.ConfigMap {
	data := map[string]string{}
	for _, keyID := range keyIDs {
		data[keyID] = `{"signers":{}}`
	}
	return stored(data)
}

func succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCover checks that NotAfter is stored ahead by a sixteenth of the lifetime, between a minute and a day, and that
// the count grows by 64.
func TestCover(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	for _, step := range []struct {
		what      string
		signer    string
		after     time.Duration
		writes    int64
		wantCount int
		wantAhead time.Duration // after now
	}{
		{"the first", web, 16 * time.Hour, 1, 64, 17 * time.Hour},
		{"the same again", web, 16 * time.Hour, 0, 64, 17 * time.Hour},
		{"shorter", web, time.Hour, 0, 64, 17 * time.Hour},
		{"up to the mark", web, 17 * time.Hour, 0, 64, 17 * time.Hour},
		{"beyond the mark", web, 17*time.Hour + time.Second, 1, 64, 18*time.Hour + 3*time.Minute + 47*time.Second},
		{"another signer, a year", node, 365 * 24 * time.Hour, 1, 64, 366 * 24 * time.Hour},
		{"ten minutes", "example.com/short", 10 * time.Minute, 1, 64, 11 * time.Minute},
		{"what has ended", "example.com/ended", -time.Hour, 1, 64, -59 * time.Minute},
	} {
		before := s.writes.Load()
		succeed(t, book.Cover(t.Context(), key, step.signer, now.Add(step.after)))
		if got := s.writes.Load() - before; got != step.writes {
			t.Errorf("%s: %d writes, want %d", step.what, got, step.writes)
		}
		want := ledger.Entry{Count: step.wantCount, NotAfter: now.Add(step.wantAhead)}
		if diff := cmp.Diff(want, s.stored(t)[key].Signers[step.signer]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}

// TestBurst lets the 20 workers of the signer issue 5,000 certificates: a write for each 64, and a few more.
func TestBurst(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	work := make(chan int)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for n := range work {
				if err := book.Cover(t.Context(), key, node, now.Add(time.Hour+time.Duration(n)*time.Millisecond)); err != nil {
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
	if writes := s.writes.Load(); writes > 5000/64+10 {
		t.Errorf("%d writes", writes)
	}
	if reads := s.reads.Load(); reads > 2 {
		t.Errorf("%d reads", reads)
	}
	if got := s.stored(t)[key].Signers[node].Count; got < 5000 || got > 5000+10*64 {
		t.Errorf("counted %d", got)
	}
}

// BenchmarkCover measures the cost of one certificate, with an API server that answers at once.
func BenchmarkCover(b *testing.B) {
	s := newServer(empty(key))
	book := s.book()
	for b.Loop() {
		succeed(b, book.Cover(b.Context(), key, node, now.Add(time.Hour)))
	}
	b.ReportMetric(float64(s.writes.Load())/float64(b.N), "writes/op")
}

func TestSeal(t *testing.T) {
	t.Parallel()
	s := newServer()
	for round := range 3 {
		keyID := fmt.Sprintf("%016x", round)
		ledgertest.Seal(t, keyID, now, s.book)
	}
}

// TestSealedAndOpenedAgain checks that the account is read each time, because another process may have opened it.
func TestSealedAndOpenedAgain(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key, other))
	book := s.book()
	succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	succeed(t, s.book().Seal(t.Context(), key))
	succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour))) // within its reserve
	for range 2 {
		if err := book.Cover(t.Context(), key, web, now.Add(48*time.Hour)); !errors.Is(err, ledger.ErrSealed) {
			t.Errorf("beyond the mark: %v", err)
		}
		if err := book.Cover(t.Context(), key, web, now.Add(time.Hour)); !errors.Is(err, ledger.ErrSealed) {
			t.Errorf("once it is known: %v", err)
		}
	}
	succeed(t, book.Cover(t.Context(), other, web, now.Add(time.Hour)))
	succeed(t, s.book().Raise(t.Context(), key, web, now.Add(72*time.Hour))) // also in a closed account
	succeed(t, s.book().Open(t.Context(), key))                              // Open is for a missing account
	if !s.stored(t)[key].Sealed {
		t.Error("Open has unsealed it")
	}
	succeed(t, s.book().Unseal(t.Context(), key))
	succeed(t, book.Cover(t.Context(), key, web, now.Add(48*time.Hour)))
	want := ledger.Account{Signers: map[string]ledger.Entry{web: {Count: 64 + 1 + 64, NotAfter: now.Add(72 * time.Hour)}}}
	if diff := cmp.Diff(want, s.stored(t)[key]); diff != "" {
		t.Error(diff)
	}
}

// TestBrokenIsNeverOverwritten checks that an invalid account is not overwritten, and neither is one whose content
// would be lost.
func TestBrokenIsNeverOverwritten(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"not JSON": "{", "empty": "", "unknown field": `{"signers":{},"more":1}`, "more than one": `{} {}`,
		"negative": `{"signers":{"a.b/c":{"count":-1,"notAfter":"2026-01-01T00:00:00Z"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(stored(map[string]string{key: text, other: "{}"}))
			book := s.book()
			for what, err := range map[string]error{
				"cover": book.Cover(t.Context(), key, web, now), "seal": book.Seal(t.Context(), key),
				"unseal": book.Unseal(t.Context(), key), "raise": book.Raise(t.Context(), key, web, now),
				"import": book.Import(t.Context(), key, ledger.Account{Signers: map[string]ledger.Entry{}}, nil),
			} {
				if err == nil || !strings.Contains(err.Error(), "ConfigMap ns/ca-ledger: read the account of key "+key) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := book.Read(t.Context()); err == nil {
				t.Error("it was read")
			}
			succeed(t, book.Cover(t.Context(), other, web, now)) // the account of another key is not affected
			obj := &corev1.ConfigMap{}
			succeed(t, s.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "ca-ledger"}, obj))
			if got := obj.Data[key]; got != text {
				t.Errorf("overwritten with %q", got)
			}
		})
	}
}

// TestNeverLowered checks that stored entries are stored again after another client deleted and created the account.
func TestNeverLowered(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	succeed(t, book.Cover(t.Context(), key, web, now.Add(1600*time.Hour)))
	succeed(t, s.Delete(t.Context(), stored(nil)))
	for range 63 { // as many as were left
		succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	}
	if err := book.Cover(t.Context(), key, web, now.Add(time.Hour)); !errors.Is(err, ledger.ErrNoAccount) {
		t.Errorf("one more: %v", err)
	}
	succeed(t, s.book().Open(t.Context(), key))
	succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	want := ledger.Entry{Count: 128, NotAfter: now.Add(1624 * time.Hour)}
	if diff := cmp.Diff(want, s.stored(t)[key].Signers[web]); diff != "" {
		t.Error(diff)
	}
}

// TestCancellation checks that a caller that gives up does not affect other callers, even if its call started the
// write.
func TestCancellation(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	writing, release := make(chan struct{}), make(chan struct{})
	s.before = sync.OnceValue(func() error { close(writing); <-release; return nil })
	book := s.book()
	ctx, cancel := context.WithCancel(t.Context())
	first, second := make(chan error), make(chan error)
	go func() { first <- book.Cover(ctx, key, web, now.Add(time.Hour)) }()
	<-writing
	go func() { second <- book.Cover(t.Context(), key, web, now.Add(time.Hour)) }()
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
	close(release)
	if err := <-second; err != nil {
		t.Errorf("the second: %v", err)
	}
}

// TestRetriesAreBounded checks that retries end, and that nothing is covered, if the API server refuses each write.
func TestRetriesAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		most int64
	}{
		"conflicts":  {apierrors.NewConflict(schema.GroupResource{}, "ca-ledger", errors.New("changed")), 8},
		"forbidden":  {apierrors.NewForbidden(schema.GroupResource{}, "ca-ledger", nil), 1},
		"no network": {errors.New("no route"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(empty(key))
			s.before = func() error { return test.err }
			book := s.book()
			if err := book.Cover(t.Context(), key, web, now); !errors.Is(err, test.err) {
				t.Errorf("covered: %v", err)
			}
			if writes := s.writes.Load(); writes > test.most {
				t.Errorf("%d writes", writes)
			}
			s.before = nil
			succeed(t, book.Cover(t.Context(), key, web, now))
		})
	}
}

func TestRaiseImport(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key))
	book := s.book()
	until := func(hours int) time.Time { return now.Add(time.Duration(hours) * time.Hour) }
	succeed(t, book.Raise(t.Context(), key, web, until(2).Add(time.Millisecond))) // rounded up
	writes := s.writes.Load()
	succeed(t, book.Raise(t.Context(), key, web, until(1)))
	if s.writes.Load() > writes {
		t.Error("a mark that is high enough was written")
	}
	succeed(t, book.Raise(t.Context(), key, web, until(3)))
	from := ledger.Account{Sealed: true, Signers: map[string]ledger.Entry{
		web: {Count: 7, NotAfter: until(1)}, node: {Count: 1, NotAfter: until(5)}, "a.b/c": {Count: 1, NotAfter: until(5)},
	}}
	for range 2 { // the second Import changes nothing
		succeed(t, book.Import(t.Context(), key, from, []string{web, node, "d.e/f"}))
	}
	succeed(t, book.Import(t.Context(), other, from, []string{"a.b/c"}))
	want := map[string]ledger.Account{
		key:   {Signers: map[string]ledger.Entry{web: {Count: 7, NotAfter: until(3)}, node: {Count: 1, NotAfter: until(5)}}},
		other: {Signers: map[string]ledger.Entry{"a.b/c": {Count: 1, NotAfter: until(5)}}},
	}
	if diff := cmp.Diff(want, s.stored(t)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{web, node}, want[key].SignerNames()); diff != "" {
		t.Error(diff)
	}
}

// TestAKeyThatComesBack checks that reserves from before the removal of its account do not cover a key.
func TestAKeyThatComesBack(t *testing.T) {
	t.Parallel()
	s := newServer(empty(key, other))
	book := s.book()
	for _, keyID := range []string{key, other} {
		succeed(t, book.Cover(t.Context(), keyID, web, now.Add(time.Hour)))
	}
	succeed(t, s.Delete(t.Context(), stored(nil)))
	succeed(t, s.book().Open(t.Context(), key))
	succeed(t, book.Cover(t.Context(), key, web, now.Add(time.Hour)))
	if got := s.stored(t)[key].Signers[web].Count; got != 64 {
		t.Errorf("counted %d", got)
	}
}

// TestOpen checks that an account is created once, and that its content stays.
func TestOpen(t *testing.T) {
	book := newServer().book()
	succeed(t, book.Open(t.Context(), "key"))
	accounts, err := book.Read(t.Context())
	succeed(t, err)
	if account, found := accounts["key"]; !found || len(account.Signers) != 0 || account.Sealed {
		t.Errorf("opened %+v, %t", account, found)
	}
	succeed(t, book.Cover(t.Context(), "key", "example.com/a", now.Add(time.Hour)))
	succeed(t, book.Open(t.Context(), "key"))
	if accounts, err = book.Read(t.Context()); err != nil || accounts["key"].Signers["example.com/a"].Count == 0 {
		t.Errorf("after it was opened again: %+v, %v", accounts, err)
	}
}
