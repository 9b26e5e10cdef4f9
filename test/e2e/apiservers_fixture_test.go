//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
)

// apiServers are several API servers on one etcd, each with its own address and client CA file. The CA that is
// rotated is the plane's next CA. The administrator's certificate is from the plane's own CA.
type apiServers struct{ *cluster }

const (
	firstAPIServer, secondAPIServer, thirdAPIServer = "10.98.0.1", "10.98.0.2", "10.98.0.3"
	authorityName                                   = "cluster"
)

var bundleKey = v1alpha1.ConfigMapKey{Namespace: metav1.NamespaceSystem, Name: "client-ca", Key: "ca.crt"}

// startAPIServers starts etcd and two API servers. They are stopped at the end of t.
func startAPIServers(t *testing.T) *apiServers {
	t.Helper()
	plane := &controlPlane{dir: os.Getenv(dirVariable), address: firstAPIServer}
	if err := errors.Join(plane.addresses(), plane.certificates(), plane.start("etcd", etcdArgs(plane.path("etcd")))); err != nil {
		t.Fatal(errors.Join(err, plane.stop()))
	}
	a := &apiServers{newCluster(t, plane)}
	a.startOne(t, firstAPIServer)
	if err := waitForAPIServer(t.Context(), a.config); err != nil {
		t.Fatal(err)
	}
	a.startOne(t, secondAPIServer)
	return a
}

// startOne starts an API server that trusts the signing CA.
func (a *apiServers) startOne(t *testing.T, address string) {
	t.Helper()
	_, err := run(exec.Command("ip", "address", "add", address+"/24", "dev", "machines"))
	if err := errors.Join(err, writePKI(a.pki(address), address, a.ca, a.next)); err != nil {
		t.Fatal(err)
	}
	args := append(apiServerArgs(a.pki(address), address), "--bind-address="+address)
	p, err := startProcess(a.dir, "kube-apiserver-"+address, exec.Command(binary("kube-apiserver"), args...))
	if err != nil {
		t.Fatal(err)
	}
	a.processes = append(a.processes, p)
}

func (a *apiServers) pki(address string) string { return a.path("pki-" + address) }

// trusts sets the client CA file of the API server at address to bundle and its administrator's CA.
func (a *apiServers) trusts(t *testing.T, address string, bundle []byte) {
	t.Helper()
	file := filepath.Join(a.pki(address), "client-ca.crt")
	if err := errors.Join(os.WriteFile(file+".part", slices.Concat(a.ca.CertPEM, bundle), 0o600), os.Rename(file+".part", file)); err != nil {
		t.Fatal(err)
	}
}

// runRotation creates an authority whose API servers are the endpoints of the Service kubernetes, and runs its
// controller.
func (a *apiServers) runRotation(t *testing.T) {
	t.Helper()
	crds := envtest.CRDInstallOptions{Paths: []string{"../../config/crd/csr-controller-manager.io_signingauthorities.yaml"}, ErrorIfPathMissing: true}
	if _, err := envtest.InstallCRDs(a.config, crds); err != nil {
		t.Fatal(err)
	}
	for _, obj := range []client.Object{
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "signing-ca"}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{"tls.crt": a.next.CertPEM, "tls.key": a.next.KeyPEM},
		},
		&v1alpha1.SigningAuthority{
			ObjectMeta: metav1.ObjectMeta{Name: authorityName},
			Spec: v1alpha1.SigningAuthoritySpec{
				Secret:       v1alpha1.SecretReference{Namespace: metav1.NamespaceSystem, Name: "signing-ca"},
				Signers:      []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName},
				Trust:        v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{bundleKey}},
				Verification: v1alpha1.Verification{SettleFor: &metav1.Duration{Duration: 2 * time.Second}},
			},
		},
	} {
		if err := a.admin.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	log.SetLogger(logr.Discard())
	unnamed := true
	mgr, err := manager.New(a.config, manager.Options{
		Scheme: a.admin.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &unnamed},
	})
	if err := errors.Join(err, controllers.Options{Rotation: &rotation.Reconciler{}}.SetupWithManager(mgr)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// published returns the published bundle.
func (a *apiServers) published(t *testing.T) []byte {
	t.Helper()
	obj := &corev1.ConfigMap{}
	if err := a.admin.Get(t.Context(), client.ObjectKey{Namespace: bundleKey.Namespace, Name: bundleKey.Name}, obj); err != nil {
		t.Fatal(err)
	}
	return []byte(obj.Data[bundleKey.Key])
}
