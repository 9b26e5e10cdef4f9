package check

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
	api := reviewer(func(obj client.Object) {
		asked = *obj.(*authorizationv1.SelfSubjectAccessReview).Spec.ResourceAttributes
	})
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
func reviewer(note func(client.Object)) client.Client {
	return failing(func(obj client.Object) error { note(obj); return nil })
}

// failing is an API server that answers each review as answer does.
func failing(answer func(client.Object) error) client.Client {
	return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
			return answer(obj)
		},
	}).Build()
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
		api := reviewer(func(obj client.Object) {
			got = strings.Join(obj.(*authorizationv1.SubjectAccessReview).Spec.Groups, " ")
		})
		if askAny(t.Context(), api, "user", group, alternatives{approvalAs("nodeclient")}); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The command names the requester by the smallest useful group or user.
func TestBindRequester(t *testing.T) {
	t.Parallel()
	const ifNodes = "if nodes are to renew their certificates: kubectl create clusterrolebinding approve-selfnodeclient-nodes "
	for name, test := range map[string]struct {
		user   string
		groups []string
		want   string
	}{
		"another node":           {"system:node:b", []string{"system:nodes"}, "system:node:b asks for the identity of another node, which no kubelet does: find out who holds its credential, which may be stolen; kubectl certificate deny one"},
		"node, not in the group": {"system:node:a", nil, "if this user is to renew its certificate: kubectl create clusterrolebinding approve-selfnodeclient-node-a --clusterrole=" + roleRenew + " --user=system:node:a"},
		"token":                  {"system:bootstrap:abcdef", []string{"system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}, "if this group is to join nodes: kubectl create clusterrolebinding approve-nodeclient-bootstrappers-kubeadm-default-node-token --clusterrole=" + roleJoin + " --group=system:bootstrappers:kubeadm:default-node-token"},
		"node":                   {"system:node:a", []string{"system:nodes"}, ifNodes + "--clusterrole=" + roleRenew + " --group=system:nodes"},
		"person":                 {"alice@example.com", []string{"system:authenticated"}, "if this user is to join nodes: kubectl create clusterrolebinding approve-nodeclient-alice-example.com --clusterrole=" + roleJoin + " --user=alice@example.com"},
		"hostile":                {"$(reboot) it's", []string{"system:bootstrappersofmine"}, `if this user is to join nodes: kubectl create clusterrolebinding approve-nodeclient---reboot--it-s --clusterrole=` + roleJoin + ` --user='$(reboot) it'\''s'`},
	} {
		obj := requestWith(t, newKey(t)) // for system:node:a
		obj.Spec.Username, obj.Spec.Groups = test.user, test.groups
		if got := (Node{}).bindRequester(obj); got != test.want {
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

// TestWrong checks certificates that the API server would answer with Unauthorized, whichever CA has issued them.
func TestWrong(t *testing.T) {
	t.Parallel()
	now := time.Now()
	key, other := newKey(t), newKey(t)
	good := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for name, test := range map[string]struct {
		key    *ecdsa.PrivateKey
		change func(*x509.Certificate)
		want   string
	}{
		"good":           {key, func(*x509.Certificate) {}, ""},
		"ended":          {key, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, "expired at"},
		"to come":        {key, func(c *x509.Certificate) { c.NotBefore = now.Add(time.Minute) }, "not valid before"},
		"another node":   {key, func(c *x509.Certificate) { c.Subject.CommonName = "system:node:b" }, "system:node:b"},
		"no group":       {key, func(c *x509.Certificate) { c.Subject.Organization = nil }, "not for system:node:a in system:nodes"},
		"for serving":    {key, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, "not for client authentication"},
		"another's key":  {other, func(*x509.Certificate) {}, "another key"},
		"any other name": {key, func(c *x509.Certificate) { c.Subject = pkix.Name{} }, "not for system:node:a"},
	} {
		template := good
		test.change(&template)
		der, err := x509.CreateCertificate(rand.Reader, &template, &good, test.key.Public(), other)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		got := Node{Name: "a", now: now}.wrong(requestWith(t, key), leaf)
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func requestWith(t *testing.T, key *ecdsa.PrivateKey) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})},
	}
}

// The youngest request for each signer counts. A user who cannot join nodes does not hide it with a request for the
// same node name.
func TestNewest(t *testing.T) {
	t.Parallel()
	const node, joins, custom, nobody = "system:nodes", "system:bootstrappers:kubeadm:default-node-token", "joiners", "system:authenticated"
	at := func(minute int, name, user, group string) certificatesv1.CertificateSigningRequest {
		return certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, time.March, 1, 12, minute, 0, 0, time.UTC))},
			Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: "a", Username: user, Groups: []string{group}},
		}
	}
	type list = []certificatesv1.CertificateSigningRequest
	for name, test := range map[string]struct {
		all            list
		found, foreign string
	}{
		"none":                   {nil, "", ""},
		"another signer's":       {list{{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "b"}}}, "", ""},
		"the youngest":           {list{at(1, "first", "system:node:a", node), at(3, "last", "system:node:a", node), at(2, "between", "system:node:a", node)}, "last", ""},
		"a token's is as good":   {list{at(1, "node", "system:node:a", node), at(2, "token", "system:bootstrap:b", joins)}, "token", ""},
		"so is a configured one": {list{at(1, "node", "system:node:a", node), at(2, "joiner", "c", custom)}, "joiner", ""},
		"somebody else's alone":  {list{at(1, "one", "alice", nobody), at(2, "two", "alice", nobody)}, "two", ""},
		"before":                 {list{at(1, "alice", "alice", nobody), at(2, "node", "system:node:a", node)}, "node", ""},
		"at the same time":       {list{at(1, "alice", "alice", nobody), at(1, "node", "system:node:a", node)}, "node", ""},
		"after":                  {list{at(1, "node", "system:node:a", node), at(3, "alice", "alice", nobody), at(2, "bob", "bob", nobody)}, "node", "alice"},
		"another node's":         {list{at(1, "node", "system:node:a", node), at(2, "thief", "system:node:b", node)}, "node", "thief"},
	} {
		found, foreign := Node{Name: "a", BootstrapGroups: []string{custom}}.newest(test.all, "a")
		if nameOf(found) != test.found || nameOf(foreign) != test.foreign {
			t.Errorf("%s: %q and %q, want %q and %q", name, nameOf(found), nameOf(foreign), test.found, test.foreign)
		}
	}
}

func nameOf(obj *certificatesv1.CertificateSigningRequest) string {
	if obj == nil {
		return ""
	}
	return obj.Name
}
