package signer

import (
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// queueOf returns a queue that ends with the test.
func queueOf(t *testing.T) requestQueue {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[fairqueue.Key]())
	t.Cleanup(queue.ShutDown)
	return queue
}

// drain returns the names in queue, in order.
func drain(queue requestQueue) []string {
	var names []string
	for queue.Len() > 0 {
		key, _ := queue.Get()
		queue.Done(key)
		names = append(names, key.Name)
	}
	slices.Sort(names)
	return names
}

// TestOnlyWhatWaitsIsQueued checks which requests an event queues, and that a finished or deleted one is forgotten.
func TestOnlyWhatWaitsIsQueued(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	queue, events := queueOf(t), fairqueue.Events(p.reconciler.observe, p.reconciler.forget)
	states := map[string]func(*request){
		"waits":   func(*request) {},
		"foreign": signerName("example.com/foreign"),
		"pending": func(obj *request) { obj.Status.Conditions = nil },
		"denied":  with("Denied", "True"),
		"failed":  with("Failed", "True"),
		"issued":  func(obj *request) { obj.Status.Certificate = []byte("x") },
		"trimmed": func(obj *request) { trimmed(obj, func(string) bool { return false }) },
	}
	for name, change := range states {
		obj := named(t, name, "alice", "a")
		events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
		if got := drain(queue); !slices.Equal(got, []string{name}) {
			t.Errorf("%s: queued are %q before the change", name, got)
		}
		changed := obj.DeepCopy()
		change(changed)
		events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectOld: obj, ObjectNew: changed}, queue)
		if got := drain(queue); (len(got) == 1) != (name == "waits") {
			t.Errorf("%s: queued are %q", name, got)
		}
	}
	if all := p.reconciler.waiting.All(); len(all) != 1 || all[0].Name != "waits" {
		t.Errorf("waiting are %v", all)
	}
	again := named(t, "waits", "bob", "a")
	again.UID = "another"
	events.Update(t.Context(), event.TypedUpdateEvent[*request]{ObjectNew: again}, queue)
	if all := p.reconciler.waiting.All(); len(all) != 1 || all[0] != keyOf(again) {
		t.Errorf("waiting are %v, want the request that was made anew", all)
	}
	events.Delete(t.Context(), event.TypedDeleteEvent[*request]{Object: again}, queue)
	if all := p.reconciler.waiting.All(); len(all) != 0 {
		t.Errorf("waiting are %v after the deletion", all)
	}
}

// TestADeletionForgetsTheReport checks that the outcome of a request that was made anew is reported again.
func TestADeletionForgetsTheReport(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	for range 2 {
		_, _ = p.reconcile(t)
		if told := taken(p.recorder); len(told) != 1 {
			t.Errorf("Events %q", told)
		}
		fairqueue.Events(p.reconciler.observe, p.reconciler.forget).Delete(t.Context(), event.TypedDeleteEvent[*request]{Object: p.served}, queueOf(t))
	}
}

// TestWaitingForAKeyPair checks that a pair wakes the requests of its own signers, and no others.
func TestWaitingForAKeyPair(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	other, _, _ := newPair()
	serving := p.reconciler.Signers["kubernetes.io/kubelet-serving"]
	serving.KeyPair = other
	p.reconciler.Signers["kubernetes.io/kubelet-serving"] = serving
	queue, events := queueOf(t), fairqueue.Events(p.reconciler.observe, p.reconciler.forget)
	for name, signer := range map[string]string{
		"client": "kubernetes.io/kube-apiserver-client-kubelet", "custom": "example.com/custom", "serving": "kubernetes.io/kubelet-serving",
	} {
		obj := named(t, name, "alice", "a")
		obj.Spec.SignerName = signer
		events.Create(t.Context(), event.TypedCreateEvent[*request]{Object: obj}, queue)
	}
	for want, pair := range map[string]*keypair.KeyPair{"client custom": p.pair, "serving": other} {
		var names []string
		for _, key := range p.reconciler.waitingFor(pair) {
			names = append(names, key.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q wait, want %q", got, want)
		}
	}
}

func TestSignersThatShareAKeyPairShareItsSource(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	pairs := p.reconciler.keyPairs()
	if want := len(csr.BuiltinSigners()) + 1; len(pairs) != 1 || len(pairs[0].Signers()) != want { // and a custom signer
		t.Errorf("%d key pairs, of signers %q, want one of %d signers", len(pairs), pairs[0].Signers(), want)
	}
}

func TestSetupRefusesASignerWithoutCA(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Signers: map[string]Signer{"example.com/b": {}, "example.com/a": {}}}
	if err := r.SetupWithManager(nil, controller.TypedOptions[fairqueue.Key]{}); err == nil || err.Error() != "signer example.com/a has no KeyPair\nsigner example.com/b has no KeyPair" {
		t.Errorf("error %v", err)
	}
}

