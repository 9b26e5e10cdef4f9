package manager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// followMachines runs a source for machines in group, with the options for Cluster API.
func followMachines(t *testing.T, cfg *rest.Config, group string, mods ...func(*machine.Options)) *following {
	t.Helper()
	options := machine.ClusterAPI()
	options.Group = group
	for _, mod := range mods {
		mod(&options)
	}
	source, err := machine.New(cfg, options, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	f := &following{Source: source, told: map[string]int{}}
	source.Changed = f.changed
	if _, err := source.Lookup(t.Context(), "a", nil); err == nil {
		t.Error("an answer before anything is read")
	}
	follow(t, source.Start)
	return f
}

// machineIn returns a Machine of the cluster lab.
func machineIn(group, name, more string) string { return machineOf("lab", group, name, more) }

// machineOf returns a Machine in group of cluster, with Cluster API's label.
func machineOf(cluster, group, name, more string) string {
	return fmt.Sprintf("apiVersion: %s/v1beta1\nkind: Machine\nmetadata: {namespace: default, name: %s, labels: {%s: %s}}\n%s",
		group, name, machine.ClusterNameLabel, cluster, more)
}

// TestMachineCRDComesAndGoes starts before the CRD exists, and continues after it is deleted.
func TestMachineCRDComesAndGoes(t *testing.T) {
	kit.Parallel(t)
	const group = "comes.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	f := followMachines(t, kit.ControlPlane(t).Config, group)
	f.finds(t, "node-1", "Machine."+group+": Machine."+group+" is not installed yet")

	crd := c.InstallMachines(t, group, "v1beta1")
	f.finds(t, "node-1", "")

	// A machine appears, gets addresses, becomes a node, is being deleted, and is gone.
	f.wakes(t, "node-1", func() {
		c.Apply(t, machineIn(group, "m", "spec: {infrastructureRef: {name: node-1}}"))
	})
	entry := f.finds(t, "node-1", `=Machine default/m bound "" leaving false []`)
	if age := time.Since(entry.Created); age < -time.Minute || age > time.Minute {
		t.Errorf("created %s", entry.Created)
	}
	f.wakes(t, "node-1", func() {
		c.Apply(t, machineIn(group, "m", `spec: {infrastructureRef: {name: node-1}}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: InternalDNS, address: Node-1.Internal.}]}`))
	})
	f.finds(t, "node-1", `=Machine default/m bound "" leaving false [10.0.0.1 node-1.internal]`)
	f.finds(t, "node-1.internal", `=Machine default/m bound ""`)
	var machine client.Object
	f.wakes(t, "node-1", func() {
		text := machineIn(group, "m", "status: {nodeRef: {name: node-1}, addresses: [{type: InternalIP, address: 10.0.0.1}]}")
		obj := kit.Object(t, text)
		obj.SetFinalizers([]string{"example.org/wait"})
		if err := c.Patch(t.Context(), obj, client.Merge); err != nil {
			t.Fatal(err)
		}
		obj.Object["status"] = kit.Object(t, text).Object["status"]
		if err := c.Status().Update(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		machine = obj
	})
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving false [10.0.0.1]`)
	f.wakes(t, "node-1", func() { c.Remove(t, machine) })
	f.finds(t, "node-1", `=Machine default/m bound "node-1" leaving true [10.0.0.1]`)
	f.wakes(t, "node-1", func() {
		if err := c.Patch(t.Context(), machine, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Fatal(err)
		}
	})
	f.finds(t, "node-1", "")

	// The CRD is deleted with a machine in it, and installed again without.
	c.Apply(t, machineIn(group, "m-2", "spec: {infrastructureRef: {name: node-2}}"))
	f.finds(t, "node-2", "=Machine default/m-2")
	c.Remove(t, crd)
	f.finds(t, "node-2", "is not installed yet")
	f.recovers(t, func() { c.InstallMachines(t, group, "v1beta1") })
	f.finds(t, "node-2", "")
	c.Apply(t, machineIn(group, "m-3", "spec: {infrastructureRef: {name: node-2}}"))
	f.finds(t, "node-2", "=Machine default/m-3")
}

// TestMachineVersionGoes stops serving the version that is read.
func TestMachineVersionGoes(t *testing.T) {
	kit.Parallel(t)
	const group = "versions.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	crd := c.InstallMachines(t, group, "v1beta1")
	c.Apply(t, machineIn(group, "m", "spec: {infrastructureRef: {name: node-1}}"))
	f := followMachines(t, kit.ControlPlane(t).Config, group)
	pinned := followMachines(t, kit.ControlPlane(t).Config, group, func(o *machine.Options) { o.Version = "v1beta1" })
	f.finds(t, "node-1", "=Machine default/m")
	pinned.finds(t, "node-1", "=Machine default/m")

	patch := `[{"op":"replace","path":"/spec/versions/0/served","value":false},{"op":"replace","path":"/spec/versions/1/served","value":true}]`
	if err := c.Patch(t.Context(), crd, client.RawPatch("application/json-patch+json", []byte(patch))); err != nil {
		t.Fatal(err)
	}
	c.Serves(t, group, "v1beta2", true)
	c.Serves(t, group, "v1beta1", false)
	pinned.finds(t, "node-1", "is not installed yet")
	obj := kit.Object(t, machineIn(group, "m-2", "spec: {infrastructureRef: {name: node-2}}"))
	obj.SetAPIVersion(group + "/v1beta2")
	if err := c.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	f.finds(t, "node-2", "=Machine default/m-2")
	f.finds(t, "node-1", "=Machine default/m")
}

// TestMachinesThatClaimOneName checks that the source does not decide between them.
func TestMachinesThatClaimOneName(t *testing.T) {
	kit.Parallel(t)
	const group = "claims.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	c.InstallMachines(t, group, "v1beta1")
	f := followMachines(t, kit.ControlPlane(t).Config, group)
	one := c.Apply(t, machineIn(group, "a", "spec: {infrastructureRef: {name: node-1}}"))
	f.finds(t, "node-1", "=Machine default/a")
	f.wakes(t, "node-1", func() {
		c.Apply(t, machineIn(group, "b", "status: {addresses: [{type: Hostname, address: Node-1}]}"))
	})
	f.finds(t, "node-1", "Machine default/a and by Machine default/b")
	f.wakes(t, "node-1", func() { c.Remove(t, one) })
	f.finds(t, "node-1", `=Machine default/b bound "" leaving false [node-1]`)
}

// TestMachinesOfOthers checks that namespace and selector exclude them.
func TestMachinesOfOthers(t *testing.T) {
	kit.Parallel(t)
	const group = "others.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	c.InstallMachines(t, group, "v1beta1")
	c.Apply(t, machineIn(group, "a", "spec: {infrastructureRef: {name: node-1}}"))
	ours := kit.Object(t, machineIn(group, "b", "spec: {infrastructureRef: {name: node-2}}"))
	ours.SetLabels(map[string]string{"cluster.x-k8s.io/cluster-name": "ours"})
	if err := c.Create(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	bySelector := followMachines(t, kit.ControlPlane(t).Config, group, func(o *machine.Options) { o.Selector = "cluster.x-k8s.io/cluster-name=ours" })
	bySelector.finds(t, "node-2", "=Machine default/b")
	bySelector.finds(t, "node-1", "")
	byNamespace := followMachines(t, kit.ControlPlane(t).Config, group, func(o *machine.Options) { o.Namespace = "kube-system" })
	byNamespace.finds(t, "node-1", "")
	byNamespace.finds(t, "node-2", "")
}

// TestMachineRights tests rights that are missing, granted and removed.
func TestMachineRights(t *testing.T) {
	kit.Parallel(t)
	const group = "rights.example.org"
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	c.InstallMachines(t, group, "v1beta1")
	c.Apply(t, machineIn(group, "m", "spec: {infrastructureRef: {name: node-1}}"))
	l := &link{}
	f := followMachines(t, l.over(stranger(t)), group, func(o *machine.Options) { o.Namespace = "default" })
	missing := "grant list and watch on machines." + group + `: machines.` + group + ` is forbidden: User "stranger" cannot list`
	f.finds(t, "node-1", missing)
	role := allowStranger(t, "default", rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{"machines"}, Verbs: []string{"list", "watch"}})
	f.finds(t, "node-1", "=Machine default/m")
	role.Rules[0].Verbs = []string{"list"}
	if err := kit.Admin(t).Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	f.finds(t, "node-1", "=Machine default/m") // an open watch continues
	l.Cut()
	f.finds(t, "node-1", `cannot watch resource "machines"`)
	role.Rules[0].Verbs = []string{"list", "watch"}
	if err := kit.Admin(t).Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	f.finds(t, "node-1", "=Machine default/m")
}

// TestManyMachines checks that all machines are known after the first sync, with one call instead of one for each.
func TestManyMachines(t *testing.T) {
	kit.Parallel(t)
	const group, many = "many.example.org", 600
	c := kit.Administrator(t, kit.ControlPlane(t).Config)
	c.InstallMachines(t, group, "v1beta1")
	for i := range many {
		if err := c.Create(t.Context(), kit.Object(t, machineIn(group, fmt.Sprintf("m-%d", i), fmt.Sprintf("spec: {infrastructureRef: {name: node-%d}}", i)))); err != nil {
			t.Fatal(err)
		}
	}
	f := followMachines(t, kit.ControlPlane(t).Config, group)
	f.finds(t, "node-0", "=Machine default/m-0")
	for i := range many {
		if entry, err := f.Lookup(t.Context(), fmt.Sprintf("node-%d", i), nil); err != nil || entry == nil {
			t.Fatalf("node-%d: %+v, %v", i, entry, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	nodes := make([]string, 0, len(f.told))
	for node := range f.told {
		nodes = append(nodes, node)
	}
	if !slices.Equal(nodes, []string{""}) && len(nodes) > 0 {
		t.Errorf("told of %d nodes", len(nodes))
	}
}
