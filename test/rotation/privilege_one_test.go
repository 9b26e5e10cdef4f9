//go:build nightly

package rotation

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// oneManagerConfig switches on what the roles in testdata/one-manager are for.
const oneManagerConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
signing:
  signers:
  - {name: kubernetes.io/kube-apiserver-client, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kube-apiserver-client-kubelet, secret: ` + kit.SystemNamespace + `/csr-signer}
  - {name: kubernetes.io/kubelet-serving, secret: ` + kit.SystemNamespace + `/csr-kubelet-serving-ca}
approval:
  kubeletServing: {enabled: true, clusterDomain: cluster.test}
  nodeClient: {inventory: openshift}
rotation: {enabled: true}
`

// TestLostRightsOfOneManager is TestLostRightsAreNamed for the shipped roles that the four managers cannot have, with all
// controllers in one manager: OpenShift's Machines, an authority of its own for serving certificates, and the static Pod.
func TestLostRightsOfOneManager(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	kit.NewNamespace(t, "kube-node-lease")
	kit.NewNamespace(t, "openshift-machine-api")
	kit.InstallKind(t, kit.Openshift)
	r.bring(t, "csr-signer", r.CA)
	r.bring(t, "csr-kubelet-serving-ca", kit.NewCA(t))

	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.Write(t, file, []byte(oneManagerConfig))
	one := giveRoles(t, "../test/rotation/testdata/one-manager", "csr-controller-manager")[0]
	one.cfg = kit.ServiceAccountConfig(t)
	one.start(t, "--config", file, "--signing-secret=", checkInterval)

	pod := giveRoles(t, "overlays/static-pod", "system:csr-controller-manager")[0]
	user, err := r.Env.AddUser(envtest.User{Name: pod.subject.Name}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod.cfg = user.Config()
	cert, key := filepath.Join(t.TempDir(), "ca.crt"), filepath.Join(t.TempDir(), "ca.key")
	kit.Write(t, cert, r.CA.CertPEM)
	kit.Write(t, key, r.CA.KeyPEM)
	pod.scraper = "joiner-token"
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "test-metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	})
	kit.Grant(t, "joiner", "test-metrics-reader")
	pod.start(t, "--signing-secret=", "--cluster-signing-cert-file="+cert, "--cluster-signing-key-file="+key,
		"--leader-elect-resource-namespace=kube-system", "--metrics-secure", checkInterval)

	for _, h := range []*roleHolder{one, pod} {
		h.Answers(t, h.Probes, "/readyz", http.StatusOK)
		t.Run(h.subject.Name, func(t *testing.T) {
			t.Parallel()
			h.loses(t)
			if h == pod {
				h.losesSecureMetrics(t)
			}
		})
	}
}

// losesSecureMetrics takes the rights to find out who scrapes. Then nobody can read the metrics, so the loss shows in check
// and in the log.
func (h *roleHolder) losesSecureMetrics(t *testing.T) {
	t.Helper()
	for _, right := range []string{"create tokenreviews.authentication.k8s.io", "create subjectaccessreviews.authorization.k8s.io"} {
		before := len(h.Output(t))
		h.take(t, h.find(func(each string) bool { return each == right }))
		kit.Within(t, afterLoss, "the log names the loss", func(context.Context) error {
			if !strings.Contains(h.Output(t)[before:], right) {
				return fmt.Errorf("%q is not in the log", right)
			}
			return nil
		})
	}
}
