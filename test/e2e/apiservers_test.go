//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// Several API servers on one etcd, each with its own address and client CA file. The CA that is rotated is the cluster's
// next CA. The administrator's certificate is from the cluster's own CA.
const firstAPIServer, secondAPIServer, thirdAPIServer = "10.98.0.1", "10.98.0.2", "10.98.0.3"

var bundleKey = v1alpha1.ConfigMapKey{Namespace: metav1.NamespaceSystem, Name: "client-ca", Key: "ca.crt"}

// TestAPIServersGetTheBundleLate runs a rotation that waits for API servers that it finds by the endpoints of the
// Service kubernetes. One of two gets the bundle late, and a third is added when all seemed to trust it.
func TestAPIServersGetTheBundleLate(t *testing.T) {
	c := newCluster(t, firstAPIServer)
	c.certificates(t)
	c.start(t, "etcd", "etcd", etcdArgs(c.path("etcd"))...)
	c.startOne(t, firstAPIServer)
	c.waitForAPIServer(t)
	c.startOne(t, secondAPIServer)
	c.runRotation(t)
	c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
	c.ask(t, authorityName, v1alpha1.OperationStart)
	c.waitsFor(t, firstAPIServer, secondAPIServer)
	both := c.published(t)
	c.trusts(t, firstAPIServer, both)
	if trust := trustOf(c.waitsFor(t, secondAPIServer)); trust[firstAPIServer] != "Recognised" || trust[secondAPIServer] != "Refused" {
		t.Errorf("the API servers are %v", trust)
	}
	c.trusts(t, secondAPIServer, both)
	c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(s *status) bool {
		trust := trustOf(s)
		return trust[firstAPIServer] == "Recognised" && trust[secondAPIServer] == "Recognised"
	})

	c.startOne(t, thirdAPIServer) // with the CA that signed when its host was set up
	c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(s *status) bool {
		return trustOf(s)[thirdAPIServer] == "Refused" && slices.ContainsFunc(s.Conditions, func(one metav1.Condition) bool {
			return one.Type == v1alpha1.ConditionTrusted && one.Status == metav1.ConditionFalse && strings.Contains(one.Message, thirdAPIServer)
		})
	})
	for _, operation := range []v1alpha1.Operation{v1alpha1.OperationAttest, v1alpha1.OperationAccept, v1alpha1.OperationComplete} {
		c.ask(t, authorityName, operation)
		c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, nil)
	}
	c.trusts(t, thirdAPIServer, both)
	until(t, time.Minute, "it begins to complete", func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		if err := c.admin.Get(ctx, client.ObjectKey{Name: authorityName}, obj); err != nil || obj.Status.Phase == v1alpha1.Completing {
			return true, err
		}
		c.ask(t, authorityName, v1alpha1.OperationComplete)
		return false, nil
	})
	for _, address := range []string{firstAPIServer, secondAPIServer, thirdAPIServer} {
		c.reaches(t, authorityName, time.Minute, v1alpha1.Completing, func(s *status) bool {
			return strings.Contains(strings.Join(s.WaitingFor, "\n"), thirdAPIServer+":443: ")
		})
		c.trusts(t, address, c.published(t))
	}
	c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
}

// trustOf returns the answers of the API servers, by their addresses.
func trustOf(s *status) map[string]string {
	trust := map[string]string{}
	for _, one := range s.APIServers {
		trust[strings.TrimSuffix(one.Address, ":443")] = one.Trust
	}
	return trust
}

// waitsFor waits until the authority waits for exactly these API servers.
func (c *cluster) waitsFor(t *testing.T, addresses ...string) *status {
	t.Helper()
	return c.reaches(t, authorityName, time.Minute, v1alpha1.Preparing, func(s *status) bool {
		return len(s.WaitingFor) == len(addresses) && !slices.ContainsFunc(addresses, func(address string) bool {
			return !slices.ContainsFunc(s.WaitingFor, func(one string) bool { return strings.HasPrefix(one, address+":443: ") })
		})
	})
}

// startOne starts an API server that trusts the signing CA.
func (c *cluster) startOne(t *testing.T, address string) {
	t.Helper()
	mustRun(t, exec.Command("ip", "address", "add", address+"/24", "dev", "machines"))
	pki := c.path("pki-" + address)
	writePKI(t, pki, address, c.ca, c.next)
	c.start(t, "kube-apiserver-"+address, "kube-apiserver", append(apiServerArgs(pki, address), "--bind-address="+address)...)
}

// trusts sets the client CA file of the API server at address to bundle and its administrator's CA.
func (c *cluster) trusts(t *testing.T, address string, bundle []byte) {
	t.Helper()
	file := filepath.Join(c.path("pki-"+address), "client-ca.crt")
	kit.Write(t, file+".part", slices.Concat(c.ca.CertPEM, bundle))
	kit.NoError(t, os.Rename(file+".part", file))
}

// published returns the published bundle.
func (c *cluster) published(t *testing.T) []byte {
	t.Helper()
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: bundleKey.Namespace, Name: bundleKey.Name}}
	c.get(t, obj)
	return []byte(obj.Data[bundleKey.Key])
}

// runRotation creates an authority whose API servers are the endpoints of the Service kubernetes, and runs its
// controller.
func (c *cluster) runRotation(t *testing.T) {
	t.Helper()
	crds := envtest.CRDInstallOptions{Paths: []string{"../../config/crd/csr-controller-manager.io_signingauthorities.yaml"}, ErrorIfPathMissing: true}
	_, err := envtest.InstallCRDs(c.config, crds)
	kit.NoError(t, err)
	secret := kit.SigningSecret(c.next.CertPEM, c.next.KeyPEM)
	secret.Namespace = metav1.NamespaceSystem
	kit.NoError(t, c.admin.Create(t.Context(), secret))
	kit.NoError(t, c.admin.Create(t.Context(), &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: authorityName},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:       v1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name},
			Signers:      []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName},
			Trust:        v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{bundleKey}},
			Verification: v1alpha1.Verification{SettleFor: &metav1.Duration{Duration: 2 * time.Second}},
		},
	}))
	unnamed := true
	mgr, err := manager.New(c.config, manager.Options{
		Scheme: kit.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &unnamed},
	})
	kit.NoError(t, err)
	kit.NoError(t, controllers.Options{Rotation: &rotation.Reconciler{}}.SetupWithManager(mgr))
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
