package trust

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// The ConfigMap in which API servers publish all CAs that they trust for client certificates, and which aggregated
// API servers use. API servers only add to it: a CA stays there until it expires. They write the certificates alone,
// without the text between them (k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust).
const (
	ExtensionNamespace = "kube-system"
	ExtensionName      = "extension-apiserver-authentication"
	ExtensionKey       = "client-ca-file"
)

// Above returns those of trusted by which chain[0] is accepted at now, without the CA of chain[0] itself. A verifier that
// trusts one of them can't refuse certificates that chain[0] has signed. The rest of chain are the certificates that
// clients present with it.
func Above(trusted, chain []*x509.Certificate, now time.Time) (above []*x509.Certificate) {
	options := x509.VerifyOptions{Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, one := range chain[1:] {
		options.Intermediates.AddCert(one)
	}
	for _, one := range trusted {
		options.Roots = x509.NewCertPool()
		options.Roots.AddCert(one)
		if _, err := chain[0].Verify(options); err == nil && !SameCA(one, chain[0]) {
			above = append(above, one)
		}
	}
	return above
}

// ClientCAs returns that ConfigMap, and the CAs in it.
func (p *Publisher) ClientCAs(ctx context.Context) (*corev1.ConfigMap, []*x509.Certificate, error) {
	obj := &corev1.ConfigMap{}
	if err := call.Get(ctx, p.Live, client.ObjectKey{Namespace: ExtensionNamespace, Name: ExtensionName}, obj); err != nil {
		return nil, nil, fmt.Errorf("read ConfigMap %s/%s: %w", ExtensionNamespace, ExtensionName, err)
	}
	certs, err := ca.ParseCertificates([]byte(obj.Data[ExtensionKey]))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s of ConfigMap %s/%s: %w", ExtensionKey, ExtensionNamespace, ExtensionName, err)
	}
	return obj, certs, nil
}

// Prune removes every certificate of the CA of old from that ConfigMap, and keeps the others. An API server whose own
// client CA file still has the CA adds it again within a minute. So prune only a CA that all API servers refuse.
func (p *Publisher) Prune(ctx context.Context, old *x509.Certificate) error {
	obj, certs, err := p.ClientCAs(ctx)
	if err != nil {
		return err
	}
	left, err := without(certs, old)
	if err == nil && len(left) < len(certs) {
		obj.Data[ExtensionKey] = string(Bundle(time.Time{}, left...))
		err = call.Write(ctx, p.Client.Update, obj)
	}
	if err != nil {
		return fmt.Errorf("prune ConfigMap %s/%s: %w", ExtensionNamespace, ExtensionName, err)
	}
	return nil
}

// without returns certs without those of the CA of old. It fails if none would be left, because API servers would then
// refuse every client certificate.
func without(certs []*x509.Certificate, old *x509.Certificate) ([]*x509.Certificate, error) {
	left := slices.DeleteFunc(slices.Clone(certs), func(one *x509.Certificate) bool { return SameCA(one, old) })
	if len(left) == 0 && len(certs) > 0 {
		return nil, errors.New("it trusts no CA other than the retired CA")
	}
	return left, nil
}
