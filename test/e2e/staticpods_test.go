//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	// staticUser and staticFiles are those of config/overlays/static-pod.
	staticUser, staticFiles = "system:csr-controller-manager", "/etc/kubernetes/csr-controller-manager"
	pkiDir                  = "/etc/kubernetes/pki"
	// firstMachine is the address of the first machine.
	firstMachine = "10.99.0.2"
)

// TestStaticPods runs only a kubelet without a client certificate. It starts the API server and the manager from files,
// requests a certificate from the API server, and gets it from the manager.
func TestStaticPods(t *testing.T) {
	c := newCluster(t, firstMachine)
	c.certificates(t)
	var archives []string
	for name, image := range map[string]string{"etcd": etcdImage, "kube-apiserver": apiServerImage} {
		archives = append(archives, c.path(filepath.Join("images", name+".tar")))
		kit.NoError(t, writeArchive(archives[len(archives)-1], image, binary(name)))
	}
	m := c.machine(t, "static", archives...)
	c.writeStaticPods(t, m)
	m.firstKubelet(t, c.bootstrapConfig(bootstrapToken), kubeletOptions{StaticPods: true, SelfSigned: true})
	c.waitForAPIServer(t)
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.kubectl(t, "apply", "-k", filepath.Join(root, "config/overlays/static-pod"))
	c.nodeReady(t, m.name)
	for _, name := range []string{"etcd", "kube-apiserver", "csr-controller-manager"} {
		c.podReady(t, metav1.NamespaceSystem, name+"-"+m.name)
	}
	file, cert := m.current(t)
	c.wantIdentity(t, m, file, cert)
	requests := kit.Must(c.requestsOf(t.Context(), m.name))(t)
	kit.Check(t, len(requests) == 1 && issued(&requests[0]) != nil && requests[0].Spec.Username == bootstrapUser,
		"requests of the node: %+v, want one of %s with a certificate", requests, bootstrapUser)
}

// writeStaticPods writes the files that kubeadm init would write to a control-plane node, with the manager from its
// overlay.
func (c *cluster) writeStaticPods(t *testing.T, m *machine) {
	writePKI(t, m.file(pkiDir), c.address, c.ca)
	m.write(t, staticPodDir+"/etcd.yaml", staticPod(t, "etcd", etcdImage, etcdArgs("/data")))
	m.write(t, staticPodDir+"/kube-apiserver.yaml", staticPod(t, "kube-apiserver", apiServerImage, apiServerArgs(pkiDir, c.address)))
	m.write(t, staticPodDir+"/manager.yaml", []byte(c.kubectl(t, "kustomize", filepath.Join(root, "config/overlays/static-pod/pod"))))
	for name, data := range map[string][]byte{
		"kubeconfig": kit.Must(testcluster.Kubeconfig(clientConfig(c.server(), c.ca, clientPair(t, c.ca, staticUser))))(t),
		"ca.crt":     c.ca.CertPEM,
		"ca.key":     c.ca.KeyPEM,
	} {
		m.write(t, filepath.Join(staticFiles, name), data)
		kit.NoError(t, os.Chown(m.file(filepath.Join(staticFiles, name)), 65532, 65532))
	}
}

func staticPod(t *testing.T, name, image string, args []string) []byte {
	t.Helper()
	return kit.Must(yaml.Marshal(&corev1.Pod{
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
	}))(t)
}
