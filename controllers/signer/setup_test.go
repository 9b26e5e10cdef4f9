package signer

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/internal/pending"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// TestANewAuthorityWakesWhatWaits checks that a new CA wakes the approved requests of the signers that use it, and no
// others.
func TestANewAuthorityWakesWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newParts(t, object(t))
		other, _, _ := newPair()
		serving := p.reconciler.Signers["kubernetes.io/kubelet-serving"]
		serving.KeyPair = other
		p.reconciler.Signers["kubernetes.io/kubelet-serving"] = serving
		named := func(name string, change func(*request)) *request {
			return object(t, change, func(obj *request) { obj.Name = name })
		}
		stored := []client.Object{
			named("waits", func(*request) {}),
			named("waits-too", signerName("example.com/custom")),
			named("for-another-ca", signerName("kubernetes.io/kubelet-serving")),
			named("foreign", signerName("example.com/foreign")),
			named("pending", func(obj *request) { obj.Status.Conditions = nil }),
			named("denied", with("Denied", "True")),
			named("failed", with("Failed", "True")),
			named("issued", func(obj *request) { obj.Status.Certificate = []byte("x") }),
		}
		p.reconciler.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(stored...).Build()
		for _, obj := range stored {
			p.reconciler.queueEvents().Create(event.CreateEvent{Object: obj})
		}
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer queue.ShutDown()
		if err := p.reconciler.wakeAfter(p.pair).Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}
		root := newRoot(t, time.Hour)
		p.pair.Load(root.cert, root.key)
		synctest.Wait()
		got := map[string]bool{}
		for queue.Len() > 0 {
			key, _ := queue.Get()
			got[key.Name] = true
		}
		if diff := cmp.Diff(map[string]bool{"waits": true, "waits-too": true}, got); diff != "" {
			t.Errorf("woken (-want +got):\n%s", diff)
		}
	})
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
	if err := r.SetupWithManager(nil, controller.Options{}); err == nil || err.Error() != "signer example.com/a has no KeyPair\nsigner example.com/b has no KeyPair" {
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
		root := newRoot(t, time.Minute)
		p.pair.Load(root.cert, root.key)
		p.clock.SetTime(now.Add(2 * time.Minute))
		taken(p.recorder)
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

func TestSignerQueueIsFair(t *testing.T) {
	t.Parallel()
	r := newParts(t, object(t)).reconciler
	events, order := r.queueEvents(), r.NewQueue()
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
	events := r.queueEvents()
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
