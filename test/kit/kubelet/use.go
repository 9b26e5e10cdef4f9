package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// WhoAmI returns the user that the API server identifies by cfg.
func WhoAmI(ctx context.Context, cfg *rest.Config) (authenticationv1.UserInfo, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("make client: %w", err)
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("ask who I am: %w", err)
	}
	return review.Status.UserInfo, nil
}

// CheckIdentity returns why the API server does not identify the holder of cert as this node, or nil.
func (n *Node) CheckIdentity(ctx context.Context, cert *tls.Certificate) error {
	cfg, err := n.ConfigFor(cert)
	if err != nil {
		return err
	}
	user, err := WhoAmI(ctx, cfg)
	if err != nil {
		return err
	}
	if user.Username != n.User() || !slices.Contains(user.Groups, csr.NodeGroup) {
		return fmt.Errorf("the API server takes the certificate of %s for %q with groups %q", n.User(), user.Username, user.Groups)
	}
	return nil
}

// Register creates the node's own Node, as a kubelet does. The Node authorizer permits no other Node.
func (n *Node) Register(ctx context.Context, cert *tls.Certificate) (*corev1.Node, error) {
	cfg, err := n.ConfigFor(cert)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
}
