package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"
)

// Addresses are the names and addresses of a node, for its serving certificate.
type Addresses struct {
	DNS []string
	IP  []net.IP
}

// Rotation returns client-go's certificate manager for the client certificate. It requests a first certificate if the
// store is empty, and a new one before the current one expires. Start starts it, and it stops when ctx ends.
func (n *Node) Rotation(ctx context.Context) (certificate.Manager, error) {
	return n.manager(ctx, "kubelet-client", Addresses{}, certificate.Config{
		ClientsetFn: n.clientset, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages: certificate.DefaultKubeletClientGetUsages, RequestedCertificateLifetime: n.lifetime(),
	})
}

// Serving returns client-go's certificate manager for the serving certificate, which the node requests with its
// client certificate.
func (n *Node) Serving(ctx context.Context, client *tls.Certificate, addresses Addresses) (certificate.Manager, error) {
	return n.manager(ctx, "kubelet-server", addresses, certificate.Config{
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) { return n.clientset(client) },
		SignerName:  certificatesv1.KubeletServingSignerName, GetUsages: certificate.DefaultKubeletServingGetUsages,
	})
}

func (n *Node) manager(ctx context.Context, name string, addresses Addresses, config certificate.Config) (certificate.Manager, error) {
	store, err := certificate.NewFileStore(name, n.Dir, n.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	config.Ctx, config.CertificateStore = &ctx, store
	config.GetTemplate = func() *x509.CertificateRequest {
		return &x509.CertificateRequest{Subject: n.subject(), DNSNames: addresses.DNS, IPAddresses: addresses.IP}
	}
	return certificate.NewManager(&config)
}

// clientset returns a client with the current certificate. It uses the bootstrap credentials only if there is no
// certificate.
func (n *Node) clientset(current *tls.Certificate) (kubernetes.Interface, error) {
	if current == nil {
		return kubernetes.NewForConfig(n.Bootstrap)
	}
	cfg, err := n.ConfigFor(current)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}
