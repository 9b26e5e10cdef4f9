package manager

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// kubeadmNames are the names in the API server's certificate on a kubeadm control plane. Its node is cp-1 at
// 192.0.2.200, with certSANs for a load balancer and a wildcard (kubeadm, GetAPIServerAltNames).
var kubeadmNames = []string{
	"cp-1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
	"api.lab.example", "*.wild.example",
}

// withAPIServerCertificate is withAPIServer with a certificate for names, the address of the node cp-1 and 127.0.0.1.
// It returns the CA of that certificate.
func withAPIServerCertificate(t *testing.T, names ...string) authorityOfServers {
	t.Helper()
	authority := serverAuthority(t)
	kit.WithAPIServer(t, authority.certPEM, func(dir string, args *envtest.Arguments) {
		certPEM, keyPEM := authority.issue(t, names, net.ParseIP("192.0.2.200"), net.ParseIP("127.0.0.1"))
		certFile, keyFile := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
		kit.Write(t, certFile, certPEM)
		kit.Write(t, keyFile, keyPEM)
		args.Set("tls-cert-file", certFile).Set("tls-private-key-file", keyFile)
	})
	return authority
}

type authorityOfServers struct {
	cert    *x509.Certificate
	certPEM []byte
	key     *ecdsa.PrivateKey
}

func serverAuthority(t *testing.T) authorityOfServers {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "servers"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authorityOfServers{cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key}
}

func (a authorityOfServers) issue(t *testing.T, names []string, ips ...net.IP) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		DNSNames: names, IPAddresses: ips, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// anotherAPIServer listens on host, with a certificate of authority for names, and returns its port.
func anotherAPIServer(t *testing.T, authority authorityOfServers, host string, names []string, ips ...net.IP) int32 {
	t.Helper()
	pair, err := tls.X509KeyPair(authority.issue(t, names, ips...))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = server.Listener.Close()
	server.Listener, server.TLS = listener, &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// storeEndpoint stores an EndpointSlice of the API servers with one endpoint. API servers refuse a loopback address.
func storeEndpoint(t *testing.T, name, address string, port int32) {
	t.Helper()
	https := "https"
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: &https, Port: &port}},
	}
	if err := kit.ControlPlane(t).Store(t.Context(), "endpointslices/default/"+name, slice); err != nil {
		t.Fatal(err)
	}
}

// TestServingReadsAPIServers has a worker that reports names of API servers' certificates: that of a kubeadm control plane, and those that
// EndpointSlices name, also after a new API server was added. The control-plane node gets its own name and address. A wildcard in a
// certificate reserves nothing, and an unreachable API server stops nothing.
func TestServingReadsAPIServers(t *testing.T) {
	kit.Parallel(t)
	authority := withAPIServerCertificate(t, kubeadmNames...)
	kit.Apply(t, "node-identity")
	second := anotherAPIServer(t, authority, "127.0.0.2", []string{"kubernetes", "cp-2", "*.second.example"}, net.ParseIP("192.0.2.210"))
	storeEndpoint(t, "kubernetes-second", "127.0.0.2", second)
	storeEndpoint(t, "kubernetes-away", "127.0.0.3", 1)
	p := startServingManager(t, ", apiServerNodes: [cp-1]}, nodeClient: {requireTokenBinding: true")
	kit.NewNode(t, "cp-1", "192.0.2.200", "cp-1")
	kit.NewNode(t, "w-1", "192.0.2.201", "w-1", "192.0.2.200", "cp-1", "api.lab.example", "node.wild.example",
		"192.0.2.210", "cp-2", "node.second.example", "192.0.2.211", "cp-3")
	kit.Reaches(t, asksFor(t, "cp-1", "192.0.2.200", "cp-1"), csr.Issued)
	kit.Reaches(t, asksFor(t, "w-1", "192.0.2.201", "w-1", "node.wild.example", "node.second.example", "cp-3"), csr.Issued)
	refused := func(san, server string) {
		t.Helper()
		obj := asksFor(t, "w-1", san)
		kit.HasEvent(t, obj, "SANReserved", san+" is a name or an address of the API server (in the serving certificate of "+server, "approval.kubeletServing.apiServerNodes")
		isPending(t, obj)
	}
	for _, san := range []string{"192.0.2.200", "cp-1", "api.lab.example"} {
		refused(san, "")
	}
	kit.HasEvent(t, asksFor(t, "w-1", "API.lab.example"), "SANReserved")
	refused("192.0.2.210", "127.0.0.2:")
	refused("cp-2", "127.0.0.2:")
	if !strings.Contains(p.Output(t), `"apiServer":"127.0.0.3:1"`) {
		t.Error("the API server that can't be reached is not named in the log")
	}

	storeEndpoint(t, "kubernetes-third", "127.0.0.4", anotherAPIServer(t, authority, "127.0.0.4", []string{"kubernetes", "cp-3"}, net.ParseIP("192.0.2.211")))
	kit.HasEvent(t, asksFor(t, "w-1", "cp-3", "of-nobody"), "SANReserved", "cp-3 is a name or an address of the API server (in the serving certificate of 127.0.0.4:")
	refused("192.0.2.211", "127.0.0.4:")
	checkStop(t, p)
}

// TestServingWaitsForAPIServersCertificate has no certificate of an API server that the manager could verify.
func TestServingWaitsForAPIServersCertificate(t *testing.T) {
	kit.Parallel(t)
	mgr := kit.NewManager(t, kit.RoleConfig(t, "approver", "kubelet-serving"), manager.Options{})
	mgr.GetConfig().CAData = serverAuthority(t).certPEM // its clients exist already
	if err := (controllers.Options{Approver: kit.ServingApprover()}).SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	kit.NewNode(t, "unread-a", "192.0.2.180")
	obj := asksFor(t, "unread-a", "192.0.2.180")
	kit.HasEvent(t, obj, "InventoryUnavailable")
	isPending(t, obj)
}
