package explain

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

type request = certificatesv1.CertificateSigningRequest

// explainNow is the current time of all scenarios. The requests are five minutes old.
var explainNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// The keys are computed from their names, so that fingerprints stay the same. They protect nothing.
func explainKey(t testing.TB, name string) *ecdsa.PrivateKey {
	t.Helper()
	seed := sha256.Sum256([]byte("csr-controller-manager explain " + name))
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), seed[:])
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// repeatable signs the same content with the same signature, so that the SHA-256 of certificates stay the same.
type repeatable struct{ *ecdsa.PrivateKey }

// Sign implements crypto.Signer.
func (k repeatable) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return k.PrivateKey.Sign(nil, digest, opts) // RFC 6979
}

// explainWeakKey is an RSA key of 1024 bits. Its primes are the first two after fixed numbers.
var explainWeakKey = sync.OnceValue(func() *rsa.PrivateKey {
	prime := func(name string) *big.Int {
		seed := sha512.Sum512([]byte(name))
		number := new(big.Int).SetBytes(seed[:])
		number.SetBit(number, 511, 1).SetBit(number, 510, 1).SetBit(number, 0, 1)
		for !number.ProbablyPrime(20) {
			number.Add(number, big.NewInt(2))
		}
		return number
	}
	p, q, one := prime("p"), prime("q"), big.NewInt(1)
	key := &rsa.PrivateKey{PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: 65537}, Primes: []*big.Int{p, q}}
	phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
	key.D = new(big.Int).ModInverse(big.NewInt(65537), phi)
	key.Precompute()
	return key
})

func explainPayload(t testing.TB, template *x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func nodeName() pkix.Name {
	return pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}
}

// explainRequest is a bootstrapping kubelet's request, changed by modify.
func explainRequest(t testing.TB, modify ...func(*request)) *request {
	t.Helper()
	obj := &request{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "uid-1", CreationTimestamp: metav1.NewTime(explainNow.Add(-5 * time.Minute))},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    explainPayload(t, &x509.CertificateRequest{Subject: nodeName()}, explainKey(t, "node")),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Username:   "system:bootstrap:abcdef",
			Groups:     []string{"system:bootstrappers", "system:authenticated"},
		},
	}
	for _, change := range modify {
		change(obj)
	}
	return obj
}

func withCondition(kind certificatesv1.RequestConditionType, reason, message string, age time.Duration) func(*request) {
	return func(obj *request) {
		obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.NewTime(explainNow.Add(-age)),
		})
	}
}

// autoApproved changes a request as the approver does when it approves.
func autoApproved(obj *request) {
	withCondition(certificatesv1.CertificateApproved, "AutoApproved", "Auto approving kubelet client certificate after SubjectAccessReview.", 4*time.Minute)(obj)
}

func forSigner(name string, usages ...certificatesv1.KeyUsage) func(*request) {
	return func(obj *request) {
		obj.Spec.SignerName = name
		if usages != nil {
			obj.Spec.Usages = usages
		}
	}
}

func asking(t testing.TB, template x509.CertificateRequest) func(*request) {
	return func(obj *request) { obj.Spec.Request = explainPayload(t, &template, explainKey(t, "node")) }
}

// forged breaks the signature of a request.
func forged(obj *request) {
	block, _ := pem.Decode(obj.Spec.Request)
	block.Bytes[len(block.Bytes)-1] ^= 1
	obj.Spec.Request = pem.EncodeToMemory(block)
}

