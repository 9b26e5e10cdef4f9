package rules_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// trial is a request with the facts about it. A row of a table changes one thing of it.
type trial struct {
	content x509.CertificateRequest
	obj     certificatesv1.CertificateSigningRequest
	key     crypto.Signer
	facts   rules.Subject
}

var ecdsaKey = sync.OnceValue(func() crypto.Signer { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })

// account is the requester of the trials: ServiceAccount web of namespace shop.
func account() *trial {
	lifetime := int32(3600)
	return &trial{
		key: ecdsaKey(),
		obj: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "web-1", CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{"app": "web"}},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: "example.com/serving", ExpirationSeconds: &lifetime,
				Username: "system:serviceaccount:shop:web", UID: "uid-1",
				Groups: []string{"system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"},
			},
		},
		facts: rules.Subject{
			Lifetime: time.Hour,
			Gone:     func() (string, error) { return "", nil },
			Now:      func() (time.Time, error) { return now, nil },
		},
	}
}

// change changes a trial.
type change func(*trial)

func names(all ...string) change { return func(r *trial) { r.content.DNSNames = all } }
func usages(list string) change {
	return func(r *trial) {
		r.obj.Spec.Usages = nil
		for usage := range strings.SplitSeq(list, ", ") {
			if usage != "" {
				r.obj.Spec.Usages = append(r.obj.Spec.Usages, certificatesv1.KeyUsage(usage))
			}
		}
	}
}
func common(name string) change       { return func(r *trial) { r.content.Subject.CommonName = name } }
func orgs(all ...string) change       { return func(r *trial) { r.content.Subject.Organization = all } }
func user(name string) change         { return func(r *trial) { r.obj.Spec.Username = name } }
func groups(all ...string) change     { return func(r *trial) { r.obj.Spec.Groups = all } }
func lives(time time.Duration) change { return func(r *trial) { r.facts.Lifetime = time } }
func trusted(clause string) change    { return func(r *trial) { r.facts.Trusted = clause } }
func made(at time.Time) change {
	return func(r *trial) { r.obj.CreationTimestamp = metav1.NewTime(at) }
}
func isNot(why string) change {
	return func(r *trial) { r.facts.Gone = func() (string, error) { return why, nil } }
}
func uris(all ...string) change {
	return func(r *trial) {
		r.content.URIs = nil
		for _, each := range all {
			r.content.URIs = append(r.content.URIs, must(url.Parse(each)))
		}
	}
}
func address(r *trial) { r.content.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }
func email(r *trial)   { r.content.EmailAddresses = []string{"a@example.com"} }
func unit(r *trial)    { r.content.Subject.OrganizationalUnit = []string{"unit"} }
func noUID(r *trial)   { r.obj.Spec.UID = "" }
func unreadable(r *trial) {
	r.facts.Gone = func() (string, error) { return "", errors.New("down") }
}
func unknownAttribute(r *trial) {
	r.content.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 2, 3}, Value: "x"}}
}
func extension(r *trial) {
	r.content.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
}
func extra(key string, values ...string) change {
	return func(r *trial) {
		if r.obj.Spec.Extra == nil {
			r.obj.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		r.obj.Spec.Extra[key] = values
	}
}

var rsaKey = sync.OnceValue(func() crypto.Signer { return must(rsa.GenerateKey(rand.Reader, 2048)) })

func keyed(key func() crypto.Signer) change { return func(r *trial) { r.key = key() } }
func edKey() crypto.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	return must(key, err)
}

// subject returns the trial as rules judge it.
func (r *trial) subject(t testing.TB) *rules.Subject {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r.content, r.key)
	if err != nil {
		t.Fatal(err)
	}
	r.obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	req, err := csr.Parse(&r.obj)
	if err != nil {
		t.Fatal(err)
	}
	subject := r.facts
	subject.Request = req
	return &subject
}

// compile returns the compiled rule.
func compile(t testing.TB, rule rules.Rule) *rules.Compiled {
	t.Helper()
	compiled, mistakes := must(rules.NewCompiler(csr.DefaultLimits)).Compile(rule, field.NewPath("rule"))
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	return compiled
}

// row is a trial that differs from the smallest accepted one in one thing. Empty want means that the rule accepts it.
type row struct {
	changes []change
	want    string
}

func but(want string, changes ...change) row { return row{changes, want} }

// judge compares what the rule says of each row.
func judge(t *testing.T, rule rules.Rule, smallest func() *trial, rows map[string]row) {
	t.Helper()
	compiled := compile(t, rule)
	for name, row := range rows {
		trial := smallest()
		for _, change := range row.changes {
			change(trial)
		}
		refusal, err := compiled.Judge(t.Context(), trial.subject(t))
		if err != nil {
			refusal = "error: " + err.Error()
		}
		if refusal != row.want {
			t.Errorf("%s: %q, want %q", name, refusal, row.want)
		}
	}
}
