//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
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
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
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
type apiServers struct {
	*controlPlane
	admin client.Client
}

const (
	firstAPIServer, secondAPIServer, thirdAPIServer = "10.98.0.1", "10.98.0.2", "10.98.0.3"
	authorityName                                   = "cluster"
)

var bundleKey = v1alpha1.ConfigMapKey{Namespace: metav1.NamespaceSystem, Name: "client-ca", Key: "ca.crt"}

// startAPIServers starts etcd and two API servers. They are stopped at the end of t.
func startAPIServers(t *testing.T) *apiServers {
	t.Helper()
	a := &apiServers{controlPlane: &controlPlane{dir: os.Getenv(dirVariable), address: firstAPIServer}}
	t.Cleanup(func() {
		if err := errors.Join(a.stop(), exec.Command("ip", "link", "delete", "apiservers").Run(), os.RemoveAll(a.path("etcd"))); err != nil {
			t.Error(err)
		}
	})
	for _, line := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "apiservers", "address", bridgeMAC, "type", "bridge"},
		{"link", "set", "apiservers", "up"},
	} {
		if _, err := run(exec.Command("ip", line...)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(a.certificates(), a.start("etcd", etcdArgs(a.path("etcd")))); err != nil {
		t.Fatal(err)
	}
	a.startOne(t, firstAPIServer)
	if err := waitForAPIServer(t.Context(), a.config); err != nil {
		t.Fatal(err)
	}
	a.startOne(t, secondAPIServer)
	scheme := runtime.NewScheme()
	err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme))
	if err != nil {
		t.Fatal(err)
	}
	if a.admin, err = client.New(a.config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	return a
}

// startOne starts an API server that trusts the signing CA.
func (a *apiServers) startOne(t *testing.T, address string) {
	t.Helper()
	_, err := run(exec.Command("ip", "address", "add", address+"/24", "dev", "apiservers"))
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

func (a *apiServers) until(t *testing.T, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	if err := until(t.Context(), time.Minute, what, done); err != nil {
		t.Fatal(err)
	}
}

func (a *apiServers) get(ctx context.Context, t *testing.T) *v1alpha1.SigningAuthority {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	if err := a.admin.Get(ctx, client.ObjectKey{Name: authorityName}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// ask requests operation, and waits until the manager has accepted it and reconciled again.
func (a *apiServers) ask(t *testing.T, operation v1alpha1.Operation) {
	t.Helper()
	obj := a.get(t.Context(), t)
	patch := client.MergeFrom(obj.DeepCopy())
	metav1.SetMetaDataAnnotation(&obj.ObjectMeta, v1alpha1.OperationAnnotation, string(operation))
	if err := a.admin.Patch(t.Context(), obj, patch); err != nil {
		t.Fatal(err)
	}
	a.until(t, string(operation)+" is taken", func(ctx context.Context) (bool, error) {
		obj := a.get(ctx, t)
		return obj.Annotations[v1alpha1.OperationAnnotation] == "" && !obj.Status.Answered(), nil
	})
}

func (a *apiServers) reaches(t *testing.T, phase v1alpha1.Phase, also func(*v1alpha1.SigningAuthority) bool) (obj *v1alpha1.SigningAuthority) {
	t.Helper()
	a.until(t, fmt.Sprintf("the authority is %s", phase), func(ctx context.Context) (bool, error) {
		obj = a.get(ctx, t)
		if obj.Status.Phase != phase || also != nil && !also(obj) {
			return false, fmt.Errorf("it is %s, waits for %q, and %+v", obj.Status.Phase, obj.Status.WaitingFor, obj.Status.APIServers)
		}
		return true, nil
	})
	return obj
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
