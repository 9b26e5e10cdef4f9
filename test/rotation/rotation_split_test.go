package rotation

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestRotationSplit rotates with config/overlays/split and its component rotation. Signer and rotation are two
// processes, each with the flags of its Deployment and a token of its ServiceAccount. The rights of these must be
// enough.
func TestRotationSplit(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.bring(t, "csr-signer", r.CA)
	for _, obj := range kit.Rendered(t, "../test/manifests/testdata/split-rotation") {
		if err := r.admin.Create(t.Context(), obj); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	as, err := client.New(r.accountConfig(t, "csr-rotation"), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the roles hold", func(ctx context.Context) error {
		return as.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-signer"}, &corev1.Secret{})
	})
	processes := []*cluster.Process{r.startDeployed(t, "csr-signer"), r.startDeployed(t, "csr-rotation")}
	r.authority(t, "cluster", "csr-signer", func(spec *v1alpha1.SigningAuthoritySpec) {
		spec.Trust.ConfigMaps = []v1alpha1.ConfigMapKey{{Namespace: kit.SystemNamespace, Name: "csr-trust"}}
	})
	old := r.reaches(t, "cluster", v1alpha1.Completed, nil).Status.Signing
	r.user(t, "before", old)
	r.does(t, "cluster", v1alpha1.OperationAttest)

	r.ask(t, "cluster", v1alpha1.OperationStart)
	r.trustPublished(t, 2)
	prepared := r.reaches(t, "cluster", v1alpha1.Prepared, nil).Status
	after := r.user(t, "after", prepared.Signing)
	r.does(t, "cluster", v1alpha1.OperationComplete)
	r.tells(t, "cluster", "RotationRefused", "certificates of kubernetes.io/kube-apiserver-client from the CA "+old.KeyID+" are valid until") // by the ledger
	r.does(t, "cluster", v1alpha1.OperationAccept)
	r.completes(t, "cluster")
	r.trustPublished(t, 1)
	r.reaches(t, "cluster", v1alpha1.Completed, nil)
	r.isTakenFor(t, after, "after")
	if bytes.Contains(r.secret(t, "csr-signer").Data["tls.key"], r.CA.KeyPEM) {
		t.Error("the Secret still holds the old key")
	}
	for _, p := range processes {
		log, err := p.Log()
		if err != nil || strings.Contains(log, "forbidden") || !strings.Contains(log, `"check":"own-rights","result":"ok"`) {
			t.Errorf("error %v; the log:\n%s", err, log)
		}
	}
}

// trustPublished waits until that many CAs are published, and adds them to the API server's client CAs.
func (r *rotating) trustPublished(t *testing.T, count int) {
	t.Helper()
	obj := &corev1.ConfigMap{}
	kit.Eventually(t, "the bundle is published", func(ctx context.Context) error {
		if err := r.admin.Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-trust"}, obj); err != nil {
			return err
		}
		if strings.Count(obj.Data["ca.crt"], "BEGIN CERTIFICATE") != count {
			return errors.New(obj.Data["ca.crt"])
		}
		return nil
	})
	if err := r.trust([]byte(obj.Data["ca.crt"])); err != nil {
		t.Fatal(err)
	}
}

// startDeployed runs the program of a Deployment as its ServiceAccount.
func (r *rotating) startDeployed(t *testing.T, name string) *cluster.Process {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: name}, deployment); err != nil {
		t.Fatal(err)
	}
	pod := deployment.Spec.Template.Spec
	source := &corev1.ConfigMap{}
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: pod.Volumes[0].ConfigMap.Name}, source); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(source.Data["config.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := r.WriteKubeconfig(name, r.accountConfig(t, pod.ServiceAccountName))
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--kubeconfig", kubeconfig, "--leader-elect-resource-namespace", kit.SystemNamespace,
		"--health-probe-bind-address", kit.FreeAddress(t), "--metrics-bind-address", kit.FreeAddress(t),
	}
	for _, arg := range pod.Containers[0].Args {
		args = append(args, strings.Replace(arg, pod.Containers[0].VolumeMounts[0].MountPath, dir, 1))
	}
	p, err := r.StartProcess(name, path, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("the end of %s's log:\n%s", name, p.Tail(60))
		}
	})
	return p
}

// accountConfig returns a configuration for a ServiceAccount.
func (r *rotating) accountConfig(t *testing.T, name string) *rest.Config {
	t.Helper()
	return kit.AccountConfig(t, r.Config, r.admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: name}})
}
