package integration

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// testCA is a CA that can do more than csrenv's CA.
type testCA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// issueCA makes a certificate for key, signed by issuer. Without an issuer it is self-signed.
func issueCA(t *testing.T, name string, key crypto.Signer, issuer *testCA, life time.Duration) *testCA {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name + " of " + t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	parent, by := template, key
	if issuer != nil {
		parent, by = issuer.cert, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{cert, key}
}

func (c *testCA) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.cert.Raw})
}

func (c *testCA) keyPEM(t *testing.T) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// trustAlso adds a CA to the API server's client CAs during the test.
func trustAlso(t *testing.T, bundle []byte) {
	t.Helper()
	before, err := os.ReadFile(controlPlane(t).ClientCAFile())
	if err != nil {
		t.Fatal(err)
	}
	if err := controlPlane(t).TrustClients(slices.Concat(before, bundle)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := controlPlane(t).TrustClients(before); err != nil {
			t.Error(err)
		}
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
func askHook(t *testing.T, subject pkix.Name, dnsName string, usages ...certificatesv1.KeyUsage) *request {
	t.Helper()
	obj := createRequest(t, admin(t), nodeRequest(t, "", func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Usages = hookSigner, usages
		template := x509.CertificateRequest{Subject: subject}
		if dnsName != "" {
			template.DNSNames = []string{dnsName}
		}
		obj.Spec.Request = payload(t, template)
	}))
	approve(t, obj)
	return obj
}

// failsAs waits until obj has failed for reason.
func failsAs(t *testing.T, obj *request, reason, part string) {
	t.Helper()
	reaches(t, obj, csr.Failed)
	for _, condition := range obj.Status.Conditions {
		if condition.Type == certificatesv1.CertificateFailed && (condition.Reason != reason || !strings.Contains(condition.Message, part)) {
			t.Errorf("%s failed with %s: %s, want %s with %q", obj.Name, condition.Reason, condition.Message, reason, part)
		}
	}
}

var (
	kubeadmAdmin = pkix.Name{CommonName: "mallory", Organization: []string{"kubeadm:cluster-admins"}}
	plain        = pkix.Name{CommonName: "hook"}
)

// TestServerSignerMakesNoAdministrator has a custom signer on a CA that the API server trusts for clients, in four
// ways. It must not issue a certificate without an extended key usage, or for a forbidden name or subject.
func TestServerSignerMakesNoAdministrator(t *testing.T) {
	parallel(t)
	maySign(t, signerAccount, hookSigner)
	root := issueCA(t, "root", newKey(t), nil, 48*time.Hour)
	trustAlso(t, root.pem())
	below := issueCA(t, "below", newKey(t), root, 24*time.Hour)
	key := newKey(t)
	self, crossed := issueCA(t, "crossed", key, nil, 24*time.Hour), issueCA(t, "crossed", key, root, 12*time.Hour)
	for name, test := range map[string]struct {
		cert, key []byte
		chain     ca.Chain
	}{
		"a copy of the client CA":                     {cert: controlPlane(t).CA.CertPEM, key: controlPlane(t).CA.KeyPEM},
		"an intermediate below the client CA":         {cert: below.pem(), key: below.keyPEM(t)},
		"an intermediate that issues without a chain": {cert: below.pem(), key: below.keyPEM(t), chain: ca.None},
		"a cross-signed CA":                           {cert: slices.Concat(self.pem(), crossed.pem()), key: self.keyPEM(t)},
	} {
		t.Run(name, func(t *testing.T) {
			log := &bytes.Buffer{}
			startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
				o.Audit = auditTo(t, log)
				hook(test.cert, test.key, func(s *signer.Signer) {
					s.KeyPair.Chain, s.AllowNoExtKeyUsage = test.chain, true
					names, err := ca.NewAllowedNames([]string{"*.default.svc"})
					if err != nil {
						t.Fatal(err)
					}
					s.AllowedNames = names
				})(o)
			}})
			failsAs(t, askHook(t, kubeadmAdmin, "", "digital signature"), "UsagesNotPermitted", "API servers, which trust this CA")
			for _, subject := range []pkix.Name{kubeadmAdmin, {CommonName: "a", Organization: []string{"system:masters"}}, {CommonName: "system:admin"}} {
				failsAs(t, askHook(t, subject, "hook.default.svc", "digital signature", "server auth"), "SubjectNotPermitted", "")
			}
			failsAs(t, askHook(t, plain, "kubernetes", "digital signature", "server auth"), "NameNotPermitted", `"kubernetes" is not in the allowedNames`)
			failsAs(t, askHook(t, plain, "kubernetes", "digital signature", "any"), "NameNotPermitted", "")
			issued := reaches(t, askHook(t, plain, "hook.default.svc", "digital signature", "server auth"), csr.Issued)
			block, _ := pem.Decode(issued.Status.Certificate)
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || len(cert.UnknownExtKeyUsage) > 0 {
				t.Errorf("extended key usages are %v, error %v", cert.ExtKeyUsage, err)
			}
			onlyProbes(t, log)
		})
	}
}

// auditTo returns an audit log whose file is copied into log at the end of the loop.
func auditTo(t *testing.T, log *bytes.Buffer) *audit.Log {
	t.Helper()
	file := t.TempDir() + "/audit.log"
	opened, err := audit.Open(audit.Options{Path: file, MaxSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	log.WriteString(file)
	return opened
}

// onlyProbes checks that every certificate for a probe is on record, without a requester.
func onlyProbes(t *testing.T, log *bytes.Buffer) {
	t.Helper()
	data, err := os.ReadFile(log.String())
	if err != nil {
		t.Fatal(err)
	}
	probes := 0
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, `"TrustProbe"`) {
			probes++
			if !strings.Contains(line, "csr-controller-manager.io:trust-probe:") || !strings.Contains(line, `"usages":["digital signature","client auth"]`) {
				t.Errorf("a probe is %s", line)
			}
		}
	}
	if probes == 0 {
		t.Errorf("no probe is on record: %s", data)
	}
}

