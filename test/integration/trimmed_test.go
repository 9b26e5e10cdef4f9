package integration

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestWritesKeepTheMetadata checks that approval and certificate erase nothing of a request, although the cache trims requests.
func TestWritesKeepTheMetadata(t *testing.T) {
	parallel(t)
	together := func() (stop func()) { return startLoopAs(t, managerConfig(t), csrenv.Options{}) }
	apart := func() (stop func()) { return startLoop(t, csrenv.Options{}) }
	for name, test := range map[string]struct {
		size  int
		start func() (stop func())
	}{
		"kept-together": {10, together}, "kept-large-together": {20 << 10, together},
		"kept": {10, apart}, "kept-large": {20 << 10, apart},
	} {
		obj := createMarked(t, name, test.size)
		before := obj.DeepCopy()
		stop := test.start()
		issued := reaches(t, obj, csr.Issued)
		issued.ManagedFields, issued.ResourceVersion = before.ManagedFields, before.ResourceVersion
		if diff := cmp.Diff(before.ObjectMeta, issued.ObjectMeta); diff != "" {
			t.Errorf("%s: metadata (-created +issued):\n%s", name, diff)
		}
		if diff := cmp.Diff(before.Spec, issued.Spec); diff != "" {
			t.Errorf("%s: spec (-created +issued):\n%s", name, diff)
		}
		stop()
	}
}

// createMarked creates a request with labels, a finalizer, an owner and an annotation of size bytes.
func createMarked(t *testing.T, node string, size int, change ...func(*request)) *request {
	t.Helper()
	obj := createRequest(t, admin(t), nodeRequest(t, node, append(change, func(obj *request) {
		obj.Annotations = map[string]string{"example.com/note": strings.Repeat("x", size)}
		obj.Labels = map[string]string{"example.com/label": "y"}
		obj.Finalizers = []string{"example.com/finalizer"}
		obj.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: "u"}}
	})...))
	t.Cleanup(func() {
		free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := admin(t).Patch(context.Background(), obj, free); err != nil {
			t.Error(err)
		}
	})
	return obj
}

// TestFinishedRequestsAreNotTouched has requests that are issued, failed or denied, or are for a signer of others. The manager
// sees them trimmed: when it starts, when they change, and when its CA changes. It makes no call about them, and all of
// them stay as they are.
func TestFinishedRequestsAreNotTouched(t *testing.T) {
	parallel(t)
	finish := func(name string) []*request {
		issued, failed, denied := createMarked(t, name+"-issued", 10), createMarked(t, name+"-failed", 10, wrongUsage), createMarked(t, name+"-denied", 10, wrongUsage)
		foreign := createMarked(t, name+"-foreign", 10, func(obj *request) { obj.Spec.SignerName = "example.com/foreign" })
		decide(t, denied, certificatesv1.CertificateDenied)
		for _, obj := range []*request{failed, foreign} {
			approve(t, obj)
		}
		return []*request{issued, failed, denied, foreign}
	}
	first := finish("first")
	proxy := throughFaults(t, managerConfig(t))
	p := startJoinable(t, proxy.Config)
	finished := append(first, finish("second")...)
	for i, want := range []csr.State{csr.Issued, csr.Failed, csr.Denied, csr.Approved, csr.Issued, csr.Failed, csr.Denied, csr.Approved} {
		reaches(t, finished[i], want)
	}
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}

	calls := len(proxy.Calls())
	startManager(t, proxy.Config, "--leader-elect=false")
	secret := signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM)
	for _, change := range []func(){
		func() {}, // the manager has started
		func() {
			for _, obj := range finished {
				obj.Labels["example.com/changed"] = "yes"
				if err := admin(t).Update(t.Context(), obj); err != nil {
					t.Fatal(err)
				}
			}
		},
		func() { another := newCA(t); hasLoaded(t, replaceSecret(t, secret, another)) },
	} {
		change()
		reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "later")), csr.Issued)
	}
	names := map[string]bool{}
	for _, before := range finished {
		names[before.Name] = true
		after := reload(t, before.DeepCopy())
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("%s (-before +after):\n%s", before.Name, diff)
		}
	}
	for _, call := range proxy.Calls()[calls:] {
		if names[call.Name] {
			t.Errorf("the manager called %s %s", call.Verb, call.Path)
		}
	}
}
