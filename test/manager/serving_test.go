package manager

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// startServingManager runs the manager with approval of serving certificates, under its shipped role.
func startServingManager(t *testing.T, more string) *kit.Process {
	t.Helper()
	kit.InstallRBAC(t)
	return startServingManagerAs(t, kit.ServiceAccountConfig(t), more)
}

func startServingManagerAs(t *testing.T, cfg *rest.Config, more string) *kit.Process {
	t.Helper()
	kit.Apply(t, "kubelet-serving")
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	return kit.StartManager(t, cfg, "--leader-elect=false", servingConfig(t, more))
}

// servingConfig returns the flag of a configuration with approval of serving certificates.
func servingConfig(t *testing.T, more string) string {
	t.Helper()
	return kit.Configure(t, "approval: {kubeletServing: {enabled: true, clusterDomain: cluster.test, reserved: [api.example.com, 203.0.113.0/24]"+more+"}}\n")
}

func TestServing(t *testing.T) {
	kit.Parallel(t)
	p := startServingManager(t, "")
	kit.NewNode(t, "serving-a", "192.0.2.1", "2001:db8::1", "serving-a.example.com")

	good := kit.CreateRequest(t, kit.KubeletOf(t, "serving-a"), kit.ServingRequest(t, "serving-a", "192.0.2.1", "SERVING-A.example.com"))
	kit.Reaches(t, good, csr.Issued)
	cert := kit.Leaf(t, good)
	if err := cert.VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}

	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{GenerateName: "serving-", Namespace: "default"}, Spec: corev1.ServiceSpec{
		Ports: []corev1.ServicePort{{Port: 1}}, ExternalIPs: []string{"192.0.2.77"},
	}}
	kit.Create(t, kit.Admin(t), service)
	var apiServer corev1.Service
	if err := kit.Admin(t).Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"}, &apiServer); err != nil {
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
			node := kit.NewNode(t, "x-greedy-"+strings.NewReplacer(" ", "-", "'", "").Replace(strings.ToLower(name)), append(test.sans, "192.0.2.2")...)
			obj := kit.CreateRequest(t, kit.KubeletOf(t, node.Name), kit.ServingRequest(t, node.Name, append(test.sans, test.more...)...))
			kit.HasEvent(t, obj, test.reason, test.parts...)
			if got := csr.StateOf(kit.Reload(t, obj)); got != csr.Pending {
				t.Errorf("it is %s", got)
			}
		})
	}
	// A node with the name of a Service keeps its name.
	kit.NewNode(t, service.Name, "192.0.2.90", service.Name)
	kit.Reaches(t, kit.CreateRequest(t, kit.KubeletOf(t, service.Name), kit.ServingRequest(t, service.Name, "192.0.2.90", service.Name)), csr.Issued)
	checkStop(t, p)
}

// TestServingWakes approves within a second after the awaited event.
func TestServingWakes(t *testing.T) {
	kit.Parallel(t)
	startServingManager(t, "")
	waiting := kit.CreateRequest(t, kit.KubeletOf(t, "wakes-a"), kit.ServingRequest(t, "wakes-a", "192.0.2.10"))
	kit.HasEvent(t, waiting, "NodeNotFound", `"wakes-a"`)
	node := kit.NewNode(t, "wakes-a")
	issuedSoon(t, waiting, func() { kit.Publish(t, node, "192.0.2.10", "192.0.2.12") })

	// Another node has the address. It is free once that node is deleted.
	kit.NewNode(t, "wakes-b", "192.0.2.11", "192.0.2.12")
	contested := kit.CreateRequest(t, kit.KubeletOf(t, "wakes-b"), kit.ServingRequest(t, "wakes-b", "192.0.2.11", "192.0.2.12"))
	kit.HasEvent(t, contested, "SANContested", "Node wakes-a")
	issuedSoon(t, contested, func() { kit.Publish(t, node, "192.0.2.10") })
}

// TestNameOfTwoNamesIsNotIssued has a node that requests one DNS name that others read as two: its own address, and a
// name of the API server. Earlier versions approved and signed it literally.
func TestNameOfTwoNamesIsNotIssued(t *testing.T) {
	kit.Parallel(t)
	startServingManager(t, "")
	kit.NewNode(t, "serving-two", "192.0.2.77")
	const name = "::ffff:192.0.2.77%, DNS:kubernetes.default.svc"
	obj := kit.CreateRequest(t, kit.KubeletOf(t, "serving-two"), kit.ServingRequest(t, "serving-two", name))
	kit.HasEvent(t, obj, "NameNotPermitted", name)
	if state := csr.StateOf(kit.Reload(t, obj)); state != csr.Pending {
		t.Fatalf("request is %s, want Pending", state)
	}
	kit.Approve(t, kit.Reload(t, obj))
	failed := kit.Reaches(t, obj, csr.Failed).Status.Conditions[1]
	if failed.Reason != "NameNotPermitted" || !strings.Contains(failed.Message, name) {
		t.Errorf("Failed with %s: %s", failed.Reason, failed.Message)
	}
}
