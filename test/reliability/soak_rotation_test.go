//go:build soak

package reliability

import (
	"bytes"
	"context"
	"encoding/pem"
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
			Secret: v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: signingSecret},
			Signers: []string{
				"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
			},
			Trust: v1alpha1.Trust{ConfigMaps: []v1alpha1.ConfigMapKey{trustBundle}},
			Verification: v1alpha1.Verification{
				APIServers: []string{s.Env.ControlPlane.GetAPIServer().HostPort()}, ServerName: "localhost",
			},
		},
	}
	if err := retry(s.t.Context(), func() error { return kit.Admin(s.t).Create(s.t.Context(), authority) }); err != nil {
		s.t.Fatal(err)
	}
	users, err := os.ReadFile(s.ClientCAFile())
	if err != nil {
		s.t.Fatal(err)
	}
	block, _ := pem.Decode(users)
	s.users = pem.EncodeToMemory(block) // the administrator's CA
}

// rotate replaces the CA again and again until ctx ends. A rotation that takes 20 minutes is an error.
func (s *soak) rotate(ctx context.Context) {
	for ctx.Err() == nil {
		err := wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, s.step)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			obj := &v1alpha1.SigningAuthority{}
			_ = kit.Admin(s.t).Get(ctx, client.ObjectKey{Name: "cluster"}, obj) // for the message only
			s.fail(fmt.Errorf("rotation: %w: %+v", err, obj.Status))
			return
		}
		s.rotations++
		secret, err := s.admin.CoreV1().Secrets(kit.SystemNamespace).Get(s.t.Context(), signingSecret, metav1.GetOptions{})
		if err != nil {
			s.fail(err)
			return
		}
		s.keys = append(s.keys, secret.Data[corev1.TLSPrivateKeyKey])
	}
}

// step does what an operator does, and reports whether a rotation was completed. It also copies the published CAs to the
// API server's client CA file, as a trust file does.
func (s *soak) step(ctx context.Context) (done bool, err error) {
	s.rolling.Lock()
	defer s.rolling.Unlock()
	s.copyTrust(ctx)
	obj := &v1alpha1.SigningAuthority{}
	if err := kit.Admin(s.t).Get(ctx, client.ObjectKey{Name: "cluster"}, obj); err != nil || obj.Annotations[v1alpha1.OperationAnnotation] != "" {
		return false, nil // a fault, or the manager has not seen the operation yet
	}
	switch {
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
	s.knowCAs(obj.Data[trustBundle.Key])
	bundle := append(bytes.Clone(s.users), obj.Data[trustBundle.Key]...)
	if present, err := os.ReadFile(s.ClientCAFile()); err == nil && bytes.Equal(present, bundle) || obj.Data[trustBundle.Key] == "" {
		return
	}
	if err := s.TrustClients(bundle); err != nil {
		s.fail(err)
	}
}

// knowCAs remembers the CAs in a trust bundle.
func (s *soak) knowCAs(bundle string) {
	cas, err := cert.ParseCertsPEM([]byte(bundle))
	if err != nil {
		return // it is empty at first
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ca := range cas {
		if !slices.ContainsFunc(s.authorities, ca.Equal) {
			s.authorities = append(s.authorities, ca)
		}
	}
}
