//go:build e2e

package e2e

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"testing"

	"k8s.io/client-go/rest"
)

const (
	kubeconfigPath = "/etc/kubernetes/kubelet.conf"
	bootstrapPath  = "/etc/kubernetes/bootstrap-kubelet.conf"
	staticPodDir   = "/etc/kubernetes/manifests"
	currentPath    = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// kubeletConfig leaves out what a machine in namespaces can't do. %[1]v is whether the client certificate is rotated,
// %[2]v whether the serving certificate is requested, and %[3]s the cgroup.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
rotateCertificates: %[1]v
serverTLSBootstrap: %[2]v
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%[3]s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: ""
syncFrequency: 10s
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
`

// kubeletOptions configure a kubelet.
type kubeletOptions struct {
	// Binary is the kubelet's path. Empty means the control plane's version.
	Binary string
	// KeepCertificate disables the rotation of the client certificate. The kubelet then also uses the bootstrap that
	// finds its request again after a restart.
	KeepCertificate bool
	// SelfSigned lets the kubelet sign its serving certificate itself, as it does by default.
	SelfSigned bool
	// Address is the address that its Node reports, if it is not the machine's.
	Address string
	// StaticPods lets the kubelet run the pods in the folder for static pods.
	StaticPods bool
}

// configureKubelet writes the CA and a kubeconfig. The kubeconfig is for the bootstrap if its user has a token.
func (m *machine) configureKubelet(config *rest.Config) error {
	path := kubeconfigPath
	if config.BearerToken != "" {
		path = bootstrapPath
	}
	return errors.Join(m.write("/etc/kubernetes/pki/ca.crt", config.CAData), m.write(path, kubeconfig(config)))
}

// startKubelet starts the kubelet, or restarts it.
func (m *machine) startKubelet(options kubeletOptions) (err error) {
	if options.Binary == "" {
		options.Binary = binary("kubelet")
	}
	config := fmt.Appendf(nil, kubeletConfig, !options.KeepCertificate, !options.SelfSigned, m.cgroup())
	if options.StaticPods {
		config = fmt.Appendf(config, "staticPodPath: %s\n", staticPodDir)
	}
	if err := m.write("/var/lib/kubelet/config.yaml", config); err != nil {
		return err
	}
	m.kubelet, err = startProcess(m.dir, m.name+"-kubelet", m.command(options.Binary,
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig="+kubeconfigPath, "--bootstrap-kubeconfig="+bootstrapPath,
		"--hostname-override="+m.name, "--node-ip="+cmp.Or(options.Address, m.address)))
	return err
}

// certificateFile returns the file that the kubelet's kubeconfig names: the client certificate in use, and its key.
func (m *machine) certificateFile() ([]byte, error) {
	data, err := run(m.command("cat", currentPath))
	return []byte(data), err
}

// certificate returns the client certificate that the kubelet uses.
func (m *machine) certificate() (*x509.Certificate, error) {
	data, err := m.certificateFile()
	if err != nil {
		return nil, err
	}
	both, err := tls.X509KeyPair(data, data)
	return both.Leaf, err
}

// kubeletID returns the process ID of the kubelet on the machine.
func (m *machine) kubeletID(t *testing.T) string {
	t.Helper()
	const script = `for one in /proc/[0-9]*; do [ "$(cat $one/comm 2>/dev/null)" != kubelet ] || echo ${one#/proc/}; done`
	id, err := run(m.command("sh", "-c", script))
	if err != nil || id == "" {
		t.Fatalf("no kubelet runs on %s: %v", m.name, err)
	}
	return id
}
