//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

const (
	controlPlaneAddress = "10.99.0.1"
	serviceAddress      = "10.0.0.1" // of the Service kubernetes, the first of serviceRange
	serviceRange        = "10.0.0.0/16"
)

// controlPlane is etcd, kube-apiserver, kube-controller-manager without its CSR loops, and kube-scheduler.
type controlPlane struct {
	dir     string
	address string // of the API server
	// ca is the cluster's CA, which also signs the API server's certificate. next is another CA that the API server
	// trusts for clients.
	ca, next  *csrenv.CA
	config    *rest.Config // of an administrator
	kubeletCA string       // the file with which the API server verifies kubelets

	processes []*process
}

// startControlPlane starts a control plane in these namespaces, which have no addresses yet.
func startControlPlane(ctx context.Context, dir string) (*controlPlane, error) {
	c := &controlPlane{dir: dir, address: controlPlaneAddress, kubeletCA: filepath.Join(dir, "pki/client-ca.crt")} // both CAs
	if err := errors.Join(c.addresses(), c.certificates()); err != nil {
		return nil, err
	}
	if err := c.start("etcd", etcdArgs(c.path("etcd"))); err != nil {
		return nil, err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return nil, err
	}
	return c, errors.Join(
		c.start("kube-controller-manager", []string{
			"--controllers=*,-csrapproving,-csrsigning,-csrcleaner",
			"--kubeconfig=" + c.path("kube-controller-manager.kubeconfig"),
			"--leader-elect=false", "--secure-port=0", "--use-service-account-credentials",
			"--service-account-private-key-file=" + c.path("pki/sa.key"), "--root-ca-file=" + c.path("pki/ca.crt"),
		}),
		c.start("kube-scheduler", []string{
			"--kubeconfig=" + c.path("kube-scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0",
		}))
}

// startAPIServer starts the API server, and waits until it is ready.
func (c *controlPlane) startAPIServer(ctx context.Context) error {
	err := c.start("kube-apiserver", append(apiServerArgs(c.path("pki"), c.address),
		"--kubelet-certificate-authority="+c.kubeletCA,
		"--audit-policy-file=manifests/audit-policy.yaml", "--audit-log-path="+c.path("audit.log")))
	if err != nil {
		return err
	}
	return waitForAPIServer(ctx, c.config)
}

// restartAPIServer kills the API server and starts it again.
func (c *controlPlane) restartAPIServer(ctx context.Context) error {
	i := slices.IndexFunc(c.processes, func(p *process) bool { return p.name == "kube-apiserver" })
	if err := c.processes[i].kill(); err != nil {
		return err
	}
	c.processes = slices.Delete(c.processes, i, i+1)
	return c.startAPIServer(ctx)
}

// server returns the API server's URL.
func (c *controlPlane) server() string { return "https://" + c.address + ":443" }

func (c *controlPlane) path(name string) string { return filepath.Join(c.dir, name) }

func (c *controlPlane) start(name string, args []string) error {
	p, err := startProcess(c.dir, name, exec.Command(binary(name), args...))
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return err
}

// stop stops the whole control plane.
func (c *controlPlane) stop() error {
	var errs []error
	for _, p := range slices.Backward(c.processes) {
		errs = append(errs, p.kill())
	}
	return errors.Join(errs...)
}

// bridgeMAC is the address of a bridge. A bridge without one takes the lowest of its ports, so its address changes when a
// machine is added, and the others lose the control plane until their ARP entries expire.
const bridgeMAC = "02:00:00:00:00:01"

// addresses adds the control plane's addresses to these namespaces, and a bridge for the machines' veth pairs.
func (c *controlPlane) addresses() error {
	for _, line := range [][]string{
		{"link", "set", "lo", "up"},
		{"address", "replace", serviceAddress + "/32", "dev", "lo"},
		{"link", "add", "machines", "address", bridgeMAC, "type", "bridge"},
		{"address", "add", controlPlaneAddress + "/24", "dev", "machines"},
		{"link", "set", "machines", "up"},
	} {
		if _, err := run(exec.Command("ip", line...)); err != nil {
			return err
		}
	}
	return nil
}

func etcdArgs(dataDir string) []string {
	return []string{"--data-dir=" + dataDir, "--unsafe-no-fsync", "--log-level=warn"}
}

// apiServerArgs returns the arguments of an API server whose keys and certificates are in pki.
func apiServerArgs(pki, address string) []string {
	in := func(name string) string { return filepath.Join(pki, name) }
	return []string{
		"--etcd-servers=http://127.0.0.1:2379", "--secure-port=443", "--advertise-address=" + address,
		"--tls-cert-file=" + in("apiserver.crt"), "--tls-private-key-file=" + in("apiserver.key"),
		"--client-ca-file=" + in("client-ca.crt"),
		"--kubelet-client-certificate=" + in("kubelet-client.crt"), "--kubelet-client-key=" + in("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--enable-bootstrap-token-auth=true", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + in("sa.key"),
		"--service-account-signing-key-file=" + in("sa.key"), "--service-cluster-ip-range=" + serviceRange,
	}
}

// certificates makes the keys and certificates that kubeadm init makes, and the client configurations.
func (c *controlPlane) certificates() (err error) {
	if c.ca, err = csrenv.NewCA(); err != nil {
		return err
	}
	if c.next, err = csrenv.NewCA(); err != nil {
		return err
	}
	if err := writePKI(c.path("pki"), c.address, c.ca, c.next); err != nil {
		return err
	}
	for user, groups := range map[string][]string{
		"admin":                          {"system:masters"},
		"system:kube-controller-manager": nil,
		"system:kube-scheduler":          nil,
	} {
		who, err := clientPair(c.ca, user, groups...)
		if err != nil {
			return err
		}
		config := clientConfig(c.server(), c.ca, who)
		if user == "admin" {
			c.config = config
		}
		if err := os.WriteFile(c.path(strings.TrimPrefix(user, "system:")+".kubeconfig"), kubeconfig(config), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// writePKI writes the files that an API server at address needs. The API server also trusts clients of the CAs in
// more.
func writePKI(dir, address string, ca *csrenv.CA, more ...*csrenv.CA) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	serving, err := issue(ca, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP(address), net.ParseIP(serviceAddress), net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return err
	}
	kubelet, err := clientPair(ca, "kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serviceAccounts, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	trusted := slices.Clone(ca.CertPEM)
	for _, one := range more {
		trusted = append(trusted, one.CertPEM...)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	return errors.Join(
		serving.write(in("apiserver")), kubelet.write(in("kubelet-client")), pair{ca.CertPEM, ca.KeyPEM}.write(in("ca")),
		os.WriteFile(in("client-ca.crt"), trusted, 0o600), os.WriteFile(in("sa.key"), serviceAccounts, 0o600))
}

func clientConfig(server string, ca *csrenv.CA, who pair) *rest.Config {
	return &rest.Config{
		Host: server, QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.CertPEM, CertData: who.cert, KeyData: who.key},
	}
}

// kubeconfig returns config as the content of a kubeconfig.
func kubeconfig(config *rest.Config) []byte {
	const self = "e2e"
	file := clientcmdapi.NewConfig()
	file.Clusters[self] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos[self] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	file.Contexts[self] = &clientcmdapi.Context{Cluster: self, AuthInfo: self}
	file.CurrentContext = self
	data, err := clientcmd.Write(*file)
	if err != nil {
		panic(err) // it holds nothing that can't be encoded
	}
	return data
}

// waitForAPIServer waits until the API server has created the default objects of a cluster.
func waitForAPIServer(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	return until(ctx, time.Minute, "the API server is ready", func(ctx context.Context) (bool, error) {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, err
	})
}
