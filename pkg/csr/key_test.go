package csr_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestNodeOf(t *testing.T) {
	t.Parallel()
	common := func(name string) func(*request) {
		return withRequest(der(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}))
	}
	for name, test := range map[string]struct {
		limits csr.Limits
		change func(*request)
		want   string
	}{
		"a node":                    {change: common("system:node:b"), want: "b"},
		"no node":                   {change: common("alice")},
		"a node without a name":     {change: common("system:node:")},
		"a payload above the limit": {limits: csr.Limits{RequestBytes: 100}, change: common("system:node:b")},
		"no PEM":                    {change: func(obj *request) { obj.Spec.Request = []byte("x") }},
		"finished and trimmed":      {change: func(obj *request) { add("Denied")(obj); *obj = *transformed(t, csr.Trim{}, obj) }},
	} {
		if got := test.limits.NodeOf(object(t, test.change)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
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
