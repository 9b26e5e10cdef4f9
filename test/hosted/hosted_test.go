// Package hosted tests a control plane that is hosted in another cluster, on two real API servers: the home with the signing CA, and the
// served cluster, whose administrator is not that of the home.
package hosted

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	books "github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

func TestMain(m *testing.M) { kit.Main(m, 1) }

const (
	tenant    = "tenant-a"
	authority = "tenant-a"
	userName  = "jane"
)

// world is a home and a served cluster, with a manager that has the shipped roles in both. Helpers of package kit use the served one.
type world struct {
	home, served *kit.Plane
	manager      *kit.Process
	address      string // of the served API server
}

// start installs what config/overlays/hosted ships, and runs the manager with a credential of each cluster. The served API server reads
// its client CAs from a file that follows the trust Secret at home, as the mount of that Secret would.
func start(t *testing.T) *world {
	t.Helper()
	w := &world{home: kit.PlaneOf(t)}
	served := kit.Must(cluster.Start())(t)
	kit.AtEnd(t, served.Stop)
	w.served = kit.Must(kit.NewPlane(served))(t)
	w.address = strings.Trim(strings.TrimPrefix(served.Config.Host, "https://"), "/")
	kit.CreateMissing(t, w.home.Admin, kit.Rendered(t, "overlays/hosted/home"))
	kit.NoError(t, w.home.Admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}))
	kit.CreateMissing(t, w.home.Admin, kit.Rendered(t, "hosted/published"))
	kit.CreateMissing(t, w.served.Admin, kit.Rendered(t, "overlays/hosted/served"))
	kit.NoError(t, w.home.Admin.Create(t.Context(), kit.SigningSecret(served.CA.CertPEM, served.CA.KeyPEM)))

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: kit.ManagerAccount}}
	home := kit.Must(w.home.WriteKubeconfig("home", kit.AccountConfig(t, w.home.Config, w.home.Admin, account)))(t)
	known := kit.AccountConfig(t, served.Config, w.served.Admin, account)
	w.served.Use(t)
	w.manager = kit.StartManager(t, known, "--home-kubeconfig", home,
		kit.Configure(t, "rotation: {enabled: true}\nselfCheck: {interval: 2s}\napproval: {denial: Never}\n"))
	go w.mount(t.Context(), t)
	return w
}

// mount keeps the client CA file of the served API server as the trust Secret at home has it, beside the CA of its administrator.
func (w *world) mount(ctx context.Context, t *testing.T) {
	all, err := os.ReadFile(w.served.ClientCAFile())
	block, _ := pem.Decode(all)
	if err != nil || block == nil {
		t.Errorf("the client CA file: %v", err)
		return
	}
	users, last := pem.EncodeToMemory(block), []byte(nil)
	for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		secret := &corev1.Secret{}
		err := w.home.Admin.Get(ctx, client.ObjectKey{Namespace: tenant, Name: "client-ca"}, secret)
		if now := secret.Data["ca.crt"]; err == nil && !bytes.Equal(now, last) {
			if err := w.served.TrustClients(slices.Concat(users, now)); err != nil {
				t.Error(err)
			}
			last = now
		}
	}
}

// create creates the authority of docs/how-to/host-a-control-plane-elsewhere.md at home, at first without the addresses of the API servers.
func (w *world) create(t *testing.T) {
	t.Helper()
	page := string(kit.Must(os.ReadFile("../../docs/how-to/host-a-control-plane-elsewhere.md"))(t))
	block := regexp.MustCompile("(?s)```yaml\n(   apiVersion: csr-controller-manager.io.*?)```").FindStringSubmatch(page)
	kit.Require(t, block != nil, "the page has no SigningAuthority")
	obj := &v1alpha1.SigningAuthority{}
	kit.NoError(t, yaml.UnmarshalStrict([]byte(block[1]), obj))
	obj.Spec.Verification = v1alpha1.Verification{ServerName: "localhost", SettleFor: &metav1.Duration{Duration: time.Second}}
	kit.Eventually(t, "the authority is created", func(ctx context.Context) error { // the API server needs a moment for a new kind
		return w.home.Admin.Create(ctx, obj.DeepCopy())
	})
}