// explainCA returns a CA that expires at end: a certificate and its key in PEM.
func explainCA(t testing.TB, end time.Time) (cert *x509.Certificate, certPEM, keyPEM []byte) {
	t.Helper()
	key := explainKey(t, "CA")
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: explainNow.Add(-time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	if !end.After(template.NotBefore) {
		template.NotBefore = end.Add(-time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// explainSecret is the Secret of a CA.
func explainSecret(certPEM, keyPEM []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "csr-controller-manager-system", Name: "csr-signer"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certPEM, corev1.TLSPrivateKeyKey: keyPEM},
	}
}

func goodSecret(t testing.TB) *corev1.Secret {
	t.Helper()
	_, cert, key := explainCA(t, explainNow.AddDate(10, 0, 0))
	return explainSecret(cert, key)
}

// explainRing is the signing Secret during a rotation, while a new CA waits to be trusted.
func explainRing(t testing.TB) *corev1.Secret {
	t.Helper()
	secret := goodSecret(t)
	pair := keypair.Pair{Cert: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
	ring := keypair.Ring{TLS: pair, Signing: pair, Permit: keypair.Permit{
		Authority: "cluster", Signers: []string{"kubernetes.io/kube-apiserver-client-kubelet"}, LifetimeCap: 24 * time.Hour,
	}}
	if err := ring.WriteTo(secret.Data); err != nil {
		t.Fatal(err)
	}
	return secret
}

// issuedBy stores a certificate that was issued a minute ago and expires at end.
func withCertificate(t testing.TB, caEnd, end time.Time, key crypto.PublicKey) func(*request) {
	return func(obj *request) {
		ca, _, _ := explainCA(t, caEnd)
		template := &x509.Certificate{
			SerialNumber: big.NewInt(0x1234abcd), Subject: nodeName(), NotBefore: explainNow.Add(-6 * time.Minute), NotAfter: end,
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, ca, key, repeatable{explainKey(t, "CA")})
		if err != nil {
			t.Fatal(err)
		}
		obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
}

// scenario is a request and all around it.
type scenario struct {
	args []string // beside --signing-secret
	obj  *request
	// stored holds the other objects of the API server. nil stands for the valid Secret.
	stored []client.Object
	// grants are the subresources that a review allows.
	grants []string
	// forbidden lists the resources that the caller may not access, or not list.
	forbidden []string
	// file makes explain read the request from a file, without an API server. noCA leaves out --signing-secret.
	file, noCA bool
	// format is the output format; text when empty.
	format string
}

func (s scenario) explain(t testing.TB) string {
	t.Helper()
	args := s.args
	if !s.noCA {
		args = append(args, "--signing-secret=csr-controller-manager-system/csr-signer")
	}
	configuration := commandConfiguration(t, args...)
	clock := clocktesting.NewFakePassiveClock(explainNow)
	if s.file {
		data, err := yaml.Marshal(s.obj)
		if err != nil {
			t.Fatal(err)
		}
		reports, err := All(t.Context(), configuration, bytes.NewReader(data), clock)
		if err != nil {
			t.Fatal(err)
		}
		return written(t, "", reports...)
	}
	report, err := Name(t.Context(), configuration, Server{Client: s.client(t)}, s.obj.Name, clock)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, s.format, report)
}

func written(t testing.TB, format string, reports ...*Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, format, reports...); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// client returns a client of an API server with the objects of s. It refuses what s forbids.
func (s scenario) client(t testing.TB) client.Client {
	t.Helper()
	stored := s.stored
	if stored == nil {
		stored = []client.Object{goodSecret(t)}
	}
	forbid := func(resource string) error {
		for _, each := range s.forbidden {
			if each == resource {
				return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
			}
		}
		return nil
	}
	resource := func(obj any) string {
		switch obj.(type) {
		case *corev1.Secret:
			return "secrets"
		case *corev1.EventList:
			return "events"
		default:
			return "certificatesigningrequests"
		}
	}
	uid := func(obj client.Object) []string { return []string{string(obj.(*corev1.Event).InvolvedObject.UID)} }
	return fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithReturnManagedFields().
		WithObjects(append([]client.Object{s.obj.DeepCopy()}, stored...)...).
		WithIndex(&corev1.Event{}, "involvedObject.uid", uid).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
				if err := forbid(resource(obj)); err != nil {
					return err
				}
				return c.Get(ctx, key, obj, opts...)
			},
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if err := cmp.Or(forbid(resource(list)), forbid("list "+resource(list))); err != nil {
					return err
				}
				return c.List(ctx, list, opts...)
			},
			Create: func(_ context.Context, _ client.WithWatch, obj client.Object, _ ...client.CreateOption) error {
				review, ok := obj.(*authorizationv1.SubjectAccessReview)
				if !ok {
					t.Errorf("created %T", obj)
					return nil
				}
				review.Status.Allowed = slices.Contains(s.grants, review.Spec.ResourceAttributes.Subresource)
				return forbid("subjectaccessreviews")
			},
			Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return wrote(t) },
			Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
				return wrote(t)
			},
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return wrote(t) },
		}).Build()
}

func wrote(t testing.TB) error {
	t.Helper()
	t.Error("explain changes something")
	return nil
}

// ed25519Key is a key of another kind.
func ed25519Key() crypto.Signer {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
}
