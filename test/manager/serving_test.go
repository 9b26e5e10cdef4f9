package manager

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startServing runs a manager with approval of serving certificates, and more of that configuration.
func startServing(t *testing.T, more string) *kit.Process {
	t.Helper()
	cfg := kit.ManagerConfig(t)
	kit.Apply(t, "kubelet-serving")
	return startAs(t, cfg, servingConfig(t, more))
}

// servingConfig returns the flag of a configuration with approval of serving certificates.
func servingConfig(t *testing.T, more string) string {
	t.Helper()
	return kit.Configure(t, "approval: {kubeletServing: {enabled: true, clusterDomain: cluster.test, "+
		"reserved: [api.example.com, 203.0.113.0/24]"+more+"}}\n")
}

// kubeadmNames are the names in the API server's certificate on a kubeadm control plane. Its node is cp-1 at
// 192.0.2.200, with certSANs for a load balancer and a wildcard (kubeadm, GetAPIServerAltNames).
var kubeadmNames = []string{
	"cp-1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
	"api.lab.example", "*.wild.example",
}

// issueServer returns a serving certificate of authority and its key, in PEM.
func issueServer(t *testing.T, authority *csrenv.CA, names []string, ips ...net.IP) (certPEM, keyPEM []byte) {
	t.Helper()
	key := kit.NewKey(t)
	issued := kit.Must(kit.Load(t, authority).Issue(kit.Must(ca.NewProfile(ca.ProfileConfig{}))(t), ca.Request{
		PublicKey: key.Public(), DNSNames: names, IPAddresses: ips,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, time.Now()))(t)
	return issued.PEM, kit.Must(keyutil.MarshalPrivateKeyToPEM(key))(t)
}

// anotherAPIServer listens on host, with a certificate of authority for names, and returns its port.
func anotherAPIServer(t *testing.T, authority *csrenv.CA, host string, names []string, ips ...net.IP) int32 {
	t.Helper()
	pair := kit.Must(tls.X509KeyPair(issueServer(t, authority, names, ips...)))(t)
	listener := kit.Must(net.Listen("tcp", net.JoinHostPort(host, "0")))(t)
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
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: discoveryv1.SchemeGroupVersion.String(), Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(),
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: new("https"), Port: &port}},
	}
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), "endpointslices/default/"+name, slice))
}

// TestServing has a worker that reports names of API servers' certificates: that of a kubeadm control plane, and those that
// EndpointSlices name, also after a new API server was added. The control-plane node gets its own name and address. A wildcard in a
// certificate reserves nothing, and an unreachable API server stops nothing. Names and addresses of others are refused too:
// TestWhoseAddress in controllers/approver has more of them.
func TestServing(t *testing.T) {
	kit.Parallel(t)
	authority := kit.NewCA(t)
	kit.WithAPIServer(t, authority.CertPEM, func(dir string, args *envtest.Arguments) {
		certPEM, keyPEM := issueServer(t, authority, kubeadmNames, net.ParseIP("192.0.2.200"), net.ParseIP("127.0.0.1"))
		certFile, keyFile := filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
		kit.Write(t, certFile, certPEM)
		kit.Write(t, keyFile, keyPEM)
		args.Set("tls-cert-file", certFile).Set("tls-private-key-file", keyFile)
	})
	kit.Apply(t, "rbac")
	kit.Apply(t, "node-identity")
	second := anotherAPIServer(t, authority, "127.0.0.2", []string{"kubernetes", "cp-2", "*.second.example"}, net.ParseIP("192.0.2.210"))
	storeEndpoint(t, "kubernetes-second", "127.0.0.2", second)
	storeEndpoint(t, "kubernetes-away", "127.0.0.3", 1)
	p := startServing(t, ", apiServerNodes: [cp-1]}, nodeClient: {requireTokenBinding: true")
	kit.NewNode(t, "cp-1", "192.0.2.200", "cp-1")
	kit.NewNode(t, "w-1", "192.0.2.201", "w-1", "192.0.2.200", "cp-1", "api.lab.example", "node.wild.example",
		"192.0.2.210", "cp-2", "node.second.example", "192.0.2.211", "cp-3")
	kit.Reaches(t, asksFor(t, "cp-1", "192.0.2.200", "cp-1"), csr.Issued)
	kit.Reaches(t, asksFor(t, "w-1", "192.0.2.201", "w-1", "node.wild.example", "node.second.example", "cp-3"), csr.Issued)
	const reserved = " is a name or an address of the API server (in the serving certificate of "
	refused := func(san, server string) {
		t.Helper()
		isRefused(t, asksFor(t, "w-1", san), "SANReserved", san+reserved+server, "approval.kubeletServing.apiServerNodes")
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

	third := anotherAPIServer(t, authority, "127.0.0.4", []string{"kubernetes", "cp-3"}, net.ParseIP("192.0.2.211"))
	storeEndpoint(t, "kubernetes-third", "127.0.0.4", third)
	kit.HasEvent(t, asksFor(t, "w-1", "cp-3", "of-nobody"), "SANReserved", "cp-3"+reserved+"127.0.0.4:")
	refused("192.0.2.211", "127.0.0.4:")

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-", Namespace: "default"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{"192.0.2.77"},
	}}
	kit.Create(t, kit.Admin(t), service)
	var apiServer corev1.Service
	kit.NoError(t, kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &apiServer))
	ours := "Service default/" + service.Name
	// The node's own report does not help it: it reports what it asks for, except the address of nobody and the external one.
	for i, test := range []struct{ san, reason, part string }{
		{"192.0.2.201", "SANContested", "Node w-1"}, {"192.0.2.3", "SANNotOwned", "192.0.2.3"},
		{apiServer.Spec.ClusterIP, "SANReserved", "Service default/kubernetes"},
		{"::ffff:" + service.Spec.ClusterIP, "SANReserved", ours}, {"web-0." + service.Name + ".default", "SANReserved", ours},
		{service.Name, "SANReserved", ours}, {"192.0.2.77", "SANReserved", ours}, {"192-0-2-1.default.pod", "SANReserved", "a name of a Pod"},
		{"x.cluster.test", "SANReserved", ""}, {"203.0.113.9", "SANReserved", ""}, {"API.example.com", "SANReserved", ""},
	} {
		node := kit.NewNode(t, fmt.Sprint("x-greedy-", i), "192.0.2.2")
		if test.san != "192.0.2.3" && test.san != "192.0.2.77" {
			kit.Publish(t, node, test.san, "192.0.2.2")
		}
		isRefused(t, asksFor(t, node.Name, test.san), test.reason, test.part)
	}
	// A node with the name of a Service keeps its name.
	kit.NewNode(t, service.Name, "192.0.2.90", service.Name)
	kit.Reaches(t, asksFor(t, service.Name, "192.0.2.90", service.Name), csr.Issued)
	checkStop(t, p)
}
