package loop

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	ledgertest "github.com/csr-controller-manager/csr-controller-manager/test/kit/ledger"
)

// TestCreateIfMissing runs two managers under the shipped roles that create one CA. At first they may not, and report
// that. If the Secret is deleted while its CA signs, no new CA is created.
func TestCreateIfMissing(t *testing.T) {
	kit.Alone(t)
	name := client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	creating := csrenv.Options{Customize: func(o *controllers.Options) {
		signingFrom(keypair.Secret(name))(o)
		for _, one := range o.Signer.Signers {
			one.KeyPair.Create = &keypair.Creation{Algorithm: ca.ECDSAP384, Lifetime: 24 * time.Hour}
		}
	}}
	kit.StartLoop(t, creating)
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "waiting")), csr.Approved)
	kit.HasEvent(t, secret, "CAMissing", "can't be created", "forbidden")
	kit.ApplyAll(t, kit.BoundTo(t, kit.SignerAccount, kit.Rendered(t, "create-ca")))
	kit.StartLoop(t, creating, "signer") // it creates the CA at once; the other retries later
	kit.Reaches(t, waiting, csr.Issued)
	kit.NoError(t, kit.Admin(t).Get(t.Context(), name, secret))
	made := &csrenv.CA{CertPEM: secret.Data["tls.crt"], KeyPEM: secret.Data["tls.key"]}
	kit.IssuedBy(t, waiting, made)
	if subject := kit.Certificate(t, made).Subject.CommonName; !strings.HasPrefix(subject, "csr-controller-manager:csr-signer:") {
		t.Errorf("the CA is called %s", subject)
	}
	kit.AnEvent(t, secret, "CACreated", func(*eventsv1.Event) bool { return true })

	// Once deleted, the only copy stays until its finalizer is removed, and signs. An administrator can still save it.
	holds := func() error {
		secret = &corev1.Secret{}
		if err := kit.Admin(t).Get(t.Context(), name, secret); err != nil {
			return err
		}
		keeps := bytes.Equal(secret.Data["tls.key"], made.KeyPEM) && slices.Contains(secret.Finalizers, keypair.Finalizer)
		return kit.OrError(keeps, "another key, or finalizers %q", secret.Finalizers)
	}
	rejected := func() int {
		return kit.Counted(t, "csr_signer_ca_reloads_total", map[string]string{"result": "rejected"})
	}
	before := rejected()
	kit.Remove(t, secret)
	kit.NoError(t, holds())
	signs(t, made)
	restore := savedByPage(t)
	kit.NoError(t, kit.Admin(t).Patch(t.Context(), secret, kit.NoFinalizers))
	kit.Eventually(t, "both notice the loss", func(context.Context) error {
		got := rejected() - before
		return kit.OrError(got >= 2, "%d did", got)
	})
	signs(t, made)
	if err := holds(); !apierrors.IsNotFound(err) {
		t.Errorf("it is back: error %v", err)
	}
	restore()
	kit.NoError(t, holds())
}

// savedByPage saves the Secret of the CA with the command of docs/how-to/back-up-the-ca.md. The returned function runs the
// command that restores it.
func savedByPage(t *testing.T) (restore func()) {
	t.Helper()
	kubeconfig := kit.Kubeconfig(t, "saves", kit.ControlPlane(t).Config)
	file := filepath.Join(t.TempDir(), "csr-signer.yaml")
	kit.Write(t, file, []byte(kit.Kubectl(t, kubeconfig, "-n", kit.SystemNamespace, "get", "secret", "csr-signer", "-o", "yaml")))
	page := kit.Must(os.ReadFile("../../docs/how-to/back-up-the-ca.md"))(t)
	line := regexp.MustCompile(`(?m)^sed -E .* ~/csr-signer.yaml \| kubectl create -f -$`).FindString(string(page))
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl") + " --kubeconfig=" + kubeconfig + " "
	script := strings.NewReplacer(" ~/csr-signer.yaml ", " "+file+" ", "kubectl ", kubectl).Replace(line)
	return func() {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil || line == "" {
			t.Fatalf("%q: %v\n%s", script, err, out)
		}
	}
}

