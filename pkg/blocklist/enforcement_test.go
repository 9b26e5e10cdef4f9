package blocklist

import (
	"fmt"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestUnknownEnforcementIsNone checks that the metric of an API server is 0, also on a leader that has just started, while it is unknown which
// API servers there are, or somebody has named a thousand. TestProof in test/revocation asks real API servers.
func TestUnknownEnforcementIsNone(t *testing.T) {
	forged := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "forged", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Ports:      []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](1)}},
	}
	for i := range 1000 {
		forged.Endpoints = append(forged.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("127.0.%d.%d", i/250, i%250+1)}})
	}
	for want, objects := range map[string][]client.Object{
		probe.ErrNoEndpoints.Error():                                  nil,
		"the Service kubernetes has 1000 endpoints, want at most 100": {forged},
	} {
		list, _ := newList()
		list.Offer(listed("", ""))
		const address = "192.0.2.1:6443"
		enforced.WithLabelValues(address).Set(1)
		published := entries.Enforcement{Servers: []entries.Server{{Address: address}}}
		e := &Enforcement{list: list, live: fake.NewClientBuilder().WithObjects(objects...).Build(), last: published}
		err := e.check(t.Context())
		expect.True(t, err != nil && strings.Contains(err.Error(), want), "error %v, want %q", err, want)
		value := &dto.Metric{}
		if err := enforced.WithLabelValues(address).Write(value); err != nil {
			t.Fatal(err)
		}
		expect.Equal(t, "the metric", value.GetGauge().GetValue(), 0)
	}
}
