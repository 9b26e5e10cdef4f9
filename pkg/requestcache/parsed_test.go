package requestcache

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// parsable returns a request for a certificate with that common name.
func parsable(t testing.TB, commonName string) *request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName}}, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := &request{}
	obj.Name, obj.UID = "csr-1", "uid-1"
	obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	obj.Spec.SignerName, obj.Spec.Username, obj.Spec.Groups = "example.com/a", "user", []string{"g"}
	obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}
	return obj
}

// TestParse checks that a request is parsed once, and that no other content gets its result.
func TestParse(t *testing.T) {
	t.Parallel()
	other := parsable(t, "b").Spec.Request
	seconds := int32(600)
	for name, test := range map[string]struct {
		change func(*request)
		limits csr.Limits
		cached bool
	}{
		"the same object":      {change: func(*request) {}, cached: true},
		"a later version":      {change: func(obj *request) { obj.ResourceVersion = "8" }, cached: true},
		"another UID":          {change: func(obj *request) { obj.UID = "uid-2" }},
		"another name":         {change: func(obj *request) { obj.Name = "csr-2" }},
		"another payload":      {change: func(obj *request) { obj.Spec.Request = other }},
		"another signer":       {change: func(obj *request) { obj.Spec.SignerName = "example.com/b" }},
		"another lifetime":     {change: func(obj *request) { obj.Spec.ExpirationSeconds = &seconds }},
		"other usages":         {change: func(obj *request) { obj.Spec.Usages = nil }},
		"another user":         {change: func(obj *request) { obj.Spec.Username = "other" }},
		"another UID of user":  {change: func(obj *request) { obj.Spec.UID = "other" }},
		"other groups":         {change: func(obj *request) { obj.Spec.Groups = []string{"h"} }},
		"other extra":          {change: func(obj *request) { obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"a": {"b"}} }},
		"a lower but wide cap": {change: func(*request) {}, limits: csr.Limits{Names: 10}},
	} {
		requests := &Cache{}
		first := parsable(t, "a")
		want, err := requests.Parse(first, csr.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		second := first.DeepCopy()
		test.change(second)
		got, err := requests.Parse(second, test.limits)
		if err != nil {
			t.Fatal(err)
		}
		if (got == want) != test.cached {
			t.Errorf("%s: the cached result is used: %t", name, got == want)
		}
	}
}

// TestBounds checks that requesters cannot fill the cache.
func TestBounds(t *testing.T) {
	t.Parallel()
	requests := &Cache{}
	large := parsable(t, "a")
	large.Spec.Username = strings.Repeat("u", MaxParsedSize)
	malformed := parsable(t, "a")
	malformed.UID, malformed.Spec.Request = "uid-2", []byte("nonsense")
	for _, obj := range []*request{large, malformed} {
		if _, err := requests.Parse(obj, csr.Limits{}); (err != nil) != (obj == malformed) {
			t.Error(err)
		}
	}
	if got := requests.Parsed(); got != 0 {
		t.Errorf("%d requests are kept, want none", got)
	}
	obj := parsable(t, "a")
	for i := range mostParsed + 1 {
		obj = obj.DeepCopy()
		obj.UID = types.UID(fmt.Sprint(i))
		if _, err := requests.Parse(obj, csr.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	if got := requests.Parsed(); got != mostParsed {
		t.Errorf("%d requests are kept, want %d", got, mostParsed)
	}
}

// TestParsedUntilFinished checks that a request is kept until it needs no certificate any more.
func TestParsedUntilFinished(t *testing.T) {
	t.Parallel()
	has := func(kind certificatesv1.RequestConditionType) func(*request) {
		return func(obj *request) {
			obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: kind, Status: "True"}}
		}
	}
	for name, test := range map[string]struct {
		change func(*request)
		want   int
	}{
		"pending":  {func(*request) {}, 1},
		"approved": {has("Approved"), 1},
		"denied":   {has("Denied"), 0},
		"failed":   {has("Failed"), 0},
		"issued":   {func(obj *request) { obj.Status.Certificate = []byte("x") }, 0},
	} {
		requests := &Cache{}
		obj := parsable(t, "a")
		if _, err := requests.Parse(obj, csr.Limits{}); err != nil {
			t.Fatal(err)
		}
		test.change(obj)
		requests.strip(obj)
		if got := requests.Parsed(); got != test.want {
			t.Errorf("%s: %d requests are kept, want %d", name, got, test.want)
		}
	}
}

// TestNilParses checks that a nil *Cache parses and keeps nothing.
func TestNilParses(t *testing.T) {
	t.Parallel()
	var requests *Cache
	obj := parsable(t, "a")
	if req, err := requests.Parse(obj, csr.Limits{}); err != nil || req.Cert.Subject.CommonName != "a" {
		t.Errorf("%+v, error %v", req, err)
	}
	requests.Drop(obj.UID)
}
