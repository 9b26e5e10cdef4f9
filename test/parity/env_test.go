package parity

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// env is the control plane for both programs, which run one after the other.
type env struct {
	*cluster.Cluster
	admin kubernetes.Interface
	// kubeconfigs are the kubeconfig files of the ServiceAccounts of ours, and "" is the administrator's.
	kubeconfigs map[string]string
	// common are the flags of every start, and byStart the flags of one start.
	common  []string
	byStart [starts][]string
	// ends are the expiry times of CAs that expire before their certificates would.
	ends []time.Time
}

func startEnv(t *testing.T) *env {
	t.Helper()
	for _, name := range []string{"KUBEBUILDER_ASSETS", "KUBE_CONTROLLER_MANAGER"} {
		if os.Getenv(name) == "" {
			t.Fatalf("%s is not set: run this with `make parity`, which gets the control plane", name)
		}
	}
	c, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := rest.CopyConfig(c.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	e := &env{Cluster: c, admin: kubernetes.NewForConfigOrDie(config)}
	kubeconfig, err := c.WriteKubeconfig("admin", c.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.kubeconfigs, e.common = map[string]string{"": kubeconfig}, []string{"--leader-elect=false"}
	e.installSplit(t)
	e.bind(t, "system:node-bootstrapper", rbacv1.GroupKind, "system:authenticated")
	e.bind(t, nodeClientRole, rbacv1.GroupKind, "parity:bootstrappers")
	e.bind(t, nodeClientRole, rbacv1.UserKind, "named")
	e.bind(t, "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", rbacv1.GroupKind, "parity:renewers")
	if err := e.writeCAs(); err != nil {
		t.Fatal(err)
	}
	return e
}

// systemNamespace is the namespace of the shipped manifests.
const systemNamespace = "csr-controller-manager-system"

// installSplit installs the identities and roles of config/overlays/split, and waits until they are in effect.
func (e *env) installSplit(t *testing.T) {
	t.Helper()
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	manifests, err := exec.CommandContext(t.Context(), kubectl, "kustomize", "../../config/overlays/split").Output()
	if err != nil {
		t.Fatalf("render config/overlays/split: %v", err)
	}
	apply := exec.CommandContext(t.Context(), kubectl, "--kubeconfig="+e.kubeconfigs[""], "apply", "--server-side", "-f", "-")
	apply.Stdin = bytes.NewReader(manifests)
	if text, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("install config/overlays/split: %v: %s", err, text)
	}
	for account, needs := range map[string]authorizationv1.ResourceAttributes{
		"csr-approver": {Verb: "update", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: "approval"},
		"csr-signer":   {Verb: "update", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests", Subresource: "status"},
		"csr-cleaner":  {Verb: "delete", Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"},
	} {
		token, err := e.admin.CoreV1().ServiceAccounts(systemNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](24 * 3600)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		config := rest.AnonymousClientConfig(e.Config)
		config.BearerToken = token.Status.Token
		if e.kubeconfigs[account], err = e.WriteKubeconfig(account, config); err != nil {
			t.Fatal(err)
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: serviceaccount.MakeUsername(systemNamespace, account), ResourceAttributes: &needs,
		}}
		err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			answer, err := e.admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && answer.Status.Allowed, nil
		})
		if err != nil {
			t.Fatalf("the role of %s is not in effect: %v", account, err)
		}
	}
}

const nodeClientRole = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"

func (e *env) bind(t *testing.T, role, kind, name string) {
	t.Helper()
	_, err := e.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "parity-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// as returns a client for the user.
func (e *env) as(u user) (kubernetes.Interface, error) {
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: u.groups}
	return kubernetes.NewForConfig(config)
}

// create creates the row's request under that name.
func (e *env) create(ctx context.Context, name string, r row) error {
	obj, err := r.object(name)
	if err != nil {
		return err
	}
	if r.stored {
		return e.Store(ctx, filepath.Join("certificatesigningrequests", name), obj)
	}
	requester, err := e.as(r.user)
	if err != nil {
		return err
	}
	wanted := obj.Status.Conditions
	obj, err = requester.CertificatesV1().CertificateSigningRequests().Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	requests := e.admin.CertificatesV1().CertificateSigningRequests()
	for _, condition := range wanted {
		obj.Status.Conditions = append(obj.Status.Conditions, condition)
		if condition.Type == certificatesv1.CertificateApproved || condition.Type == certificatesv1.CertificateDenied {
			obj, err = requests.UpdateApproval(ctx, name, obj, metav1.UpdateOptions{})
		} else {
			obj, err = requests.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