// TestLedgerSeal checks with a real API server that the ledger of a closed key includes everything that is ever
// covered.
func TestLedgerSeal(t *testing.T) {
	kit.Parallel(t)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "ledger-"}}
	kit.Create(t, kit.Admin(t), space)
	secret := types.NamespacedName{Namespace: space.Name, Name: "ca"}
	ledgertest.Seal(t, "0123456789abcdef", time.Now(), func() *books.Book {
		return books.NewBook(kit.Admin(t), kit.Admin(t), secret, clock.RealClock{})
	})
}

// TestGuardedSigner checks that a plain Secret signs nothing, and neither does a CA without a ledger or with a spoilt one. A
// Secret that a rotation wrote signs for the permitted signers and lifetimes, and each certificate is in the ledger first.
func TestGuardedSigner(t *testing.T) {
	kit.Parallel(t)
	made := kit.NewCA(t)
	secret := kit.SigningSecret(made.CertPEM, made.KeyPEM)
	secret.Name = "guarded"
	kit.Create(t, kit.Admin(t), secret)
	kit.ApplyAll(t, kit.RolesForSecret(t, secret.Name, kit.SignerAccount))
	kit.StartLoop(t, csrenv.Options{Customize: signingFrom(keypair.Guarded{Secret: keypair.Secret(client.ObjectKeyFromObject(secret))})})
	waiting := kit.Reaches(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "guarded")), csr.Approved)
	kit.HasEvent(t, waiting, "CANotProven", "holds no CA yet that its verifiers are proven to trust")

	ring := keypair.Ring{
		TLS: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM}, Signing: keypair.Pair{Cert: made.CertPEM, Key: made.KeyPEM},
		Permit: keypair.Permit{Authority: "guarded", Signers: []string{waiting.Spec.SignerName}, LifetimeCap: time.Hour},
	}
	kit.NoError(t, ring.WriteTo(secret.Data))
	kit.Update(t, secret)
	kit.HasEvent(t, waiting, "LedgerUnavailable", "the account does not exist")
	spoilt := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: books.BookName(secret.Name)},
		Data:       map[string]string{kit.Load(t, made).KeyID(): `{"signers":{},"sealed":"no"}`},
	}
	kit.Create(t, kit.Admin(t), spoilt)
	kit.HasEvent(t, waiting, "LedgerUnavailable", "read the account of key")
	kit.Remove(t, spoilt)
	book := books.NewBook(kit.Admin(t), kit.Admin(t), client.ObjectKeyFromObject(secret), clock.RealClock{})
	kit.NoError(t, book.Open(t.Context(), kit.Load(t, made).KeyID()))
	issued := kit.Reaches(t, waiting, csr.Issued)
	kit.IssuedBy(t, issued, made)
	end := kit.Leaf(t, issued).NotAfter
	if left := time.Until(end); left > time.Hour {
		t.Errorf("it lives for %s", left)
	}
	accounts, err := book.Read(t.Context())
	kit.Require(t, err == nil && len(accounts) == 1, "the ledger says %v, error %v", accounts, err)
	for _, account := range accounts {
		if said := account.Signers[waiting.Spec.SignerName]; said.Before(end) {
			t.Errorf("the ledger says %s of a certificate until %s", said, end)
		}
	}
}

var extension = client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}

// trusts waits until a key of ConfigMap extension-apiserver-authentication, which the API server publishes, holds a certificate.
func trusts(t *testing.T, key string, cert []byte) {
	t.Helper()
	kit.Eventually(t, "the API server publishes the CA", func(ctx context.Context) error {
		obj := &corev1.ConfigMap{}
		err := kit.Admin(t).Get(ctx, extension, obj)
		return errors.Join(err, kit.OrError(strings.Contains(obj.Data[key], string(cert)), "%s is %s", key, obj.Data[key]))
	})
}

const hookSigner = "example.com/hook"

