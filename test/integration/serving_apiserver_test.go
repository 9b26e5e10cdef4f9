package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// kubeadmNames are those in the API server's certificate on a control plane of kubeadm, whose node is cp-1 at 192.0.2.200,
// with certSANs for a load balancer and a wildcard (kubeadm, GetAPIServerAltNames).
var kubeadmNames = []string{
	"cp-1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
	"api.lab.example", "*.wild.example",
}

// withAPIServerCertificate runs a test on a control plane of its own, whose API server has a certificate for names, the
// address of the node cp-1 and 127.0.0.1.
func withAPIServerCertificate(t *testing.T, names ...string) {
	t.Helper()
	if _, err := binary(); err != nil { // built once, in the folder of the shared control plane
		t.Fatal(err)
	}
	own, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Stop(); err != nil {
			t.Error(err)
		}
	})
	authority := serverAuthority(t)
	certPEM, keyPEM := authority.issue(t, names, net.ParseIP("192.0.2.200"), net.ParseIP("127.0.0.1"))
	certFile, keyFile := filepath.Join(own.Dir, "server.crt"), filepath.Join(own.Dir, "server.key")
	write(t, certFile, certPEM)
	write(t, keyFile, keyPEM)
	if err := own.RestartAPIServer(func(args *envtest.Arguments) {
		args.Set("tls-cert-file", certFile).Set("tls-private-key-file", keyFile)
	}); err != nil {
		t.Fatal(err)
	}
	own.Config = rest.CopyConfig(own.Config)
	own.Config.CAData = authority.certPEM
	before, beforeAdmin := shared, admin
	t.Cleanup(func() { shared, admin = before, beforeAdmin })
	if shared = own; shared.Config == nil {
		t.Fatal("no configuration")
	}
	if admin, err = client.NewWithWatch(own.Config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the API server answers", func(ctx context.Context) error {
		return admin.Get(ctx, client.ObjectKey{Name: "default"}, &corev1.Namespace{})
	})
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

// TestServingOnKubeadmControlPlane has a worker report what is in the API server's certificate, and in cluster-info. The
// control-plane node gets its own name and address, whatever the worker reports.
func TestServingOnKubeadmControlPlane(t *testing.T) {
	withAPIServerCertificate(t, kubeadmNames...)
	if err := client.IgnoreAlreadyExists(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespacePublic}})); err != nil {
		t.Fatal(err)
	}
	create(t, admin, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, Data: map[string]string{
		"kubeconfig": `{apiVersion: v1, kind: Config, clusters: [{name: "", cluster: {server: "https://info.lab.example:6443"}}]}`,
	}})
	apply(t, "node-identity")
	p := startServingManager(t, ", apiServerNodes: [cp-1]}, nodeClient: {requireTokenBinding: true")
	newNode(t, "cp-1", "192.0.2.200", "cp-1")
	newNode(t, "w-1", "192.0.2.201", "w-1", "192.0.2.200", "cp-1", "api.lab.example", "info.lab.example", "node.wild.example")
	reaches(t, asksFor(t, "cp-1", "192.0.2.200", "cp-1"), csr.Issued)
	reaches(t, asksFor(t, "w-1", "192.0.2.201", "w-1", "node.wild.example"), csr.Issued)
	for san, from := range map[string]string{
		"192.0.2.200": "in the serving certificate of", "cp-1": "in the serving certificate of", "API.lab.example": "in the serving certificate of",
		"info.lab.example": "in ConfigMap kube-public/cluster-info",
	} {
		obj := asksFor(t, "w-1", san)
		hasEvent(t, obj, "SANReserved", "is a name or an address of the API server ("+from, "approval.kubeletServing.apiServerNodes")
		isPending(t, obj)
	}
	checkStop(t, p)
}

// TestServingWaitsForAPIServersCertificate has no certificate of an API server that the manager could verify.
func TestServingWaitsForAPIServersCertificate(t *testing.T) {
	unnamed := true
	mgr, err := manager.New(rest.CopyConfig(shared.Config), manager.Options{
		Scheme: clientgoscheme.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &unnamed},
	})
	if err != nil {
		t.Fatal(err)
	}
	mgr.GetConfig().CAData = serverAuthority(t).certPEM // its clients are made already
	if err := (controllers.Options{Approver: servingApprover()}).SetupWithManager(mgr); err != nil {
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
	newNode(t, "unread-a", "192.0.2.180")
	obj := asksFor(t, "unread-a", "192.0.2.180")
	hasEvent(t, obj, "InventoryUnavailable")
	isPending(t, obj)
}