func (w *world) get(t *testing.T) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	kit.NoError(t, w.home.Admin.Get(t.Context(), client.ObjectKey{Name: authority}, obj))
	return obj
}

// reaches waits until the authority is in phase, without an operation, and returns its status.
func (w *world) reaches(t *testing.T, phase v1alpha1.Phase) (status v1alpha1.SigningAuthorityStatus) {
	t.Helper()
	kit.Within(t, kit.Patience+books.QuietAfter, "the authority is "+string(phase), func(context.Context) error {
		obj := w.get(t)
		status = obj.Status
		return kit.OrError(status.Phase == phase && obj.Annotations[v1alpha1.OperationAnnotation] == "" && !status.Answered(),
			"it is %q, with %q, and waits for %q", status.Phase, obj.Annotations, status.WaitingFor)
	})
	return status
}

// does requests operation, and waits until it is accepted.
func (w *world) does(t *testing.T, operation v1alpha1.Operation) {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.OperationAnnotation, operation))
	kit.NoError(t, w.home.Admin.Patch(t.Context(), &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: authority}}, patch))
	kit.Eventually(t, string(operation)+" is accepted", func(context.Context) error {
		obj := w.get(t)
		last := obj.Status.LastOperation
		return kit.OrError(obj.Annotations[v1alpha1.OperationAnnotation] == "" && !obj.Status.Answered() && last != nil &&
			last.Name == operation && last.Result == v1alpha1.Accepted, "%q, the last one is %+v", obj.Annotations, last)
	})
}

// requests requests one certificate after the other in the served cluster, until ctx ends. The served API server must know the holder of
// each at once. It counts them.
func (w *world) requests(ctx context.Context, t *testing.T, count *atomic.Int64) {
	for ctx.Err() == nil {
		if _, err := w.certificate(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("request %d: %v", count.Load()+1, err)
		}
		count.Add(1)
	}
}

// certificate requests a client certificate, which the tenant's administrator approves, and authenticates with it. It returns the
// request.
func (w *world) certificate(ctx context.Context) (*certificatesv1.CertificateSigningRequest, error) {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}
	signer, err := keyutil.ParsePrivateKeyPEM(key)
	if err != nil {
		return nil, err
	}
	payload, err := certutil.MakeCSR(signer, &pkix.Name{CommonName: userName}, nil, nil)
	if err != nil {
		return nil, err
	}
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "jane-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: payload, SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}
	if err := w.served.Admin.Create(ctx, obj); err != nil {
		return nil, err
	}
	obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"},
	}
	if err := w.served.Admin.SubResource("approval").Update(ctx, obj); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(kit.Patience); len(obj.Status.Certificate) == 0; time.Sleep(100 * time.Millisecond) {
		if err := w.served.Admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%s is not signed: %+v", obj.Name, obj.Status.Conditions)
		}
	}
	pair, err := tls.X509KeyPair(obj.Status.Certificate, key)
	if err != nil {
		return nil, err
	}
	user, err := kit.WhoIs(ctx, w.served.Config, &pair)
	return obj, errors.Join(err, kit.OrError(err != nil || user == userName, "the API server takes %s for %q", obj.Name, user))
}

