//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
)

const (
	namespace     = "csr-controller-manager-system"
	signingSecret = "csr-signer"
)

// install applies an overlay and then creates the signing Secret, as in README.
func (c *cluster) install(t *testing.T, overlay string, ca *csrenv.CA) {
	t.Helper()
	c.kubectl(t, "apply", "-k", overlay)
	secret := signingSecretOf(ca)
	if err := c.admin.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func signingSecretOf(ca *csrenv.CA) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: signingSecret},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: ca.CertPEM, corev1.TLSPrivateKeyKey: ca.KeyPEM},
	}
}

func (c *cluster) deploymentsAvailable(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		c.until(t, time.Minute, "Deployment "+name+" is available", func(ctx context.Context) (bool, error) {
			obj := &appsv1.Deployment{}
			if err := c.admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
				return false, err
			}
			if obj.Status.ObservedGeneration != obj.Generation || obj.Status.AvailableReplicas != *obj.Spec.Replicas || obj.Status.Replicas != *obj.Spec.Replicas {
				return false, fmt.Errorf("%d of %d replicas are available", obj.Status.AvailableReplicas, *obj.Spec.Replicas)
			}
			return true, nil
		})
	}
}

// pods returns the manager's pods.
func (c *cluster) pods(ctx context.Context, t *testing.T) []corev1.Pod {
	t.Helper()
	list := &corev1.PodList{}
	if err := c.admin.List(ctx, list, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}
