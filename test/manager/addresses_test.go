package manager

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestServingDualStackNodeKeepsItsOtherAddress has a stale Node that still reports the first address of a dual-stack
// node. So that address belongs to neither. The second address belongs to the dual-stack node. A third Node that reports
// it does not get it, and loses it once it is on the block list.
func TestServingDualStackNodeKeepsItsOtherAddress(t *testing.T) {
	kit.Parallel(t)
	list := kit.BlockList(t, "")
	p := startBlockListManager(t)
	const first, second = "192.0.2.30", "2001:db8::30"
	stale := kit.NewNode(t, "a-stale", first)
	kit.NewNode(t, "dual", first, second)
	waiting := asksFor(t, "dual", first, second)
	kit.HasEvent(t, waiting, "SANContested", first+` is claimed by node "dual" and by Node a-stale`)
	kit.Reaches(t, asksFor(t, "dual", second), csr.Issued)

	third := kit.NewNode(t, "a-third", "192.0.2.31", second)
	theirs, ours := asksFor(t, third.Name, second), asksFor(t, "dual", second)
	kit.HasEvent(t, theirs, "SANContested", second+` is claimed by node "a-third" and by Node dual`)
	kit.HasEvent(t, ours, "SANContested", second+` is claimed by node "dual" and by Node a-third`)
	kit.Reaches(t, asksFor(t, third.Name, "192.0.2.31"), csr.Issued)
	issuedSoon(t, ours, func() { block(t, list, "a-third\n") })
	kit.HasEvent(t, asksFor(t, third.Name, second), "NodeBlocked")
	isPending(t, theirs)
	isPending(t, waiting) // for its first address
	issuedSoon(t, waiting, func() {
		if err := kit.Admin(t).Delete(t.Context(), stale); err != nil {
			t.Fatal(err)
		}
	})
	isPending(t, theirs)
	checkStop(t, p)
}

// TestServingBlockedNodeFreesWhatItReports has a Node that reports everything that other nodes have. Each of them keeps
// its own name. It gets the rest at once when the Node is on the block list.
func TestServingBlockedNodeFreesWhatItReports(t *testing.T) {
	kit.Parallel(t)
	list := kit.BlockList(t, "")
	p := startBlockListManager(t)
	liar := kit.NewNode(t, "a-liar")
	const nodes = 3
	var everything []string
	for i := range nodes {
		name := fmt.Sprintf("victim-%d", i)
		everything = append(everything, name, name+".example.com", fmt.Sprintf("192.0.2.%d", 40+i))
	}
	kit.Publish(t, liar, everything...)
	var waiting []*kit.Request
	for i := range nodes {
		own := everything[3*i : 3*i+3]
		kit.NewNode(t, own[0], own[1:]...)
		kit.Reaches(t, asksFor(t, own[0], own[0]), csr.Issued)
		for _, value := range own[1:] {
			obj := asksFor(t, own[0], value)
			kit.HasEvent(t, obj, "SANContested", fmt.Sprintf(`%s is claimed by node %q and by Node a-liar`, value, own[0]))
			waiting = append(waiting, obj)
		}
	}
	for _, obj := range waiting {
		isPending(t, obj)
	}
	backdate(t, waiting...) // only a wake-up can judge them soon
	block(t, list, "a-liar\n")
	for _, obj := range waiting {
		kit.Reaches(t, obj, csr.Issued)
	}
	checkStop(t, p)
}

// TestServingNameOfAnotherNode has a Node that reports the names of others, of which one does not exist yet. It gets
// none of them, and takes none from its node.
func TestServingNameOfAnotherNode(t *testing.T) {
	kit.Parallel(t)
	p := startServingManager(t, "")
	kit.NewNode(t, "named-b", "192.0.2.50")
	kit.NewNode(t, "a-liar", "192.0.2.51", "named-b", "named-c", "NAMED-D", "named-b.example.com")
	kit.NewNode(t, "named-c", "192.0.2.52")
	kit.NewNode(t, "named-d.example.com", "192.0.2.53", "named-d", "named-b.example.com")
	for _, name := range []string{"named-b", "named-c"} {
		theirs := asksFor(t, "a-liar", "192.0.2.51", name)
		kit.HasEvent(t, theirs, "SANContested", name+` is claimed by node "a-liar", and it is the name of another Node, which keeps it`)
		kit.Reaches(t, asksFor(t, name, name), csr.Issued)
		isPending(t, theirs)
	}
	// A short name that two Nodes report is the name of neither.
	for _, node := range []string{"a-liar", "named-d.example.com"} {
		obj := asksFor(t, node, "named-d")
		kit.HasEvent(t, obj, "SANContested", "named-d is claimed by node")
		isPending(t, obj)
	}
	kit.Reaches(t, asksFor(t, "named-d.example.com", "named-d.example.com", "192.0.2.53"), csr.Issued)
	kit.Reaches(t, asksFor(t, "a-liar", "192.0.2.51"), csr.Issued)
	checkStop(t, p)
}

