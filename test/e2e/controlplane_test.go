//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
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

// requestFor returns a kubelet's request of that name for the node of that name.
func requestFor(t *testing.T, name string) *kit.Request {
	t.Helper()
	return kit.NodeRequest(t, name, func(obj *kit.Request) { obj.Name = name })
}

func (c *cluster) requestsOf(ctx context.Context, node string) ([]kit.Request, error) {
	return c.requestsTo(ctx, certificatesv1.KubeAPIServerClientKubeletSignerName, node)
}

func (c *cluster) requestsTo(ctx context.Context, signer, node string) ([]kit.Request, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	err := c.admin.List(ctx, list)
	var found []kit.Request
	for _, obj := range list.Items {
		req, parsed := csr.Parse(&obj)
		if parsed != nil {
			return nil, parsed
		}
		if req.SignerName == signer && req.Cert.Subject.CommonName == "system:node:"+node {
			found = append(found, obj)
		}
	}
	return found, err
}

func issued(obj *kit.Request) *x509.Certificate {
	certs, err := cert.ParseCertsPEM(obj.Status.Certificate)
	if err != nil {
		return nil // it has none: the API server accepts no other one
	}
	return certs[0]
}

// hasEvent reports whether there is an Event with that reason about an object, with part in its note.
func (c *cluster) hasEvent(ctx context.Context, obj client.Object, reason, part string) (bool, error) {
	events := &eventsv1.EventList{}
	err := c.admin.List(ctx, events, client.InNamespace(metav1.NamespaceDefault))
	return slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
		return event.Regarding.UID == obj.GetUID() && event.Reason == reason && strings.Contains(event.Note, part)
	}), err
}

func (c *cluster) whoAmI(ctx context.Context, certAndKey []byte) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(c.config)
	config.CertData, config.KeyData = certAndKey, certAndKey
	return kubelet.WhoAmI(ctx, config)
}

func (c *cluster) wantUnauthorized(t *testing.T, what string, certAndKey []byte) {
	t.Helper()
	who, err := c.whoAmI(t.Context(), certAndKey)
	kit.Check(t, apierrors.IsUnauthorized(err), "with %s the API server takes one for %q: %v, want Unauthorized", what, who.Username, err)
}

// wantIdentity checks that the API server identifies the holder of cert as the node, by exactly that certificate.
func (c *cluster) wantIdentity(t *testing.T, m *machine, file []byte, cert *x509.Certificate) {
	t.Helper()
	who := kit.Must(c.whoAmI(t.Context(), file))(t)
	found, id := who.Extra["authentication.kubernetes.io/credential-id"], fmt.Sprintf("X509SHA256=%x", sha256.Sum256(cert.Raw))
	kit.Check(t, who.Username == "system:node:"+m.name && slices.Contains(found, id),
		"the API server takes the certificate of %s for %q by %s, want %s", m.name, who.Username, found, id)
}

// wantWriter checks by the API server's audit log that one of the manager's ServiceAccounts was the last to do verb to the request name, or to
// its subresource. The log is written in batches.
func (c *cluster) wantWriter(t *testing.T, verb, name, subresource, serviceAccount string) {
	t.Helper()
	want := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, serviceAccount)
	kit.Within(t, 10*time.Second, fmt.Sprintf("%s did %s %s %s", want, verb, name, subresource), func(context.Context) error {
		log, err := os.ReadFile(c.path("audit.log"))
		got := ""
		for line := range bytes.Lines(log) {
			var event struct {
				Verb           string
				User           struct{ Username string }
				ObjectRef      struct{ Resource, Name, Subresource string }
				ResponseStatus struct{ Code int }
			}
			err = errors.Join(err, json.Unmarshal(line, &event))
			if ref := event.ObjectRef; event.Verb == verb && ref.Name == name && ref.Subresource == subresource && event.ResponseStatus.Code == 200 {
				got = event.User.Username
			}
		}
		return kit.OrError(err == nil && got == want, "it was %q, error %w", got, err)
	})
}

func (c *cluster) served(t *testing.T, m *machine) *x509.Certificate {
	t.Helper()
	return kit.Must(c.servedBy(m))(t)
}

// servedBy connects as the API server does, with the CAs in its file.
func (c *cluster) servedBy(m *machine) (*x509.Certificate, error) {
	trusted, err := cert.NewPool(c.kubeletCA)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	conn, err := tls.DialWithDialer(dialer, "tcp", net.JoinHostPort(m.address, "10250"), &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("connect to the kubelet of %s: %w", m.name, err)
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0], nil
}

// wantOurs checks that the kubelet requested the certificate with which it serves, and that the Deployment signed it.
func (c *cluster) wantOurs(t *testing.T, m *machine) {
	cert := c.served(t, m)
	requests := kit.Must(c.requestsTo(t.Context(), certificatesv1.KubeletServingSignerName, m.name))(t)
	i := slices.IndexFunc(requests, func(obj kit.Request) bool { return cert.Equal(issued(&obj)) })
	kit.Require(t, i >= 0 && requests[i].Spec.Username == "system:node:"+m.name,
		"the certificate that %s serves is not of a request that the kubelet made: number %d of %+v", m.name, i, requests)
	for _, subresource := range []string{"approval", "status"} {
		c.wantWriter(t, "update", requests[i].Name, subresource, kit.ManagerAccount)
	}
}

// wantReachable checks that the API server can connect to the kubelet: kubectl exec always opens a new connection.
func (c *cluster) wantReachable(t *testing.T, m *machine) {
	c.wantLog(t, m.name)
	kit.Equal(t, "output of kubectl exec", c.kubectl(t, "exec", "on-"+m.name, "--", "/pause", "reached"), "reached\n")
}

func (c *cluster) health(m *machine) (string, error) {
	return c.tryKubectl("get", "--raw", "/api/v1/nodes/"+m.name+"/proxy/healthz")
}
