//go:build e2e

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	testcluster "github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// clientLink leads to the pair that a kubelet uses.
const clientLink = "/var/lib/kubelet/pki/kubelet-client-current.pem"

// TestRenewKubelet moves a kubelet to another CA with renew-kubelet, while it runs a Pod.
func TestRenewKubelet(t *testing.T) {
	kit.AtEnd(t, func() error {
		for _, dir := range []string{"systemd/system.slice/kubelet.service", "systemd/system.slice"} {
			_ = os.Remove("/sys/fs/cgroup/" + dir) // one that others use stays
		}
		return nil
	})
	c := startCluster(t)
	c.install(t, "manifests/renew", c.ca, "csr-controller-manager")
	worker := c.join(t, "worker", kubeletOptions{Service: true})
	c.wantJoined(t, worker)
	pod, starts := c.running(t, worker, "on-worker"), worker.kubeletID(t)
	step(t, "nothing is renewed by the same CA", func(t *testing.T) {
		kit.Must(run(renewKubelet(t, worker)))(t)
		kit.Equal(t, "the kubelet's process", worker.kubeletID(t), starts)
		c.wantCertificatesOf(t, worker, c.ca)
	})
	step(t, "moved", func(t *testing.T) {
		c.signWith(t, worker, c.next)
		kit.Check(t, worker.kubeletID(t) != starts, "the kubelet was not restarted")
		c.wantCertificatesOf(t, worker, c.next)
		c.nodeReady(t, worker.name)
		c.wantReachable(t, worker)
	})
	step(t, "killed in the middle, and run again", func(t *testing.T) {
		kit.NoError(t, c.admin.Update(t.Context(), kit.SigningSecret(c.ca.CertPEM, c.ca.KeyPEM)))
		until(t, time.Minute, "renew-kubelet is killed after it has replaced the certificate", func(context.Context) (bool, error) {
			return killedInTheMiddle(t, worker), nil
		})
		kit.Must(run(renewKubelet(t, worker)))(t)
		c.wantCertificatesOf(t, worker, c.ca)
		c.nodeReady(t, worker.name)
	})
	step(t, "a kubelet that does not come back gets its old certificates", func(t *testing.T) {
		const config = "/var/lib/kubelet/config.yaml"
		good, before := read(t, worker.file(config)), kit.Must(os.Readlink(worker.file(clientLink)))(t)
		kit.NoError(t, c.admin.Update(t.Context(), kit.SigningSecret(c.next.CertPEM, c.next.KeyPEM)))
		worker.write(t, config, []byte("broken"))
		until(t, 2*time.Minute, "renew-kubelet fails", func(context.Context) (bool, error) {
			output, err := run(renewKubelet(t, worker, "--back=10s"))
			return err != nil && strings.Contains(output, "has the old ones again"), nil
		})
		kit.Equal(t, "the pair in use", kit.Must(os.Readlink(worker.file(clientLink)))(t), before)
		worker.write(t, config, good)
		until(t, 30*time.Second, "the kubelet serves again", func(context.Context) (bool, error) {
			_, err := c.servedBy(worker)
			return err == nil, err
		})
		c.nodeReady(t, worker.name)
		c.wantCertificatesOf(t, worker, c.ca)
	})
	kit.Equal(t, "the Pod's container", c.running(t, worker, "on-worker"), pod)
}

// renewKubelet returns the command renew-kubelet on m.
func renewKubelet(t *testing.T, m *machine, args ...string) *exec.Cmd {
	t.Helper()
	manager := kit.Must(testcluster.Manager())(t)
	return m.command(append([]string{manager, "renew-kubelet", "--serving", "--timeout=1m"}, args...)...)
}

// signWith makes the manager sign with ca, and runs renew-kubelet until its certificate is of that CA: the first request may be
// faster than the Secret.
func (c *cluster) signWith(t *testing.T, m *machine, ca *csrenv.CA) {
	kit.NoError(t, c.admin.Update(t.Context(), kit.SigningSecret(ca.CertPEM, ca.KeyPEM)))
	until(t, time.Minute, "renew-kubelet moves the kubelet", func(context.Context) (bool, error) {
		if _, err := run(renewKubelet(t, m)); err != nil {
			return false, err
		}
		_, cert := m.current(t)
		return signedBy(t, cert, ca), nil
	})
}

// wantCertificatesOf checks that the kubelet of m has its certificates from ca, and no unfinished renewal.
func (c *cluster) wantCertificatesOf(t *testing.T, m *machine, ca *csrenv.CA) {
	t.Helper()
	_, cert := m.current(t)
	kit.Check(t, signedBy(t, cert, ca), "the client certificate is of another CA")
	kit.Check(t, signedBy(t, c.served(t, m), ca), "the serving certificate is of another CA")
	left := kit.Must(filepath.Glob(m.file("/var/lib/kubelet/pki/*-before.pem")))(t)
	kit.Equal(t, "unfinished renewals", len(left), 0)
}

// killedInTheMiddle starts renew-kubelet, and kills it when the client certificate is replaced. It reports whether it was.
func killedInTheMiddle(t *testing.T, m *machine) bool {
	p := startProcess(t, m.dir, m.name+"-renew", renewKubelet(t, m))
	for p.ended() == nil {
		if _, err := os.Lstat(m.file(filepath.Dir(clientLink) + "/kubelet-client-before.pem")); err == nil {
			kit.NoError(t, p.end(9))
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}
