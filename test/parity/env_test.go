package parity

import (
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

func TestMain(m *testing.M) { kit.Main(m, 1) }

// env is the control plane for both programs, which run one after the other.
type env struct {
	*cluster.Cluster
	// kubeconfigs are the kubeconfig files of the identities of ours by controller, and "" is the administrator's.
	kubeconfigs map[string]string
	// byStart are the flags of each start.
	byStart [starts][]string
	// ends are the expiry times of CAs that expire before their certificates would.
	ends []time.Time
}

func startEnv(t *testing.T) *env {
	t.Helper()
	if os.Getenv("KUBE_CONTROLLER_MANAGER") == "" {
		t.Fatal("KUBE_CONTROLLER_MANAGER is not set: run this with `make parity`, which gets the control plane")
	}
	kit.Alone(t)
	e := &env{Cluster: kit.ControlPlane(t), kubeconfigs: map[string]string{}}
	e.writeKubeconfig(t, "", e.Config)
	e.identify(t)
	kit.GrantGroup(t, "system:authenticated", kit.MayCreate)
	kit.GrantGroup(t, "parity:bootstrappers", kit.MayJoin)
	kit.Grant(t, "named", kit.MayJoin)
	kit.GrantGroup(t, "parity:renewers", kit.MayRenewOwn)
	e.writeCAs(t)
	return e
}

// identify gives each of our controllers its identity of config/overlays/split, for an hour.
func (e *env) identify(t *testing.T) {
	t.Helper()
	for controller, name := range map[string]string{"csrapproving": "approver", "csrsigning": "signer", "csrcleaner": "cleaner"} {
		e.writeKubeconfig(t, controller, kit.RoleConfig(t, name))
	}
}

func (e *env) writeKubeconfig(t *testing.T, name string, cfg *rest.Config) {
	t.Helper()
	file, err := e.WriteKubeconfig("parity-"+name, cfg)
	kit.NoError(t, err)
	e.kubeconfigs[name] = file
}

// create creates the row's request under that name.
func (e *env) create(t *testing.T, name string, r row) error {
	t.Helper()
	obj, err := r.object(name)
	if err != nil {
		return err
	}
	if r.stored {
		return e.Store(t.Context(), "certificatesigningrequests/"+name, obj)
	}
	admin, cfg := kit.Admin(t), rest.CopyConfig(e.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: r.user.name, Groups: r.user.groups}
	requester, err := ctrl.New(cfg, ctrl.Options{Scheme: kit.Scheme, Mapper: admin.RESTMapper()})
	if err != nil {
		return err
	}
	wanted := obj.Status.Conditions
	if err := requester.Create(t.Context(), obj); err != nil {
		return err
	}
	for _, condition := range wanted {
		subresource := admin.SubResource("status")
		if condition.Type == certificatesv1.CertificateApproved || condition.Type == certificatesv1.CertificateDenied {
			subresource = admin.SubResource("approval")
		}
		obj.Status.Conditions = append(obj.Status.Conditions, condition)
		if err := subresource.Update(t.Context(), obj); err != nil {
			return err
		}
	}
	return nil
}
