package keypair

import (
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

var now = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// root is a CA in PEM.
type root struct{ cert, key []byte }

// newRoot makes a CA that is valid from an hour before now to lifetime after now.
func newRoot(t testing.TB, lifetime time.Duration) root {
	t.Helper()
	authority, key, err := ca.New(ca.NewOptions{CommonName: "CA", Lifetime: lifetime}, now)
	if err != nil {
		t.Fatal(err)
	}
	return root{authority.CertificatePEM(), key}
}

// newPair returns a KeyPair of source, in the state after its manager's setup.
func newPair(source Source) (*KeyPair, *clocktesting.FakePassiveClock, *events.FakeRecorder) {
	pair := New(source)
	clock, recorder := clocktesting.NewFakePassiveClock(now), events.NewFakeRecorder(100)
	pair.Clock, pair.Reporter = clock, report.New(recorder, clock)
	return pair, clock, recorder
}

func taken(recorder *events.FakeRecorder) []string {
	var taken []string
	for len(recorder.Events) > 0 {
		taken = append(taken, <-recorder.Events)
	}
	return taken
}
