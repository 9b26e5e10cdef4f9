package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/internal/fairqueue"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// TestKey compares the key of a request with the key of the request of a bootstrap token for node a.
func TestKey(t *testing.T) {
	t.Parallel()
	common := func(name string) func(*request) {
		return withRequest(der(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}))
	}
	named := func(name string) func(*request) { return func(obj *request) { obj.Name = name } }
	user := func(name string) func(*request) { return func(obj *request) { obj.Spec.Username = name } }
	type same struct{ requester, lane bool }
	of := (csr.Limits{}).Key(object(t))
	for name, test := range map[string]struct {
		limits csr.Limits
		change []func(*request)
		want   same
	}{
		"the same node":                 {change: []func(*request){named("csr-2")}, want: same{true, true}},
		"the same node, another signer": {change: []func(*request){func(obj *request) { obj.Spec.SignerName = "kubernetes.io/kubelet-serving" }}, want: same{true, true}},
		"another node":                  {change: []func(*request){common("system:node:b")}, want: same{true, false}},
		"another requester":             {change: []func(*request){user("someone")}, want: same{false, false}},
		"a user name of 1 MiB":          {change: []func(*request){user(strings.Repeat("u", 1<<20))}, want: same{false, false}},
		"no node":                       {change: []func(*request){common("alice")}, want: same{true, false}},
		"a node without a name":         {change: []func(*request){common("system:node:")}, want: same{true, false}},
		"a payload above the limit":     {limits: csr.Limits{RequestBytes: 100}, want: same{true, false}},
		"no PEM":                        {change: []func(*request){func(obj *request) { obj.Spec.Request = []byte("x") }}, want: same{true, false}},
		"finished and trimmed":          {change: []func(*request){func(obj *request) { add("Denied")(obj); *obj = *transformed(t, csr.Trim{}, obj) }}, want: same{true, false}},
	} {
		got := test.limits.Key(object(t, test.change...))
		if got := (same{got.Requester == of.Requester, got.Lane == of.Lane}); got != test.want {
			t.Errorf("%s: the same requester and lane: %+v, want %+v", name, got, test.want)
		}
	}
	want := fairqueue.Key{Name: "csr-1", UID: "uid-1", Requester: of.Requester, Lane: of.Lane, Created: now.Unix()}
	if of != want {
		t.Errorf("key %+v, want %+v", of, want)
	}
	if a, b := (csr.Limits{}).Key(object(t, common("alice"))), (csr.Limits{}).Key(object(t, common("alice"), named("csr-2"))); a.Lane == b.Lane {
		t.Error("two requests without a node share a lane")
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Second, 0: time.Second, time.Second: time.Second, 90 * time.Second: 90 * time.Second,
		5 * time.Minute: 5 * time.Minute, 24 * time.Hour: 5 * time.Minute,
	} {
		if got := csr.Pause(age); got != want {
			t.Errorf("a request of %s waits %s, want %s", age, got, want)
		}
	}
}
