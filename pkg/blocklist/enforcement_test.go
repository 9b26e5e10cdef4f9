package blocklist

import (
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestUnknownEnforcementIsNone checks that the metric of an API server is 0, also on a leader that has just started, while it is unknown which
// API servers there are. TestProof in test/revocation asks real API servers.
func TestUnknownEnforcementIsNone(t *testing.T) {
	list, _ := newList()
	list.Offer(listed("", ""))
	const address = "192.0.2.1:6443"
	enforced.WithLabelValues(address).Set(1)
	published := entries.Enforcement{Servers: []entries.Server{{Address: address}}}
	e := &Enforcement{list: list, live: fake.NewClientBuilder().Build(), last: published}
	expect.True(t, e.check(t.Context()) != nil, "checked API servers that nothing names")
	value := &dto.Metric{}
	if err := enforced.WithLabelValues(address).Write(value); err != nil {
		t.Fatal(err)
	}
	expect.Equal(t, "the metric", value.GetGauge().GetValue(), 0)
}