// hook returns a custom signer for servers of *.default.svc, whose configuration permits more usages than its CA may.
func hook(t *testing.T, cert, key []byte) signer.Signer {
	t.Helper()
	return signer.Signer{
		Profile: kit.Must(ca.NewProfile(ca.ProfileConfig{}))(t), AllowedNames: kit.Must(ca.NewAllowedNames([]string{"*.default.svc"}))(t),
		Usages:             []certificatesv1.KeyUsage{"digital signature", "server auth", "client auth", "any"},
		AllowNoExtKeyUsage: true, KeyPair: keypair.New(keypair.Static{Cert: cert, Key: key}),
	}
}

// withHooks returns options of a signer alone that has custom signers too.
func withHooks(hooks map[string]signer.Signer) csrenv.Options {
	return csrenv.Options{Customize: func(o *controllers.Options) {
		maps.Copy(o.Signer.Signers, hooks)
		o.Approver, o.Cleaner = nil, nil
	}}
}

// askHook creates an approved request for a custom signer, with a digital signature and perhaps another usage.
func askHook(t *testing.T, signer string, subject pkix.Name, dnsName string, usage ...certificatesv1.KeyUsage) *kit.Request {
	t.Helper()
	template := x509.CertificateRequest{Subject: subject}
	if dnsName != "" {
		template.DNSNames = []string{dnsName}
	}
	return kit.Approve(t, kit.CreateRequest(t, kit.Admin(t), asking(t, signer, template, append(usage, "digital signature")...)))
}

var (
	kubeadmAdmin = pkix.Name{CommonName: "mallory", Organization: []string{"kubeadm:cluster-admins"}}
	plain        = pkix.Name{CommonName: "hook"}
)

// TestServerSignerMakesNoAdministrator has custom signers on a CA that the API server trusts for clients, in five ways. In the
// last one the signer can't know that, because its chain is incomplete. They must not issue a certificate without an extended
// key usage, or for a forbidden name or subject. Signers on a CA that no API server trusts issue all that they are configured for.
func TestServerSignerMakesNoAdministrator(t *testing.T) {
	kit.Parallel(t)
	root := kit.IssueCA(t, "root", kit.NewKey(t), nil, 48*time.Hour)
	before := kit.Must(os.ReadFile(kit.ControlPlane(t).ClientCAFile()))(t)
	kit.NoError(t, kit.ControlPlane(t).TrustClients(slices.Concat(before, root.PEM())))
	trusts(t, trust.ExtensionKey, root.PEM())
	below := kit.IssueCA(t, "below", kit.NewKey(t), root, 24*time.Hour)
	lower := kit.IssueCA(t, "lower", kit.NewKey(t), below, 12*time.Hour)
	key := kit.NewKey(t)
	self, crossed := kit.IssueCA(t, "crossed", key, nil, 24*time.Hour), kit.IssueCA(t, "crossed", key, root, 12*time.Hour)
	clients, own := kit.ControlPlane(t).CA, kit.NewCA(t)
	hooks := map[string]signer.Signer{
		"example.com/copy":         hook(t, clients.CertPEM, clients.KeyPEM),
		"example.com/intermediate": hook(t, below.PEM(), below.KeyPEM(t)),
		"example.com/no-chain":     hook(t, below.PEM(), below.KeyPEM(t)),
		"example.com/cross-signed": hook(t, slices.Concat(self.PEM(), crossed.PEM()), self.KeyPEM(t)),
		"example.com/incomplete":   hook(t, lower.PEM(), lower.KeyPEM(t)),
	}
	hooks["example.com/no-chain"].KeyPair.Chain = ca.None
	all, strict := hook(t, own.CertPEM, own.KeyPEM), hook(t, own.CertPEM, own.KeyPEM)
	all.AllowedNames, strict.AllowedNames, strict.AllowNoExtKeyUsage = ca.AllowedNames{}, ca.AllowedNames{}, false
	configured := maps.Clone(hooks)
	configured["example.com/own"], configured["example.com/own-strict"] = all, strict
	kit.MaySign(t, kit.SignerAccount, slices.Collect(maps.Keys(configured))...)
	kit.StartLoop(t, withHooks(configured), "signer")
	for name := range hooks {
		t.Run(name, func(t *testing.T) {
			because := "API servers trust the CA of signer " + name + " for clients"
			if name == "example.com/incomplete" {
				because = "API servers may trust the CA of signer " + name + ", because its chain is incomplete"
			}
			failsAs(t, askHook(t, name, kubeadmAdmin, ""), "UsagesNotPermitted", because)
			failsAs(t, askHook(t, name, kubeadmAdmin, "hook.default.svc", "server auth"), "SubjectNotPermitted", because)
			failsAs(t, askHook(t, name, pkix.Name{CommonName: "system:admin"}, "", "client auth"), "SubjectNotPermitted", because)
			failsAs(t, askHook(t, name, plain, "kubernetes", "server auth"), "NameNotPermitted", `"kubernetes" is not in the allowedNames`)
			failsAs(t, askHook(t, name, plain, "kubernetes", "any"), "NameNotPermitted", "")
			issued := kit.Reaches(t, askHook(t, name, plain, "hook.default.svc", "server auth"), csr.Issued)
			leaf := kit.Must(ca.ParseCertificates(issued.Status.Certificate))(t)[0]
			kit.Equal(t, "extended key usages", leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth})
			kit.Equal(t, "unknown extended key usages", len(leaf.UnknownExtKeyUsage), 0)
		})
	}
	for _, obj := range []*kit.Request{
		askHook(t, "example.com/own-strict", kubeadmAdmin, "anything.example", "server auth"), askHook(t, "example.com/own", plain, "hook.default.svc"),
	} {
		kit.IssuedBy(t, kit.Reaches(t, obj, csr.Issued), own)
	}
	failsAs(t, askHook(t, "example.com/own-strict", plain, ""), "UsagesNotPermitted", "so the certificate would be valid for every purpose")
}

