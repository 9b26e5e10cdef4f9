package san_test

import (
	"net/netip"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

func TestReserved(t *testing.T) {
	t.Parallel()
	reserved := san.Reserved{
		ClusterDomain: "cluster.local",
		Endpoints:     []san.SAN{san.Parse("api.example.com"), san.Parse("192.0.2.10")},
		Prefixes:      []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	for _, text := range []string{
		"kubernetes", "Kubernetes.Default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local.",
		"a.b.svc", "a.b.svc.", "a.b.svc.other.domain", "svc", "x.cluster.local", "cluster.local", "a.b.pod.cluster.local",
		"*", "*.example.com", "a.*.example.com", "localhost", "x.localhost", "*.localhost", "LOCALHOST.",
		"localhost.localdomain", "localhost6", "localhost6.localdomain6", "localhost4", "LocalHost4.LocalDomain4",
		"ip6-localhost", "ip6-loopback.",
		"API.example.com", "192.0.2.10", "::ffff:192.0.2.10", "10.96.0.1", "10.111.255.255",
		"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.1.1", "fe80::1",
		"224.0.0.1", "ff02::1", "255.255.255.255",
	} {
		if reserved.Why(san.Parse(text)) == "" {
			t.Errorf("%s is not reserved", text)
		}
	}
	if reserved.Why(san.SAN{}) == "" {
		t.Error("no address at all is not reserved")
	}
	for _, text := range []string{
		"node-1", "node-1.example.com", "kubernetes-1", "kubernetes.example.com", "localhost.example.com", "mysvc", "svc.example.com",
		"notcluster.local", "localhost7", "10.0.0.1", "10.112.0.0", "fd00::1", "192.0.2.11", "2001:db8::1",
	} {
		if why := reserved.Why(san.Parse(text)); why != "" {
			t.Errorf("%s is reserved as %s", text, why)
		}
	}
}
