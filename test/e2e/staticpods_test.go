//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	staticUser  = "system:csr-controller-manager" // of config/overlays/static-pod
	staticFiles = "/etc/kubernetes/csr-controller-manager"
	pkiDir      = "/etc/kubernetes/pki"
)

// TestStaticPods is step 7. Only a kubelet without a client certificate runs. It starts the API server and the
// manager from files, requests a certificate from the API server, and gets it from the manager.
func TestStaticPods(t *testing.T) {
	plane := &controlPlane{dir: os.Getenv(dirVariable), address: "10.99.0.2"} // the address of the first machine
	if err := errors.Join(plane.addresses(), plane.certificates()); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, plane)
	archives := c.staticArchives(t)
	begin := time.Now()
	m := c.machine(t, "static", archives...)
	if err := errors.Join(c.writeStaticPods(t, m), m.configureKubelet(c.bootstrapConfig(bootstrapToken)), m.startKubelet(kubeletOptions{StaticPods: true, SelfSigned: true})); err != nil {
		t.Fatal(err)
	}
	if err := waitForAPIServer(t.Context(), c.config); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.kubectl(t, "apply", "-k", filepath.Join(root, "config/overlays/static-pod"))
	c.nodeReady(t, m.name)
	for _, name := range []string{"etcd", "kube-apiserver", "csr-controller-manager"} {
		c.podReady(t, metav1.NamespaceSystem, name+"-"+m.name)
	}
	t.Logf("the node is ready after %s", time.Since(begin).Round(time.Second))
	file, cert := m.current(t)
	c.wantIdentity(t, m, file, cert)
	requests, err := c.requestsOf(t.Context(), m.name)
	if err != nil || len(requests) != 1 || issued(&requests[0]) == nil || requests[0].Spec.Username != bootstrapUser {
		t.Errorf("%d requests of the node, want one of %s with a certificate: %v", len(requests), bootstrapUser, err)
	}
}

// staticArchives returns the images of the control plane's programs.
func (c *cluster) staticArchives(t *testing.T) []string {
	t.Helper()
	var paths []string
	for name, image := range map[string]string{"etcd": etcdImage, "kube-apiserver": apiServerImage} {
		path := c.path(filepath.Join("images", name+".tar"))
		if err := writeArchive(path, image, binary(name)); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// writeStaticPods writes the files that kubeadm init would write to a control-plane node, with the manager from its
// overlay.
func (c *cluster) writeStaticPods(t *testing.T, m *machine) error {
	t.Helper()
	who, err := clientPair(c.ca, staticUser)
	if err != nil {
		return err
	}
	manager := c.kubectl(t, "kustomize", filepath.Join(root, "config/overlays/static-pod/pod"))
	files := map[string][]byte{
		filepath.Join(staticPodDir, "etcd.yaml"):           staticPod("etcd", etcdImage, etcdArgs("/data")),
		filepath.Join(staticPodDir, "kube-apiserver.yaml"): staticPod("kube-apiserver", apiServerImage, apiServerArgs(pkiDir, c.address)),
		filepath.Join(staticPodDir, "manager.yaml"):        []byte(manager),
	}
	ours := map[string][]byte{
		filepath.Join(staticFiles, "kubeconfig"): kubeconfig(clientConfig(c.server(), c.ca, who)),
		filepath.Join(staticFiles, "ca.crt"):     c.ca.CertPEM,
		filepath.Join(staticFiles, "ca.key"):     c.ca.KeyPEM,
	}
	var errs []error
	for path, data := range files {
		errs = append(errs, m.write(path, data))
	}
	for path, data := range ours {
		errs = append(errs, m.write(path, data), os.Chown(m.file(path), 65532, 65532))
	}
	return errors.Join(append(errs, writePKI(m.file(pkiDir), c.address, c.ca))...)
}

// staticPod returns the manifest of a static pod of the control plane.
func staticPod(name, image string, args []string) []byte {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceSystem},
		Spec: corev1.PodSpec{
			HostNetwork: true, PriorityClassName: "system-node-critical",
			Containers: []corev1.Container{{
				Name: name, Image: image, ImagePullPolicy: corev1.PullNever, Args: args,
				VolumeMounts: []corev1.VolumeMount{{Name: "pki", MountPath: pkiDir, ReadOnly: true}, {Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "pki", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pkiDir}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	data, err := yaml.Marshal(pod)
	if err != nil {
		panic(err) // it holds nothing that can't be encoded
	}
	return data
}

// podReady waits until a pod is ready.
func (c *cluster) podReady(t *testing.T, in, name string) {
	t.Helper()
	c.until(t, time.Minute, "pod "+name+" is ready", func(ctx context.Context) (bool, error) {
		pod := &corev1.Pod{}
		if err := c.admin.Get(ctx, client.ObjectKey{Namespace: in, Name: name}, pod); err != nil {
			return false, err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, fmt.Errorf("it is %s: %v", pod.Status.Phase, pod.Status.ContainerStatuses)
	})
}
