//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

var identities = []string{"csr-approver", "csr-signer", "csr-cleaner"}

// testSplit is step 6.
func (c *cluster) testSplit(t *testing.T) {
	c.install(t, "manifests/split", c.ca)
	c.deploymentsAvailable(t, identities...)
	requests := c.joinSplit(t)
	for _, who := range identities {
		t.Run(who, func(t *testing.T) { c.testIdentity(t, who, requests) })
	}
}

// joinSplit follows a request through all three Deployments: it is approved, signed and, when denied, deleted, each
// by another identity. It returns the name of the request.
func (c *cluster) joinSplit(t *testing.T) string {
	t.Helper()
	c.joinLight(t, "split")
	requests, err := c.requestsOf(t.Context(), "split")
	if err != nil || len(requests) != 1 {
		t.Fatalf("%d requests of the node, want 1: %v", len(requests), err)
	}
	name := requests[0].Name
	c.wantWriter(t, "update", name, "approval", "csr-approver")
	c.wantWriter(t, "update", name, "status", "csr-signer")

	denied := requestFor(t, "split-denied", "split-denied")
	denied.Spec.SignerName = "example.com/nobodys"
	c.create(t, denied)
	csr.AddCondition(denied, certificatesv1.CertificateDenied, "ForTheTest", "so that it is deleted soon", time.Now())
	if err := c.admin.SubResource("approval").Update(t.Context(), denied); err != nil {
		t.Fatal(err)
	}
	c.until(t, 30*time.Second, "the denied request is deleted", func(ctx context.Context) (bool, error) {
		_, err := c.get(ctx, denied.Name)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	c.wantWriter(t, "delete", denied.Name, "", "csr-cleaner")
	return name
}

func (c *cluster) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := c.admin.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// action is a call that an identity may try, with the identities that need it.
type action struct {
	name   string
	needed []string
	try    func(ctx context.Context, as client.Client) error
}

// testIdentity tries every action with a token of the ServiceAccount. Actions that it does not need must be
// forbidden.
func (c *cluster) testIdentity(t *testing.T, who, request string) {
	as := c.serviceAccount(t, who)
	for _, one := range c.actions(t, who, request) {
		err := one.try(t.Context(), as)
		switch needed := slices.Contains(one.needed, who); {
		case needed && err != nil:
			t.Errorf("%s may not %s: %v", who, one.name, err)
		case !needed && !apierrors.IsForbidden(err):
			t.Errorf("%s may %s: %v, want Forbidden", who, one.name, err)
		}
	}
}

// serviceAccount returns a client with a token that the API server created for the ServiceAccount.
func (c *cluster) serviceAccount(t *testing.T, name string) client.Client {
	t.Helper()
	token := &authenticationv1.TokenRequest{}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if err := c.admin.SubResource("token").Create(t.Context(), account, token); err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token.Status.Token
	as, err := client.New(config, client.Options{Scheme: c.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return as
}

// actions returns real calls. Calls on requests come last, so that a needed call finds its objects.
func (c *cluster) actions(t *testing.T, who, request string) []action {
	t.Helper()
	list := func(into client.ObjectList, options ...client.ListOption) func(context.Context, client.Client) error {
		return func(ctx context.Context, as client.Client) error { return as.List(ctx, into, options...) }
	}
	read := func(into client.Object, in, name string) func(context.Context, client.Client) error {
		return func(ctx context.Context, as client.Client) error {
			return as.Get(ctx, client.ObjectKey{Namespace: in, Name: name}, into)
		}
	}
	all := []action{
		{"list requests", identities, list(&certificatesv1.CertificateSigningRequestList{})},
		{"list the signing Secret", []string{"csr-signer"}, list(&corev1.SecretList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": signingSecret})},
		{"get the signing Secret", nil, read(&corev1.Secret{}, namespace, signingSecret)},
		{"list Secrets in its namespace", nil, list(&corev1.SecretList{}, client.InNamespace(namespace))},
		{"read the bootstrap token", nil, read(&corev1.Secret{}, "kube-system", "bootstrap-token-07401b")},
		{"list Nodes", []string{"csr-approver"}, list(&corev1.NodeList{})},
		{"list pods", nil, list(&corev1.PodList{}, client.InNamespace(namespace))},
		{"create a request", nil, func(ctx context.Context, as client.Client) error {
			return as.Create(ctx, requestFor(t, "by-"+who, "by-"+who))
		}},
		{"create a pod", nil, func(ctx context.Context, as client.Client) error {
			return as.Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "by-" + who},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: pauseImage}}},
			})
		}},
	}
	for _, lease := range identities {
		all = append(all, action{"read Lease " + lease, []string{lease}, read(&coordinationv1.Lease{}, namespace, lease)})
	}
	return append(all, c.requestActions(t, who, request)...)
}

// requestActions returns actions that approve, sign and delete: a request of a kubelet, and a request for an unknown
// signer.
func (c *cluster) requestActions(t *testing.T, who, request string) []action {
	t.Helper()
	foreign := requestFor(t, "foreign-"+strings.TrimPrefix(who, "csr-"), "foreign")
	foreign.Spec.SignerName = "example.com/foreign"
	c.create(t, foreign)
	csr.AddCondition(foreign, certificatesv1.CertificateApproved, "ForTheTest", "so that it could be signed", time.Now())
	if err := c.admin.SubResource("approval").Update(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	change := func(name, subresource string, edit func(*certificatesv1.CertificateSigningRequest)) func(context.Context, client.Client) error {
		return func(ctx context.Context, as client.Client) error {
			obj, err := c.get(ctx, name)
			if err != nil {
				return err
			}
			edit(obj)
			return as.SubResource(subresource).Update(ctx, obj)
		}
	}
	nothing := func(*certificatesv1.CertificateSigningRequest) {} // a forbidden call fails even without a change
	fail := func(obj *certificatesv1.CertificateSigningRequest) {
		csr.AddCondition(obj, certificatesv1.CertificateFailed, "ForTheTest", "by "+who, time.Now())
	}
	return []action{
		{"approve a kubelet's request", []string{"csr-approver"}, change(request, "approval", nothing)},
		{"approve for a signer that is not ours", nil, change(foreign.Name, "approval", nothing)},
		{"sign for a signer that is not ours", nil, change(foreign.Name, "status", fail)},
		{"sign a kubelet's request", []string{"csr-signer"}, change(request, "status", nothing)},
		{"delete a request", []string{"csr-cleaner"}, func(ctx context.Context, as client.Client) error { return as.Delete(ctx, foreign) }},
	}
}
