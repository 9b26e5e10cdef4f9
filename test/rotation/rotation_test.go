package rotation

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// run runs options under the shipped roles, until stop is called or the test ends.
func (r *rotating) run(t *testing.T, options controllers.Options) (stop func()) {
	t.Helper()
	mgr := kit.NewManager(t, r.managerConfig(t), manager.Options{Scheme: r.admin.Scheme()})
	if err := options.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func (r *rotating) secret(t *testing.T, name string) *corev1.Secret {
	t.Helper()
	obj := &corev1.Secret{}
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// TestRotation goes through all phases with a real API server whose client CA file follows the published bundle.
func TestRotation(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.run(t, controllers.Options{Rotation: &rotation.Reconciler{}})
	r.authority(t, "cluster", "signing-ca", nil)
	adopted := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	if adopted.Status.Signing.AdoptedAt == nil || !bytes.Equal(r.bundle(t, "cluster"), r.CA.CertPEM) {
		t.Errorf("the CA was not adopted: %+v", adopted.Status)
	}

	r.ask(t, "cluster", v1alpha1.OperationStart)
	waiting := r.reaches(t, "cluster", v1alpha1.Preparing, func(obj *v1alpha1.SigningAuthority) bool {
		return strings.Contains(strings.Join(obj.Status.WaitingFor, " "), obj.Spec.Verification.APIServers[0])
	})
	if got := waiting.Status.APIServers; len(got) != 1 || got[0].Trust != "Refused" {
		t.Errorf("the API server that does not trust the candidate is not named: %+v", got)
	}
	if !bytes.HasSuffix(r.bundle(t, "cluster"), r.CA.CertPEM) || len(r.bundle(t, "cluster")) <= len(r.CA.CertPEM) {
		t.Errorf("published is not the new one and then the old one")
	}
	r.feed(t)
	prepared := r.reaches(t, "cluster", v1alpha1.Prepared, nil)
	if prepared.Status.Retiring.KeyID != adopted.Status.Signing.KeyID || prepared.Status.Generation != 2 {
		t.Errorf("what retires is not what signed: %+v", prepared.Status)
	}

	r.ask(t, "cluster", v1alpha1.OperationComplete)
	r.reaches(t, "cluster", v1alpha1.Prepared, nil)
	r.tells(t, "cluster", "RotationRefused", "others have issued")
	r.ask(t, "cluster", v1alpha1.OperationAttest)
	r.reaches(t, "cluster", v1alpha1.Prepared, func(obj *v1alpha1.SigningAuthority) bool { return obj.Status.Retiring.AttestedAt != nil })
	r.ask(t, "cluster", v1alpha1.OperationComplete)
	completed := r.reaches(t, "cluster", v1alpha1.Completed, nil)
	if completed.Status.Signing.KeyID != prepared.Status.Signing.KeyID || completed.Status.Retiring != nil {
		t.Errorf("completed with %+v", completed.Status)
	}
	data := r.secret(t, "signing-ca").Data
	for key, value := range data {
		if bytes.Contains(value, r.CA.KeyPEM) {
			t.Errorf("%s still holds the old key", key)
		}
	}
	if !bytes.Equal(data["tls.crt"], data["signing.crt"]) || bytes.Contains(r.bundle(t, "cluster"), r.CA.CertPEM) {
		t.Error("the Secret or the bundle still has the old CA")
	}
}
