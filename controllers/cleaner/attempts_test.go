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

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestSupersededCost reconciles the requests of one requester for one node, all of them superseded. The number of objects
// that are read for each does not grow with the backlog.
func TestSupersededCost(t *testing.T) {
	t.Parallel()
	one := ofNode(t, "a", 0)
	for _, backlog := range []int{2_000, 20_000} {
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
				r.attempts.drop(obj.GetName())
				return nil
			},
		}).Build()
		for _, obj := range stored {
			r.attempts.note(obj, r.RequestLimits)
		}
		r.attempts.markReady()
		for i := range backlog {
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: name(i)}}); err != nil {
				t.Fatal(err)
			}
		}
		if len(stored) != 1 || read > 2*backlog {
			t.Errorf("%d requests: %d are left, want the newest; %d objects were read, want %d", backlog, len(stored), read, 2*backlog)
		}
		if held := len(r.attempts.requests); held != 1 || len(r.attempts.lines) != 1 {
			t.Errorf("%d requests: %d are held", backlog, held)
		}
	}
}

// TestAttemptsFindTheFirstNewerRequest compares with a look at all requests, while they come, are decided and go.
func TestAttemptsFindTheFirstNewerRequest(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var held attempts
	stored := map[string]*request{}
	templates := []*request{ofNode(t, "a", 0), ofNode(t, "b", 0)}
	for step := range 5_000 {
		name := fmt.Sprint("csr-", random.IntN(40))
		switch obj := stored[name]; {
		case obj == nil || random.IntN(8) == 0: // another one of the same name, too
			made := *templates[random.IntN(2)]
			made.Name, made.UID = name, types.UID(fmt.Sprint(step))
			made.CreationTimestamp = metav1.NewTime(now.Add(time.Duration(random.IntN(20)) * time.Second))
			stored[name] = &made
			held.note(&made, csr.Limits{})
		case random.IntN(2) == 0:
			decided := *obj
			with("Denied")(&decided)
			stored[name] = &decided
			held.note(&decided, csr.Limits{})
		default:
			delete(stored, name)
			held.drop(name)
		}
		of, _ := csr.Limits{}.AttemptOf(templates[random.IntN(2)])
		created := now.Add(time.Duration(random.IntN(20)) * time.Second)
		want := time.Time{}
		for _, obj := range stored {
			if attempt, ok := (csr.Limits{}).AttemptOf(obj); ok && attempt == of && obj.CreationTimestamp.After(created) && (want.IsZero() || obj.CreationTimestamp.Time.Before(want)) {
				want = obj.CreationTimestamp.Time
			}
		}
		newer, since := held.newer(of, created)
		if !since.Equal(want) || (newer == "") != want.IsZero() || newer != "" && !stored[newer].CreationTimestamp.Time.Equal(want) {
			t.Fatalf("step %d: %q since %s, want since %s", step, newer, since, want)
		}
	}
}
