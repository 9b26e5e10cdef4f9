package loop

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// kubelets are the kubelets of a control plane.
type kubelets struct {
	*cluster.Cluster
	admin     client.Client
	bootstrap *rest.Config
}

// kubeletWait bounds the waits of kubelets.
const kubeletWait = 30 * time.Second

func startKubelets(t *testing.T) *kubelets {
	t.Helper()
	k := &kubelets{Cluster: kit.ControlPlane(t), admin: kit.Admin(t), bootstrap: kit.WithToken(t, kit.BootstrapperToken)}
	kit.GrantGroup(t, kit.BootstrapperTeam, kit.MayCreate)
	k.waitFor(t, "the permission to request", func(ctx context.Context) (bool, error) { return k.mayRequest(ctx) })
	return k
}

// mayRequest reports whether the API server's authorizer, which reads from a cache, has seen the binding.
func (k *kubelets) mayRequest(ctx context.Context) (bool, error) {
	self, err := client.New(k.bootstrap, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return false, err
	}
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Verb: "create"},
	}}
	err = self.Create(ctx, review)
	return review.Status.Allowed, err
}

func (k *kubelets) waitFor(t *testing.T, what string, done wait.ConditionWithContextFunc) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, kubeletWait, true, done); err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

func (k *kubelets) startLoop(t *testing.T, opts csrenv.Options) {
	t.Helper()
	opts.CA = k.CA
	env, err := csrenv.Start(t.Context(), k.Config, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := env.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func (k *kubelets) node(t *testing.T, name string) *kubelet.Node {
	t.Helper()
	return &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: k.bootstrap}
}

// asked is the content of one request and its outcome.
type asked struct {
	Requester         string
	Usages            []certificatesv1.KeyUsage
	ExpirationSeconds int32
	Reason, Message   string
}

// requestsFor returns the requests for node: first the bootstrapper's, then its own. Creation times are too coarse
// for sorting.
func (k *kubelets) requestsFor(t *testing.T, node *kubelet.Node) []asked {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := k.admin.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(list.Items, func(a, b certificatesv1.CertificateSigningRequest) int {
		return strings.Compare(a.Spec.Username, b.Spec.Username)
	})
	var all []asked
	for i := range list.Items {
		obj := &list.Items[i]
		req, err := csr.Parse(obj)
		if err != nil {
			t.Fatal(err)
		}
		if req.Cert.Subject.CommonName != node.User() {
			continue
		}
		one := asked{Requester: obj.Spec.Username, Usages: obj.Spec.Usages}
		if seconds := obj.Spec.ExpirationSeconds; seconds != nil {
			one.ExpirationSeconds = *seconds
		}
		for _, condition := range obj.Status.Conditions {
			one.Reason, one.Message = condition.Reason, condition.Message
		}
		all = append(all, one)
	}
	return all
}

func checkAsked(t *testing.T, got []asked, want ...asked) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("requests:\n got %+v\nwant %+v", got, want)
	}
}
