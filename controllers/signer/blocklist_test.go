package signer

import (
	"crypto/x509"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
)

// TestReconcileObeysTheBlockList checks that no signer signs for a blocked node, even if its request is approved. The
// request is not marked as Failed.
func TestReconcileObeysTheBlockList(t *testing.T) {
	t.Parallel()
	list := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	const stolen = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"}, Data: map[string]string{"nodes": "a\nb", "certificates": stolen}}
	list.Offer(obj)
	unread := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	serving := func(obj *request) {
		signerName("kubernetes.io/kubelet-serving")(obj)
		usages("digital signature", "server auth")(obj)
		template(t, func(asked *x509.CertificateRequest) { asked.DNSNames = []string{"a"} })(obj)
	}
	named := func(name string) func(*request) {
		return template(t, func(asked *x509.CertificateRequest) { asked.Subject.CommonName = name })
	}
	madeWith := func(sha256Hex string) func(*request) {
		return func(obj *request) {
			obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + sha256Hex}}
		}
	}
	const (
		certificate = "Warning CertificateBlocked client certificate " + stolen + " is on the block list, ConfigMap ns/blocked: nothing is approved or signed for a request that was made with it until its SHA-256 is removed from the list"

		blocked = `Warning NodeBlocked node "a" is on the block list, ConfigMap ns/blocked: nothing is approved or signed for it until its name is removed from the list`
		unknown = "Warning InventoryUnavailable the request waits because it is unknown whether it is blocked: block list ConfigMap ns/blocked: not read yet"
	)
	for name, test := range map[string]struct {
		list   *blocklist.List
		change []func(*request)
		told   string // empty means signed
	}{
		"a kubelet's client certificate":            {list: list, told: blocked},
		"a kubelet's serving certificate":           {list: list, change: []func(*request){serving}, told: blocked},
		"a client certificate":                      {list: list, change: []func(*request){signerName("kubernetes.io/kube-apiserver-client")}, told: blocked},
		"a custom signer":                           {list: list, change: []func(*request){signerName("example.com/custom"), usages("client auth")}, told: blocked},
		"requested by a blocked node":               {list: list, change: []func(*request){named("system:node:c"), func(obj *request) { obj.Spec.Username = "system:node:a" }}, told: blocked},
		"another node":                              {list: list, change: []func(*request){named("system:node:c")}},
		"another user with the name":                {list: list, change: []func(*request){signerName("kubernetes.io/kube-apiserver-client"), named("a")}},
		"a renewal with a blocked certificate":      {list: list, change: []func(*request){named("system:node:c"), madeWith(stolen)}, told: certificate},
		"a client with a blocked certificate":       {list: list, change: []func(*request){signerName("example.com/custom"), usages("client auth"), named("x"), madeWith(stolen)}, told: certificate},
		"a renewal with another certificate":        {list: list, change: []func(*request){named("system:node:c"), madeWith(stolen[1:] + "0")}},
		"not read yet, a client with a certificate": {list: unread, change: []func(*request){signerName("kubernetes.io/kube-apiserver-client"), named("a"), madeWith(stolen)}, told: unknown},
		"not read yet":                              {list: unread, told: unknown},
		"not read yet, a client without a node":     {list: unread, change: []func(*request){signerName("kubernetes.io/kube-apiserver-client"), named("a")}},
		"not read yet, a client with a node's name": {list: unread, change: []func(*request){signerName("kubernetes.io/kube-apiserver-client")}, told: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newParts(t, object(t, test.change...))
			p.load(t, 1000*day)
			p.reconciler.BlockList = test.list
			result, err := p.reconcile(t)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if test.told != "" {
				want = []string{test.told}
			}
			if diff := cmp.Diff(want, taken(p.recorder)); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if signed := len(p.written) == 1 && len(p.written[0].Status.Certificate) > 0; signed != (test.told == "") || (result.RequeueAfter > 0) == signed || len(p.written) > 1 {
				t.Errorf("%d writes, signed: %t, again after %s", len(p.written), signed, result.RequeueAfter)
			}
		})
	}
}