// userOfServices returns a client of a user who may create Services in every namespace and write their status.
func userOfServices(t *testing.T) client.Client {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"update"}},
	}}
	kit.Create(t, kit.Admin(t), role)
	kit.Grant(t, "joiner", role.Name)
	user := kit.As(t, "joiner")
	kit.Eventually(t, "the user may create Services", func(ctx context.Context) error {
		return user.Create(ctx, externalName("default", "allowed"), client.DryRunAll)
	})
	return user
}

// externalName returns a Service that is only a name.
func externalName(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "elsewhere.example.com"},
	}
}

// TestServingServicesTakeNothingFromNodes has a user who creates Services with the names and addresses of two nodes. One
// of the nodes exists before, the other joins later. Each gets a certificate for its own name, for names that begin with
// it, and for its addresses.
func TestServingServicesTakeNothingFromNodes(t *testing.T) {
	kit.Parallel(t)
	p := startServingManager(t, "")
	for _, name := range []string{"internal", "ec2"} {
		kit.NewNamespace(t, name)
	}
	user := userOfServices(t)
	first, second := []string{"ip-10-9-0-1.ec2.internal", "ip-10-9-0-1", "10.9.0.1"}, []string{"ip-10-9-0-2.ec2.internal", "ip-10-9-0-2", "10.9.0.2"}
	joins := func(own []string) {
		t.Helper()
		kit.NewNode(t, own[0], own[0]+".lab.example.com", own[1], own[2])
	}
	asksForAll := func(own []string) *kit.Request {
		t.Helper()
		return asksFor(t, own[0], own[0], own[0]+".lab.example.com", own[1], own[2])
	}
	joins(first)
	port := []corev1.ServicePort{{Port: 1}}
	for _, service := range []*corev1.Service{
		externalName("internal", "ec2"), externalName("ec2", first[1]), externalName("ec2", second[1]), externalName("internal", first[1]),
		externalName("default", first[1]), externalName("default", "lab"),
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: second[1]}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: port}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "external"}, Spec: corev1.ServiceSpec{
			Ports: port, ExternalIPs: []string{first[2], second[2], "192.0.2.79"},
		}},
	} {
		kit.Create(t, user, service)
	}
	balanced := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "balanced"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: port},
	}
	kit.Create(t, user, balanced)
	for _, each := range slices.Concat(first[:2], second[:2], []string{"balanced.example.com"}) {
		balanced.Status.LoadBalancer.Ingress = append(balanced.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: each})
	}
	for _, each := range []string{first[2], second[2]} {
		balanced.Status.LoadBalancer.Ingress = append(balanced.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: each})
	}
	if err := user.Status().Update(t.Context(), balanced); err != nil {
		t.Fatal(err)
	}

	// What only a Service has belongs to no node. After these refusals the manager knows all Services.
	kit.NewNode(t, "w-1", "192.0.2.70", "other.ec2.internal", "web.ip-10-9-0-1.ec2", "ec2")
	for value, service := range map[string]string{
		"other.ec2.internal": "internal/ec2", "web.ip-10-9-0-1.ec2": "ec2/ip-10-9-0-1", "ec2": "internal/ec2",
		"192.0.2.79": "default/external", "balanced.example.com": "default/balanced",
	} {
		obj := asksFor(t, "w-1", value)
		kit.HasEvent(t, obj, "SANReserved", value+" is a name or an address of Service "+service)
		isPending(t, obj)
	}
	kit.Reaches(t, asksForAll(first), csr.Issued)
	waiting := asksForAll(second)
	kit.HasEvent(t, waiting, "NodeNotFound", second[0])
	issuedSoon(t, waiting, func() { joins(second) })
	checkStop(t, p)
}
