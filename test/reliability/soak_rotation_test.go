//go:build soak

package reliability

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// trustBundle is where the manager publishes the CAs.
var trustBundle = v1alpha1.ConfigMapKey{Namespace: kit.SystemNamespace, Name: "csr-trust", Key: "ca.crt"}

// prepareRotation installs config/rotation, and an authority for the signing Secret.
func (s *soak) prepareRotation() {
	s.t.Helper()
	kit.CreateMissing(s.t, kit.Admin(s.t), kit.Rendered(s.t, "rotation"))
	authority := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret: v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: "csr-signer"},
			Signers: []string{
				"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
			},
			Trust: v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{trustBundle}},
			Verification: v1alpha1.Verification{
				APIServers: []string{s.Env.ControlPlane.GetAPIServer().HostPort()}, ServerName: "localhost",
			},
		},
	}
	kit.NoError(s.t, retry(s.t.Context(), func() error { return kit.Admin(s.t).Create(s.t.Context(), authority) }))
	users, err := os.ReadFile(s.ClientCAFile())
	kit.NoError(s.t, err)
	block, _ := pem.Decode(users)
	s.users = pem.EncodeToMemory(block) // the administrator's CA
}

// rotate replaces the CA again and again until ctx ends. A rotation that takes 20 minutes is an error.
func (s *soak) rotate(ctx context.Context) {
	for {
		err := wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, s.step)
		if ctx.Err() != nil {
			return
		}
		secret, read := s.admin.CoreV1().Secrets(kit.SystemNamespace).Get(s.t.Context(), "csr-signer", metav1.GetOptions{})
		if err := errors.Join(err, read); err != nil {
			s.fail("rotation: %w: %+v", err, s.authority(ctx).Status)
			return
		}
		s.rotations++
		s.keys = append(s.keys, secret.Data[corev1.TLSPrivateKeyKey])
	}
}

// authority returns the SigningAuthority, or an empty one if it can't be read.
func (s *soak) authority(ctx context.Context) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{}
	_ = kit.Admin(s.t).Get(ctx, client.ObjectKey{Name: "cluster"}, obj) // the next attempt may succeed
	return obj
}

// step does what an operator does, and reports whether a rotation was completed. It also copies the published CAs to the
// API server's client CA file, as a trust file does.
func (s *soak) step(ctx context.Context) (done bool, err error) {
	s.rolling.Lock()
	defer s.rolling.Unlock()
	s.copyTrust(ctx)
	obj := s.authority(ctx)
	switch {
	case obj.Annotations[v1alpha1.OperationAnnotation] != "": // the manager has not seen the operation yet
	case obj.Status.Phase == v1alpha1.Completed && s.started:
		s.started = false
		return true, nil
	case obj.Status.Phase == v1alpha1.Completed:
		s.started = s.ask(ctx, v1alpha1.OperationStart)
	case obj.Status.Phase == v1alpha1.Preparing && obj.Status.Candidate != nil && obj.Status.Candidate.TrustConfirmedAt == nil:
		s.ask(ctx, v1alpha1.OperationConfirm)
	case obj.Status.Phase == v1alpha1.Prepared && obj.Status.Retiring != nil && obj.Status.Retiring.OutstandingAcceptedAt == nil:
		s.ask(ctx, v1alpha1.OperationAccept)
	case obj.Status.Phase == v1alpha1.Prepared:
		s.ask(ctx, v1alpha1.OperationComplete)
	}
	return false, nil
}

func (s *soak) ask(ctx context.Context, operation v1alpha1.Operation) bool {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.OperationAnnotation, operation)
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	return kit.Admin(s.t).Patch(ctx, obj, client.RawPatch("application/merge-patch+json", []byte(patch))) == nil
}

// copyTrust writes the client CA file of the API server anew if the published CAs have changed.
func (s *soak) copyTrust(ctx context.Context) {
	obj := &corev1.ConfigMap{}
	if err := kit.Admin(s.t).Get(ctx, client.ObjectKey{Namespace: trustBundle.Namespace, Name: trustBundle.Name}, obj); err != nil {
		return
	}
	cas, _ := cert.ParseCertsPEM([]byte(obj.Data[trustBundle.Key])) // it is empty at first
	s.mu.Lock()
	for _, ca := range cas {
		if !slices.ContainsFunc(s.authorities, ca.Equal) {
			s.authorities = append(s.authorities, ca)
		}
	}
	s.mu.Unlock()
	bundle := append(bytes.Clone(s.users), obj.Data[trustBundle.Key]...)
	if present, err := os.ReadFile(s.ClientCAFile()); err == nil && bytes.Equal(present, bundle) || obj.Data[trustBundle.Key] == "" {
		return
	}
	if err := s.TrustClients(bundle); err != nil {
		s.fail("%w", err)
	}
}
