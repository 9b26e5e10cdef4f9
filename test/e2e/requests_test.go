//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// requestFor returns a kubelet's request for node.
func requestFor(t *testing.T, name, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: payload(t, node), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

// payload returns the PKCS#10 request for node, with these addresses.
func payload(t *testing.T, node string, addresses ...net.IP) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	data, err := certutil.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, addresses)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// requestsOf returns the existing requests for client certificates of node.
func (c *cluster) requestsOf(ctx context.Context, node string) ([]certificatesv1.CertificateSigningRequest, error) {
	return c.requestsTo(ctx, certificatesv1.KubeAPIServerClientKubeletSignerName, node)
}

// requestsTo returns the existing requests of node for that signer.
func (c *cluster) requestsTo(ctx context.Context, signer, node string) ([]certificatesv1.CertificateSigningRequest, error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := c.admin.List(ctx, list); err != nil {
		return nil, err
	}
	var found []certificatesv1.CertificateSigningRequest
	for _, obj := range list.Items {
		req, err := csr.Parse(&obj)
		if err != nil {
			return nil, err
		}
		if req.SignerName == signer && req.Cert.Subject.CommonName == "system:node:"+node {
			found = append(found, obj)
		}
	}
	return found, nil
}

// issued returns the certificate of obj, or nil.
func issued(obj *certificatesv1.CertificateSigningRequest) *x509.Certificate {
	block, _ := pem.Decode(obj.Status.Certificate)
	if block == nil {
		return nil
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil // the API server accepts no such certificate
	}
	return cert
}

// whoAmI returns the user that the API server identifies by the certificate and key.
func (c *cluster) whoAmI(ctx context.Context, certAndKey []byte) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(c.config)
	config.CertData, config.KeyData = certAndKey, certAndKey
	return kubelet.WhoAmI(ctx, config)
}

// writer returns the user who last did verb to the request name, or to its subresource, by the API server's audit
// log.
func (c *cluster) writer(verb, name, subresource string) (string, error) {
	log, err := os.Open(c.path("audit.log"))
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	user := ""
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		var event struct {
			Verb           string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Name, Subresource string }
			ResponseStatus struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return "", err
		}
		if ref := event.ObjectRef; event.Verb == verb && ref.Name == name && ref.Subresource == subresource && event.ResponseStatus.Code == 200 {
			user = event.User.Username
		}
	}
	return user, lines.Err()
}

// wantWriter checks that one of the manager's ServiceAccounts wrote.
func (c *cluster) wantWriter(t *testing.T, verb, name, subresource, serviceAccount string) {
	t.Helper()
	want := fmt.Sprintf("system:serviceaccount:%s:%s", namespace, serviceAccount)
	c.until(t, auditPatience, fmt.Sprintf("the audit log says that %s did %s %s %s", want, verb, name, subresource), func(context.Context) (bool, error) {
		got, err := c.writer(verb, name, subresource)
		if err == nil && got != want {
			err = fmt.Errorf("it was %q", got)
		}
		return err == nil, err
	})
}

// get reads a request.
func (c *cluster) get(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	obj := &certificatesv1.CertificateSigningRequest{}
	return obj, c.admin.Get(ctx, client.ObjectKey{Name: name}, obj)
}