// TestCustomSignerWaitsWhileTrustIsUnknown takes the signer's right to read what API servers trust (config/rbac/ca_trust.yaml).
// What a trusted CA must not sign waits and never fails, and so does every client, because it could be a front proxy. All others
// are signed. With the right all are signed.
func TestCustomSignerWaitsWhileTrustIsUnknown(t *testing.T) {
	kit.Parallel(t)
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	cfg, own := kit.RoleConfig(t, "signer"), kit.NewCA(t)
	giveBack := kit.TakeRole(t, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{
		Namespace: trust.ExtensionNamespace, Name: "csr-ca-trust-for-" + kit.SignerAccount,
	}})
	kit.Eventually(t, "the trust is out of reach", func(ctx context.Context) error {
		err := kit.ClientOf(t, cfg).Get(ctx, extension, &corev1.ConfigMap{})
		return kit.OrError(apierrors.IsForbidden(err), "read it: %w", err)
	})
	kit.StartLoopAs(t, cfg, withHooks(map[string]signer.Signer{hookSigner: hook(t, own.CertPEM, own.KeyPEM)}))
	waiting := []*kit.Request{
		askHook(t, hookSigner, plain, "hook.default.svc"), askHook(t, hookSigner, kubeadmAdmin, "", "client auth"),
		askHook(t, hookSigner, plain, "", "client auth"), askHook(t, hookSigner, plain, "kubernetes", "server auth"),
	}
	for i, refusal := range []string{"SubjectNotPermitted", "SubjectNotPermitted", "SubjectNotPermitted", "NameNotPermitted"} {
		kit.HasEvent(t, waiting[i], "CATrustUnknown", "extension-apiserver-authentication", refusal)
	}
	kit.IssuedBy(t, kit.Reaches(t, askHook(t, hookSigner, plain, "hook.default.svc", "server auth"), csr.Issued), own)
	for _, obj := range waiting {
		kit.IsIn(t, obj, csr.Approved)
	}
	giveBack()
	for _, obj := range waiting {
		kit.IssuedBy(t, kit.Reaches(t, obj, csr.Issued), own)
	}
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
	kit.Equal(t, "status for a front proxy", asRemoteUser(t, proxies.Leaf(t, "front-proxy-client")), http.StatusOK)
	kit.Equal(t, "status for another client", asRemoteUser(t, proxies.Leaf(t, plain.CommonName)), http.StatusUnauthorized)
	trusts(t, "requestheader-client-ca-file", proxies.PEM())
	kit.MaySign(t, kit.SignerAccount, hookSigner)
	kit.StartLoop(t, withHooks(map[string]signer.Signer{hookSigner: hook(t, proxies.PEM(), proxies.KeyPEM(t))}), "signer")
	proxy := pkix.Name{CommonName: "front-proxy-client"}
	for _, wanted := range [][]certificatesv1.KeyUsage{{"client auth"}, {"any"}, nil} {
		obj := askHook(t, hookSigner, proxy, "", wanted...)
		failsAs(t, obj, "SubjectNotPermitted", "API servers trust the CA of signer example.com/hook for front proxies")
	}
	failsAs(t, askHook(t, hookSigner, plain, ""), "UsagesNotPermitted", "")
	failsAs(t, askHook(t, hookSigner, kubeadmAdmin, "", "client auth"), "SubjectNotPermitted", "")
	kit.Reaches(t, askHook(t, hookSigner, plain, "", "client auth"), csr.Issued) // the API server does not trust it
}

