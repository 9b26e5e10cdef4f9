package rotation

import (
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestALostAccountIsClosed only where nobody asks what was in it.
func TestALostAccountIsClosed(t *testing.T) {
	t.Parallel()
	alive, over := noted("old"), noted("old")
	over.NotAfter.Time = noon
	if sealsLost(alive, noon) || !sealsLost(over, noon) || !sealsLost(accepted(prepared()).Retiring, noon.Add(-time.Hour)) {
		t.Error("got it wrong")
	}
}

// TestWhatHasEndedIsPublishedAlone: beside another it is left out, and for want of one what has left would stay.
func TestWhatHasEndedIsPublishedAlone(t *testing.T) {
	t.Parallel()
	short, _, err := ca.New(ca.NewOptions{CommonName: "short", Lifetime: 24 * time.Hour}, noon)
	if err != nil {
		t.Fatal(err)
	}
	long, _, err := ca.New(ca.NewOptions{CommonName: "long", Lifetime: 1000 * time.Hour}, noon)
	if err != nil {
		t.Fatal(err)
	}
	obj := &v1alpha1.SigningAuthority{}
	for _, want := range []string{string(short.CertificatePEM()), string(long.CertificatePEM())} {
		obj.Status.Candidate, obj.Status.Signing = obj.Status.Signing, &v1alpha1.CAStatus{Certificate: want}
		got, err := wanted(obj, noon.Add(100*time.Hour))
		if err != nil || string(got.Bundle) != want {
			t.Errorf("got %q, %v", got.Bundle, err)
		}
	}
}
