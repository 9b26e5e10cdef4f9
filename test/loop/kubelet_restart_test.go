package loop

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"encoding/pem"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// interrupted is a kubelet that was stopped while its request was pending.
type interrupted struct {
	node    *kubelet.Node
	pending *kubelet.Pending
	key     crypto.PublicKey
}

func (k *kubelets) interrupt(t *testing.T, name string) interrupted {
	t.Helper()
	node := k.node(t, name)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pending, err := node.Request(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() {
		_, err := pending.Wait(ctx)
		stopped <- err
	}()
	cancel()
	if err := <-stopped; err == nil {
		t.Fatal("got a certificate that nobody may have approved")
	}
	key, err := node.PendingKey()
	if err != nil {
		t.Fatal(err)
	}
	return interrupted{node, pending, key}
}

// restart requests again like a new process that knows only the folder of the first.
func (k *kubelets) restart(t *testing.T, first interrupted) *kubelet.Pending {
	t.Helper()
	again := &kubelet.Node{Name: first.node.Name, Dir: first.node.Dir, Bootstrap: k.bootstrap}
	pending, err := again.Request(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if pending.UID != first.pending.UID || pending.Name != first.pending.Name {
		t.Errorf("resumed request %s (%s), want %s (%s)", pending.Name, pending.UID, first.pending.Name, first.pending.UID)
	}
	return pending
}

// finish waits for the certificate and checks that it belongs to the first request and its key.
func (k *kubelets) finish(t *testing.T, first interrupted, resumed *kubelet.Pending) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), kubeletWait)
	defer cancel()
	cert, err := resumed.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if public, ok := cert.Leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(first.key) {
		t.Error("the certificate is for another key")
	}
	obj := k.object(ctx, t, first.pending.Name)
	block, _ := pem.Decode(obj.Status.Certificate)
	if obj.UID != first.pending.UID || block == nil || !slices.Equal(block.Bytes, cert.Leaf.Raw) {
		t.Errorf("the certificate is not that of request %s", first.pending.UID)
	}
	if err := first.node.CheckIdentity(ctx, cert); err != nil {
		t.Error(err)
	}
	checkAsked(t, k.requestsFor(t, first.node), asked{kit.Bootstrapper, ecdsaUsages, 0, "AutoApproved", kit.NodeMessage})
}

func (k *kubelets) object(ctx context.Context, t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	obj := &certificatesv1.CertificateSigningRequest{}
	if err := k.admin.Get(ctx, client.ObjectKey{Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// KEP-266 promises that a kubelet that restarts while its request is pending finds the same request again, by the
// same key.
func TestKubeletRestart(t *testing.T) {
	kit.Parallel(t)
	k := startKubelets(t)
	early := k.interrupt(t, "before-the-loop-runs")
	k.startLoop(t, csrenv.Options{SkipRBAC: true})
	refused := k.interrupt(t, "while-the-loop-refuses")
	away := k.interrupt(t, "issued-while-away")
	for _, one := range []interrupted{early, refused, away} {
		k.waitFor(t, "the refusal of "+one.node.Name, func(ctx context.Context) (bool, error) { return k.refused(ctx, one.pending) })
	}
	earlyAgain, refusedAgain := k.restart(t, early), k.restart(t, refused)
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayJoin)
	k.finish(t, early, earlyAgain)
	k.finish(t, refused, refusedAgain)
	k.waitFor(t, "the certificate of a kubelet that is away", func(ctx context.Context) (bool, error) {
		return len(k.object(ctx, t, away.pending.Name).Status.Certificate) > 0, nil
	})
	k.finish(t, away, k.restart(t, away))
}

// refused reports whether an Event says why the request is not approved.
func (k *kubelets) refused(ctx context.Context, pending *kubelet.Pending) (bool, error) {
	events := &eventsv1.EventList{}
	err := k.admin.List(ctx, events, client.InNamespace(metav1.NamespaceDefault))
	return slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
		return event.Regarding.UID == pending.UID && event.Reason == "NotAuthorized"
	}), err
}
