package loop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// trustAlso adds a CA to the API server's client CAs until the end of the test, and waits until the API server has published it.
func trustAlso(t *testing.T, bundle []byte) {
	t.Helper()
	before, err := os.ReadFile(kit.ControlPlane(t).ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := kit.ControlPlane(t).TrustClients(slices.Concat(before, bundle)); err != nil {
		t.Fatal(err)
	}
	publishesTrust(t, trust.ExtensionKey, bundle)
}

// publishesTrust waits until a key of ConfigMap extension-apiserver-authentication holds a certificate in PEM.
func publishesTrust(t *testing.T, key string, cert []byte) {
	t.Helper()
	kit.Eventually(t, "the API server publishes the CA", func(ctx context.Context) error {
		obj := &corev1.ConfigMap{}
		err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}, obj)
		if err == nil && !strings.Contains(obj.Data[key], string(cert)) {
			err = fmt.Errorf("%s is %s", key, obj.Data[key])
		}
		return err
	})
}

const hookSigner = "example.com/hook"

// hook adds a custom signer to those of csrenv.
func hook(cert, key []byte, change ...func(*signer.Signer)) func(*controllers.Options) {
	return func(o *controllers.Options) {
		profile, err := ca.NewProfile(ca.ProfileConfig{})
		if err != nil {
			panic(err)
		}
		one := signer.Signer{
			Profile: profile, Usages: []certificatesv1.KeyUsage{"digital signature", "server auth", "any"},
			KeyPair: keypair.New(keypair.Static{Cert: cert, Key: key}),
		}
		for _, each := range change {
			each(&one)
		}
		o.Signer.Signers[hookSigner] = one
	}
}

// askHook creates an approved request for hookSigner.
func askHook(t *testing.T, subject pkix.Name, dnsName string, usages ...certificatesv1.KeyUsage) *kit.Request {
	t.Helper()
	obj := kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "", func(obj *kit.Request) {
		obj.Spec.SignerName, obj.Spec.Usages = hookSigner, usages
		template := x509.CertificateRequest{Subject: subject}
		if dnsName != "" {
			template.DNSNames = []string{dnsName}
		}
		obj.Spec.Request = kit.Payload(t, template)
	}))
	kit.Approve(t, obj)
	return obj
}

func allowedNames(t *testing.T, patterns ...string) ca.AllowedNames {
	t.Helper()
	names, err := ca.NewAllowedNames(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return names
}

var (
	kubeadmAdmin = pkix.Name{CommonName: "mallory", Organization: []string{"kubeadm:cluster-admins"}}
	plain        = pkix.Name{CommonName: "hook"}
)

// TestServerSignerMakesNoAdministrator has a custom signer on a CA that the API server trusts for clients, in five ways. In
// the last one the signer can't know that, because its chain is incomplete. It must not issue a certificate without an
// extended key usage, or for a forbidden name or subject.
func TestServerSignerMakesNoAdministrator(t *testing.T) {
	kit.Parallel(t)
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	root := kit.IssueCA(t, "root", kit.NewKey(t), nil, 48*time.Hour)
	trustAlso(t, root.PEM())
	below := kit.IssueCA(t, "below", kit.NewKey(t), root, 24*time.Hour)
	lower := kit.IssueCA(t, "lower", kit.NewKey(t), below, 12*time.Hour)
	key := kit.NewKey(t)
	self, crossed := kit.IssueCA(t, "crossed", key, nil, 24*time.Hour), kit.IssueCA(t, "crossed", key, root, 12*time.Hour)
	for name, test := range map[string]struct {
		cert, key []byte
		chain     ca.Chain
		guess     bool
	}{
		"a copy of the client CA":                     {cert: kit.ControlPlane(t).CA.CertPEM, key: kit.ControlPlane(t).CA.KeyPEM},
		"an intermediate below the client CA":         {cert: below.PEM(), key: below.KeyPEM(t)},
		"an intermediate that issues without a chain": {cert: below.PEM(), key: below.KeyPEM(t), chain: ca.None},
		"a cross-signed CA":                           {cert: slices.Concat(self.PEM(), crossed.PEM()), key: self.KeyPEM(t)},
		"an intermediate whose parent is left out":    {cert: lower.PEM(), key: lower.KeyPEM(t), guess: true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.StartLoop(t, csrenv.Options{Customize: hook(test.cert, test.key, func(s *signer.Signer) {
				s.KeyPair.Chain, s.AllowNoExtKeyUsage, s.AllowedNames = test.chain, true, allowedNames(t, "*.default.svc")
			})}, "signer")
			because := "API servers trust the CA of signer example.com/hook for clients"
			if test.guess {
				because = "API servers may trust the CA of signer example.com/hook, because its chain is incomplete"
			}
			failsAs(t, askHook(t, kubeadmAdmin, "", "digital signature"), "UsagesNotPermitted", because)
			failsAs(t, askHook(t, kubeadmAdmin, "hook.default.svc", "digital signature", "server auth"), "SubjectNotPermitted", because)
			for _, subject := range []pkix.Name{{CommonName: "a", Organization: []string{"system:masters"}}, {CommonName: "system:admin"}} {
				failsAs(t, askHook(t, subject, "hook.default.svc", "digital signature", "server auth"), "SubjectNotPermitted", "")
			}
			failsAs(t, askHook(t, plain, "kubernetes", "digital signature", "server auth"), "NameNotPermitted", `"kubernetes" is not in the allowedNames`)
			failsAs(t, askHook(t, plain, "kubernetes", "digital signature", "any"), "NameNotPermitted", "")
			issued := kit.Reaches(t, askHook(t, plain, "hook.default.svc", "digital signature", "server auth"), csr.Issued)
			chain, err := ca.ParseCertificates(issued.Status.Certificate)
			if err != nil {
				t.Fatal(err)
			}
			if leaf := chain[0]; !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || len(leaf.UnknownExtKeyUsage) > 0 {
				t.Errorf("extended key usages are %v", leaf.ExtKeyUsage)
			}
		})
	}
}

