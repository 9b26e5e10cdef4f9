package signer

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// event passes an event about obj to w. It returns how many requests it queues.
func (w *world) event(kind string, obj *request) int {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	defer queue.ShutDown()
	switch events := fairqueue.Events(w.observe, w.forget); kind {
	case "create":
		events.Create(w.ctx, event.TypedCreateEvent[*request]{Object: obj}, queue)
	case "update":
		events.Update(w.ctx, event.TypedUpdateEvent[*request]{ObjectOld: object(), ObjectNew: obj}, queue)
	case "delete":
		events.Delete(w.ctx, event.TypedDeleteEvent[*request]{Object: obj}, queue)
	}
	return queue.Len()
}

func named(name string) edit {
	return func(obj *request) { obj.Name, obj.UID = name, types.UID("uid-of-"+name) }
}

// TestOnlyWhatWaitsIsQueued checks which requests an event queues, and that a finished or deleted one is forgotten, with what was
// reported about it.
func TestOnlyWhatWaitsIsQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, change := range map[string]edit{
		"waits":   all(),
		"foreign": signerName("example.com/foreign"),
		"pending": unapproved,
		"denied":  condition("Denied", "True"),
		"failed":  condition("Failed", "True"),
		"issued":  certificate("x"),
		"trimmed": trimmed(func(string) bool { return false }),
	} {
		before, after := w.event("create", object(named(name))), w.event("update", object(named(name), change))
		if before != 1 || (after == 1) != (name == "waits") {
			t.Errorf("%s: %d queued before the change, and %d after it", name, before, after)
		}
	}
	waiting := func(want ...fairqueue.Key) {
		t.Helper()
		if all := w.waiting.All(); !slices.Equal(all, want) {
			t.Errorf("waiting are %v, want %v", all, want)
		}
	}
	waiting(keyOf(object(named("waits"))))
	again := object(named("waits"), func(obj *request) { obj.UID = "another" })
	w.event("update", again)
	waiting(keyOf(again))
	w.event("delete", again)
	waiting()

	withoutCA(w)
	for range 2 { // the outcome of a request that was made anew is reported again
		is(t, w.reconcile(), "again 1s\nWarning CAMissing …", w.pair)
		w.event("delete", w.served)
	}
}

// TestWaitingForAKeyPair checks that signers share a pair, which wakes the requests of its own signers, and no others.
func TestWaitingForAKeyPair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pairs := w.keyPairs()
	if want := len(csr.BuiltinSigners()) + 1; len(pairs) != 1 || len(pairs[0].Signers()) != want { // and a custom signer
		t.Errorf("%d key pairs, of signers %q, want one of %d signers", len(pairs), pairs[0].Signers(), want)
	}
	other, _, _ := newPair()
	w.signer(kubeletServing, func(s *Signer) { s.KeyPair = other })
	for _, name := range []string{kubeletClient, customSigner, kubeletServing} {
		w.event("create", object(named(name), signerName(name)))
	}
	for pair, want := range map[*keypair.KeyPair]string{w.pair: customSigner + " " + kubeletClient, other: kubeletServing} {
		var names []string
		for _, key := range w.waitingFor(pair) {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q wait, want %q", got, want)
		}
	}
}
