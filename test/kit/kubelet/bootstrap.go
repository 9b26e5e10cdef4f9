package kubelet

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	csrutil "k8s.io/client-go/util/certificate/csr"
)

// Pending is a bootstrap request that has no certificate yet.
type Pending struct {
	Name string
	UID  types.UID

	node   *Node
	client kubernetes.Interface
	key    []byte
}

// Join requests the first client certificate and waits for it until ctx ends.
func (n *Node) Join(ctx context.Context) (*tls.Certificate, error) {
	pending, err := n.Request(ctx)
	if err != nil {
		return nil, err
	}
	return pending.Wait(ctx)
}

// Request creates the request for the first client certificate. If the node has created it before, with the key that
// it still has, Request finds the same request again.
func (n *Node) Request(ctx context.Context) (*Pending, error) {
	key, encoded, err := n.key()
	if err != nil {
		return nil, err
	}
	subject := n.subject()
	payload, err := certutil.MakeCSR(key, &subject, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	usages := clientUsages(key)
	name, err := requestName(key.Public(), subject, usages)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(n.Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	name, uid, err := csrutil.RequestCertificateWithContext(ctx, client, payload, name, certificatesv1.KubeAPIServerClientKubeletSignerName, n.lifetime(), usages, key)
	if err != nil {
		return nil, fmt.Errorf("request certificate: %w", err)
	}
	return &Pending{Name: name, UID: uid, node: n, client: client, key: encoded}, nil
}

// Wait waits for the certificate until ctx ends, stores it, and removes the pending key.
func (p *Pending) Wait(ctx context.Context) (*tls.Certificate, error) {
	issued, err := csrutil.WaitForCertificate(ctx, p.client, p.Name, p.UID)
	if err != nil {
		return nil, fmt.Errorf("wait for request %s: %w", p.Name, err)
	}
	store, err := p.node.Store()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	cert, err := store.Update(issued, p.key)
	if err != nil {
		return nil, fmt.Errorf("store certificate: %w", err)
	}
	return cert, os.Remove(p.node.pendingKeyFile())
}

// clientUsages returns the usages of a kubelet. Only an RSA key can encipher keys.
func clientUsages(key crypto.Signer) []certificatesv1.KeyUsage {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	if _, ok := key.(*rsa.PrivateKey); ok {
		usages = append(usages, certificatesv1.UsageKeyEncipherment)
	}
	return usages
}

// requestName depends only on the key and the requested content, so that a restarted kubelet gets the same name. Each
// part is encoded and followed by a character that no encoded part contains, so that different lists have different
// digests.
func requestName(public crypto.PublicKey, subject pkix.Name, usages []certificatesv1.KeyUsage) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	parts := append([]string{string(der), subject.CommonName}, subject.Organization...)
	for _, usage := range usages {
		parts = append(parts, string(usage))
	}
	var joined []byte
	for _, part := range parts {
		joined = base64.RawURLEncoding.AppendEncode(joined, []byte(part))
		joined = append(joined, '|')
	}
	sum := sha512.Sum512_256(joined)
	return "node-csr-" + base64.RawURLEncoding.EncodeToString(sum[:]), nil
}