// TestCustomSignerOnACAOfItsOwn serves servers of any name from a CA that no API server trusts. It issues no certificate
// without an extended key usage, unless configured.
func TestCustomSignerOnACAOfItsOwn(t *testing.T) {
	kit.Parallel(t)
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	own := kit.NewCA(t)
	allow := false
	change := func(s *signer.Signer) { s.AllowNoExtKeyUsage = allow }
	for name, configured := range map[string]bool{"as it is": false, "configured": true} {
		t.Run(name, func(t *testing.T) {
			allow = configured
			kit.StartLoop(t, csrenv.Options{Customize: hook(own.CertPEM, own.KeyPEM, change)})
			kit.IssuedBy(t, kit.Reaches(t, askHook(t, kubeadmAdmin, "anything.example", "digital signature", "server auth"), csr.Issued), own)
			without := askHook(t, plain, "hook.default.svc", "digital signature")
			if configured {
				kit.IssuedBy(t, kit.Reaches(t, without, csr.Issued), own)
			} else {
				failsAs(t, without, "UsagesNotPermitted", "so the certificate would be valid for every purpose")
			}
		})
	}
}

// withoutTrust takes the right to read what API servers trust (config/rbac/ca_trust.yaml) from the signer's account, whose
// configuration is cfg. The returned function gives it back.
func withoutTrust(t *testing.T, cfg *rest.Config) (giveBack func()) {
	t.Helper()
	giveBack = kit.TakeRole(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{
		Namespace: trust.ExtensionNamespace, Name: "csr-ca-trust-for-" + kit.SignerAccount,
	}})
	account := kit.ClientOf(t, cfg)
	kit.Eventually(t, "the trust is out of reach", func(ctx context.Context) error {
		key := client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}
		if err := account.Get(ctx, key, &corev1.ConfigMap{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("read it: %w", err)
		}
		return nil
	})
	return giveBack
}

// TestCustomSignerWaitsWhileTrustIsUnknown takes the signer's right to read what API servers trust. What a trusted CA must
// not sign waits and never fails, and so does every client, because it could be a front proxy. All others are signed. With
// the right all are signed.
func TestCustomSignerWaitsWhileTrustIsUnknown(t *testing.T) {
	kit.Parallel(t)
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	own := kit.NewCA(t)
	cfg := kit.RoleConfig(t, "signer")
	giveBack := withoutTrust(t, cfg)
	kit.StartLoopAs(t, cfg, csrenv.Options{Customize: func(o *controllers.Options) {
		hook(own.CertPEM, own.KeyPEM, func(s *signer.Signer) {
			s.Usages, s.AllowNoExtKeyUsage, s.AllowedNames = append(s.Usages, "client auth"), true, allowedNames(t, "*.default.svc")
		})(o)
		*o = kit.PartOf(*o, "signer")
	}})
	waiting := []*kit.Request{
		askHook(t, plain, "hook.default.svc", "digital signature"),
		askHook(t, kubeadmAdmin, "", "digital signature", "client auth"),
		askHook(t, plain, "", "digital signature", "client auth"),
		askHook(t, plain, "kubernetes", "digital signature", "server auth"),
	}
	for i, refusal := range []string{"SubjectNotPermitted", "SubjectNotPermitted", "SubjectNotPermitted", "NameNotPermitted"} {
		kit.HasEvent(t, waiting[i], "CATrustUnknown", "extension-apiserver-authentication", refusal)
	}
	kit.IssuedBy(t, kit.Reaches(t, askHook(t, plain, "hook.default.svc", "digital signature", "server auth"), csr.Issued), own)
	for _, obj := range waiting {
		if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Approved {
			t.Errorf("%s is %s, want Approved", obj.Name, got)
		}
	}
	giveBack()
	for _, obj := range waiting {
		kit.IssuedBy(t, kit.Reaches(t, obj, csr.Issued), own)
	}
}