// TestHostedControlPlane rotates the CA of a tenant whose API server mounts its client CAs from a Secret at home. Requests are signed
// throughout. The tenant's administrator does to the served cluster what could steer the manager there, and reads all of it: the
// rotation takes the same steps, and no key is there.
func TestHostedControlPlane(t *testing.T) {
	kit.Alone(t)
	w := start(t)
	w.create(t)
	old := w.needsAddresses(t)
	w.manager.Answers(t, w.manager.Probes, "/readyz", http.StatusOK)
	w.manager.Answers(t, w.manager.Metrics, "/metrics", http.StatusOK, `csr_check_result{check="own-rights",result="ok"} 1`,
		`csr_check_missing_rights{cluster="home",resource="secrets",verb="get"} 0`, `csr_check_missing_rights{cluster="served",`)
	t.Logf("idle, the manager uses %s", w.memory(t))

	issuing, stop := context.WithCancel(t.Context())
	defer stop()
	var issued atomic.Int64
	ended := make(chan struct{})
	go func() { defer close(ended); w.requests(issuing, t, &issued) }()
	w.attack(issuing, t)

	began := time.Now()
	w.does(t, v1alpha1.OperationStart)
	status := w.reaches(t, v1alpha1.Prepared)
	signing := status.Signing.KeyID
	kit.Check(t, signing != old && status.Retiring.KeyID == old, "%s signs, and %s retires", signing, status.Retiring.KeyID)
	w.does(t, v1alpha1.OperationAccept)
	w.does(t, v1alpha1.OperationComplete)
	status = w.reaches(t, v1alpha1.Completed)
	before := issued.Load()
	kit.Eventually(t, "requests are signed after the rotation", func(context.Context) error {
		return kit.OrError(issued.Load() > before+2, "%d", issued.Load()-before)
	})
	stop()
	<-ended
	t.Logf("%d requests were signed during the rotation, in %s; the manager uses %s", issued.Load(), time.Since(began).Round(time.Second), w.memory(t))
	kit.Check(t, status.Signing.KeyID == signing && status.LastRetired.KeyID == old, "%+v", status)

	pair := kit.Must(tls.X509KeyPair(w.served.CA.CertPEM, w.served.CA.KeyPEM))(t)
	_, err := kit.WhoIs(t.Context(), w.served.Config, &pair)
	kit.Check(t, apierrors.IsUnauthorized(err), "the served API server still trusts the old CA: %v", err)
	w.readsNoKey(t)
	w.steeredNothing(t)
	w.namesServedRights(t)

	// Without any right in the served cluster, the manager still rotates.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: kit.ManagerAccount}}
	kit.NoError(t, w.served.Admin.Delete(t.Context(), account))
	w.does(t, v1alpha1.OperationStart)
	status = w.reaches(t, v1alpha1.Prepared)
	kit.Check(t, status.Retiring.KeyID == signing, "%s retires, want %s", status.Retiring.KeyID, signing)
}

// needsAddresses checks that the rotation does not look for API servers in the served cluster, and gives it their addresses. It returns
// the key ID of the CA that signs.
func (w *world) needsAddresses(t *testing.T) string {
	t.Helper()
	kit.Eventually(t, "the authority asks for addresses", func(context.Context) error {
		waits := strings.Join(w.get(t).Status.WaitingFor, "; ")
		return kit.OrError(strings.Contains(waits, "list every API server of the served cluster in spec.verification.apiServers"), "%q", waits)
	})
	kit.Eventually(t, "the addresses are written", func(ctx context.Context) error { // on a conflict with the manager: again
		obj := w.get(t)
		obj.Spec.Verification.APIServers = []string{w.address}
		return w.home.Admin.Update(ctx, obj)
	})
	return w.reaches(t, v1alpha1.Completed).Signing.KeyID
}

func (w *world) memory(t *testing.T) string {
	t.Helper()
	text := string(kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/status", w.manager.Pid())))(t))
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "VmRSS:") {
			return strings.Join(strings.Fields(line), " ")
		}
	}
	t.Fatal(text)
	return ""
}

