package signer

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// TestIssuedLifetimeIsWhatOthersGetToo follows the gauge that alerts compare with: a CA that ends soon shortens it, a
// requester's own wish does not. It runs alone, as the gauge is one for all tests.
func TestIssuedLifetimeIsWhatOthersGetToo(t *testing.T) {
	lifetime := func(ca time.Duration, change ...func(*request)) time.Duration {
		t.Helper()
		p := newParts(t, object(t, change...))
		root := newRoot(t, ca)
		p.pair.Load(root.cert, root.key)
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Fatalf("%d writes, error %v", len(p.written), err)
		}
		metric := &dto.Metric{}
		if err := issuedLifetimeSeconds.WithLabelValues(p.written[0].Spec.SignerName).Write(metric); err != nil {
			t.Fatal(err)
		}
		return time.Duration(metric.GetGauge().GetValue()) * time.Second
	}
	const year = 365 * 24 * time.Hour
	if got := lifetime(10 * year); got != year {
		t.Errorf("%s, want the configured year", got)
	}
	tenMinutes := int32(600)
	if got := lifetime(10*year, func(obj *request) { obj.Spec.ExpirationSeconds = &tenMinutes }); got != year {
		t.Errorf("%s after a requester asked for ten minutes: nobody else gets that", got)
	}
	if got := lifetime(24 * time.Hour); got > 25*time.Hour {
		t.Errorf("%s, but the CA ends in a day", got)
	}
}
