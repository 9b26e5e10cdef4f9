package inventory

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestWhatObjectsHave has the addresses that the API server takes for one, however they are written.
func TestWhatObjectsHave(t *testing.T) {
	for name, test := range map[string]struct{ got, want []SAN }{
		"a Service": {serviceSANs(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "metrics-server"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:0::1"}, ExternalIPs: []string{"010.0.0.1", "::ffff:010.0.0.2"},
				LoadBalancerIP: "192.0.2.66", ExternalName: "elsewhere.example.com",
			},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.000.002.007"}, {Hostname: "LB.example.com."}}}},
		}), sans("metrics-server", "metrics-server.kube-system", "10.96.0.1", "10.96.0.1", "fd00::1", "10.0.0.1", "10.0.0.2", "192.0.2.7", "lb.example.com")},
		"a Service without an address": {serviceSANs(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}},
		}), sans("headless", "headless.default")},
		"a Node": {nodeSANs(&corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Address: "010.000.000.001"}, {Address: "Node-1"}, {Address: "fd00::1%eth0"}, {Address: "010.0.0.256"}, {Address: ""},
		}}}), sans("10.0.0.1", "node-1", "fd00::1%eth0", "010.0.0.256")},
		"endpoints": {sliceSANs(&discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.01"}}}}), sans("10.0.0.1")},
	} {
		if diff := cmp.Diff(test.want, test.got, byValue); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
