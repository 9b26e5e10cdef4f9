package rotation

import (
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
)

// TestSigningKeyIsLostWhileCompleting checks that nothing is proven without the signing pair, and that the status says
// so.
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

// TestAnswersAboutOtherCAs checks that answers about another CA do not count. The Secret may change while API servers
// are asked.
func TestAnswersAboutOtherCAs(t *testing.T) {
	t.Parallel()
	asked, _ := issued(t)
	other, _ := issued(t)
	obj := sharing("cluster", asked, certificatesv1.KubeAPIServerClientSignerName)
	obj.Status.Phase = v1alpha1.Preparing
	verified := &observation{secret: &caSecret{candidate: asked}}
	verified.Candidate = proven
	for name, test := range map[string]struct {
		seen *observation
		want bool
	}{
		"the same candidate":           {&observation{secret: &caSecret{candidate: asked}}, true},
		"another candidate":            {&observation{secret: &caSecret{candidate: other}}, false},
		"another authority needs it":   {&observation{secret: &caSecret{candidate: asked}, Facts: Facts{Sharing: []string{"other"}}}, false},
		"nothing was asked, as in New": {nil, false},
	} {
		from := verified
		if test.seen == nil {
			test.seen, from = &observation{secret: &caSecret{candidate: asked}}, nil
		}
		reconciler(t).useAnswers(obj, test.seen, from)
		if test.seen.Candidate.Proven != test.want {
			t.Errorf("%s: used %t, want %t", name, test.seen.Candidate.Proven, test.want)
		}
	}
}
