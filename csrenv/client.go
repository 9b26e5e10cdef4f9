package csrenv

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// pollInterval is the time between two reads of a request that is not finished.
const pollInterval = 10 * time.Millisecond

// ConfigFor returns a client configuration that authenticates as user with groups. It requests a client certificate
// and waits until the loop has signed it. For a node (system:node:… in system:nodes) it uses the kubelet signer, and
// the approver decides. For any other user it uses kubernetes.io/kube-apiserver-client and approves the request
// itself. It fails if the request fails, if ctx ends, or if the API server does not trust the CA: see Prepare.
func (e *Env) ConfigFor(ctx context.Context, user string, groups ...string) (*rest.Config, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	payload, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: user, Organization: groups},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csrenv-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: payload}),
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	if strings.HasPrefix(user, csr.NodeUserPrefix) && slices.Equal(groups, []string{csr.NodeGroup}) {
		obj.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
	}
	certificate, err := e.request(ctx, obj)
	if err != nil {
		return nil, fmt.Errorf("get a certificate for %q: %w", user, err)
	}
	cfg := rest.AnonymousClientConfig(e.config)
	cfg.CertData, cfg.KeyData = certificate, keyPEM
	if err := checkTrust(ctx, cfg, user); err != nil {
		return nil, err
	}
	return cfg, nil
}

// request creates obj, approves it if the approver does not, and returns the certificate.
func (e *Env) request(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	if err := e.client.Create(ctx, obj); err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	if obj.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName {
		csr.AddCondition(obj, certificatesv1.CertificateApproved, "CSREnv", "Approved for a test.", time.Time{})
		if err := e.client.SubResource("approval").Update(ctx, obj); err != nil {
			return nil, fmt.Errorf("approve request %s: %w", obj.Name, err)
		}
	}
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return false, err
		}
		for _, condition := range obj.Status.Conditions {
			if condition.Status == corev1.ConditionTrue && condition.Type != certificatesv1.CertificateApproved {
				return false, fmt.Errorf("%s: %s: %s", condition.Type, condition.Reason, condition.Message)
			}
		}
		return len(obj.Status.Certificate) > 0, nil
	})
	if ctx.Err() != nil {
		err = ctx.Err() // ctx may have ended in any call
	}
	if err != nil {
		return nil, fmt.Errorf("request %s is %s: %w", obj.Name, csr.StateOf(obj), err)
	}
	return obj.Status.Certificate, nil
}

// checkTrust asks the API server which user cfg authenticates as, and returns an error unless it is user.
func checkTrust(ctx context.Context, cfg *rest.Config, user string) error {
	self, err := client.New(cfg, client.Options{})
	if err != nil {
		return fmt.Errorf("make client for %q: %w", user, err)
	}
	review := &authenticationv1.SelfSubjectReview{}
	err = self.Create(ctx, review)
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the certificate for %q: call csrenv.Prepare before the environment "+
			"starts, and pass its CA to Start; a Clock in Options must not differ from the real time by more than the "+
			"certificate permits: %w", user, err)
	case err != nil:
		return fmt.Errorf("authenticate to the API server as %q: %w", user, err)
	case review.Status.UserInfo.Username != user:
		return fmt.Errorf("the API server authenticates the certificate for %q as %q", user, review.Status.UserInfo.Username)
	}
	return nil
}
