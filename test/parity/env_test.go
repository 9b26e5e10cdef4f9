package parity

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// env is the control plane for both programs, which run one after the other.
type env struct {
	*cluster.Cluster
	admin kubernetes.Interface
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
	e.common = []string{"--kubeconfig=" + kubeconfig, "--leader-elect=false"}
	e.bind(t, "system:node-bootstrapper", rbacv1.GroupKind, "system:authenticated")
	e.bind(t, nodeClientRole, rbacv1.GroupKind, "parity:bootstrappers")
	e.bind(t, nodeClientRole, rbacv1.UserKind, "named")
	e.bind(t, "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", rbacv1.GroupKind, "parity:renewers")
	if err := e.writeCAs(); err != nil {
		t.Fatal(err)
	}
	return e
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
