package check

import (
	"errors"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// If the call fails or an authorizer has an evaluation error, the answer is Unknown.
func TestAnswers(t *testing.T) {
	type status = authorizationv1.SubjectAccessReviewStatus
	for name, test := range map[string]struct {
		status status
		err    error
		want   Status
		reason string
	}{
		"allowed":                       {status{Allowed: true}, nil, OK, ""},
		"allowed, one could not tell":   {status{Allowed: true, EvaluationError: "timeout"}, nil, OK, ""},
		"not allowed":                   {status{Reason: `RBAC: clusterrole "a" not found`}, nil, Failed, "not found"},
		"nobody could tell":             {status{EvaluationError: "webhook: timeout"}, nil, Unknown, "webhook: timeout"},
		"denied, another could not say": {status{Denied: true, EvaluationError: "timeout"}, nil, Failed, ""},
		"allowed, and an error":         {status{Allowed: true}, errors.New("broken"), Unknown, "broken"},
	} {
		if got := answerOf(test.status, test.err); got.status != test.want || !strings.Contains(got.reason, test.reason) {
			t.Errorf("%s: %+v, want %s with %q", name, got, test.want, test.reason)
		}
	}
}

func TestRightsByName(t *testing.T) {
	expect.Equal(t, "text", (Right{Verb: "get", Resource: "secrets", Name: "a", Namespace: "b"}).String(), "get secrets a in b")
	var asked authorizationv1.ResourceAttributes
	api := reviewer(func(obj runtime.Object) {
		asked = *obj.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes
	}).SelfSubjectAccessReviews()
	right := Right{Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests/status", Name: "a"}
	Rights(t.Context(), api, []Right{right})
	want := authorizationv1.ResourceAttributes{
		Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: "status", Name: "a",
	}
	expect.Equal(t, "asked for", asked, want)
}

// TestRightsOnSigners checks that a right on all signers of a domain counts, as in admission, and for no other resource.
func TestRightsOnSigners(t *testing.T) {
	for granted, want := range map[string]string{
		"example.com/a": "ok failed ok", "example.com/*": "ok ok failed", "*": "failed failed failed", "example.com": "failed failed failed",
	} {
		api := reviewer(func(obj runtime.Object) {
			review := obj.(*authorizationv1.SelfSubjectAccessReview)
			review.Status.Allowed = review.Spec.ResourceAttributes.Name == granted
		}).SelfSubjectAccessReviews()
		var got []string
		for _, result := range Rights(t.Context(), api, []Right{
			{Verb: "approve", Resource: "signers", Name: "example.com/a"}, {Verb: "sign", Resource: "signers", Name: "example.com/b/c"},
			{Verb: "get", Resource: "others", Name: "example.com/a"},
		}) {
			got = append(got, string(result.Status))
		}
		expect.Equal(t, "with "+granted, strings.Join(got, " "), want)
	}
}

// reviewer is an API server that shows note each review.
func reviewer(note func(runtime.Object)) reviewsv1.AuthorizationV1Interface {
	api := fake.NewClientset()
	api.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		obj := action.(clienttesting.CreateAction).GetObject()
		note(obj)
		return true, obj, nil
	})
	return api.AuthorizationV1()
}

// Each bootstrap token is also in the group of all bootstrap tokens. Each user in a group is also authenticated.
func TestGroups(t *testing.T) {
	for group, want := range map[string]string{
		"system:bootstrappers":          "system:bootstrappers system:authenticated",
		"system:bootstrappers:one":      "system:bootstrappers:one system:authenticated system:bootstrappers",
		"system:bootstrappersandothers": "system:bootstrappersandothers system:authenticated",
	} {
		var got string
		api := reviewer(func(obj runtime.Object) {
			got = strings.Join(obj.(*authorizationv1.SubjectAccessReview).Spec.Groups, " ")
		}).SubjectAccessReviews()
		review(t.Context(), api, "user", group, "create", requests)
		expect.Equal(t, "groups", got, want)
	}
}

// The advice never names the group of all tokens, also if that group lacks fewer roles.
func TestNarrowest(t *testing.T) {
	lacks := func(group string, roles ...string) gap { return gap{group: group, roles: roles} }
	all, kubeadm := lacks(bootstrapGroup, roleCreate, roleJoin), lacks(kubeadmGroup, roleCreate, roleJoin)
	for name, test := range map[string]struct {
		gaps []gap
		want string
	}{
		"all have more": {[]gap{lacks(bootstrapGroup, roleJoin), kubeadm}, kubeadmGroup},
		"in use":        {[]gap{all, lacks("system:bootstrappers:mine", roleJoin), kubeadm}, "system:bootstrappers:mine"},
	} {
		expect.Equal(t, name, narrowest(test.gaps).group, test.want)
	}
}
