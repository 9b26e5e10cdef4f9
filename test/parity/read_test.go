package parity

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// read returns the outcome of the row.
func (p *pass) read(t *testing.T, r row, key string, obj *certificatesv1.CertificateSigningRequest) outcome {
	t.Helper()
	found := outcomeOf(obj, p.from[key], time.Now(), p.ends)
	if given, err := r.storedCertificate(); obj != nil && found.Certificate != nil && len(given) > 0 && err == nil {
		found.Certificate = &certificate{Surplus: "as stored"}
		if r.certificate != nil && string(r.certificate) != string(obj.Status.Certificate) {
			found.Certificate.Surplus = "replaced"
		}
	}
	if r.use && found.Certificate != nil {
		user, err := p.authenticate(t.Context(), obj.Status.Certificate, r.key)
		if err != nil {
			user = err.Error()
		}
		found.User = user
	}
	return found
}

// authenticate returns the user that the API server identifies by the certificate.
func (p *pass) authenticate(ctx context.Context, cert []byte, kind string) (string, error) {
	key, err := keyOf(kind)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", err
	}
	config := rest.AnonymousClientConfig(p.Config)
	config.CertData, config.KeyData = cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username + " in " + strings.Join(review.Status.UserInfo.Groups, " "), nil
}
