package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestAuthorities goes through the lives of an authority.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	liveThrough(t, map[string]func(*testing.T, *rotating){
		"made": testMade, "brought": testBrought, "rolled-back": testRolledBack, "outstanding": testOutstanding,
	})
}

// liveThrough runs each test with a control plane whose API server trusts what is published.
func liveThrough(t *testing.T, lives map[string]func(*testing.T, *rotating)) {
	t.Helper()
	for name, test := range lives {
		t.Run(name, func(t *testing.T) {
			kit.Parallel(t)
			r := startRotating(t)
			r.feed(t)
			test(t, r)
		})
	}
}

// adopted returns an authority with its owner's CA. The owner has attested that no other signer has used it.
func (r *rotating) adopted(t *testing.T, name string, change func(*v1alpha1.SigningAuthoritySpec)) *csrenv.CA {
	t.Helper()
	brought := kit.NewCA(t)
	r.bring(t, name, brought)
	r.authority(t, name, name, change)
	r.reaches(t, name, v1alpha1.Completed, nil)
	r.does(t, name, v1alpha1.OperationAttest)
	return brought
}

// edit changes the Secret, as an owner does.
func (r *rotating) edit(t *testing.T, name string, cert, key []byte) {
	t.Helper()
	obj := r.secret(t, name)
	obj.Data["tls.crt"], obj.Data["tls.key"] = cert, key
	if err := r.admin.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// testMade has a CA that is created because there is none, and that signs once it is trusted.
func testMade(t *testing.T, r *rotating) {
	r.run(t, r.everything(t, time.Hour, clientSigners("made")))
	r.authority(t, "made", "made", nil)
	made := r.reaches(t, "made", v1alpha1.Completed, nil)
	if made.Status.Signing.AdoptedAt != nil || made.Status.Generation != 1 {
		t.Errorf("it is not the first of its own: %+v", made.Status)
	}
	r.isTakenFor(t, r.user(t, "maria", made.Status.Signing), "maria")
	if finalizers := r.secret(t, "made").Finalizers; !slices.Contains(finalizers, keypair.Finalizer) {
		t.Errorf("the only copy of the CA has the finalizers %q", finalizers)
	}
	if data := r.secret(t, "made").Data; !bytes.Equal(data["tls.crt"], data["signing.crt"]) || len(data["candidate.key"]) > 0 {
		t.Error("the Secret is not that of a CA that signs")
	}
}

// testBrought has an owner who stores first an invalid CA, and then a valid one, in the Secret.
func testBrought(t *testing.T, r *rotating) {
	r.run(t, r.everything(t, time.Hour, clientSigners("brought")))
	old := r.adopted(t, "brought", nil)
	r.edit(t, "brought", []byte("nonsense"), old.KeyPEM)
	r.tells(t, "brought", "RotationRefused", "no PEM block of type CERTIFICATE")
	kit.Eventually(t, "what signs is put back", func(context.Context) error {
		if !bytes.Equal(r.secret(t, "brought").Data["tls.crt"], old.CertPEM) {
			return errors.New("it is not there")
		}
		return nil
	})
	own := kit.NewCA(t)
	r.edit(t, "brought", own.CertPEM, own.KeyPEM)
	prepared := r.reaches(t, "brought", v1alpha1.Prepared, nil)
	if signing := prepared.Status.Signing; signing.KeyID != kit.Load(t, own).KeyID() || signing.AdoptedAt == nil || signing.Generation != 2 {
		t.Errorf("what signs is not the CA that was brought: %+v", signing)
	}
	r.isTakenFor(t, r.user(t, "bruno", prepared.Status.Signing), "bruno")
}

// testRolledBack rolls back from Prepared, and removes the new CA.
func testRolledBack(t *testing.T, r *rotating) {
	const name = "rolled-back"
	r.run(t, r.everything(t, time.Hour, clientSigners(name)))
	r.adopted(t, name, nil)
	first := r.get(t, name).Status.Signing
	before := r.user(t, "before", first)
	r.ask(t, name, v1alpha1.OperationStart)
	second := r.reaches(t, name, v1alpha1.Prepared, nil).Status.Signing
	between := r.user(t, "between", second)
	kit.Eventually(t, "the old CA signs again", func(context.Context) error {
		r.does(t, name, v1alpha1.OperationRollback) // refused until it is proven that every verifier trusts the old CA
		obj := r.reaches(t, name, v1alpha1.Prepared, func(obj *v1alpha1.SigningAuthority) bool {
			return !obj.Status.Answered() && obj.Status.Intent == ""
		})
		if signing := obj.Status.Signing; signing.KeyID != first.KeyID {
			return fmt.Errorf("it is %s", signing.KeyID)
		}
		return nil
	})
	after := r.user(t, "after", first)
	for user, pair := range map[string]tls.Certificate{"before": before, "between": between, "after": after} {
		r.isTakenFor(t, pair, user)
	}
	r.leaves(t, name)
	for user, pair := range map[string]tls.Certificate{"before": before, "": between, "after": after} {
		r.isTakenFor(t, pair, user)
	}
}

// leaves completes, whatever certificates of the retiring CA are still valid.
func (r *rotating) leaves(t *testing.T, name string) {
	t.Helper()
	r.does(t, name, v1alpha1.OperationAccept)
	r.completes(t, name)
	r.reaches(t, name, v1alpha1.Completed, nil)
}

// completes requests the completion until the manager knows enough. After a refusal it requests again once the bundle
// is published, because each change of the authority interrupts a publication.
func (r *rotating) completes(t *testing.T, name string) {
	t.Helper()
	asked := false
	kit.Eventually(t, name+" begins to complete", func(context.Context) error {
		obj := r.get(t, name)
		if obj.Status.Phase == v1alpha1.Prepared {
			if !asked || meta.IsStatusConditionTrue(obj.Status.Conditions, v1alpha1.ConditionPublished) {
				r.does(t, name, v1alpha1.OperationComplete)
				asked = true
			}
			return fmt.Errorf("it waits for %q, and the last operation is %+v", obj.Status.WaitingFor, obj.Status.LastOperation)
		}
		return nil
	})
}