// TestCAThatNobodyTrustsIsWarnedOf has a CA for clients that the API server does not accept, which a Warning Event says. There
// is none about a CA that the API server accepts.
func TestCAThatNobodyTrustsIsWarnedOf(t *testing.T) {
	kit.Parallel(t)
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	untrusted := kit.NewCA(t)
	secret := caSecret(t, "untrusted", untrusted)
	stop := kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))}, "signer")
	kit.HasEvent(t, secret, "CANotTrusted", "client-ca-file of ConfigMap kube-system/extension-apiserver-authentication does not hold the CA with key "+
		kit.Load(t, untrusted).KeyID(), "API servers answer 401", "--client-ca-file")
	kit.HasLoaded(t, secret)
	stop()

	trusted := caSecret(t, "trusted", kit.ControlPlane(t).CA)
	kit.StartLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Secret(client.ObjectKeyFromObject(trusted)))(o)
		shared := o.Signer.Signers[certificatesv1.KubeAPIServerClientSignerName].KeyPair
		hook(nil, nil, func(s *signer.Signer) { s.KeyPair, s.Usages = shared, []certificatesv1.KeyUsage{"client auth"} })(o)
	}}, "signer")
	// This shows that the signer has read the trust in this CA.
	failsAs(t, askHook(t, kubeadmAdmin, "", "client auth"), "SubjectNotPermitted", "API servers trust the CA")
	another := kit.NewCA(t)
	trusted.Data = kit.SigningSecret(another.CertPEM, another.KeyPEM).Data
	kit.Update(t, trusted)
	// The first Event with a reason keeps its text, so this one shows that there was none about the trusted CA.
	kit.HasEvent(t, trusted, "CANotTrusted", kit.Load(t, another).KeyID())
}

// TestCustomSignerMakesNoFrontProxy has a custom signer on a copy of the CA for front proxies
// (--requestheader-client-ca-file). The API server answers 401 to its client certificates. But it trusts the headers of a
// front proxy.
func TestCustomSignerMakesNoFrontProxy(t *testing.T) {
	kit.Parallel(t)
	proxies := kit.IssueCA(t, "front proxies", kit.NewKey(t), nil, 24*time.Hour)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		file := filepath.Join(dir, "front-proxy-ca.crt")
		kit.Write(t, file, proxies.PEM())
		args.Set("requestheader-client-ca-file", file).Set("requestheader-allowed-names", "front-proxy-client").
			Set("requestheader-username-headers", "X-Remote-User").Set("requestheader-group-headers", "X-Remote-Group")
	})
	// This shows the power of such a certificate.
	if got := asRemoteUser(t, proxies.Leaf(t, "front-proxy-client")); got != http.StatusOK {
		t.Fatalf("a front proxy gets %d", got)
	}
	if got := asRemoteUser(t, proxies.Leaf(t, plain.CommonName)); got != http.StatusUnauthorized {
		t.Fatalf("a client that is no front proxy gets %d", got)
	}
	publishesTrust(t, "requestheader-client-ca-file", proxies.PEM())
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	kit.StartLoop(t, csrenv.Options{Customize: hook(proxies.PEM(), proxies.KeyPEM(t), func(s *signer.Signer) {
		s.Usages, s.AllowNoExtKeyUsage = append(s.Usages, "client auth"), true
	})}, "signer")
	proxy := pkix.Name{CommonName: "front-proxy-client"}
	for _, wanted := range [][]certificatesv1.KeyUsage{{"digital signature", "client auth"}, {"digital signature", "any"}, {"digital signature"}} {
		failsAs(t, askHook(t, proxy, "", wanted...), "SubjectNotPermitted", "API servers trust the CA of signer example.com/hook for front proxies")
	}
	failsAs(t, askHook(t, plain, "", "digital signature"), "UsagesNotPermitted", "")
	failsAs(t, askHook(t, kubeadmAdmin, "", "digital signature", "client auth"), "SubjectNotPermitted", "")
	kit.Reaches(t, askHook(t, plain, "", "digital signature", "client auth"), csr.Issued) // the API server does not trust it
}

// asRemoteUser reads the Secrets of the cluster with pair, as an administrator in headers, and returns the status.
func asRemoteUser(t *testing.T, pair tls.Certificate) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(kit.ControlPlane(t).Config.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(kit.ControlPlane(t).Config.Host, "/")+"/api/v1/secrets", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"X-Remote-User": {"mallory"}, "X-Remote-Group": {"system:masters"}}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}
