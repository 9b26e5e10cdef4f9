package csrenv_test

import (
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// still fails the test if obj was deleted or replaced, or is in another state.
func still(t *testing.T, obj *certificatesv1.CertificateSigningRequest, state csr.State) {
	t.Helper()
	now := &certificatesv1.CertificateSigningRequest{}
	if err := newClient(t, admin).Get(t.Context(), client.ObjectKeyFromObject(obj), now); err != nil {
		t.Fatalf("request %s, to be %s still: %v", obj.Name, state, err)
	}
	if got := csr.StateOf(now); now.UID != obj.UID || got != state {
		t.Errorf("request %s is %s, want %s", obj.Name, got, state)
	}
}

// TestAFakeClockDrivesCertificatesAndRetention steps the clock to just before and just after requests are due.
func TestAFakeClockDrivesCertificatesAndRetention(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	steps, c := testingclock.NewFakeClock(now), newClient(t, admin)
	start(t, csrenv.Options{Clock: steps, Retention: csr.Retention{
		Approved: time.Hour, Denied: time.Minute, Failed: time.Hour, Pending: 24 * time.Hour,
	}})
	issued := newRequest(t, "validity")
	issued.Spec.ExpirationSeconds = new(int32(30 * 3600))
	create(t, c, issued)
	eventually(t, issued, csr.Issued)
	if got, want := parse(t, issued.Status.Certificate).NotAfter, now.Add(30*time.Hour-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid until %s, want %s", got, want)
	}
	pending := create(t, c, newRequest(t, "pending", unowned))
	steps.Step(58 * time.Minute)
	markerIsCleaned(t)
	still(t, issued, csr.Issued)
	next := create(t, c, newRequest(t, "validity"))
	eventually(t, next, csr.Issued)
	if got, want := parse(t, next.Status.Certificate).NotBefore, steps.Now().Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid from %s, want %s", got, want)
	}
	steps.Step(3 * time.Minute)
	eventually(t, issued, gone)
	steps.Step(23*time.Hour - 3*time.Minute)
	markerIsCleaned(t)
	still(t, pending, csr.Pending)
	steps.Step(3 * time.Minute)
	eventually(t, pending, gone)
}

// markerIsCleaned waits until the cleaner has deleted two denied requests, one after the other, which are due by the
// stepped clock. By then the cleaner has judged all earlier requests, because the second one was found by a later pass.
func markerIsCleaned(t *testing.T) {
	t.Helper()
	for range 2 {
		marker := create(t, newClient(t, admin), newRequest(t, "marker", unowned))
		csr.AddCondition(marker, certificatesv1.CertificateDenied, "Test", "Denied by the test.", time.Time{})
		_ = must(marker, newClient(t, admin).SubResource("approval").Update(t.Context(), marker))
		eventually(t, marker, gone)
	}
}
