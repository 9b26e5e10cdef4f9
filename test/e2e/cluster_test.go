//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

const (
	// firstNode is the control plane's own node, on which everything runs before another node joins.
	firstNode = "control-plane"
	// bootstrapToken is the token of manifests/bootstrap.
	bootstrapToken = "07401b.f395accd246ae52d"
)

// cluster is a control plane with the nodes that joined it.
type cluster struct {
	*controlPlane
	admin    client.WithWatch
	machines map[string]*machine
	// retired is the CA that kubelets' servers have left.
	retired keypair.Pair
}

// startCluster starts a control plane and its own node. The node joins as with kubeadm: with a certificate that the
// CA's key signed directly. Everything is removed at the end of t.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	begin := time.Now()
	plane, err := startControlPlane(t.Context(), os.Getenv(dirVariable))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, plane)
	m := c.machine(t, firstNode)
	who, err := clientPair(c.ca, "system:node:"+firstNode, "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(m.configureKubelet(clientConfig(c.server(), c.ca, who)), m.startKubelet(kubeletOptions{KeepCertificate: true}))
	if err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.nodeReady(t, firstNode)
	t.Logf("the control plane and its own node run after %s", time.Since(begin).Round(time.Second))
	return c
}

// newCluster returns a cluster with plane, which is stopped at the end of t. If t has failed, its state is logged
// first.
func newCluster(t *testing.T, plane *controlPlane) *cluster {
	t.Helper()
	c := &cluster{controlPlane: plane, machines: map[string]*machine{}}
	t.Cleanup(func() {
		if t.Failed() {
			c.describe(t)
		}
		if err := c.stopAll(); err != nil {
			t.Error(err)
		}
	})
	var err error
	if c.admin, err = newAdmin(plane.config); err != nil {
		t.Fatal(err)
	}
	return c
}

// newAdmin returns a client for all kinds that the tests use.
func newAdmin(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.NewWithWatch(config, client.Options{Scheme: scheme})
}

func (c *cluster) stopAll() error {
	var errs []error
	for _, m := range c.machines {
		errs = append(errs, m.stop())
	}
	// The next test has its own control plane.
	return errors.Join(append(errs, c.stop(), exec.Command("ip", "link", "delete", "machines").Run(), os.RemoveAll(c.path("etcd")), os.RemoveAll(c.path("pki")))...)
}

// machine starts one more machine.
func (c *cluster) machine(t *testing.T, name string, archives ...string) *machine {
	t.Helper()
	m, err := startMachine(t.Context(), c.dir, name, len(c.machines)+1, append(archives, pauseArchive(c.dir), managerImage())...)
	if err != nil {
		t.Fatal(err)
	}
	c.machines[name] = m
	return m
}

// bootstrapConfig returns a client configuration with a bootstrap token.
func (c *cluster) bootstrapConfig(token string) *rest.Config {
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token
	config.QPS = -1
	return config
}

// join starts a kubelet on its own machine, with only the bootstrap token.
func (c *cluster) join(t *testing.T, name string, options kubeletOptions) *machine {
	t.Helper()
	m := c.machine(t, name)
	if err := errors.Join(m.configureKubelet(c.bootstrapConfig(bootstrapToken)), m.startKubelet(options)); err != nil {
		t.Fatal(err)
	}
	return m
}

// kubectl runs kubectl as an administrator and returns its output.
func (c *cluster) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	output, err := c.tryKubectl(args...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}

func (c *cluster) tryKubectl(args ...string) (string, error) {
	return run(exec.Command(binary("kubectl"), append([]string{"--kubeconfig", c.path("admin.kubeconfig")}, args...)...))
}

// describe logs the state in the API server.
func (c *cluster) describe(t *testing.T) {
	for _, line := range []string{
		"get nodes -o wide", "get pods -A -o wide", "get csr", "get signingauthorities -o yaml", "get leases -A", "get events -A --sort-by=.metadata.creationTimestamp",
	} {
		output, err := c.tryKubectl(strings.Fields(line)...)
		t.Logf("kubectl %s\n%s", line, tail(output, 60))
		if err != nil { // the other commands would fail too
			return
		}
	}
}

// until fails the test unless done reports success in time.
func (c *cluster) until(t *testing.T, timeout time.Duration, what string, done func(context.Context) (bool, error)) {
	t.Helper()
	if err := until(t.Context(), timeout, what, done); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) nodeReady(t *testing.T, name string) {
	t.Helper()
	c.nodeWithin(t, name, time.Minute)
}

func (c *cluster) nodeWithin(t *testing.T, name string, timeout time.Duration) {
	t.Helper()
	c.until(t, timeout, "Node "+name+" is Ready", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: name}, node)
		return ready(node), err
	})
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}
