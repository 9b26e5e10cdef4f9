package serving

import (
	"crypto/mldsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// asks returns a request of node's kubelet for names, which spaces separate.
func asks(node, names string) *csr.Request {
	user := "system:node:" + node
	req := &csr.Request{
		SignerName: certificatesv1.KubeletServingSignerName, Requester: csr.Requester{Username: user, Groups: []string{"system:nodes"}},
		Usages: []certificatesv1.KeyUsage{"digital signature", "server auth"},
		Cert:   ca.Request{Subject: pkix.Name{CommonName: user, Organization: []string{"system:nodes"}}},
	}
	for _, name := range strings.Fields(names) {
		if ip := net.ParseIP(name); ip != nil {
			req.Cert.IPAddresses = append(req.Cert.IPAddresses, ip)
		} else {
			req.Cert.DNSNames = append(req.Cert.DNSNames, name)
		}
	}
	return req
}

var policy = Policy{Reserved: san.Reserved{ClusterDomain: "cluster.local"}}

// TestRefusalListsTheFirstNames checks that a refusal lists a bounded number of names.
func TestRefusalListsTheFirstNames(t *testing.T) {
	for part, format := range map[string]string{`"10.1.2.`: "10.1.2.%d", ".cluster.local is ": "%d.cluster.local"} {
		var names []string
		facts := Facts{Entry: &inventory.Entry{Source: "row 1", SANs: []san.SAN{san.Parse("10.0.0.1")}}, Names: map[san.SAN]Name{}}
		for i := range 200 {
			names = append(names, fmt.Sprintf(format, i))
			facts.Names[san.Parse(names[i])] = Name{}
		}
		got := policy.Judge(asks("a", strings.Join(names, " ")), facts)
		expect.True(t, strings.Count(got.Message, part) == 10, "%+v", got)
	}
}

// TestNamesWithoutFactsWait checks that a caller that leaves facts out approves nothing.
func TestNamesWithoutFactsWait(t *testing.T) {
	known := map[san.SAN]Name{san.Parse("10.0.0.1"): {}}
	own := &inventory.Entry{Source: "row 1", SANs: []san.SAN{san.Parse("10.0.0.1"), san.Parse("10.0.0.2")}}
	for name, test := range map[string]struct {
		facts Facts
		asked string
		want  string
	}{
		"no facts at all":    {Facts{}, "10.0.0.1", "NodeNotFound"},
		"no entry":           {Facts{Names: known}, "10.0.0.1", "NodeNotFound"},
		"no names":           {Facts{Entry: own}, "10.0.0.1", "InventoryUnavailable"},
		"one name is absent": {Facts{Entry: own, Names: known}, "10.0.0.1 10.0.0.2", "InventoryUnavailable"},
		"all is known":       {Facts{Entry: own, Names: known}, "10.0.0.1", "AutoApproved"},
	} {
		if got := policy.Judge(asks("a", test.asked), test.facts); got.Reason != test.want || (got.Verdict == judge.Approve) != (test.want == "AutoApproved") {
			t.Errorf("%s: %+v, want %s", name, got, test.want)
		}
	}
}

// TestMLDSA checks that an ML-DSA key gets no key encipherment: the signer refuses it too.
func TestMLDSA(t *testing.T) {
	facts := Facts{Entry: &inventory.Entry{SANs: []san.SAN{san.Parse("10.0.0.1")}}, Names: map[san.SAN]Name{san.Parse("10.0.0.1"): {}}}
	req := asks("a", "10.0.0.1")
	req.Cert.PublicKey = new(mldsa.PublicKey)
	expect.Equal(t, "reason", policy.Judge(req, facts).Reason, "AutoApproved")
	req.Usages = append(req.Usages, certificatesv1.UsageKeyEncipherment)
	expect.Equal(t, "decision", policy.Judge(req, facts), judge.Deny.Because("UsagesNotPermitted", "the request for signer %s is not approved: "+
		"validating usages for ml-dsa key: usage key encipherment cannot be used with an ML-DSA signed certificate request; a new request is needed",
		certificatesv1.KubeletServingSignerName))
}

// TestOtherSigners checks that a request for another signer is left to others.
func TestOtherSigners(t *testing.T) {
	req := asks("a", "10.0.0.1")
	req.SignerName = "example.com/serving"
	own := Facts{Entry: &inventory.Entry{SANs: []san.SAN{san.Parse("10.0.0.1")}}, Names: map[san.SAN]Name{san.Parse("10.0.0.1"): {}}}
	expect.Equal(t, "decision", policy.Judge(req, own), judge.Decision{})
}

// TestNamesOfTheNode checks which names no Service takes from a node.
func TestNamesOfTheNode(t *testing.T) {
	own := []string{"ip-10-0-0-1", "ip-10-0-0-1.ec2.internal", "IP-10-0-0-1.ec2.internal.", "ip-10-0-0-1.ec2.internal.example.com"}
	for _, name := range append([]string{
		"ip-10-0-0-1.ec2", "ip-10-0-0-10.ec2.internal", "xip-10-0-0-1.ec2.internal", "ec2.internal", "ec2", "ip-10-0-0-1.ec2.internalx", "10.0.0.1",
	}, own...) {
		expect.Equal(t, name, ofNode("ip-10-0-0-1.ec2.internal", san.Parse(name)), slices.Contains(own, name))
	}
	// A node may be named by an address, or by a text that no Node can have. It does not get the address of a Service.
	for _, node := range []string{"10.96.0.10", ".x", ""} {
		expect.True(t, !ofNode(node, san.Parse("10.96.0.10")), "node %q takes the address of a Service", node)
	}
}

// TestCluster judges by the objects that a program has read. TestWhoseAddress of the approver has more of them.
func TestCluster(t *testing.T) {
	node := func(name string, addresses ...string) *corev1.Node {
		obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, address := range addresses {
			obj.Status.Addresses = append(obj.Status.Addresses, corev1.NodeAddress{Address: address})
		}
		return obj
	}
	service := func(namespace, name, clusterIP string, external ...string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ExternalIPs: external},
		}
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{"kubernetes.io/service-name": "kubernetes"}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.100"}}}}
	whole := Cluster{
		Nodes: []*corev1.Node{
			node("a", "10.0.0.1", "a.test", "10.0.0.1", "10.0.0.9"), node("b", "10.0.0.2", "a.test", "b.shop", "10.96.0.1"), node("c", "10.0.0.9", "10.0.0.100", "api.test", "c.test", "balancer.test"),
		},
		Services: []*corev1.Service{
			service("default", "kubernetes", "10.96.0.1"), service("shop", "web", "10.96.0.7", "10.0.0.50", "10.0.0.2"), service("shop", "b", "10.96.0.8"),
		},
		EndpointSlices:        []*discoveryv1.EndpointSlice{slice},
		APIServerCertificates: []*x509.Certificate{{DNSNames: []string{"api.test", "*.test"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 101)}}},
		APIServerHosts:        []string{"balancer.test"},
	}
	for asked, want := range map[string]string{
		"a asks for a 10.0.0.1":    "AutoApproved according to Node a",
		"a asks for a.test":        `SANContested a.test is claimed by node "a" and by Node b`,
		"a asks for 10.0.0.9":      "SANContested and by Node c",
		"a asks for 10.0.0.2":      "SANNotOwned",
		"b asks for 10.0.0.2":      "AutoApproved ", // it reports what a Service publishes
		"b asks for b.shop":        "AutoApproved ", // a name that begins with its own
		"b asks for 10.96.0.1":     "SANReserved Service default/kubernetes",
		"a asks for web.shop":      "SANReserved Service shop/web",
		"a asks for x.web.shop":    "SANReserved Service shop/web",
		"c asks for 10.0.0.50":     "SANReserved Service shop/web",
		"c asks for 10.0.0.100":    "SANReserved the API server (an endpoint)",
		"c asks for api.test":      "SANReserved the API server (in its serving certificate)",
		"c asks for c.test":        "AutoApproved ", // a wildcard reserves nothing
		"c asks for balancer.test": "SANReserved the API server (a host of it)",
		"gone asks for 10.0.0.60":  "NodeNotFound",
	} {
		name, names, _ := strings.Cut(asked, " asks for ")
		req := asks(name, names)
		facts, err := whole.Facts(req)
		got := policy.Judge(req, facts)
		if reason, part, _ := strings.Cut(want, " "); err != nil || got.Reason != reason || !strings.Contains(got.Message, part) {
			t.Errorf("%s: %+v, error %v, want %s", asked, got, err, want)
		}
	}
	// Public reports of other approvers, tried on 2026-11-28: siderolabs/talos-cloud-controller-manager 360, gardener 6958,
	// kontena/kubelet-rubber-stamp 22, postfinance/kubelet-csr-approver 70, alex1989hu/kubelet-serving-cert-approver 337.
	const public, private = "ec2-1-2-3-4.eu-central-1.compute.amazonaws.com", "ip-192-168-5-6.eu-central-1.compute.internal"
	cloud := node(private, "192.168.5.6", "1.2.3.4", private, public)
	for i, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS} {
		cloud.Status.Addresses[i].Type = kind
	}
	field := whole
	field.Nodes = []*corev1.Node{cloud, node("10.0.0.5", "10.0.0.5"), node("node-a", "10.0.0.6"), node("node-b", "10.0.0.7"), node("liar", "10.0.0.8", "node-b", "10.0.0.7")}
	for asked, want := range map[string]string{
		private + " asks for " + public + " " + private + " 192.168.5.6 1.2.3.4": "AutoApproved ",
		"10.0.0.5 asks for 10.0.0.5":                               "AutoApproved ",
		"node-a asks for node-b kubernetes-api.corp.example.com":   `SANNotOwned ["node-b" "kubernetes-api.corp.example.com"]`,
		"node-a asks for kubernetes-api.corp.example.com 10.0.0.6": `SANNotOwned ["kubernetes-api.corp.example.com"]`,
		"node-a asks for node-a 10.0.0.7":                          `SANNotOwned ["10.0.0.7"]`,
		"liar asks for node-b":                                     "SANContested it is the name of another Node",
	} {
		name, names, _ := strings.Cut(asked, " asks for ")
		facts, err := field.Facts(asks(name, names))
		got := policy.Judge(asks(name, names), facts)
		if reason, part, _ := strings.Cut(want, " "); err != nil || got.Reason != reason || !strings.Contains(got.Message, part) {
			t.Errorf("%s: %+v, error %v, want %s", asked, got, err, want)
		}
	}
	for name, remove := range map[string]func(*Cluster){
		"the Service kubernetes": func(c *Cluster) { c.Services = c.Services[1:] }, "its endpoints": func(c *Cluster) { c.EndpointSlices = nil },
		"a certificate of the API server": func(c *Cluster) { c.APIServerCertificates = nil }, "a host of it": func(c *Cluster) { c.APIServerHosts = nil },
		"endpoints of that Service": func(c *Cluster) {
			c.EndpointSlices = []*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Endpoints: slice.Endpoints}}
		},
	} {
		part := whole
		remove(&part)
		if facts, err := part.Facts(asks("a", "10.0.0.1")); err == nil || facts.Entry != nil {
			t.Errorf("without %s: %+v, error %v", name, facts, err)
		}
	}
}