// attack does to the served cluster what its administrator can. What API servers or the manager could put right is repeated until ctx
// ends.
func (w *world) attack(ctx context.Context, t *testing.T) {
	t.Helper()
	admin := w.served.Admin
	// An API server that does not exist: a rotation that believed it would wait for its answer for ever.
	kit.NoError(t, admin.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes-2", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](6443)}},
	}))
	// The Lease of the manager, held by another one.
	now := metav1.NowMicro()
	kit.NoError(t, admin.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("tenant"), LeaseDurationSeconds: ptr.To[int32](3600),
			AcquireTime: &now, RenewTime: &metav1.MicroTime{Time: now.Add(time.Hour)}},
	}))
	// The same authority, which asks for a rollback, and its Secret.
	for _, obj := range kit.Rendered(t, "crd") {
		kit.NoError(t, admin.Create(t.Context(), obj))
	}
	forged := w.get(t).DeepCopy()
	forged.ObjectMeta = metav1.ObjectMeta{Name: authority, Annotations: map[string]string{v1alpha1.OperationAnnotation: "rollback"}}
	kit.Eventually(t, "an authority in the served cluster", func(ctx context.Context) error { return admin.Create(ctx, forged.DeepCopy()) })
	other := kit.NewCA(t)
	kit.NoError(t, admin.Create(t.Context(), kit.SigningSecret(other.CertPEM, other.KeyPEM)))
	// Nobody writes a trust bundle, and the manager's rights to do so are gone.
	w.forbidBundles(t)
	kit.NoError(t, admin.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "csr-rotation"}}))
	// A certificate of this CA, in requests of many signers, which would fill the ledger.
	mine := kit.Must(w.certificate(t.Context()))(t)
	for i := range 20 {
		kit.NoError(t, copyTo(t.Context(), admin, mine, fmt.Sprintf("example.com/%s-%d", strings.Repeat("a", 200), i)))
	}
	// What API servers publish as their client CAs: the old CA for ever, and every other second something that cannot be read.
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			text := []string{string(w.served.CA.CertPEM) + string(other.CertPEM), "no certificate"}[i/5%2]
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"data":{"client-ca-file":%q}}`, text))
			_ = admin.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "extension-apiserver-authentication"}}, patch)
			time.Sleep(200 * time.Millisecond)
		}
	}()
}

// forbidBundles makes the served API server refuse every write to a ClusterTrustBundle, after a webhook has held it up for 30 seconds: the
// kernel accepts the webhook's connections, and no process reads.
func (w *world) forbidBundles(t *testing.T) {
	t.Helper()
	const name = "no-bundles"
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.NoError(t, err)
	kit.AtEnd(t, silent.Close)
	kit.NoError(t, w.served.Admin.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "bundles.example.com", AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
			SideEffects: ptr.To(admissionv1.SideEffectClassNone), FailurePolicy: ptr.To(admissionv1.Ignore),
			ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://" + silent.Addr().String()), CABundle: w.served.Config.CAData},
			Rules:        bundleWrites,
		}},
	}))
	kit.NoError(t, w.served.Admin.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: bundleWrites[0]}},
			},
			Validations: []admissionv1.Validation{{Expression: "false"}},
		},
	}))
	kit.NoError(t, w.served.Admin.Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}))
}

// bundleWrites are all writes to ClusterTrustBundles.
var bundleWrites = []admissionv1.RuleWithOperations{{
	Operations: []admissionv1.OperationType{admissionv1.OperationAll},
	Rule: admissionv1.Rule{
		APIGroups: []string{certificatesv1.GroupName}, APIVersions: []string{"*"}, Resources: []string{"clustertrustbundles"},
	},
}}

// copyTo stores the certificate of mine in a request of another signer, as who signs for that signer could.
func copyTo(ctx context.Context, admin client.Client, mine *certificatesv1.CertificateSigningRequest, signer string) error {
	obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "copy-"}, Spec: *mine.Spec.DeepCopy()}
	obj.Spec.SignerName = signer
	if err := admin.Create(ctx, obj); err != nil {
		return err
	}
	obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"},
	}
	if err := admin.SubResource("approval").Update(ctx, obj); err != nil {
		return err
	}
	obj.Status.Certificate = mine.Status.Certificate
	return admin.Status().Update(ctx, obj)
}

// readsNoKey checks that no Secret and no ConfigMap of the served cluster has a key, except the one that the tenant made, and that no
// credential of the served cluster is one at home.
func (w *world) readsNoKey(t *testing.T) {
	t.Helper()
	ours := w.homeSecret(t).Data["signing.key"]
	kit.Require(t, len(ours) > 0, "the Secret at home has no signing.key")
	secrets, maps := &corev1.SecretList{}, &corev1.ConfigMapList{}
	kit.NoError(t, w.served.Admin.List(t.Context(), secrets))
	kit.NoError(t, w.served.Admin.List(t.Context(), maps))
	for _, one := range secrets.Items {
		for key, value := range one.Data {
			forged := one.Namespace == kit.SystemNamespace && one.Name == "csr-signer"
			kit.Check(t, forged || !bytes.Contains(value, []byte("PRIVATE KEY")), "Secret %s/%s has a key in %s", one.Namespace, one.Name, key)
		}
	}
	for _, one := range maps.Items {
		kit.Check(t, !strings.Contains(fmt.Sprint(one.Data), "PRIVATE KEY"), "ConfigMap %s/%s has a key", one.Namespace, one.Name)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: kit.ManagerAccount}}
	stolen := rest.AnonymousClientConfig(w.home.Config)
	stolen.BearerToken = kit.AccountConfig(t, w.served.Config, w.served.Admin, account).BearerToken
	for what, config := range map[string]*rest.Config{"a token of the manager in the served cluster": stolen, "the tenant's administrator": w.tenantAtHome()} {
		err := kit.Must(client.New(config, client.Options{Scheme: kit.Scheme, Mapper: w.home.Admin.RESTMapper()}))(t).
			Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}, &corev1.Secret{})
		kit.Check(t, apierrors.IsUnauthorized(err), "%s reads the signing Secret at home: %v", what, err)
	}
}

// tenantAtHome returns the home with the credential of the served cluster's administrator.
func (w *world) tenantAtHome() *rest.Config {
	config := rest.AnonymousClientConfig(w.home.Config)
	config.CertData, config.KeyData = w.served.Config.CertData, w.served.Config.KeyData
	return config
}

func (w *world) homeSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	obj := &corev1.Secret{}
	kit.NoError(t, w.home.Admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}, obj))
	return obj
}

// steeredNothing checks that what the tenant's administrator wrote has left no trace at home, and that the manager has not touched it.
func (w *world) steeredNothing(t *testing.T) {
	t.Helper()
	ledger := &corev1.ConfigMap{}
	kit.NoError(t, w.home.Admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: books.BookName("csr-signer")}, ledger))
	kit.Check(t, !strings.Contains(fmt.Sprint(ledger.Data), "example.com"), "the ledger has signers of the tenant: %v", ledger.Data)
	forged := &v1alpha1.SigningAuthority{}
	kit.NoError(t, w.served.Admin.Get(t.Context(), client.ObjectKey{Name: authority}, forged))
	kit.Check(t, forged.Annotations[v1alpha1.OperationAnnotation] == "rollback" && forged.Status.Phase == "",
		"the manager answers an authority in the served cluster: %v %q", forged.Annotations, forged.Status.Phase)
	lease := &coordinationv1.Lease{}
	at := client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}
	kit.NoError(t, w.home.Admin.Get(t.Context(), at, lease))
	kit.Check(t, lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "tenant", "no Lease at home")
	kit.NoError(t, w.served.Admin.Get(t.Context(), at, lease))
	kit.Check(t, *lease.Spec.HolderIdentity == "tenant", "the manager has written a Lease in the served cluster")
	w.hasEvent(t, "ServedClusterOutdated", "which does not stop the rotation")
	for _, kind := range []string{"RotationStuck", "RotationRefused"} {
		kit.Check(t, !slices.ContainsFunc(w.events(t), func(e eventsv1.Event) bool { return e.Reason == kind }), "there is an Event %s", kind)
	}
}

// namesServedRights checks that the self-check names the cluster in which a right is missing, in an Event at home.
func (w *world) namesServedRights(t *testing.T) {
	t.Helper()
	kit.NoError(t, w.served.Admin.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "csr-cleaner"}}))
	w.hasEvent(t, "RightsMissing", "delete certificatesigningrequests.certificates.k8s.io of the served cluster")
	w.manager.Answers(t, w.manager.Metrics, "/metrics", http.StatusOK,
		`csr_check_missing_rights{cluster="served",resource="certificatesigningrequests.certificates.k8s.io",verb="delete"} 1`)
}

func (w *world) events(t *testing.T) []eventsv1.Event {
	t.Helper()
	list := &eventsv1.EventList{}
	kit.NoError(t, w.home.Admin.List(t.Context(), list))
	return list.Items
}

func (w *world) hasEvent(t *testing.T, reason, part string) {
	t.Helper()
	kit.Eventually(t, "an Event "+reason+" at home", func(context.Context) error {
		found := slices.ContainsFunc(w.events(t), func(e eventsv1.Event) bool { return e.Reason == reason && strings.Contains(e.Note, part) })
		return kit.OrError(found, "none has %q", part)
	})
}