// TestCustomSignerOnACAOfItsOwn serves servers of any name from a CA for which the API server answers 401. It issues
// no certificate without an extended key usage, unless configured.
func TestCustomSignerOnACAOfItsOwn(t *testing.T) {
	parallel(t)
	maySign(t, signerAccount, hookSigner)
	own := newCA(t)
	allow := false
	change := func(s *signer.Signer) { s.AllowNoExtKeyUsage = allow }
	for name, configured := range map[string]bool{"as it is": false, "configured": true} {
		t.Run(name, func(t *testing.T) {
			allow = configured
			startLoop(t, csrenv.Options{Customize: hook(own.CertPEM, own.KeyPEM, change)})
			issuedBy(t, reaches(t, askHook(t, kubeadmAdmin, "anything.example", "digital signature", "server auth"), csr.Issued), own)
			without := askHook(t, plain, "hook.default.svc", "digital signature")
			if configured {
				issuedBy(t, reaches(t, without, csr.Issued), own)
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
	signer := clientOf(t, cfg)
	return takeRole(t, bindingOf(signerAccount, "csr-ca-trust", trust.ExtensionNamespace), func(ctx context.Context) bool {
		key := client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}
		return apierrors.IsForbidden(signer.Get(ctx, key, &corev1.ConfigMap{}))
	})
}

// TestCustomSignerWaitsWhileTrustIsUnknown takes the signer's right to read what API servers trust. Requests that a
// trusted CA must not sign wait and never fail, and all others are signed. With the right all are signed.
func TestCustomSignerWaitsWhileTrustIsUnknown(t *testing.T) {
	parallel(t)
	maySign(t, signerAccount, hookSigner)
	own := newCA(t)
	cfg := roleConfig(t, "signer")
	giveBack := withoutTrust(t, cfg)
	startLoopAs(t, cfg, csrenv.Options{Customize: func(o *controllers.Options) {
		hook(own.CertPEM, own.KeyPEM, func(s *signer.Signer) {
			s.Usages, s.AllowNoExtKeyUsage = append(s.Usages, "client auth"), true
		})(o)
		*o = partOf(*o, "signer")
	}})
	waiting := []*request{
		askHook(t, plain, "hook.default.svc", "digital signature"),
		askHook(t, kubeadmAdmin, "", "digital signature", "client auth"),
		askHook(t, plain, "hook.default.svc", "digital signature", "server auth"),
	}
	hasEvent(t, waiting[2], "CATrustUnknown", "extension-apiserver-authentication", "NameNotPermitted")
	issuedBy(t, reaches(t, askHook(t, plain, "", "digital signature", "client auth"), csr.Issued), own)
	for _, obj := range waiting {
		if got := csr.StateOf(reload(t, obj)); got != csr.Approved {
			t.Errorf("%s is %s, want Approved", obj.Name, got)
		}
	}
	giveBack()
	for _, obj := range waiting {
		issuedBy(t, reaches(t, obj, csr.Issued), own)
	}
}

// TestCAThatNobodyTrustsIsWarnedOf has a CA for clients that the API server does not accept. A Warning Event names
// the API server.
func TestCAThatNobodyTrustsIsWarnedOf(t *testing.T) {
	parallel(t)
	untrusted := newCA(t)
	secret := signingSecret(untrusted.CertPEM, untrusted.KeyPEM)
	secret.Name = "untrusted"
	create(t, admin(t), secret)
	applyAll(t, rolesForSecret(t, secret.Name, signerAccount))
	startLoop(t, csrenv.Options{Customize: signingFrom(keypair.Secret(client.ObjectKeyFromObject(secret)))})
	hasEvent(t, secret, "CANotTrusted", "API servers "+controlPlane(t).Config.Host+" answer 401 to certificates of key", "--client-ca-file")
	if reasons := reasonsOf(t, secret); !slices.Contains(reasons, "CALoaded") {
		t.Errorf("Events are %q", reasons)
	}
	trusted := signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM)
	trusted.Name = "trusted"
	create(t, admin(t), trusted)
	applyAll(t, rolesForSecret(t, trusted.Name, signerAccount))
	log := &bytes.Buffer{}
	startLoop(t, csrenv.Options{Customize: func(o *controllers.Options) {
		o.Audit = auditTo(t, log)
		signingFrom(keypair.Secret(client.ObjectKeyFromObject(trusted)))(o)
	}})
	eventually(t, "the trusted CA is asked about", func(context.Context) error {
		if data, err := os.ReadFile(log.String()); err != nil || !strings.Contains(string(data), "TrustProbe") {
			return errors.Join(fmt.Errorf("not yet: %s", data), err)
		}
		return nil
	})
	// The first Event with a reason keeps its text, so this one shows that there was none about the trusted CA.
	another := newCA(t)
	trusted.Data = signingSecret(another.CertPEM, another.KeyPEM).Data
	if err := admin(t).Update(t.Context(), trusted); err != nil {
		t.Fatal(err)
	}
	hasEvent(t, trusted, "CANotTrusted", load(t, another).KeyID())
}

func reasonsOf(t *testing.T, obj client.Object) []string {
	t.Helper()
	var reasons []string
	for _, event := range eventsOf(t.Context(), t, obj) {
		reasons = append(reasons, event.Reason)
	}
	return reasons
}
