package monitoring

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// labConfig has one signer whose CA expires soon, one without a CA, and one for which the manager may not sign.
const labConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  secret: csr-controller-manager-system/csr-signer
  signers:
  - {name: example.com/short, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/forbidden, certFile: %[1]q, keyFile: %[2]q, usages: [digital signature, server auth]}
  - {name: example.com/missing, secret: csr-controller-manager-system/no-such, usages: [digital signature, server auth]}
`

// lab is a control plane with a joiner, who may join nodes, and a stranger, who may only create requests.
type lab struct {
	*testing.T
	manager                       *rest.Config // the ServiceAccount that config/rbac binds
	kubeconfig, config, shortCert string
}

// newLab returns a lab for a whole test: its objects stay when a part of the test ends.
func newLab(t *testing.T) *lab {
	t.Helper()
	kit.Alone(t)
	plane := kit.ControlPlane(t)
	l := &lab{T: t, config: filepath.Join(t.TempDir(), "config.yaml"), shortCert: filepath.Join(t.TempDir(), "short.crt")}
	var err error
	if l.kubeconfig, err = plane.WriteKubeconfig("admin", plane.Config); err != nil {
		t.Fatal(err)
	}
	l.makeCAs()
	l.manager = kit.ManagerConfig(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(plane.CA.CertPEM, plane.CA.KeyPEM))
	kit.MaySign(t, kit.ManagerAccount, "example.com/short", "example.com/missing")
	kit.Grant(t, "joiner", kit.MayCreate)
	kit.Grant(t, "joiner", kit.MayJoin)
	kit.Grant(t, "stranger", kit.MayCreate)
	for _, role := range []string{kit.MayCreate, kit.MayJoin} { // the self-check asks for them
		kit.GrantGroup(t, kit.BootstrapperTeam, role)
	}
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
	kit.EventuallyAllowed(t, "joiner", true)
	return l
}

// makeCAs creates the CA that expires in 20 days, and the configuration.
func (l *lab) makeCAs() {
	l.Helper()
	short, key, err := ca.New(ca.NewOptions{CommonName: "short", Lifetime: 20 * 24 * time.Hour}, time.Now())
	if err != nil {
		l.Fatal(err)
	}
	keyFile := filepath.Join(l.TempDir(), "short.key")
	kit.Write(l.T, l.shortCert, short.CertificatePEM())
	kit.Write(l.T, keyFile, key)
	kit.Write(l.T, l.config, fmt.Appendf(nil, labConfig, l.shortCert, keyFile))
}

func (l *lab) kubectl(args ...string) string {
	l.Helper()
	return kit.Kubectl(l.T, l.kubeconfig, args...)
}

// applyOperatorObjects validates the objects of config/prometheus for the prometheus-operator with its
// CustomResourceDefinitions.
func (l *lab) applyOperatorObjects() {
	l.Helper()
	l.kubectl("create", "-f", tool(l.T, "PROMETHEUS_CRDS"))
	l.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
	dir := l.TempDir()
	component, err := filepath.Abs("../../config/prometheus")
	if err == nil {
		component, err = filepath.Rel(dir, component)
	}
	if err != nil {
		l.Fatal(err)
	}
	kit.Write(l.T, filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, "kind: Kustomization\napiVersion: kustomize.config.k8s.io/v1beta1\ncomponents: [%q]\n", component))
	l.kubectl("apply", "--validate=strict", "-k", dir)
	l.kubectl("-n", kit.SystemNamespace, "get", "prometheusrules/csr-controller-manager", "servicemonitors/csr-controller-manager")
}

// startManager runs the real binary as the ServiceAccount that config/rbac binds.
func (l *lab) startManager(name, metrics string) *kit.Process {
	l.Helper()
	return kit.StartNamed(l.T, name, l.manager, "--config", l.config, "--metrics-bind-address", metrics)
}

// round creates requests for every outcome, and returns the request that will be issued. The others are never
// approved, fail, are cut short, may not be signed, or wait for a CA.
func (l *lab) round() *kit.Request {
	l.Helper()
	kit.CreateRequest(l.T, kit.As(l.T, "stranger"), kit.NodeRequest(l.T, "stays"))
	for suffix, signer := range map[string]string{
		"fails": certificatesv1.KubeAPIServerClientSignerName, "short": "example.com/short",
		"forbidden": "example.com/forbidden", "missing": "example.com/missing",
	} {
		kit.Approve(l.T, kit.CreateRequest(l.T, kit.Admin(l.T), kit.NodeRequest(l.T, suffix, func(obj *kit.Request) {
			obj.Spec.SignerName, obj.Spec.Usages[1] = signer, certificatesv1.UsageServerAuth
		})))
	}
	kit.Approve(l.T, kit.CreateRequest(l.T, kit.Admin(l.T), kit.ServingRequest(l.T, "serves", "serves")))
	return kit.CreateRequest(l.T, kit.As(l.T, "joiner"), kit.NodeRequest(l.T, "joins"))
}

// store stores a request of a stranger that is hours old.
func (l *lab) store(name string, hours time.Duration) {
	l.Helper()
	obj := kit.NodeRequest(l.T, name)
	obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
	obj.GenerateName, obj.Name = "", name
	obj.UID, obj.CreationTimestamp = types.UID(name), metav1.NewTime(time.Now().Add(-hours*time.Hour))
	obj.Spec.Username = "stranger"
	if err := kit.ControlPlane(l.T).Store(l.Context(), "certificatesigningrequests/"+name, obj); err != nil {
		l.Fatal(err)
	}
}

// breakShortCA replaces the CA that expires soon by an invalid one. The manager continues with the old CA.
func (l *lab) breakShortCA() {
	l.Helper()
	kit.Write(l.T, l.shortCert, []byte("not PEM\n"))
}
