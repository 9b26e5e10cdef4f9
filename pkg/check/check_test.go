package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestWorst(t *testing.T) {
	t.Parallel()
	for want, statuses := range map[Status][][]Status{
		OK:      {{OK}, {OK, OK}},
		Unknown: {nil, {Unknown}, {OK, Unknown}, {Unknown, OK}},
		Failed:  {{Failed}, {Failed, Unknown}, {Unknown, Failed, OK}},
	} {
		for _, list := range statuses {
			var results []Result
			for _, status := range list {
				results = append(results, Result{Status: status})
			}
			if got := Worst(results); got != want {
				t.Errorf("%v together are %s, want %s", list, got, want)
			}
		}
	}
}

// If the call fails or an authorizer has an evaluation error, the answer is Unknown.
func TestAnswers(t *testing.T) {
	t.Parallel()
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
		"not asked":                     {status{}, errors.New("connection refused"), Unknown, "connection refused"},
		"allowed, and an error":         {status{Allowed: true}, errors.New("broken"), Unknown, "broken"},
	} {
		if got := answerOf(test.status, test.err); got.status != test.want || !strings.Contains(got.reason, test.reason) {
			t.Errorf("%s: %+v, want %s with %q", name, got, test.want, test.reason)
		}
	}
}

func TestRightsByName(t *testing.T) {
	t.Parallel()
	for want, right := range map[string]Right{
		"get secrets a in b": {Verb: "get", Resource: "secrets", Name: "a", Namespace: "b"},
		"update certificatesigningrequests/status.certificates.k8s.io": {Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests/status"},
	} {
		if got := right.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	var asked authorizationv1.ResourceAttributes
	api := reviewer(func(obj runtime.Object) {
		asked = *obj.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes
	}).SelfSubjectAccessReviews()
	right := Right{Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests/status", Name: "a"}
	Rights(t.Context(), api, []Right{right})
	want := authorizationv1.ResourceAttributes{
		Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Subresource: "status", Name: "a",
	}
	if asked != want {
		t.Errorf("asked for %+v", asked)
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
	t.Parallel()
	for group, want := range map[string]string{
		"system:bootstrappers":          "system:bootstrappers system:authenticated",
		"system:bootstrappers:one":      "system:bootstrappers:one system:authenticated system:bootstrappers",
		"system:bootstrappersandothers": "system:bootstrappersandothers system:authenticated",
	} {
		var got string
		api := reviewer(func(obj runtime.Object) {
			got = strings.Join(obj.(*authorizationv1.SubjectAccessReview).Spec.Groups, " ")
		}).SubjectAccessReviews()
		if askAny(t.Context(), api, "user", group, []Right{approvalAs("nodeclient")}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The command names the requester by the smallest useful group or user.
func TestBindRequester(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	payload := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	const ifNodes = "if nodes are to renew their certificates: kubectl create clusterrolebinding approve-selfnodeclient-nodes "
	for name, test := range map[string]struct {
		user   string
		groups []string
		want   string
	}{
		"another node":           {"system:node:b", []string{"system:nodes"}, "system:node:b asks for the identity of another node, which no kubelet does: find out who holds its credential, which may be stolen; kubectl certificate deny one"},
		"node, not in the group": {"system:node:a", nil, "if this user is to renew its certificate: kubectl create clusterrolebinding approve-selfnodeclient-node-a --clusterrole=" + roleRenew + " --user=system:node:a"},
		"token":                  {"system:bootstrap:abcdef", []string{"system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}, "if this group is to join nodes: kubectl create clusterrolebinding approve-nodeclient-bootstrappers-kubeadm-default-node-token --clusterrole=" + roleJoin + " --group=system:bootstrappers:kubeadm:default-node-token"},
		"token of two groups":    {"system:bootstrap:abcdef", []string{"system:bootstrappers", "system:bootstrappers:one"}, "if this group is to join nodes: kubectl create clusterrolebinding approve-nodeclient-bootstrappers-one --clusterrole=" + roleJoin + " --group=system:bootstrappers:one"},
		"token of the node":      {"system:bootstrap:abcdef", []string{"system:bootstrappers", csr.TokenGroup("a")}, "if this group is to join nodes: kubectl create clusterrolebinding approve-nodeclient-bootstrappers-node-" + csr.TokenGroup("a")[len("system:bootstrappers:node:"):] + " --clusterrole=" + roleJoin + " --group=" + csr.TokenGroup("a")},
		"token of another node":  {"system:bootstrap:abcdef", []string{"system:bootstrappers", csr.TokenGroup("b")}, "the token is for another node: give the machine a token for this node, or find out who holds the token"},
		"token of no group":      {"system:bootstrap:abcdef", []string{"system:bootstrappers"}, "if this token is to join nodes: add the group system:bootstrappers:kubeadm:default-node-token to auth-extra-groups of its Secret, and kubectl create clusterrolebinding approve-nodeclient-bootstrappers-kubeadm-default-node-token --clusterrole=" + roleJoin + " --group=system:bootstrappers:kubeadm:default-node-token"},
		"node":                   {"system:node:a", []string{"system:nodes"}, ifNodes + "--clusterrole=" + roleRenew + " --group=system:nodes"},
		"person":                 {"alice@example.com", []string{"system:authenticated"}, "if this user is to join nodes: kubectl create clusterrolebinding approve-nodeclient-alice-example.com --clusterrole=" + roleJoin + " --user=alice@example.com"},
		"hostile":                {"$(reboot) it's", []string{"system:bootstrappersofmine"}, `if this user is to join nodes: kubectl create clusterrolebinding approve-nodeclient---reboot--it-s --clusterrole=` + roleJoin + ` --user='$(reboot) it'\''s'`},
	} {
		obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
		obj.Spec.Request, obj.Spec.Username, obj.Spec.Groups = payload, test.user, test.groups
		if got := BindRequester(obj); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestReadError(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", errors.New("no"))
	if got := ReadError("get nodes", forbidden); got != "unknown: may not get nodes" {
		t.Error(got)
	}
	if got := ReadError("get nodes", errors.New("timeout")); got != "unknown: could not get nodes: timeout" {
		t.Error(got)
	}
}

// TestKubeletsWithoutBootstrapGroups checks that nothing is asked, and nothing failed, where nodes join by no group.
func TestKubeletsWithoutBootstrapGroups(t *testing.T) {
	t.Parallel()
	if got := Kubelets(t.Context(), nil, nil, nil); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// The advice never names the group of all tokens, also if that group lacks fewer roles.
func TestNarrowest(t *testing.T) {
	t.Parallel()
	lacks := func(group string, roles ...string) gap { return gap{group: group, roles: roles} }
	all, kubeadm := lacks(bootstrapGroup, roleCreate, roleJoin), lacks(kubeadmGroup, roleCreate, roleJoin)
	for name, test := range map[string]struct {
		gaps []gap
		want string
	}{
		"as many":       {[]gap{all, kubeadm}, kubeadmGroup},
		"all have more": {[]gap{lacks(bootstrapGroup, roleJoin), kubeadm}, kubeadmGroup},
		"all alone":     {[]gap{all}, kubeadmGroup},
		"in use":        {[]gap{all, lacks("system:bootstrappers:mine", roleJoin), kubeadm}, "system:bootstrappers:mine"},
	} {
		if got := narrowest(test.gaps).group; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
