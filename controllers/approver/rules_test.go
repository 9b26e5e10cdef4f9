package approver

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// bootstrap returns the smallest request that matches the rule, changed by modify.
func bootstrap(modify ...func(*csr.Request)) *csr.Request {
	req := &csr.Request{
		SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
		Requester:  csr.Requester{Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}},
		Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
		Cert:       ca.Request{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}},
	}
	for _, change := range modify {
		change(req)
	}
	return req
}

// reviewed decides about req by rule, with only the granted permissions. It returns the permissions that were reviewed.
func reviewed(t testing.TB, rule Rule, req *csr.Request, granted ...string) (asked []string, _ Decision) {
	t.Helper()
	by := authz.Func(func(_ context.Context, _ csr.Requester, what authorizationv1.ResourceAttributes) (bool, error) {
		asked = append(asked, what.Subresource)
		return slices.Contains(granted, what.Subresource), nil
	})
	decision, err := rule.decide(t.Context(), req, by)
	if err != nil {
		t.Fatal(err)
	}
	return asked, decision
}

func TestNodeClientRule(t *testing.T) {
	t.Parallel()
	by := func(name string) func(*csr.Request) {
		return func(req *csr.Request) { req.Requester.Username = name }
	}
	mismatch := func(text string) Decision {
		return Decision{Result: verdict.Result{Verdict: verdict.Deny, Reason: "ShapeMismatch", Message: "the request for signer kubernetes.io/kube-apiserver-client-kubelet is not approved: " + text + "; a new request is needed"}}
	}
	for name, test := range map[string]struct {
		change func(*csr.Request)
		ask    []string
		want   Decision
	}{
		"bootstrapper":         {change: by("system:bootstrap:abcdef"), ask: []string{"nodeclient"}},
		"the node itself":      {change: by("system:node:a"), ask: []string{"selfnodeclient", "nodeclient"}},
		"another node":         {change: by("system:node:b"), ask: []string{"nodeclient"}},
		"upper case":           {change: by("system:node:A"), ask: []string{"nodeclient"}},
		"empty user name":      {change: by(""), ask: []string{"nodeclient"}},
		"a person":             {change: by("admin"), ask: []string{"nodeclient"}},
		"DNS name":             {change: func(req *csr.Request) { req.Cert.DNSNames = []string{"a"} }, want: mismatch("DNS subjectAltNames are not allowed")},
		"another organization": {change: func(req *csr.Request) { req.Cert.Subject.Organization = []string{"system:masters"} }, want: mismatch("subject organization is not system:nodes")},
		"another common name":  {change: func(req *csr.Request) { req.Cert.Subject.CommonName = "a" }, want: mismatch("subject common name does not begin with system:node:")},
		"server auth":          {change: func(req *csr.Request) { req.Usages = append(req.Usages, "server auth") }, want: mismatch("usages did not match [client auth digital signature key encipherment]")},
		"dropped content":      {change: func(req *csr.Request) { req.Dropped = []string{"extension 2.5.29.19"} }, ask: []string{"nodeclient"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := NodeClient()
			names, decision := reviewed(t, rule, bootstrap(test.change))
			if diff := cmp.Diff(test.ask, names); diff != "" {
				t.Errorf("recognisers (-want +got):\n%s", diff)
			}
			if len(names) > 0 && decision.Reason == "NotAuthorized" {
				decision = Decision{}
			}
			if diff := cmp.Diff(test.want, decision); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNodeClientAsksAndSaysWhatKubernetesDoes(t *testing.T) {
	t.Parallel()
	rule := NodeClient()
	if rule.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" {
		t.Errorf("signer %s", rule.SignerName)
	}
	type said struct {
		Permission authorizationv1.ResourceAttributes
		Decision   Decision
	}
	want := []said{
		{
			authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Subresource: "selfnodeclient", Version: "*"},
			Decision{Result: verdict.Result{Verdict: verdict.Approve, Reason: "AutoApproved", Message: "Auto approving self kubelet client certificate after SubjectAccessReview."}, Rule: "selfnodeclient"},
		},
		{
			authorizationv1.ResourceAttributes{Group: "certificates.k8s.io", Resource: "certificatesigningrequests", Verb: "create", Subresource: "nodeclient", Version: "*"},
			Decision{Result: verdict.Result{Verdict: verdict.Approve, Reason: "AutoApproved", Message: "Auto approving kubelet client certificate after SubjectAccessReview."}, Rule: "nodeclient"},
		},
	}
	var got []said
	node := bootstrap(func(req *csr.Request) { req.Requester.Username = "system:node:a" })
	for _, recogniser := range rule.Recognisers {
		_, decision := reviewed(t, rule, node, recogniser.Name)
		got = append(got, said{recogniser.Permission, decision})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permissions and approvals (-want +got):\n%s", diff)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	_, one := reviewed(t, NodeClient(), bootstrap())
	_, two := reviewed(t, NodeClient(), bootstrap(func(req *csr.Request) { req.Requester.Username = "system:node:a" }))
	own := NodeClient() // a rule of a user of the library
	own.Recognisers = own.Recognisers[:1]
	_, none := reviewed(t, own, bootstrap())
	for name, test := range map[string]struct{ got, want Decision }{
		"one permission": {
			one,
			Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: "NotAuthorized", Message: `user "system:bootstrap:abcdef" with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" ` +
				`but may not create certificatesigningrequests/nodeclient (API group certificates.k8s.io): ` +
				`if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within five minutes`}},
		},
		"two permissions": {
			two,
			Decision{Result: verdict.Result{Verdict: verdict.Wait, Reason: "NotAuthorized", Message: `user "system:node:a" with groups ["system:bootstrappers"] requests subject "CN=system:node:a,O=system:nodes" ` +
				`but may not create certificatesigningrequests/selfnodeclient (API group certificates.k8s.io) or create certificatesigningrequests/nodeclient (API group certificates.k8s.io): ` +
				`if this user may join nodes, bind a ClusterRole with this permission to it; the request is checked again within five minutes`}},
		},
		"no recogniser": {none, Decision{}},
		"malformed": {
			unread(&csr.Refused{Reason: "Malformed", Message: "spec.request is bad"}),
			Decision{Result: verdict.Result{Verdict: verdict.Deny, Reason: "Malformed", Message: "spec.request is bad; a new request is needed"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, test.got); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnreadNamesTheRemedy checks the Decision about each kind of request that cannot be read.
func TestUnreadNamesTheRemedy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want verdict.Result
	}{
		"malformed": {
			&csr.Refused{Reason: "Malformed", Message: "no PEM"},
			verdict.Result{Verdict: verdict.Deny, Reason: "Malformed", Message: "no PEM; a new request is needed"},
		},
		"larger than the configuration permits": {
			&csr.Refused{Reason: "RequestTooLarge", Message: "too large"},
			verdict.Result{Verdict: verdict.Deny, Reason: "RequestTooLarge",
				Message: "too large; a new request is needed, or a configuration that permits this one"},
		},
		"not parsed because of a bug": {
			errors.New("index out of range"),
			verdict.Result{Verdict: verdict.Wait, Reason: "InternalError",
				Message: "index out of range; this is a bug in csr-controller-manager: report it with this request. " +
					"The request is parsed again within five minutes"},
		},
	} {
		if diff := cmp.Diff(Decision{Result: test.want}, unread(test.err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
