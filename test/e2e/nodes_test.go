//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestNodes lets kubelets of several versions join and renew, and one wait for six minutes. That takes too long for every change.
func TestNodes(t *testing.T) {
	versions := map[string]string{"new": binary("kubelet")}
	for i, old := range strings.Fields(os.Getenv("OLD_KUBELETS")) {
		versions[fmt.Sprint("old-", i+1)] = old
	}
	if len(versions) == 1 {
		t.Fatal("OLD_KUBELETS names no kubelets of older versions: make nightly PARTS=e2e-nightly does")
	}
	c := startCluster(t)
	c.install(t, "manifests/default", c.ca, "csr-controller-manager")
	for name, path := range versions {
		c.join(t, name, kubeletOptions{Binary: path})
	}
	seen := map[string]string{}
	for name := range versions {
		c.nodeReady(t, name)
		c.runPod(t, name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.get(t, node)
		version := node.Status.NodeInfo.KubeletVersion
		kit.Check(t, seen[version] == "", "%s and %s both have version %s", name, seen[version], version)
		seen[version] = name
	}
	t.Run("at the same time", func(t *testing.T) {
		c.kubectl(t, "apply", "-k", "manifests/patient")
		patient := c.machine(t, "patient")
		parallel(t, "a kubelet joins when it is approved after six minutes", func(t *testing.T) { c.testPatience(t, patient) })
		for name := range versions {
			parallel(t, "the certificate rotates, "+name, func(t *testing.T) { c.testRotation(t, c.machines[name]) })
		}
	})
}

// testPatience approves a request after six minutes. The kubelet waits as long, although KEP-266 says that it restarts after
// five minutes. Its token belongs to a group that may create requests, but whose requests are not approved.
func (c *cluster) testPatience(t *testing.T, m *machine) {
	m.firstKubelet(t, c.bootstrapConfig("07401c.f395accd246ae52d"), kubeletOptions{})
	request := c.refused(t, m.name)
	time.Sleep(6 * time.Minute)
	c.kubectl(t, "create", "clusterrolebinding", "patient-nodes-are-approved", "--group=system:bootstrappers:patient",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	c.nodeWithin(t, m.name, 2*time.Minute)
	c.get(t, request)
	_, cert := m.current(t)
	kit.Check(t, cert.Equal(issued(request)), "the kubelet does not use the certificate of request %s, for which it has waited", request.Name)
}
