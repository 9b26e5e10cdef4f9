//go:build e2e

package e2e

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	kubeconfigPath = "/etc/kubernetes/kubelet.conf"
	bootstrapPath  = "/etc/kubernetes/bootstrap-kubelet.conf"
	staticPodDir   = "/etc/kubernetes/manifests"
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

// bootstrapConfig returns a client configuration with a bootstrap token.
func (c *cluster) bootstrapConfig(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.QPS = token, -1
	return config
}

// join starts a kubelet on its own machine, with only the bootstrap token.
func (c *cluster) join(t *testing.T, name string, options kubeletOptions) *machine {
	t.Helper()
	m := c.machine(t, name)
	m.firstKubelet(t, c.bootstrapConfig(bootstrapToken), options)
	return m
}

// firstKubelet writes the CA and a kubeconfig, and starts a kubelet. The kubeconfig is for the bootstrap if its user has a token.
func (m *machine) firstKubelet(t *testing.T, config *rest.Config, options kubeletOptions) {
	t.Helper()
	path := kubeconfigPath
	if config.BearerToken != "" {
		path = bootstrapPath
	}
	m.write(t, "/etc/kubernetes/pki/ca.crt", config.CAData)
	m.write(t, path, kubeconfig(config))
	m.startKubelet(t, options)
}

func (m *machine) startKubelet(t *testing.T, options kubeletOptions) {
	t.Helper()
	config := fmt.Appendf(nil, kubeletConfig, !options.KeepCertificate, !options.SelfSigned, m.cgroup())
	if options.StaticPods {
		config = fmt.Appendf(config, "staticPodPath: %s\n", staticPodDir)
	}
	m.write(t, "/var/lib/kubelet/config.yaml", config)
	m.kubelet = startProcess(t, m.dir, m.name+"-kubelet", m.command(cmp.Or(options.Binary, binary("kubelet")),
		"--config=/var/lib/kubelet/config.yaml", "--kubeconfig="+kubeconfigPath, "--bootstrap-kubeconfig="+bootstrapPath,
		"--hostname-override="+m.name, "--node-ip="+cmp.Or(options.Address, m.address)))
}

// restartKubelet restarts the kubelet as systemctl restart does.
func (m *machine) restartKubelet(t *testing.T, options kubeletOptions) {
	t.Helper()
	kit.NoError(t, m.kubelet.end(syscall.SIGTERM))
	m.startKubelet(t, options)
}

// certificate returns the file that the kubelet's kubeconfig names, and the client certificate in it.
func (m *machine) certificate() (file []byte, cert *x509.Certificate, err error) {
	text, err := run(m.command("cat", "/var/lib/kubelet/pki/kubelet-client-current.pem"))
	if err != nil {
		return nil, nil, err
	}
	both, err := tls.X509KeyPair([]byte(text), []byte(text))
	return []byte(text), both.Leaf, err
}

// current is certificate for a kubelet that must have one.
func (m *machine) current(t *testing.T) ([]byte, *x509.Certificate) {
	t.Helper()
	file, cert, err := m.certificate()
	kit.NoError(t, err)
	return file, cert
}

// kubeletID returns the process ID of the kubelet on the machine.
func (m *machine) kubeletID(t *testing.T) string {
	t.Helper()
	id := m.must(t, "sh", "-c", `for one in /proc/[0-9]*; do [ "$(cat $one/comm 2>/dev/null)" != kubelet ] || echo ${one#/proc/}; done`)
	if id == "" {
		t.Fatalf("no kubelet runs on %s", m.name)
	}
	return id
}
