package rotation

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// everything returns the options of the whole loop: each signer signs with the guarded CA of a Secret, for lifetime. It
// grants the manager the rights on the Secrets.
func (r *rotating) everything(t *testing.T, lifetime time.Duration, secrets map[string]string) controllers.Options {
	t.Helper()
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime, MinLifetime: lifetime})
	if err != nil {
		t.Fatal(err)
	}
	pairs, signers := map[string]*keypair.KeyPair{}, map[string]signer.Signer{}
	for name, secret := range secrets {
		if pairs[secret] == nil {
			r.grantSecret(t, secret)
			pairs[secret] = keypair.New(keypair.Guarded{Secret: keypair.Secret{Namespace: kit.SystemNamespace, Name: secret}})
		}
		signers[name] = signer.Signer{Profile: profile, KeyPair: pairs[secret]}
	}
	return controllers.Options{
		Approver: &approver.Reconciler{Rules: []approver.Rule{approver.NodeClient()}},
		Signer:   &signer.Reconciler{Signers: signers},
		Rotation: &rotation.Reconciler{},
	}
}

// clientSigners maps the signers of client certificates to one Secret.
func clientSigners(secret string) map[string]string {
	return map[string]string{certificatesv1.KubeAPIServerClientSignerName: secret, certificatesv1.KubeAPIServerClientKubeletSignerName: secret}
}

// usages are the extended usages of each signer's certificates.
var usages = map[string]certificatesv1.KeyUsage{
	certificatesv1.KubeAPIServerClientSignerName:        certificatesv1.UsageClientAuth,
	certificatesv1.KubeAPIServerClientKubeletSignerName: certificatesv1.UsageClientAuth,
	certificatesv1.KubeletServingSignerName:             certificatesv1.UsageServerAuth,
}

// approved returns an approved request and its key.
func (r *rotating) approved(t *testing.T, signer string, template x509.CertificateRequest) (*kit.Request, crypto.Signer) {
	t.Helper()
	key := kit.NewKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := &kit.Request{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usages[signer]},
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
	r.create(t, obj)
	r.change(t, obj, "approval", func() {
		if csr.StateOf(obj) == csr.Pending { // the loop approves requests of nodes itself
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Decided by a test.", time.Time{})
		}
	})
	return obj, key
}

// change changes obj, and retries after conflicts.
func (r *rotating) change(t *testing.T, obj *kit.Request, subresource string, change func()) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := r.admin.Get(t.Context(), client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		change()
		return r.admin.SubResource(subresource).Update(t.Context(), obj)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// issued requests a certificate and returns it once it is signed.
func (r *rotating) issued(t *testing.T, signer string, template x509.CertificateRequest) tls.Certificate {
	t.Helper()
	obj, key := r.approved(t, signer, template)
	return pairOf(t, kit.Reaches(t, obj, csr.Issued).Status.Certificate, key)
}

// issuedBy is issued by the CA one, once the signer uses it.
func (r *rotating) issuedBy(t *testing.T, one *v1alpha1.CAStatus, signer string, template x509.CertificateRequest) (pair tls.Certificate) {
	t.Helper()
	certs, err := ca.ParseCertificates([]byte(one.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "a certificate by "+one.KeyID, func(context.Context) error {
		pair = r.issued(t, signer, template)
		return pair.Leaf.CheckSignatureFrom(certs[0])
	})
	return pair
}

// user returns a certificate for a user, issued by that CA.
func (r *rotating) user(t *testing.T, name string, by *v1alpha1.CAStatus) tls.Certificate {
	t.Helper()
	return r.issuedBy(t, by, certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: pkix.Name{CommonName: name}})
}

// kubelet returns a kubelet's client certificate, issued by that CA.
func (r *rotating) kubelet(t *testing.T, node string, by *v1alpha1.CAStatus) tls.Certificate {
	t.Helper()
	return r.issuedBy(t, by, certificatesv1.KubeAPIServerClientKubeletSignerName, x509.CertificateRequest{Subject: nodeSubject(node)})
}

func nodeSubject(node string) pkix.Name {
	return pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}}
}

// signedBy returns a client certificate without a request, as the holder of the key can make it.
func signedBy(t *testing.T, authority *ca.Authority, subject pkix.Name, lifetime time.Duration) tls.Certificate {
	t.Helper()
	key := kit.NewKey(t)
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime})
	if err != nil {
		t.Fatal(err)
	}
	made, err := authority.Issue(profile, ca.Request{
		PublicKey: key.Public(), Subject: subject,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pairOf(t, made.PEM, key)
}

func pairOf(t *testing.T, certPEM []byte, key crypto.Signer) tls.Certificate {
	t.Helper()
	certs, err := ca.ParseCertificates(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{PrivateKey: key, Leaf: certs[0]}
	for _, cert := range certs {
		pair.Certificate = append(pair.Certificate, cert.Raw)
	}
	return pair
}

// whoIs returns the user that server identifies by pair. It uses a separate connection, so that the server verifies
// the certificate.
func whoIs(ctx context.Context, server *rest.Config, pair *tls.Certificate) (string, error) {
	config := rest.AnonymousClientConfig(server)
	config.QPS = -1
	one, err := showing(config, pair)
	if err != nil {
		return "", err
	}
	asking, err := authenticationclient.NewForConfigAndClient(config, one)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, kit.Patience)
	defer cancel()
	review, err := asking.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username, nil
}

// showing returns a client that presents pair, with a new connection for each request, whatever CAs the server names.
// crypto/tls by default would present nothing then, and client-go would keep a transport for each pair.
func showing(config *rest.Config, pair *tls.Certificate) (*http.Client, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	tlsConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair, nil }
	return &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}}, nil
}

// isTakenFor checks that the API server identifies the holder of pair as user. An empty user means that it refuses
// the certificate.
func (r *rotating) isTakenFor(t *testing.T, pair tls.Certificate, user string) {
	t.Helper()
	switch got, err := whoIs(t.Context(), r.Config, &pair); {
	case user == "" && !apierrors.IsUnauthorized(err):
		t.Errorf("the certificate of %s is not refused: the API server knows %q, error %v", pair.Leaf.Subject, got, err)
	case user != "" && (err != nil || got != user):
		t.Errorf("the API server takes the certificate of %s for %q, error %v, want %q", pair.Leaf.Subject, got, err, user)
	}
}
