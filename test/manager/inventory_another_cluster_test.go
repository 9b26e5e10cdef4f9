//go:build nightly

package manager

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestMachinesOfAnotherCluster reads them from a management cluster with the real groups, which is unreachable for a
// while. Changes in that time must not be missed: the old copy is not used.
func TestMachinesOfAnotherCluster(t *testing.T) {
	kit.Parallel(t)
	management, err := cluster.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := management.Stop(); err != nil {
			t.Error(err)
		}
	})
	c := kit.Administrator(t, management.Config)
	c.InstallMachines(t, "cluster.x-k8s.io", "v1beta1", "v1beta2")
	c.InstallMachines(t, "machine.openshift.io", "v1beta1")
	gone := c.Apply(t, machineIn("cluster.x-k8s.io", "a", "spec: {infrastructureRef: {name: node-1}}"))
	openshift := kit.Object(t, machineIn("machine.openshift.io", "b", ""))
	openshift.SetNamespace("openshift-machine-api")
	if err := c.Create(t.Context(), kit.Object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: openshift-machine-api}}")); err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), openshift); err != nil {
		t.Fatal(err)
	}
	openshift.Object["status"] = kit.Object(t, "status: {addresses: [{type: InternalDNS, address: IP-10-0-0-2.ec2.internal}, {type: InternalIP, address: 10.0.0.2}]}").Object["status"]
	if err := c.Status().Update(t.Context(), openshift); err != nil {
		t.Fatal(err)
	}

	l := &link{}
	f := followMachines(t, l.over(management.Config), "cluster.x-k8s.io")
	second := followMachines(t, management.Config, "machine.openshift.io", func(o *machine.Options) {
		*o = machine.OpenShift()
	})
	f.finds(t, "node-1", "=Machine default/a")
	second.finds(t, "ip-10-0-0-2.ec2.internal", `=Machine openshift-machine-api/b bound "" leaving false [ip-10-0-0-2.ec2.internal 10.0.0.2]`)
	if f := followMachines(t, kit.ControlPlane(t).Config, "cluster.x-k8s.io"); f != nil { // not in the own cluster
		f.finds(t, "node-1", "is not installed yet")
	}

	l.fail()
	f.finds(t, "node-1", "the network is down")
	c.Remove(t, gone)
	if entry, err := f.Lookup(t.Context(), "node-1", nil); err == nil {
		t.Errorf("is %+v, while nobody can know", entry)
	}
	f.recovers(t, func() { l.down.Store(false) })
	f.finds(t, "node-1", "")
}
