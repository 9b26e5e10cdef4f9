package signer

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
)

// named is an approved request for a node, of a requester.
func named(t *testing.T, name, requester, node string) *request {
	return object(t, template(t, func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + node }), func(obj *request) {
		obj.Name, obj.UID, obj.Spec.Username = name, types.UID("uid-of-"+name), requester
	})
}

func TestSignerQueueIsFair(t *testing.T) {
	t.Parallel()
	r := newParts(t, object(t)).reconciler
	events, order := r.queued(), r.NewQueue()
	push := func(obj *request) {
		t.Helper()
		if !events.Create(event.CreateEvent{Object: obj}) {
			t.Fatalf("%s is not queued", obj.Name)
		}
		order.Push(reconcile.Request{NamespacedName: types.NamespacedName{Name: obj.Name}})
	}
	hostile := named(t, "", "mallory", "a")
	for i := range 2000 {
		obj := hostile.DeepCopy()
		obj.Name, obj.UID = fmt.Sprintf("hostile-%d", i), types.UID(fmt.Sprint(i))
		push(obj)
	}
	push(named(t, "another-node", "mallory", "b"))
	push(named(t, "honest", "alice", "c"))
	var got []string
	for range 4 {
		got = append(got, order.Pop().Name)
	}
	if want := "hostile-1999 honest another-node hostile-1998"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestSignerIndexesWaitingRequestsOnly(t *testing.T) {
	t.Parallel()
	r := newParts(t, object(t)).reconciler
	events := r.queued()
	names := []string{"issued", "failed", "deleted", "waiting"}
	for _, name := range names {
		events.Create(event.CreateEvent{Object: named(t, name, "alice", "a")})
	}
	issued, failed := named(t, "issued", "alice", "a"), named(t, "failed", "alice", "a")
	issued.Status.Certificate = []byte("a certificate")
	with("Failed", "True")(failed)
	if events.Update(event.UpdateEvent{ObjectNew: issued}) || events.Update(event.UpdateEvent{ObjectNew: failed}) ||
		events.Delete(event.DeleteEvent{Object: named(t, "deleted", "alice", "a")}) {
		t.Error("a request is queued that does not wait for a certificate")
	}
	kept := slices.DeleteFunc(names, func(name string) bool {
		_, found := r.pending.Get(name)
		return !found
	})
	if !slices.Equal(kept, []string{"waiting"}) {
		t.Errorf("indexed are %q, want the waiting one", kept)
	}
	again := named(t, "waiting", "bob", "a")
	again.UID = "another"
	events.Update(event.UpdateEvent{ObjectNew: again})
	if got, _ := r.pending.Get("waiting"); got.Requester != pending.DigestOf("bob") {
		t.Error("a request that was made anew under the same name has the position of the old one")
	}
}
