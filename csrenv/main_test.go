package csrenv_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// patience bounds every wait. No wait here needs a tenth of it.
const patience = 30 * time.Second

// All tests but one share an API server, its administrator, and the CA that it trusts.
var (
	testEnv   = &envtest.Environment{}
	admin     *rest.Config
	trustedCA *csrenv.CA
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		fmt.Fprintln(os.Stderr, "KUBEBUILDER_ASSETS is not set: run `make test`, which gets a control plane")
		return 1
	}
	log.SetLogger(logr.Discard())
	defer func() {
		if err := testEnv.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the control plane:", err)
		}
	}()
	trustedCA = must(csrenv.Prepare(testEnv))
	admin = must(testEnv.Start())
	return m.Run()
}

// start runs a loop, with the CA that the API server trusts, until the test ends.
func start(tb testing.TB, opts csrenv.Options) *csrenv.Env {
	tb.Helper()
	if opts.CA == nil {
		opts.CA = trustedCA
	}
	env := must(csrenv.Start(tb.Context(), admin, opts))
	tb.Cleanup(func() {
		if err := env.Stop(); err != nil {
			tb.Error("stop:", err)
		}
	})
	return env
}

func newClient(tb testing.TB, cfg *rest.Config) client.Client {
	tb.Helper()
	return must(client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme}))
}

// newRequest returns a request for a kubelet client certificate, changed by mods.
func newRequest(tb testing.TB, node string, mods ...func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)) *certificatesv1.CertificateSigningRequest {
	tb.Helper()
	payload := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
			Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
		},
	}
	for _, mod := range mods {
		mod(obj, payload)
	}
	der := must(x509.CreateCertificateRequest(rand.Reader, payload, must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))))
	obj.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return obj
}

// unowned changes obj to a signer that is not configured.
func unowned(obj *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
	obj.Spec.SignerName = "example.com/foreign"
}

// create creates obj, and deletes it when the test ends.
func create(tb testing.TB, c client.Client, obj *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	tb.Helper()
	_ = must(obj, c.Create(tb.Context(), obj))
	tb.Cleanup(func() {
		// The test's own context has ended.
		if err := client.IgnoreNotFound(newClient(tb, admin).Delete(context.Background(), obj)); err != nil {
			tb.Error(err)
		}
	})
	return obj
}

// approve approves obj as an administrator.
func approve(tb testing.TB, obj *certificatesv1.CertificateSigningRequest) {
	tb.Helper()
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "Test", "Approved by the test.", time.Time{})
	_ = must(obj, newClient(tb, admin).SubResource("approval").Update(tb.Context(), obj))
}

// eventually waits until obj is in state, which may be Gone.
func eventually(tb testing.TB, obj *certificatesv1.CertificateSigningRequest, state csr.State) {
	tb.Helper()
	c := newClient(tb, admin)
	last := csr.State("")
	err := wait.PollUntilContextTimeout(tb.Context(), 2*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		last = csr.StateOf(obj)
		if apierrors.IsNotFound(err) {
			last, err = gone, nil
		}
		return last == state, err
	})
	if err != nil {
		tb.Fatalf("request %s is %s, want %s: %v", obj.Name, last, state, err)
	}
}

// gone is the state of a request that does not exist.
const gone csr.State = "Gone"

// parse returns the first certificate in data, which is PEM.
func parse(tb testing.TB, data []byte) *x509.Certificate {
	tb.Helper()
	block, _ := pem.Decode(data)
	if block == nil {
		tb.Fatalf("no PEM block in %q", data)
	}
	return must(x509.ParseCertificate(block.Bytes))
}

// must returns value, or panics.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// verifies fails the test unless authority issued cert.
func verifies(tb testing.TB, cert *x509.Certificate, authority *csrenv.CA) {
	tb.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.CertPEM)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		tb.Error(err)
	}
}