// TestAnEndedCABlocksEveryRequest checks that each request that waits for an expired CA reports it.
func TestAnEndedCABlocksEveryRequest(t *testing.T) {
	t.Parallel()
	oneName := template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} })
	acceptable := map[string][]func(*request){
		"kubernetes.io/kube-apiserver-client":         {usages("client auth")},
		"kubernetes.io/kube-apiserver-client-kubelet": {usages("digital signature", "client auth")},
		"kubernetes.io/kubelet-serving":               {usages("digital signature", "server auth"), oneName},
		"example.com/custom":                          {usages("client auth")},
	}
	for _, name := range append(csr.BuiltinSigners(), "example.com/custom") {
		if acceptable[name] == nil {
			t.Errorf("%s: add a request that the signer accepts", name)
			continue
		}
		p := newParts(t, object(t, append(acceptable[name], signerName(name))...))
		p.load(t, time.Minute)
		p.clock.SetTime(now.Add(2 * time.Minute))
		result, err := p.reconcile(t)
		told := taken(p.recorder)
		if err != nil || len(p.written) > 0 || result.RequeueAfter == 0 || len(told) != 1 || !strings.HasPrefix(told[0], "Warning CAExpired ") {
			t.Errorf("%s: %d writes, again after %s, told %q, error %v", name, len(p.written), result.RequeueAfter, told, err)
		}
	}
}

// named returns an approved request of requester for node.
func named(t *testing.T, name, requester, node string) *request {
	return object(t, template(t, func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + node }), func(obj *request) {
		obj.Name, obj.UID, obj.Spec.Username = name, types.UID("uid-of-"+name), requester
	})
}

// TestFillMakesProfilesSafe checks that a signer without a profile gets the safe default.
func TestFillMakesProfilesSafe(t *testing.T) {
	t.Parallel()
	pair := keypair.New(keypair.Static{})
	unset, err := ca.NewProfile(ca.ProfileConfig{Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Signers: map[string]Signer{
		"example.com/zero":            {KeyPair: pair},
		"example.com/unset":           {KeyPair: pair, Profile: unset},
		"example.com/forbids-nothing": {KeyPair: pair, Profile: profile(t, ca.ProfileConfig{ForbiddenSubjects: []string{}})},
	}}
	if err := r.fillProfiles(); err != nil {
		t.Fatal(err)
	}
	masters := []string{"O=system:masters"}
	want := map[string]ca.Profile{
		"example.com/zero":            profile(t, ca.ProfileConfig{ForbiddenSubjects: masters}),
		"example.com/unset":           profile(t, ca.ProfileConfig{Lifetime: time.Hour, ForbiddenSubjects: masters}),
		"example.com/forbids-nothing": profile(t, ca.ProfileConfig{ForbiddenSubjects: []string{}}),
	}
	for name := range want {
		if diff := cmp.Diff(want[name].Containing(contentsOf(name, nil)), r.Signers[name].Profile, cmp.AllowUnexported(ca.Profile{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