// TestCustomSignerMakesNoAPIServer has custom signers on a CA that only a ClusterTrustBundle of
// kubernetes.io/kube-apiserver-serving holds, as kube-controller-manager publishes it, and below it. Pods that mount the bundles
// of that signer trust the CA for API servers. An API server older than Kubernetes 1.37 serves no such bundle, so no Pod mounts
// one, and the rules are not strict.
func TestCustomSignerMakesNoAPIServer(t *testing.T) {
	kit.Parallel(t)
	servers := kit.IssueCA(t, "servers", kit.NewKey(t), nil, 48*time.Hour)
	below, own := kit.IssueCA(t, "below", kit.NewKey(t), servers, 24*time.Hour), kit.NewCA(t)
	served := kit.BundlesByDefault(t) != ""
	for signerName, root := range map[string][]byte{"kubernetes.io/kube-apiserver-serving": servers.PEM(), "example.com/other": own.CertPEM} {
		if served {
			kit.Create(t, kit.Admin(t), &certificatesv1.ClusterTrustBundle{
				ObjectMeta: metav1.ObjectMeta{Name: trust.BundleName(signerName, "0123456789abcdef01234567")},
				Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signerName, TrustBundle: string(root)},
			})
		}
	}
	hooks := map[string]signer.Signer{
		"example.com/servers":       hook(t, servers.PEM(), servers.KeyPEM(t)),
		"example.com/servers-below": hook(t, slices.Concat(below.PEM(), servers.PEM()), below.KeyPEM(t)),
		"example.com/not-servers":   hook(t, own.CertPEM, own.KeyPEM),
	}
	kit.MaySign(t, kit.SignerAccount, slices.Collect(maps.Keys(hooks))...)
	kit.StartLoop(t, withHooks(hooks), "signer")
	for name := range hooks {
		administrator := askHook(t, name, kubeadmAdmin, "", "client auth")
		if name == "example.com/not-servers" || !served {
			kit.Reaches(t, administrator, csr.Issued)
			continue
		}
		because := "clients trust the CA of signer " + name + " for API servers"
		failsAs(t, administrator, "SubjectNotPermitted", because)
		failsAs(t, askHook(t, name, plain, ""), "UsagesNotPermitted", because)
		kit.Reaches(t, askHook(t, name, plain, "hook.default.svc", "server auth"), csr.Issued)
	}
}

// asRemoteUser reads the Secrets of the cluster with pair, as an administrator in headers, and returns the status.
func asRemoteUser(t *testing.T, pair tls.Certificate) int {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(kit.ControlPlane(t).Config.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	secrets := strings.TrimSuffix(kit.ControlPlane(t).Config.Host, "/") + "/api/v1/secrets"
	request := kit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, secrets, nil))(t)
	request.Header = http.Header{"X-Remote-User": {"mallory"}, "X-Remote-Group": {"system:masters"}}
	response := kit.Must(transport.RoundTrip(request))(t)
	_ = response.Body.Close()
	return response.StatusCode
}
