package cleaner

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestSupersededCost reconciles many superseded requests of one requester for one node. The number of objects that a
// reconcile reads must not grow with the backlog.
func TestSupersededCost(t *testing.T) {
	t.Parallel()
	one := ofNode(t, "a", 0)
	for _, backlog := range []int{200, 2_000} {
		stored := make(map[string]*request, backlog)
		name := func(i int) string { return fmt.Sprint("csr-", i) }
		for i := range backlog {
			obj := *one
			obj.Name, obj.UID = name(i), types.UID(name(i))
			obj.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(i) * time.Second))
			stored[obj.Name] = &obj
		}
		read := 0
		r := &Reconciler{
			Retention: csr.RetentionPolicy{Default: csr.DefaultRetention}, Limiter: &allowance{}, SupersededAfter: time.Hour,
			Clock: clocktesting.NewFakePassiveClock(now.Add(10 * time.Hour)),
		}
		r.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
				read++
				*obj.(*request) = *stored[key.Name]
				return nil
			},
			List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
				read += len(stored)
				for _, obj := range stored {
					list.(*certificatesv1.CertificateSigningRequestList).Items = append(list.(*certificatesv1.CertificateSigningRequestList).Items, *obj)
				}
				return nil
			},
			Delete: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.DeleteOption) error {
				delete(stored, obj.GetName())
				r.pending.Remove(obj.GetName())
				return nil
			},
		}).Build()
		for _, obj := range stored {
			r.pending.observe(obj, r.RequestLimits)
		}
		r.pending.complete.Store(true)
		for i := range backlog {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if len(stored) != 1 || read > 2*backlog {
			t.Errorf("%d requests: %d are left, want the newest; %d objects were read, want %d", backlog, len(stored), read, 2*backlog)
		}
		if held := r.pending.Len(); held != 1 {
			t.Errorf("%d requests: %d are indexed, want 1", backlog, held)
		}
	}
}

// TestIndexFindsTheFirstNewerRequest compares the index with a scan of all requests while they are created, decided
// and deleted.
func TestIndexFindsTheFirstNewerRequest(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var index supersedable
	stored := map[string]*request{}
	templates := []*request{ofNode(t, "a", 0), ofNode(t, "b", 0)}
	keys := map[string]pending.Key{} // by payload
	for _, template := range templates {
		req, _ := csr.Limits{}.Supersedable(template)
		keys[string(template.Spec.Request)] = pending.KeyOf(req)
	}
	for step := range 2_000 {
		name := fmt.Sprint("csr-", random.IntN(40))
		switch obj := stored[name]; {
		case obj == nil || random.IntN(8) == 0: // also with the name of an earlier request
			made := *templates[random.IntN(2)]
			made.Name, made.UID = name, types.UID(fmt.Sprint(step))
			made.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(random.IntN(20)) * time.Second))
			stored[name] = &made
			index.observe(&made, csr.Limits{})
		case random.IntN(2) == 0:
			decided := *obj
			with("Denied")(&decided)
			stored[name] = &decided
			index.observe(&decided, csr.Limits{})
		default:
			delete(stored, name)
			index.Remove(name)
		}
		key := keys[string(templates[random.IntN(2)].Spec.Request)]
		created := now.Add(time.Duration(random.IntN(20)) * time.Second)
		want := time.Time{}
		for _, obj := range stored {
			if csr.StateOf(obj) != csr.Pending || keys[string(obj.Spec.Request)] != key || !obj.CreationTimestamp.After(created) {
				continue
			}
			if want.IsZero() || obj.CreationTimestamp.Time.Before(want) {
				want = obj.CreationTimestamp.Time
			}
		}
		newer, found := index.Next(key, created)
		if !newer.Created.Equal(want) || found == want.IsZero() || found && !stored[newer.Name].CreationTimestamp.Time.Equal(want) {
			t.Fatalf("step %d: %+v, %t, want one of %s", step, newer, found, want)
		}
	}
}
