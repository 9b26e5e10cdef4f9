//go:build nightly

package rotation

import (
	"bytes"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestManagerDiesInEachPhase kills the manager in each phase, and checks that another one continues.
func TestManagerDiesInEachPhase(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	stop := r.run(t, r.everything(t, time.Hour, clientSigners("signing-ca")))
	dies := func() {
		t.Helper()
		stop()
		stop = r.run(t, r.everything(t, time.Hour, clientSigners("signing-ca")))
	}
	r.authority(t, "cluster", "signing-ca", nil)
	first := r.reaches(t, "cluster", v1alpha1.Completed, nil).Status.Signing
	dies()
	before := r.user(t, "berta", first)
	r.ask(t, "cluster", v1alpha1.OperationStart)
	candidate := r.waitsFor(t, "cluster", v1alpha1.Preparing, "answers 401").Status.Candidate
	dies()
	unfeed := r.feed(t)
	second := r.reaches(t, "cluster", v1alpha1.Prepared, nil).Status.Signing
	if candidate.KeyID != second.KeyID {
		t.Errorf("it signs with %s, and %s was the candidate", second.KeyID, candidate.KeyID)
	}
	dies()
	r.user(t, "carla", second)
	unfeed()
	r.does(t, "cluster", v1alpha1.OperationAttest)
	r.does(t, "cluster", v1alpha1.OperationAccept)
	r.completes(t, "cluster")
	r.waitsFor(t, "cluster", v1alpha1.Completing, r.get(t, "cluster").Spec.Verification.APIServers[0])
	if len(r.secret(t, "signing-ca").Data["retiring.key"]) == 0 {
		t.Error("the old key is gone while the API server accepts the old CA")
	}
	dies()
	r.isTakenFor(t, before, "berta")
	r.feed(t)
	completed := r.reaches(t, "cluster", v1alpha1.Completed, func(obj *v1alpha1.SigningAuthority) bool { return obj.Status.Retiring == nil })
	dies()
	old := kit.Load(t, r.CA)
	if err := holds(t.Context(), publisher(t, r.Config), false, r.CA); err != nil {
		t.Error(err)
	}
	r.isTakenFor(t, signedBy(t, old, pkix.Name{CommonName: "stolen"}, time.Hour), "")
	r.isTakenFor(t, before, "")
	r.isTakenFor(t, r.user(t, "dora", second), "dora")
	data := r.secret(t, "signing-ca").Data
	if completed.Status.Generation != 2 || len(data["retiring.key"])+len(data["candidate.key"]) > 0 || bytes.Equal(data["signing.key"], r.CA.KeyPEM) {
		t.Errorf("after it there is %+v", completed.Status)
	}
	if certs, err := ca.ParseCertificates(r.bundle(t, "cluster")); err != nil || len(certs) != 1 {
		t.Errorf("%d certificates are published, error %v", len(certs), err)
	}
}
