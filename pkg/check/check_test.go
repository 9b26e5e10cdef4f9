package check

import (
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

// Only what the authorizers have answered is an answer.
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
	asked := Right{Verb: "update", Group: "certificates.k8s.io", Resource: "certificatesigningrequests/status", Name: "a"}.attributes()
	if asked.Resource != "certificatesigningrequests" || asked.Subresource != "status" || asked.Name != "a" {
		t.Errorf("asked for %+v", asked)
	}
}

// A token that joins nodes is in the group of all such tokens too, and whoever is in any is authenticated.
func TestGroups(t *testing.T) {
	t.Parallel()
	for group, want := range map[string]string{
		"system:bootstrappers":          "system:bootstrappers system:authenticated",
		"system:bootstrappers:one":      "system:bootstrappers:one system:authenticated system:bootstrappers",
		"system:bootstrappersandothers": "system:bootstrappersandothers system:authenticated",
	} {
		if got := strings.Join(groupsWith(group), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The command names who made the request as narrowly as makes sense.
func TestBindRequester(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		user   string
		groups []string
		want   string
	}{
		"token":   {"system:bootstrap:abcdef", []string{"system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}, "--clusterrole=" + roleJoin + " --group=system:bootstrappers:kubeadm:default-node-token"},
		"node":    {"system:node:a", []string{"system:nodes"}, "--clusterrole=" + roleRenew + " --group=system:nodes"},
		"person":  {"alice@example.com", []string{"system:authenticated"}, "approve-nodeclient-alice-example.com --clusterrole=" + roleJoin + " --user='alice@example.com'"},
		"hostile": {"$(reboot) it's", []string{"system:bootstrappersofmine"}, `approve-nodeclient---reboot--it-s --clusterrole=` + roleJoin + ` --user='$(reboot) it'\''s'`},
	} {
		obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Username: test.user, Groups: test.groups}}
		if got := bindRequester(obj); !strings.HasSuffix(got, test.want) {
			t.Errorf("%s: %q, want %q at the end", name, got, test.want)
		}
	}
}

func TestReadError(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "a", errors.New("no"))
	if got := readError("get nodes", forbidden); got != "unknown: may not get nodes" {
		t.Error(got)
	}
	if got := readError("get nodes", errors.New("timeout")); got != "unknown: could not get nodes: timeout" {
		t.Error(got)
	}
}

// TestWrong looks at certificates that the API server would answer with Unauthorized, whoever has issued them.
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
		"ended":          {key, func(c *x509.Certificate) { c.NotAfter = now.Add(-time.Minute) }, "has run out"},
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
		got := Node{Name: "a"}.wrong(requestWith(t, key), leaf, now)
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

// The youngest request counts, each signer's for itself.
func TestNewest(t *testing.T) {
	t.Parallel()
	at := func(name, signer string, minute int) certificatesv1.CertificateSigningRequest {
		return certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, time.March, 1, 12, minute, 0, 0, time.UTC))},
			Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: signer},
		}
	}
	all := []certificatesv1.CertificateSigningRequest{at("first", "a", 1), at("last", "a", 3), at("between", "a", 2), at("other", "b", 4)}
	if got := newest(all, "a"); got == nil || got.Name != "last" {
		t.Errorf("%+v", got)
	}
	if got := newest(all, "c"); got != nil {
		t.Errorf("%+v", got)
	}
}
