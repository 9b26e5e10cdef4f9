//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// patientToken belongs to a group that may create requests, but whose requests are not approved.
	patientToken = "07401c.f395accd246ae52d"
	// held is how long they are not.
	held = 6 * time.Minute
)

// TestNodes is step 8 and the long parts of step 3, which take too long for every change.
func TestNodes(t *testing.T) {
	versions := map[string]string{"new": binary("kubelet")}
	for i, old := range strings.Fields(os.Getenv("OLD_KUBELETS")) {
		versions[fmt.Sprint("old-", i+1)] = old
	}
	if len(versions) == 1 {
		t.Fatal("OLD_KUBELETS names no kubelets of older versions: make nightly PARTS=e2e-nightly does")
	}
	c := startCluster(t)
	c.install(t, "manifests/default", c.ca)
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.testVersions(t, versions)
	t.Run("at the same time", func(t *testing.T) {
		c.kubectl(t, "apply", "-k", "manifests/patient")
		patient := c.machine(t, "patient")
		t.Run("3 a kubelet joins when it is approved after six minutes", func(t *testing.T) {
			t.Parallel()
			c.testPatience(t, patient)
		})
		for name := range versions {
			t.Run("8 the certificate rotates, "+name, func(t *testing.T) {
				t.Parallel()
				c.testRotation(t, c.machines[name])
			})
		}
	})
}

// testVersions lets kubelets of several versions join, and runs pods on all of them.
func (c *cluster) testVersions(t *testing.T, kubelets map[string]string) {
	t.Helper()
	seen := map[string]string{}
	for name, path := range kubelets {
		c.join(t, name, kubeletOptions{Binary: path})
	}
	for name := range kubelets {
		c.nodeReady(t, name)
		c.runPod(t, name)
		node := &corev1.Node{}
		if err := c.admin.Get(t.Context(), client.ObjectKey{Name: name}, node); err != nil {
			t.Fatal(err)
		}
		version := node.Status.NodeInfo.KubeletVersion
		if other, ok := seen[version]; ok {
			t.Errorf("%s and %s both have version %s", name, other, version)
		}
		seen[version] = name
	}
	t.Logf("kubelets side by side: %v", seen)
}

// restartKubelet restarts the kubelet as systemctl restart does.
func (c *cluster) restartKubelet(t *testing.T, m *machine, options kubeletOptions) {
	t.Helper()
	if err := m.kubelet.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := m.startKubelet(options); err != nil {
		t.Fatal(err)
	}
}

// testPatience is a part of step 3: a request that waits for six minutes, and is then approved. The kubelet waits as long, although
// KEP-266 says that it restarts after five minutes.
func (c *cluster) testPatience(t *testing.T, m *machine) {
	if err := errors.Join(m.configureKubelet(c.bootstrapConfig(patientToken)), m.startKubelet(kubeletOptions{})); err != nil {
		t.Fatal(err)
	}
	request := c.refused(t, m.name)
	time.Sleep(held)
	c.kubectl(t, "create", "clusterrolebinding", "patient-nodes-are-approved", "--group=system:bootstrappers:patient",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	c.nodeWithin(t, m.name, 2*time.Minute)
	cert, err := m.certificate()
	if err != nil {
		t.Fatal(err)
	}
	request, err = c.get(t.Context(), request.Name)
	if err != nil {
		t.Fatal(err)
	}
	if first := issued(request); first == nil || !first.Equal(cert) {
		t.Errorf("the kubelet does not use the certificate of request %s, for which it has waited", request.Name)
	}
}
