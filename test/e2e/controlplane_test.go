//go:build e2e

package e2e

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	controlPlaneAddress = "10.99.0.1"
	serviceAddress      = "10.0.0.1" // of the Service kubernetes, the first of serviceRange
	serviceRange        = "10.0.0.0/16"
	// bridgeMAC is the address of the bridge. A bridge without one takes the lowest of its ports, so its address changes when
	// a machine is added, and the others lose the control plane until their ARP entries expire.
	bridgeMAC = "02:00:00:00:00:01"
)

func (c *cluster) server() string { return "https://" + c.address + ":443" }

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) start(t *testing.T, name, program string, args ...string) {
	t.Helper()
	c.processes = append(c.processes, startProcess(t, c.dir, name, exec.Command(binary(program), args...)))
}

// startAPIServer starts the API server, and waits until it has created the default objects of a cluster.
func (c *cluster) startAPIServer(t *testing.T) {
	c.start(t, "kube-apiserver", "kube-apiserver", append(apiServerArgs(c.path("pki"), c.address), "--kubelet-certificate-authority="+c.kubeletCA,
		"--audit-policy-file=manifests/audit-policy.yaml", "--audit-log-path="+c.path("audit.log"))...)
	c.waitForAPIServer(t)
}

func (c *cluster) waitForAPIServer(t *testing.T) {
	t.Helper()
	client := kubernetes.NewForConfigOrDie(c.config).Discovery().RESTClient()
	kit.Within(t, time.Minute, "the API server is ready", func(ctx context.Context) error {
		return client.Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *cluster) restartAPIServer(t *testing.T) {
	i := slices.IndexFunc(c.processes, func(p *process) bool { return p.name == "kube-apiserver" })
	c.processes[i].kill(t)
	c.processes = slices.Delete(c.processes, i, i+1)
	c.startAPIServer(t)
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

// certificates makes the keys and certificates that kubeadm init makes, the client configurations, and the clients.
func (c *cluster) certificates(t *testing.T) {
	c.ca, c.next = kit.NewCA(t), kit.NewCA(t)
	writePKI(t, c.path("pki"), c.address, c.ca, c.next)
	kubeconfig := func(file, user string, groups ...string) *rest.Config {
		config := clientConfig(c.server(), c.ca, clientPair(t, c.ca, user, groups...))
		kit.Write(t, c.path(file), kit.Must(testcluster.Kubeconfig(config))(t))
		return config
	}
	kubeconfig("kube-controller-manager.kubeconfig", "system:kube-controller-manager")
	kubeconfig("kube-scheduler.kubeconfig", "system:kube-scheduler")
	c.config = kubeconfig("admin.kubeconfig", "admin", "system:masters")
	c.admin = newAdmin(t, c.config)
}

// writePKI writes the files that an API server at address needs. The API server also trusts clients of the CAs in
// more.
func writePKI(t *testing.T, dir, address string, ca *csrenv.CA, more ...*csrenv.CA) {
	kit.NoError(t, os.MkdirAll(dir, 0o700))
	trusted := slices.Clone(ca.CertPEM)
	for _, one := range more {
		trusted = append(trusted, one.CertPEM...)
	}
	kit.Write(t, filepath.Join(dir, "client-ca.crt"), trusted)
	kit.Write(t, filepath.Join(dir, "sa.key"), kit.Must(keyutil.MarshalPrivateKeyToPEM(kit.NewKey(t)))(t))
	for name, one := range map[string]pair{
		"ca":             {ca.CertPEM, ca.KeyPEM},
		"kubelet-client": clientPair(t, ca, "kube-apiserver-kubelet-client", "system:masters"),
		"apiserver": issue(t, ca, &x509.Certificate{
			Subject:     pkix.Name{CommonName: "kube-apiserver"},
			DNSNames:    []string{"localhost", "kubernetes.default.svc"},
			IPAddresses: []net.IP{net.ParseIP(address), net.ParseIP(serviceAddress), net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		}),
	} {
		kit.Write(t, filepath.Join(dir, name+".crt"), one.cert)
		kit.Write(t, filepath.Join(dir, name+".key"), one.key)
	}
}

// pair is a certificate and its key, in PEM.
type pair struct{ cert, key []byte }

// file returns both in one file, as a kubelet has them.
func (p pair) file() []byte { return slices.Concat(p.cert, p.key) }

// issue signs a certificate directly with the CA's key, as kubeadm init does for the control plane.
func issue(t *testing.T, ca *csrenv.CA, template *x509.Certificate) pair {
	parent := kit.Must(tls.X509KeyPair(ca.CertPEM, ca.KeyPEM))(t)
	key := kit.NewKey(t)
	template.SerialNumber, template.KeyUsage = big.NewInt(time.Now().UnixNano()), x509.KeyUsageDigitalSignature
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der := kit.Must(x509.CreateCertificate(rand.Reader, template, parent.Leaf, key.Public(), parent.PrivateKey.(crypto.Signer)))(t)
	return pair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), kit.Must(keyutil.MarshalPrivateKeyToPEM(key))(t)}
}

func clientPair(t *testing.T, ca *csrenv.CA, user string, groups ...string) pair {
	t.Helper()
	return issue(t, ca, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func clientConfig(server string, ca *csrenv.CA, who pair) *rest.Config {
	return &rest.Config{
		Host: server, QPS: -1, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{CAData: ca.CertPEM, CertData: who.cert, KeyData: who.key},
	}
}
