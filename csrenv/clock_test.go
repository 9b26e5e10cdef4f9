package csrenv_test

import (
	"crypto/x509"
	"strconv"
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

func TestStepsOfAFakeClockDriveRetention(t *testing.T) {
	for name, test := range map[string]struct {
		// before is a step after which the request still exists. after is another step, after which it is gone.
		before, after time.Duration
		state         csr.State
		mod           func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
	}{
		"issued":  {before: 58 * time.Minute, after: 3 * time.Minute, state: csr.Issued, mod: owned},
		"pending": {before: 24*time.Hour - 2*time.Minute, after: 3 * time.Minute, state: csr.Pending, mod: unowned},
	} {
		t.Run(name, func(t *testing.T) {
			steps := testingclock.NewFakeClock(time.Now())
			start(t, csrenv.Options{Clock: steps, Retention: csr.Retention{
				Approved: time.Hour, Denied: time.Minute, Failed: time.Hour, Pending: 24 * time.Hour,
			}})
			obj := create(t, newClient(t, admin), newRequest(t, "retention-"+name, test.mod))
			eventually(t, obj, test.state)
			steps.Step(test.before)
			markerIsCleaned(t)
			still(t, obj, test.state)
			steps.Step(test.after)
			eventually(t, obj, gone)
		})
	}
}

// markerIsCleaned waits until the cleaner has deleted two denied requests, one after the other, which are due by the
// stepped clock. By then the cleaner has judged all earlier requests, because the second one was found by a later pass.
func markerIsCleaned(t *testing.T) {
	t.Helper()
	for range 2 {
		marker := create(t, newClient(t, admin), newRequest(t, "marker", unowned))
		csr.AddCondition(marker, certificatesv1.CertificateDenied, "Test", "Denied by the test.", time.Time{})
		if err := newClient(t, admin).SubResource("approval").Update(t.Context(), marker); err != nil {
			t.Fatal(err)
		}
		eventually(t, marker, gone)
	}
}

func TestAStepWhileTheRequestIsOnItsWayIsNotLost(t *testing.T) {
	for i := range 4 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			steps := testingclock.NewFakeClock(time.Now())
			start(t, csrenv.Options{Clock: steps})
			obj := create(t, newClient(t, admin), newRequest(t, "racing", unowned))
			steps.Step(25 * time.Hour) // before, during or after the cleaner's reconcile
			eventually(t, obj, gone)
		})
	}
}

func TestCertificatesFollowAFakeClock(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	steps := testingclock.NewFakeClock(now)
	start(t, csrenv.Options{Clock: steps, Retention: csr.Retention{Approved: -1, Denied: -1, Failed: -1, Pending: -1}})
	seconds := int32(3600)
	obj := newRequest(t, "validity", func(obj *certificatesv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
		obj.Spec.ExpirationSeconds = &seconds
	})
	create(t, newClient(t, admin), obj)
	eventually(t, obj, csr.Issued)
	cert := parse(t, obj.Status.Certificate)
	if want := now.Add(time.Hour); !cert.NotAfter.Equal(want) {
		t.Errorf("valid until %s, want %s", cert.NotAfter, want)
	}

	later := now.Add(48 * time.Hour)
	steps.SetTime(later) // the first certificate has expired, so its request is deleted
	eventually(t, obj, gone)
	next := create(t, newClient(t, admin), newRequest(t, "validity"))
	eventually(t, next, csr.Issued)
	if got, want := parse(t, next.Status.Certificate).NotBefore, later.Add(-5*time.Minute); !got.Equal(want) {
		t.Errorf("valid from %s, want %s", got, want)
	}
}
