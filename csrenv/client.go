package csrenv

import (
	"context"
	"crypto/x509/pkix"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// pollInterval is the time between two reads of a request that is not finished.
const pollInterval = 10 * time.Millisecond

// tokenSeconds is the lifetime of the token of a ServiceAccount: longer than a suite runs.
const tokenSeconds = 24 * 60 * 60

// ConfigFor returns a client configuration that authenticates as user with groups. It fails if it cannot get the credential,
// if ctx ends, or if the API server does not authenticate it as that user in those groups.
//
//   - A ServiceAccount (system:serviceaccount:NAMESPACE:NAME), which must exist, gets a token that is bound to it. The API server
//     adds its groups and its UID, so groups may be left out. It cannot have others.
//   - A node (system:node:NAME in system:nodes) gets a certificate of the kubelet signer, and the approver decides.
//   - Any other user gets a certificate of kubernetes.io/kube-apiserver-client, and ConfigFor approves the request. The API server
//     forbids the group system:masters: use AddUser of the envtest environment.
//
// The API server accepts the certificates only if it trusts the CA: see Prepare.
func (e *Env) ConfigFor(ctx context.Context, user string, groups ...string) (*rest.Config, error) {
	cfg, err := e.credentialFor(ctx, user, groups)
	if err != nil {
		return nil, err
	}
	if err := checkUser(ctx, cfg, user, groups); err != nil {
		return nil, err
	}
	return cfg, nil
}

// credentialFor returns a client configuration with a new credential of user.
func (e *Env) credentialFor(ctx context.Context, user string, groups []string) (*rest.Config, error) {
	cfg := rest.AnonymousClientConfig(e.config)
	if account, found := strings.CutPrefix(user, "system:serviceaccount:"); found {
		namespace, name, _ := strings.Cut(account, ":")
		token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenSeconds))}}
		token, err := e.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, token, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("request a token of ServiceAccount %s/%s, which must exist: %w", namespace, name, err)
		}
		cfg.BearerToken = token.Status.Token
		return cfg, nil
	}
	key, keyPEM, err := ca.NewKeyLike(nil)
	if err != nil {
		return nil, err
	}
	payload, err := certutil.MakeCSR(key, &pkix.Name{CommonName: user, Organization: groups}, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	obj := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csrenv-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    payload,
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
	cfg.CertData, cfg.KeyData = certificate, keyPEM
	return cfg, nil
}

// request creates obj, approves it if the approver does not, and returns the certificate.
func (e *Env) request(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	requests := e.client.CertificatesV1().CertificateSigningRequests()
	obj, err := requests.Create(ctx, obj, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create request: %w", err)
	}
	name := obj.Name
	if obj.Spec.SignerName == certificatesv1.KubeAPIServerClientSignerName {
		csr.AddCondition(obj, certificatesv1.CertificateApproved, "CSREnv", "Approved for a test.", time.Time{})
		if _, err := requests.UpdateApproval(ctx, name, obj, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("approve request %s: %w", name, err)
		}
	}
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		found, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		obj = found
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
		return nil, fmt.Errorf("request %s is %s: %w", name, csr.StateOf(obj), err)
	}
	return obj.Status.Certificate, nil
}

// checkUser asks the API server which user cfg authenticates as, and returns an error unless it is user in groups.
func checkUser(ctx context.Context, cfg *rest.Config, user string, groups []string) error {
	self, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client for %q: %w", user, err)
	}
	review, err := self.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	found := review.Status.UserInfo
	lacks := func(group string) bool { return !slices.Contains(found.Groups, group) }
	switch {
	case apierrors.IsUnauthorized(err) && cfg.BearerToken == "":
		return fmt.Errorf("the API server does not accept the certificate for %q: call csrenv.Prepare before the environment "+
			"starts, and pass its CA to Start; a Clock in Options must not differ from the real time by more than the "+
			"certificate permits: %w", user, err)
	case err != nil:
		return fmt.Errorf("authenticate to the API server as %q: %w", user, err)
	case found.Username != user || slices.ContainsFunc(groups, lacks):
		return fmt.Errorf("the API server authenticates the credential of %q as %q in the groups %q, want %q", user, found.Username,
			found.Groups, groups)
	}
	return nil
}
