package signer

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A new CA wakes what waits for it: approved requests of the signers that use it, and nothing else.
func TestANewAuthorityWakesWhatWaits(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	other, _, _ := newPair()
	serving := p.reconciler.Signers["kubernetes.io/kubelet-serving"]
	serving.KeyPair = other
	p.reconciler.Signers["kubernetes.io/kubelet-serving"] = serving
	named := func(name string, change func(*request)) *request {
		return object(t, change, func(obj *request) { obj.Name = name })
	}
	p.reconciler.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(
		named("waits", func(*request) {}),
		named("waits-too", signerName("example.com/custom")),
		named("for-another-ca", signerName("kubernetes.io/kubelet-serving")),
		named("foreign", signerName("example.com/foreign")),
		named("pending", func(obj *request) { obj.Status.Conditions = nil }),
		named("denied", with("Denied", "True")),
		named("failed", with("Failed", "True")),
		named("issued", func(obj *request) { obj.Status.Certificate = []byte("x") }),
	).Build()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	if err := p.reconciler.wakeAfter(p.pair).Start(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	root := newRoot(t, time.Hour)
	p.pair.Load(root.cert, root.key)
	got := map[string]bool{}
	for range 2 {
		key, _ := queue.Get()
		got[key.Name] = true
	}
	if diff := cmp.Diff(map[string]bool{"waits": true, "waits-too": true}, got); diff != "" || queue.Len() > 0 {
		t.Errorf("%d more; woken (-want +got):\n%s", queue.Len(), diff)
	}
}

func TestSignersThatShareAKeyPairShareItsSource(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	if pairs := p.reconciler.keyPairs(); len(pairs) != 1 || len(pairs[0].Signers()) != 4 {
		t.Errorf("%d key pairs", len(pairs))
	}
}

func TestSetupRefusesASignerWithoutCA(t *testing.T) {
	t.Parallel()
	r := &Reconciler{Signers: map[string]Signer{"example.com/b": {}, "example.com/a": {}}}
	if err := r.SetupWithManager(nil, controller.Options{}); err == nil || err.Error() != "signer example.com/a has no KeyPair\nsigner example.com/b has no KeyPair" {
		t.Errorf("error %v", err)
	}
}

// TestAnEndedCABlocksEveryRequest is that each request that waits for it is told so.
func TestAnEndedCABlocksEveryRequest(t *testing.T) {
	t.Parallel()
	for _, name := range append(KubernetesSignerNames(), "example.com/custom") {
		change := usages("client auth")
		if name == "kubernetes.io/kubelet-serving" {
			names := template(t, func(r *x509.CertificateRequest) { r.DNSNames = []string{"a"} })
			change = func(obj *request) { names(obj); usages("digital signature", "server auth")(obj) }
		} else if strings.HasSuffix(name, "kubelet") {
			change = usages("digital signature", "client auth")
		}
		p := newParts(t, object(t, signerName(name), change))
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
