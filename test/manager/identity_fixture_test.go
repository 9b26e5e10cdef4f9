package manager

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startIdentityManager runs the manager with approval, under its shipped roles.
func startIdentityManager(t *testing.T, approval string, args ...string) *kit.Process {
	t.Helper()
	kit.InstallRBAC(t)
	for _, component := range []string{"node-identity", "inventory-cluster-api"} {
		kit.Apply(t, component)
	}
	return kit.StartManager(t, kit.ServiceAccountConfig(t), append([]string{kit.Configure(t, "approval: {"+approval+"}\n")}, args...)...)
}

// prepareIdentity grants the right to join to bootstrappers, and runs Kubernetes' controller of the ConfigMap
// cluster-info.
func prepareIdentity(t *testing.T) {
	t.Helper()
	kit.Create(t, kit.Admin(t), signingSecretOf(t))
	for _, role := range []string{kit.MayCreate, kit.MayJoin} {
		kit.GrantGroup(t, "system:bootstrappers", role)
	}
	kit.Create(t, kit.Admin(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
		Data:       map[string]string{"kubeconfig": "apiVersion: v1\nkind: Config\n"},
	})
	startTokenKeeper(t)
}

// signingSecretOf returns a Secret with the CA of the shared control plane, in the namespace that installRBAC
// creates.
func signingSecretOf(t *testing.T) *corev1.Secret {
	t.Helper()
	kit.InstallRBAC(t)
	return kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
}

func startTokenKeeper(t *testing.T) {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-") + "-kcm"
	kubeconfig, err := kit.ControlPlane(t).WriteKubeconfig(name, kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := kit.ControlPlane(t).StartProcess(name, os.Getenv("KUBE_CONTROLLER_MANAGER"), "--kubeconfig", kubeconfig,
		"--controllers=bootstrapsigner,tokencleaner", "--leader-elect=false", "--secure-port=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.Ended() == nil {
			p.Kill()
		}
	})
}

// heldToken is a real bootstrap token.
type heldToken struct {
	*corev1.Secret
	cfg *rest.Config
	client.Client
}

// newToken creates a bootstrap token, bound to nodes if there are any. It waits until the API server knows the token
// and permits it to create requests.
func newToken(t *testing.T, id string, nodes ...string) *heldToken {
	t.Helper()
	var groups []string
	for _, node := range nodes {
		groups = append(groups, csr.TokenGroup(node))
	}
	const secret = "0123456789abcdef"
	token := &heldToken{Secret: &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": strings.Join(groups, ","),
		},
	}}
	kit.Create(t, kit.Admin(t), token.Secret)
	token.cfg = rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	token.cfg.BearerToken, token.cfg.QPS = id+"."+secret, -1
	var err error
	if token.Client, err = client.New(token.cfg, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "bootstrap token "+id, func(ctx context.Context) error {
		return token.Create(ctx, kit.NodeRequest(t, "x"), client.DryRunAll)
	})
	token.signed(t, true)
	return token
}

// signed waits until the ConfigMap cluster-info lists the token, or no longer does.
func (b *heldToken) signed(t *testing.T, want bool) {
	t.Helper()
	id := strings.TrimPrefix(b.Name, "bootstrap-token-")
	kit.Eventually(t, "signature of "+id, func(ctx context.Context) error {
		info := &corev1.ConfigMap{}
		if err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, info); err != nil {
			return err
		}
		if _, found := info.Data["jws-kubeconfig-"+id]; found != want {
			return fmt.Errorf("there is one: %t", found)
		}
		return nil
	})
}

// revoke deletes the token without waiting.
func (b *heldToken) revoke(t *testing.T) {
	t.Helper()
	if err := kit.Admin(t).Delete(t.Context(), b.Secret); err != nil {
		t.Fatal(err)
	}
}

// asks creates the request of a kubelet that will become node.
func (b *heldToken) asks(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, b.Client, kit.NodeRequest(t, node))
}

// account returns a client with a token of a new ServiceAccount that may bootstrap.
func account(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.Grant(t, "system:serviceaccount:"+namespace+":"+name, kit.MayJoin)
	return accountThatAsks(t, namespace, name)
}

// accountThatAsks returns a client with a token of a new ServiceAccount that may create requests.
func accountThatAsks(t *testing.T, namespace, name string) (*corev1.ServiceAccount, client.Client) {
	t.Helper()
	kit.NewNamespace(t, namespace)
	obj := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	kit.Create(t, kit.Admin(t), obj)
	token := &authenticationv1.TokenRequest{}
	if err := kit.Admin(t).SubResource("token").Create(t.Context(), obj, token); err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(kit.ControlPlane(t).Config)
	cfg.BearerToken, cfg.QPS = token.Status.Token, -1
	c := kit.ClientOf(t, cfg)
	user := "system:serviceaccount:" + namespace + ":" + name
	kit.Grant(t, user, kit.MayCreate)
	kit.Eventually(t, user, func(ctx context.Context) error { return c.Create(ctx, kit.NodeRequest(t, "x"), client.DryRunAll) })
	return obj, c
}

// newLease creates the Lease of node, renewed at an instant.
func newLease(t *testing.T, node string, renewed time.Time) *coordinationv1.Lease {
	t.Helper()
	kit.NewNamespace(t, corev1.NamespaceNodeLease)
	seconds := int32(40)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: renewed}},
	}
	kit.Create(t, kit.Admin(t), lease)
	return lease
}

// renew renews lease as its kubelet does.
func renew(t *testing.T, lease *coordinationv1.Lease) {
	t.Helper()
	lease.Spec.RenewTime = &metav1.MicroTime{Time: lease.Spec.RenewTime.Add(time.Second)}
	if err := kit.Admin(t).Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

// expect creates the machine that will become node.
func expect(t *testing.T, node string) {
	t.Helper()
	kit.Administrator(t, kit.ControlPlane(t).Config).Apply(t, machineIn(kit.ClusterAPI, "m-"+node, "spec: {infrastructureRef: {name: "+node+"}}"))
}

// forgetLeader removes the Lease of a manager that was killed.
func forgetLeader(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}}
	if err := client.IgnoreNotFound(kit.Admin(t).Delete(context.WithoutCancel(t.Context()), lease)); err != nil {
		t.Error(err)
	}
}

// isPending checks that obj is undecided.
func isPending(t *testing.T, obj *kit.Request) {
	t.Helper()
	if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
		t.Errorf("request %s is %s, want Pending: %+v", obj.Name, got, obj.Status.Conditions)
	}
}

// issuedSoon calls change, and checks that this wakes obj. Without a wake-up it would be judged again a minute later.
func issuedSoon(t *testing.T, obj *kit.Request, change func()) {
	t.Helper()
	backdate(t, obj)
	change()
	kit.Reaches(t, obj, csr.Issued)
}

// backdate makes waiting requests ninety seconds older. It returns once the manager judges them at most once a minute.
func backdate(t *testing.T, waiting ...*kit.Request) {
	t.Helper()
	var pause time.Duration
	for _, obj := range waiting {
		pause = max(pause, csr.Pause(time.Since(obj.CreationTimestamp.Time))) // of a reconcile just before
		kit.Reload(t, obj)
		obj.CreationTimestamp.Time = obj.CreationTimestamp.Add(-90 * time.Second)
		obj.TypeMeta = metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"}
		if err := kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(pause) // the retry that was scheduled before can't be observed
}
