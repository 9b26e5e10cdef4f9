//go:build e2e

package e2e

import (
	"testing"
	"time"
)

// TestDeployment takes a cluster without CSR loops from the first install to the removal, in the order of the proof's
// steps.
func TestDeployment(t *testing.T) {
	c := startCluster(t)
	before := c.objects(t)
	c.install(t, "manifests/default", c.ca)
	c.deploymentsAvailable(t, "csr-controller-manager")
	var worker, impostor *machine
	step(t, "1 a kubelet joins through the Deployment", func(t *testing.T) { worker = c.testJoin(t) })
	impostor = c.join(t, "impostor", kubeletOptions{SelfSigned: true}) // it is ready when it is needed
	step(t, "10 the API server verifies kubelets", func(t *testing.T) { c.testServing(t, worker, impostor) })
	step(t, "2, 3 and 10 at the same time", func(t *testing.T) {
		t.Run("2 the client certificate rotates without an outage", func(t *testing.T) {
			t.Parallel()
			c.testRotation(t, worker)
		})
		t.Run("3 a kubelet that was killed finds its request again", func(t *testing.T) {
			t.Parallel()
			c.testResume(t)
		})
		t.Run("10 the serving certificate rotates without an outage", func(t *testing.T) {
			t.Parallel()
			c.testServingRotation(t, worker)
		})
		t.Run("10 a node does not get another one's address", func(t *testing.T) {
			t.Parallel()
			c.testImpostor(t, impostor, worker)
		})
	})
	step(t, "4 another CA signs without a restart", func(t *testing.T) { c.testNewCA(t) })
	step(t, "4 and 5 at the same time", func(t *testing.T) {
		t.Run("4 the kubelet's next certificate is the other CA's", func(t *testing.T) {
			t.Parallel()
			c.testNewCAReachesKubelet(t, worker)
		})
		t.Run("5 no request is lost with its leader", func(t *testing.T) {
			t.Parallel()
			t.Run("deleted", func(t *testing.T) { c.testLeaderDeleted(t) })
			t.Run("killed", func(t *testing.T) { c.testLeaderKilled(t) })
		})
	})
	step(t, "9 uninstalled", func(t *testing.T) { c.testUninstall(t, "manifests/default", before) })
	step(t, "6 three identities", func(t *testing.T) { c.testSplit(t) })
	step(t, "9 uninstalled again", func(t *testing.T) { c.testUninstall(t, "manifests/split", before) })
	c.nodeReady(t, worker.name)
}

// step runs a subtest on which the following subtests depend.
func step(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	begin := time.Now()
	if !t.Run(name, test) {
		t.FailNow()
	}
	t.Logf("%s: %s", name, time.Since(begin).Round(time.Second))
}
