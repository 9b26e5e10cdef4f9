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

// Addresses are a node's names, for its serving certificate.
type Addresses struct {
	DNS []string
	IP  []net.IP
}

// Rotation is client-go's certificate manager for the client certificate: it asks for a first one if the store is empty,
// and for a new one when the current one nears its end. It stops when ctx ends; Start starts it.
func (n *Node) Rotation(ctx context.Context) (certificate.Manager, error) {
	store, err := n.Store()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return certificate.NewManager(&certificate.Config{
		Ctx:                          &ctx,
		ClientsetFn:                  n.clientset,
		GetTemplate:                  func() *x509.CertificateRequest { return n.template(Addresses{}) },
		SignerName:                   certificatesv1.KubeAPIServerClientKubeletSignerName,
		GetUsages:                    certificate.DefaultKubeletClientGetUsages,
		RequestedCertificateLifetime: n.lifetime(),
		CertificateStore:             store,
	})
}

// Serving is client-go's certificate manager for the serving certificate, which the node asks for with its client
// certificate.
func (n *Node) Serving(ctx context.Context, client *tls.Certificate, addresses Addresses) (certificate.Manager, error) {
	store, err := certificate.NewFileStore("kubelet-server", n.Dir, n.Dir, "", "")
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return certificate.NewManager(&certificate.Config{
		Ctx:              &ctx,
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return n.clientset(client) },
		GetTemplate:      func() *x509.CertificateRequest { return n.template(addresses) },
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        certificate.DefaultKubeletServingGetUsages,
		CertificateStore: store,
	})
}

// clientset uses the current certificate, and the bootstrap credentials only while there is none.
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
