//go:build e2e

package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
)

const (
	kubeconfigPath = "/etc/kubernetes/kubelet.conf"
	bootstrapPath  = "/etc/kubernetes/bootstrap-kubelet.conf"
	staticPodDir   = "/etc/kubernetes/manifests"
	currentPath    = "/var/lib/kubelet/pki/kubelet-client-current.pem"
)

// kubeletConfig leaves out what a machine in namespaces can't do. %[1]v is whether the client certificate is rotated, and
// %[2]s the cgroup.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
rotateCertificates: %[1]v
staticPodPath: ` + staticPodDir + `
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /%[2]s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
resolvConf: ""
evictionHard: {memory.available: 50Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
`

// kubeletOptions say how a kubelet is started.
type kubeletOptions struct {
	// Binary is the kubelet's path; empty is the control plane's version.
	Binary string
	// KeepCertificate turns the rotation of the client certificate off. The kubelet then also bootstraps in the way that
	// finds its request again after a restart.
	KeepCertificate bool
}

// configureKubelet writes the CA and a kubeconfig, which is one to bootstrap with if its user has a token.
func (m *machine) configureKubelet(config *rest.Config) error {
	path := kubeconfigPath
	if config.BearerToken != "" {
		path = bootstrapPath
	}
	return errors.Join(m.write("/etc/kubernetes/pki/ca.crt", config.CAData), m.write(path, kubeconfig(config)))
}

// startKubelet starts the kubelet, again if it has run before.
func (m *machine) startKubelet(options kubeletOptions) (err error) {
	if options.Binary == "" {
		options.Binary = binary("kubelet")
	}
	err = m.write("/var/lib/kubelet/config.yaml", fmt.Appendf(nil, kubeletConfig, !options.KeepCertificate, m.cgroup()))
	if err != nil {
		return err
	}
	m.kubelet, err = startProcess(m.dir, m.name+"-kubelet", m.command(options.Binary,
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig="+kubeconfigPath, "--bootstrap-kubeconfig="+bootstrapPath,
		"--hostname-override="+m.name, "--node-ip="+m.address))
	return err
}

// certificate is the client certificate that its kubelet uses, or an error that says that there is none.
func (m *machine) certificate() (*x509.Certificate, error) {
	data, err := os.ReadFile(m.file(currentPath))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s of %s holds no PEM", currentPath, m.name)
	}
	return x509.ParseCertificate(block.Bytes)
}
