package requestcache

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"runtime"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

type request = certificatesv1.CertificateSigningRequest

// object returns a pending request of n bytes.
func object(name, version string, n int) *request {
	return &request{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: version},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: "example.com/ours", Request: bytes.Repeat([]byte{1}, n)},
	}
}

// reader reads past the cache.
type reader struct {
	client.Reader
	stored *request
	err    error
	reads  int
}

func (r *reader) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	if r.reads++; r.err != nil {
		return r.err
	}
	*obj.(*request) = *r.stored.DeepCopy()
	return nil
}

// stored returns obj as the informer stores it.
func stored(t *testing.T, c *Cache, obj *request) *request {
	t.Helper()
	transform := c.CacheOptions().DefaultTransform
	small, err := transform(obj)
	if err != nil || !csr.Stripped(small.(*request)) {
		t.Fatalf("%v, error %v", small, err)
	}
	if again, err := transform(small); again != small || err != nil {
		t.Fatalf("transform of its own result: %v, %v", again, err)
	}
	return small.(*request)
}

func TestWhole(t *testing.T) {
	t.Parallel()
	fault := errors.New("down")
	gone := apierrors.NewNotFound(schema.GroupResource{}, "a")
	for name, test := range map[string]struct {
		size    int
		limits  csr.Limits
		decided bool // nobody wants it
		later   *request
		live    *request
		fault   error
		reads   int
		none    bool
	}{
		"held":                         {size: 100},
		"too large to be held":         {size: largest, reads: 1},
		"too large to be read":         {size: csr.DefaultLimits.RequestBytes + 1},
		"within larger limits":         {size: csr.DefaultLimits.RequestBytes + 1, limits: csr.Limits{RequestBytes: 1 << 20}, reads: 1},
		"unwanted":                     {size: 100, decided: true, reads: 1},
		"changed since, and held":      {size: 100, later: object("a", "2", 100), none: true},
		"changed since, and too large": {size: 100, later: object("a", "2", largest), live: object("a", "2", largest), reads: 1, none: true},
		"another of the same name":     {size: largest, live: &request{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "b", ResourceVersion: "1"}}, reads: 1, none: true},
		"deleted":                      {size: largest, fault: gone, reads: 1, none: true},
		"no answer":                    {size: largest, fault: fault, reads: 1, none: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &Cache{}
			c.Want(csr.Limits{}, func(*request) bool { return false })
			c.Want(test.limits, func(*request) bool { return !test.decided })
			obj := object("a", "1", test.size)
			small := stored(t, c, obj)
			if test.later != nil {
				stored(t, c, test.later)
			}
			if test.live == nil {
				test.live = obj
			}
			live := &reader{stored: test.live, err: test.fault}
			got, err := c.Whole(t.Context(), live, small)
			if (got == nil) != test.none || got != nil && len(got.Spec.Request) != test.size || live.reads != test.reads {
				t.Errorf("%+v after %d reads", got, live.reads)
			}
			if errors.Is(err, fault) != errors.Is(test.fault, fault) || errors.Is(err, ErrChanged) != (test.none && !errors.Is(err, fault)) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestReadOnce checks that a request that is handled in several steps is read once, and is not held afterwards.
func TestReadOnce(t *testing.T) {
	t.Parallel()
	c := &Cache{}
	c.Want(csr.Limits{}, func(*request) bool { return true })
	obj := object("a", "1", 100)
	obj.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	live := &reader{stored: obj.DeepCopy()}
	small := stored(t, c, obj)
	c.drop(c.byUID[obj.UID]) // as if other requests had taken its place
	for range 2 {
		got, err := c.Whole(t.Context(), live, small)
		if err != nil || live.reads != 1 || len(got.Spec.Request) != 100 || len(got.ManagedFields) > 0 {
			t.Fatalf("%+v after %d reads, error %v", got, live.reads, err)
		}
	}
	if c.Pause(small, 0); len(c.byUID) != 1 {
		t.Error("a request that is handled again at once is not held")
	}
	if got := c.Pause(small, time.Minute); got != 10*time.Minute || len(c.byUID) != 0 || c.bytes != 0 {
		t.Errorf("pause of %s, %d objects of %d bytes are held", got, len(c.byUID), c.bytes)
	}
	if _, err := c.Whole(t.Context(), live, small); err != nil || live.reads != 2 {
		t.Errorf("%d reads, error %v", live.reads, err)
	}
	// A version that the watch brings meanwhile is read, not waited for.
	live.stored.ResourceVersion = "2"
	next := csr.Strip(live.stored.DeepCopy(), csr.Parse)
	if got, err := c.Whole(t.Context(), live, next); err != nil || got.ResourceVersion != "2" || live.reads != 3 {
		t.Errorf("%+v after %d reads, error %v", got, live.reads, err)
	}
}

// TestWithoutCache checks that a nil Cache works with an informer that strips and with one that does not.
func TestWithoutCache(t *testing.T) {
	t.Parallel()
	var none *Cache
	none.Want(csr.Limits{}, func(*request) bool { return true })
	obj, live := object("a", "1", 10), &reader{}
	if got, err := none.Whole(t.Context(), live, obj); got != obj || err != nil || none.Held(obj) != obj || live.reads > 0 {
		t.Errorf("%+v, error %v", got, err)
	}
	live.stored = obj
	if got, err := none.Whole(t.Context(), live, csr.Strip(obj, csr.Parse)); got == nil || err != nil || live.reads != 1 {
		t.Errorf("%+v, error %v", got, err)
	}
	if got, err := none.CacheOptions().DefaultTransform(obj); got != obj || csr.Stripped(obj) || err != nil {
		t.Error("a nil Cache strips")
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	c := &Cache{}
	c.Want(csr.Limits{}, func(*request) bool { return true })
	held, read := stored(t, c, object("a", "1", 10)), stored(t, c, object("b", "1", largest))
	for _, test := range []struct {
		obj         *request
		pause, want time.Duration
	}{
		{held, time.Minute, time.Minute},
		{read, time.Minute, 10 * time.Minute},
		{read, 59 * time.Second, 59 * time.Second},
		{read, 0, 0},
		{object("c", "1", largest), time.Minute, time.Minute}, // not stripped
	} {
		if got := c.Pause(test.obj, test.pause); got != test.want {
			t.Errorf("%s after a pause of %s: %s, want %s", test.obj.Name, test.pause, got, test.want)
		}
	}
}

// TestBudget checks that a flood of requests drops the oldest, and that nothing remains of those that are finished.
func TestBudget(t *testing.T) {
	t.Parallel()
	c := &Cache{}
	c.Want(csr.Limits{}, func(obj *request) bool { return csr.StateOf(obj) == csr.Pending })
	var first, last *request
	const size = largest / 2
	for i := range 2 * budget / size {
		last = stored(t, c, object(fmt.Sprint(i), "1", size))
		if first == nil {
			first = last
		}
	}
	if c.bytes > budget || c.bytes < budget/2 || !csr.Stripped(c.Held(first)) || csr.Stripped(c.Held(last)) {
		t.Errorf("%d bytes are held", c.bytes)
	}
	for i := range 2 * budget / size {
		issued := object(fmt.Sprint(i), "2", size)
		issued.Status.Certificate = []byte("x")
		stored(t, c, issued)
	}
	if c.bytes != 0 || len(c.byUID) != 0 || c.recent.Len() != 0 {
		t.Errorf("%d bytes are held of finished requests", c.bytes)
	}
}

// TestTooLargeToBeRead checks that a request above the limits is held without its payload. It is refused as the original
// is, and keeps everything else.
func TestTooLargeToBeRead(t *testing.T) { // not parallel, because it measures the whole heap
	const requests, payload = 1000, 1_000_000
	c := &Cache{}
	c.Want(csr.Limits{}, func(*request) bool { return true })
	before := heap()
	for i := range requests {
		obj := object(fmt.Sprint(i), "1", payload)
		obj.Annotations, obj.Spec.Groups = map[string]string{"key": "value"}, []string{"group"}
		whole, err := c.Whole(t.Context(), nil, stored(t, c, obj))
		if err != nil {
			t.Fatal(err)
		}
		_, refused := c.Parse(whole, csr.Limits{})
		_, want := csr.Parse(obj)
		if want == nil || fmt.Sprint(refused) != want.Error() {
			t.Fatalf("error %v, want %v", refused, want)
		}
		obj.Spec.Request = whole.Spec.Request
		if !reflect.DeepEqual(whole, obj) {
			t.Fatalf("got %+v", whole)
		}
	}
	if each := (heap() - before) / requests; each > 4<<10 {
		t.Errorf("%d bytes for each request", each)
	}
	runtime.KeepAlive(c)
}

// TestFinishedRequestsAreSmall measures what a store needs for each issued request.
func TestFinishedRequestsAreSmall(t *testing.T) { // not parallel, because it measures the whole heap
	const requests, most = 10_000, 800
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	obj := object("csr-abcde", "1", 1000)
	obj.UID, obj.Spec.Username = "01234567-89ab-cdef-0123-456789abcdef", "system:node:abcde"
	obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "AutoApproved", "Auto approving", time.Now())
	c := &Cache{}
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc,
		toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	before := heap()
	for i := range requests {
		obj.Name, obj.ResourceVersion = fmt.Sprintf("csr-%05d", i), fmt.Sprint(1_000_000+i)
		data, err := obj.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		received := &request{}
		if err := received.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		if err := store.Add(stored(t, c, received)); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / requests
	t.Logf("%d bytes for each request", each)
	if each > most {
		t.Errorf("%d bytes for each request, want at most %d", each, most)
	}
	runtime.KeepAlive(store)
}

// heap returns the bytes of the heap that are in use.
func heap() int {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
