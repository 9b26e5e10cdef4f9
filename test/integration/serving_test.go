package integration

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// kubeletOf returns a client of the kubelet of node.
func kubeletOf(t *testing.T, node string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(controlPlane(t).Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: csr.NodeUserPrefix + node, Groups: []string{csr.NodeGroup, "system:authenticated"}}
	c, err := client.New(cfg, client.Options{Scheme: clientgoscheme.Scheme, Mapper: admin(t).RESTMapper()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// servingRequest returns the request of the kubelet of node: SANs that parse as addresses become addresses, and
// others names.
func servingRequest(t *testing.T, node string, sans ...string) *request {
	t.Helper()
	template := x509.CertificateRequest{Subject: pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}}}
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, san)
		}
	}
	return nodeRequest(t, node, func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Request = certificatesv1.KubeletServingSignerName, payload(t, template)
		obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	})
}

// newNode creates a Node that reports addresses.
func newNode(t *testing.T, name string, addresses ...string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	create(t, admin(t), node)
	if len(addresses) > 0 {
		publish(t, node, addresses...)
	}
	return node
}

// publish sets the addresses that node reports.
func publish(t *testing.T, node *corev1.Node, addresses ...string) {
	t.Helper()
	node.Status.Addresses = nil
	for _, address := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(address) == nil {
			kind = corev1.NodeInternalDNS
		}
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	if err := admin(t).Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// startServingManager runs the manager with approval of serving certificates, under its shipped role.
func startServingManager(t *testing.T, more string) *process {
	t.Helper()
	installRBAC(t)
	return startServingManagerAs(t, serviceAccountConfig(t), more)
}

func startServingManagerAs(t *testing.T, cfg *rest.Config, more string) *process {
	t.Helper()
	apply(t, "kubelet-serving")
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	return startManager(t, cfg, "--leader-elect=false", "--config", servingConfig(t, more))
}

// servingConfig writes a configuration with approval of serving certificates.
func servingConfig(t *testing.T, more string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte("apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"+
		"approval: {kubeletServing: {enabled: true, clusterDomain: cluster.test, reserved: [api.example.com, 203.0.113.0/24]"+more+"}}\n"))
	return file
}

