package authz_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// reviewed returns a SubjectAccess whose reviews all return status or err, and the reviews that it sent.
func reviewed(status authorizationv1.SubjectAccessReviewStatus, err error) (authz.SubjectAccess, *[]authorizationv1.SubjectAccessReview) {
	sent := &[]authorizationv1.SubjectAccessReview{}
	create := func(_ context.Context, _ client.WithWatch, obj client.Object, options ...client.CreateOption) error {
		review := obj.(*authorizationv1.SubjectAccessReview)
		*sent = append(*sent, *review.DeepCopy())
		review.Status = status
		if len(options) > 0 {
			return errors.New("options were given")
		}
		return err
	}
	return authz.SubjectAccess{Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{Create: create}).Build()}, sent
}

func TestSubjectAccessReview(t *testing.T) {
	t.Parallel()
	who := csr.Requester{
		Username: "ü", UID: "uid", Groups: []string{"b", "a", "b"},
		Extra: map[string]certificatesv1.ExtraValue{"example.com/key": {"x", "y"}, "empty": {}},
	}
	what := authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Subresource: "nodeclient", Version: "*"}
	asker, sent := reviewed(authorizationv1.SubjectAccessReviewStatus{Allowed: true}, nil)
	if allowed, err := asker.Allowed(t.Context(), who, what); !allowed || err != nil {
		t.Errorf("allowed %t, error %v", allowed, err)
	}
	want := []authorizationv1.SubjectAccessReview{{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "ü", UID: "uid", Groups: []string{"b", "a", "b"},
			Extra: map[string]authorizationv1.ExtraValue{"example.com/key": {"x", "y"}, "empty": {}},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Subresource: "nodeclient", Version: "*",
			},
		},
	}}
	if diff := cmp.Diff(want, *sent); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

func TestSubjectAccessReadsOnlyAllowed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status authorizationv1.SubjectAccessReviewStatus
		err    error
		want   bool
		text   string
	}{
		"no":                             {},
		"yes":                            {status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}, want: true},
		"denied":                         {status: authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "because"}},
		"yes, though evaluation stopped": {status: authorizationv1.SubjectAccessReviewStatus{Allowed: true, EvaluationError: "x"}, want: true},
		"no, and evaluation stopped":     {status: authorizationv1.SubjectAccessReviewStatus{EvaluationError: "x"}},
		"a fault is no answer":           {status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}, err: errors.New("down"), text: "create SubjectAccessReview: down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asker, _ := reviewed(test.status, test.err)
			allowed, err := asker.Allowed(t.Context(), csr.Requester{}, authorizationv1.ResourceAttributes{})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if allowed != test.want || text != test.text {
				t.Errorf("allowed %t, error %q", allowed, text)
			}
		})
	}
}
