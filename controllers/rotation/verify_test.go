package rotation

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
)

// TestSigningKeyIsLostWhileCompleting: without the signing pair nothing can be proven, and the status is for saying so.
func TestSigningKeyIsLostWhileCompleting(t *testing.T) {
	t.Parallel()
	made, _ := issued(t)
	obj := sharing("cluster", made, certificatesv1.KubeAPIServerClientSignerName)
	obj.Status.Retiring, obj.Status.UnpublishedAt = factsOf(made), &metav1.Time{Time: noon}
	kept := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName},
		Data:       map[string]string{trust.ExtensionKey: string(made.CertificatePEM())},
	}
	r := reconciler(t)
	r.publisher = trust.New(dynamicfake.NewSimpleDynamicClient(clientgoscheme.Scheme, kept), nil)
	r.prober = &probe.Prober{Clock: r.Clock}
	o := &observation{secret: &caSecret{retiring: made}}
	if err := r.findHolders(t.Context(), obj, o); err != nil || !o.Kept {
		t.Errorf("the retiring CA is not found: %+v, error %v", o.Answers, err)
	}
}