func TestServing(t *testing.T) {
	parallel(t)
	p := startServingManager(t, "")
	newNode(t, "serving-a", "192.0.2.1", "2001:db8::1", "serving-a.example.com")

	good := createRequest(t, kubeletOf(t, "serving-a"), servingRequest(t, "serving-a", "192.0.2.1", "SERVING-A.example.com"))
	reaches(t, good, csr.Issued)
	cert := leaf(t, good)
	if err := cert.VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-", Namespace: "default"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{"192.0.2.77"},
	}}
	create(t, admin(t), service)
	var apiServer corev1.Service
	if err := admin(t).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &apiServer); err != nil {
		t.Fatal(err)
	}
	// The node's own report does not help it: it reports all requested names, except those in more.
	for name, test := range map[string]struct {
		sans   []string
		more   []string
		reason string
		parts  []string
	}{
		"another node's address":           {[]string{"192.0.2.1"}, nil, "SANContested", []string{"192.0.2.1", "Node serving-a"}},
		"another node's name":              {[]string{"serving-a.example.com"}, nil, "SANContested", []string{"Node serving-a"}},
		"an address that nobody has":       {nil, []string{"192.0.2.3"}, "SANNotOwned", []string{"192.0.2.3"}},
		"the API server's Service":         {[]string{apiServer.Spec.ClusterIP}, nil, "SANReserved", []string{"Service default/kubernetes"}},
		"a Service's address":              {[]string{service.Spec.ClusterIP}, nil, "SANReserved", []string{"Service default/" + service.Name}},
		"a Service's name for pods":        {[]string{service.Name + ".default"}, nil, "SANReserved", []string{"Service default/" + service.Name}},
		"a Service's name beside it":       {[]string{service.Name}, nil, "SANReserved", []string{"Service default/" + service.Name}},
		"a host of a Service":              {[]string{"web-0." + service.Name + ".default"}, nil, "SANReserved", []string{"Service default/" + service.Name}},
		"a Pod's name":                     {[]string{"192-0-2-1.default.pod"}, nil, "SANReserved", []string{"a name of a Pod"}},
		"a Service's external address":     {nil, []string{"192.0.2.77"}, "SANReserved", []string{"Service default/" + service.Name}},
		"a name of the API server":         {[]string{"kubernetes.default.svc"}, nil, "SANReserved", nil},
		"a name in the cluster's domain":   {[]string{"x.cluster.test"}, nil, "SANReserved", nil},
		"a configured range":               {[]string{"203.0.113.9"}, nil, "SANReserved", nil},
		"a configured name":                {[]string{"API.example.com"}, nil, "SANReserved", nil},
		"the host itself":                  {[]string{"127.0.0.1"}, nil, "SANReserved", nil},
		"a wildcard":                       {[]string{"*.example.com"}, nil, "SANReserved", nil},
		"no name that could be owned":      {nil, nil, "SANMissing", nil},
		"an IPv4-mapped Service's address": {[]string{"::ffff:" + service.Spec.ClusterIP}, nil, "SANReserved", nil},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, "x-greedy-"+strings.NewReplacer(" ", "-", "'", "").Replace(strings.ToLower(name)), append(test.sans, "192.0.2.2")...)
			obj := createRequest(t, kubeletOf(t, node.Name), servingRequest(t, node.Name, append(test.sans, test.more...)...))
			hasEvent(t, obj, test.reason, test.parts...)
			if got := csr.StateOf(reload(t, obj)); got != csr.Pending {
				t.Errorf("it is %s", got)
			}
		})
	}
	// A node with the name of a Service keeps its name.
	newNode(t, service.Name, "192.0.2.90", service.Name)
	reaches(t, createRequest(t, kubeletOf(t, service.Name), servingRequest(t, service.Name, "192.0.2.90", service.Name)), csr.Issued)
	checkStop(t, p)
}

// TestServingWakes approves within a second after the awaited event.
func TestServingWakes(t *testing.T) {
	parallel(t)
	startServingManager(t, "")
	waiting := createRequest(t, kubeletOf(t, "wakes-a"), servingRequest(t, "wakes-a", "192.0.2.10"))
	hasEvent(t, waiting, "NodeNotFound", `"wakes-a"`)
	node := newNode(t, "wakes-a")
	issuedSoon(t, waiting, func() { publish(t, node, "192.0.2.10", "192.0.2.12") })

	// Another node has the address. It is free once that node is deleted.
	newNode(t, "wakes-b", "192.0.2.11", "192.0.2.12")
	contested := createRequest(t, kubeletOf(t, "wakes-b"), servingRequest(t, "wakes-b", "192.0.2.11", "192.0.2.12"))
	hasEvent(t, contested, "SANContested", "Node wakes-a")
	issuedSoon(t, contested, func() { publish(t, node, "192.0.2.10") })
}

// TestNameOfTwoNamesIsNotIssued has a node that requests one DNS name that others read as two: its own address, and a
// name of the API server. Earlier versions approved and signed it literally.
func TestNameOfTwoNamesIsNotIssued(t *testing.T) {
	parallel(t)
	startServingManager(t, "")
	newNode(t, "serving-two", "192.0.2.77")
	const name = "::ffff:192.0.2.77%, DNS:kubernetes.default.svc"
	obj := createRequest(t, kubeletOf(t, "serving-two"), servingRequest(t, "serving-two", name))
	hasEvent(t, obj, "NameNotPermitted", name)
	if state := csr.StateOf(reload(t, obj)); state != csr.Pending {
		t.Fatalf("request is %s, want Pending", state)
	}
	approve(t, reload(t, obj))
	failed := reaches(t, obj, csr.Failed).Status.Conditions[1]
	if failed.Reason != "NameNotPermitted" || !strings.Contains(failed.Message, name) {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
}
