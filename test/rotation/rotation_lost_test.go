//go:build nightly

package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// testLost deletes the Secret: no other CA replaces it.
func testLost(t *testing.T, r *rotating) {
	r.run(t, r.everything(t, time.Hour, clientSigners("lost")))
	old := r.adopted(t, "lost", nil)
	if err := r.admin.Delete(t.Context(), r.secret(t, "lost")); err != nil {
		t.Fatal(err)
	}
	kit.Within(t, 10*time.Second, "that is seen when it happens", func(context.Context) error {
		if waiting := r.get(t, "lost").Status.WaitingFor; !strings.Contains(strings.Join(waiting, " "), "back into tls.crt") {
			return fmt.Errorf("it waits for %q", waiting)
		}
		return nil
	})
	if err := r.admin.Get(t.Context(), client.ObjectKey{Namespace: kit.SystemNamespace, Name: "lost"}, &corev1.Secret{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("there is a Secret again, error %v", err)
	}
	r.bring(t, "lost", old)
	kit.Eventually(t, "what is put back signs", func(context.Context) error {
		if data := r.secret(t, "lost").Data; !bytes.Equal(data["signing.key"], old.KeyPEM) {
			return errors.New("it does not")
		}
		return nil
	})
	r.isTakenFor(t, r.user(t, "lotte", r.get(t, "lost").Status.Signing), "lotte")
}

// testNoBackup deletes the Secret for good. Another CA is created when its owner requests it. Certificates of the
// lost CA are trusted until that CA has been retired.
func testNoBackup(t *testing.T, r *rotating) {
	const name = "no-backup"
	r.run(t, r.everything(t, time.Hour, clientSigners(name)))
	r.adopted(t, name, nil)
	lost := r.get(t, name).Status.Signing
	before := r.user(t, "before", lost)
	if err := r.admin.Delete(t.Context(), r.secret(t, name)); err != nil {
		t.Fatal(err)
	}
	r.waitsFor(t, name, v1alpha1.Completed, "without a backup, run \"rotation start no-backup\"")
	r.ask(t, name, v1alpha1.OperationStart)
	prepared := r.waitsFor(t, name, v1alpha1.Prepared, "certificates of kubernetes.io/kube-apiserver-client from the CA "+lost.KeyID)
	if prepared.Status.Retiring.KeyID != lost.KeyID || prepared.Status.Generation != 2 {
		t.Errorf("what retires is not what was lost: %+v", prepared.Status)
	}
	after := r.user(t, "after", prepared.Status.Signing)
	for user, pair := range map[string]tls.Certificate{"before": before, "after": after} {
		r.isTakenFor(t, pair, user)
	}
	r.leaves(t, name)
	for user, pair := range map[string]tls.Certificate{"": before, "after": after} {
		r.isTakenFor(t, pair, user)
	}
}

// TestRootAboveIsNamed checks that the completion is refused while an API server trusts a CA above the retiring one,
// because the completion would never end.
func TestRootAboveIsNamed(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	root := kit.IntermediateOf(t, kit.NewCA(t)) // it may have CAs below it
	first, second := kit.IntermediateOf(t, root), kit.IntermediateOf(t, root)
	if err := r.trust(root.CertPEM); err != nil {
		t.Fatal(err)
	}
	const name = "below"
	r.run(t, r.everything(t, 10*time.Minute, clientSigners(name)))
	r.bring(t, name, first)
	r.authority(t, name, name, nil)
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.does(t, name, v1alpha1.OperationAttest)
	before := r.user(t, "before", r.get(t, name).Status.Signing)
	r.edit(t, name, second.CertPEM, second.KeyPEM)
	subject := fmt.Sprintf("%q", kit.Certificate(t, root).Subject)
	r.waitsFor(t, name, v1alpha1.Prepared, "remove "+subject+" from")
	r.does(t, name, v1alpha1.OperationAccept)
	r.does(t, name, v1alpha1.OperationComplete)
	r.tells(t, name, "RotationRefused", "remove "+subject+" from")
	r.isTakenFor(t, before, "before")

	// Its owner removes it in both places.
	r.feed(t)
	r.waitsFor(t, name, v1alpha1.Prepared, "remove "+subject+" from") // it stays in the ConfigMap
	kit.Eventually(t, "the API server trusts the bundle, and not the root", func(context.Context) error {
		return publisher(t, r.Config).Prune(t.Context(), kit.Certificate(t, root))
	})
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, func(obj *v1alpha1.SigningAuthority) bool { return obj.Status.Retiring == nil })
	r.isTakenFor(t, before, "")
}
