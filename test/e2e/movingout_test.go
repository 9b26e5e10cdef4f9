//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// The mount paths of config/overlays/trust-files and the files in them. The second is from its component
// kubelet-serving.
const (
	trustDir    = "/etc/kubernetes/pki/csr-trust"
	clientFile  = "client-ca.crt"
	servingFile = "kubelet-serving-ca.crt"
)

// createServingAuthority creates a separate authority for kubelets' serving certificates. It makes a CA, which does not
// sign yet.
func (c *cluster) createServingAuthority(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-k", "../../config/rotation/kubelet-serving")
	c.kubectl(t, "apply", "-k", "manifests/own-trust")
}

// testServingTrusted gives the API server a file with both CAs, and confirms the new one. Until then, the old CA signs
// and no API server is asked.
func (c *cluster) testServingTrusted(t *testing.T, worker *machine) {
	candidate := c.waitsForConfirmation(t).Candidate
	c.trustsFile(t, servingFile, func(file string) bool {
		return hasCA(file, candidate.Certificate) && hasCA(file, string(c.next.CertPEM))
	})
	c.kubeletCA = c.follows(t, servingFile)
	c.restarted(t)
	c.wantReachable(t, worker) // with a certificate of the old CA
	c.wantNoClients(t, 1)
	c.ask(t, servingAuthority, v1alpha1.OperationConfirm)
	if signing := c.reaches(t, servingAuthority, 30*time.Second, v1alpha1.Completed, nil).Signing; signing.Certificate != candidate.Certificate {
		t.Errorf("the CA that signs is not the one that was confirmed:\n%s", signing.Certificate)
	}
	for _, m := range c.machines {
		if ok, err := signedBy(c.served(t, m), c.next); !ok || err != nil {
			t.Errorf("%s serves with a certificate of another CA than the configuration names: %v", m.name, err)
		}
	}
	c.wantReachable(t, worker)
}

// waitsForConfirmation waits until the administrator must confirm the next CA of kubelets' servers, and checks that the
// authority waits for nothing else.
func (c *cluster) waitsForConfirmation(t *testing.T) *v1alpha1.SigningAuthorityStatus {
	t.Helper()
	status := c.reaches(t, servingAuthority, time.Minute, v1alpha1.Preparing, func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Candidate != nil && len(s.WaitingFor) > 0 && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionPublished)
	})
	if len(status.APIServers) > 0 || len(status.WaitingFor) != 1 || !strings.Contains(status.WaitingFor[0], v1alpha1.OperationConfirm.Command()) {
		t.Errorf("it waits for %q, and asks %+v, want for its owner alone", status.WaitingFor, status.APIServers)
	}
	return status
}

// testMovingOut makes the new CA sign. When all kubelets have a certificate of it, the old CA is no longer for kubelets'
// servers.
func (c *cluster) testMovingOut(t *testing.T, worker *machine) {
	c.kubectl(t, "apply", "-k", "manifests/own-ca")
	c.deploymentsAvailable(t, "csr-controller-manager")
	servers := certOf(t, c.reaches(t, servingAuthority, 10*time.Second, v1alpha1.Completed, nil).Signing)
	c.kubeletsMove(t, worker, func() (bool, error) { return c.servedOf(servers) })
	c.wantOurs(t, worker, c.served(t, worker))
	c.kubectl(t, "apply", "-k", "manifests/moved-trust")
	c.wantNoClients(t, 1)
	c.wantReachable(t, worker)
}

// kubeletsMove waits until moved reports success, and reads a log through the worker's kubelet all the time.
func (c *cluster) kubeletsMove(t *testing.T, worker *machine, moved func() (bool, error)) {
	t.Helper()
	c.until(t, renewal, "the kubelets' certificates are of the new CA", func(context.Context) (bool, error) {
		if _, err := c.tryKubectl("logs", "on-"+worker.name); err != nil {
			t.Errorf("the log can't be read while kubelets move: %v", err)
		}
		return moved()
	})
}

// servedOf reports whether every kubelet serves with a certificate of ca.
func (c *cluster) servedOf(ca *x509.Certificate) (bool, error) {
	for _, m := range c.machines {
		cert, err := c.servedBy(m)
		if err != nil || cert.CheckSignatureFrom(ca) != nil {
			return false, err
		}
	}
	return true, nil
}

// trustsFile waits until the DaemonSet has written the wanted content to the control plane's node.
func (c *cluster) trustsFile(t *testing.T, name string, wanted func(string) bool) {
	t.Helper()
	c.until(t, 2*time.Minute, name+" on the node is as it should be", func(context.Context) (bool, error) {
		data, err := os.ReadFile(c.machines[firstNode].file(trustDir + "/" + name))
		return err == nil && wanted(string(data)), err
	})
}

// hasCA reports whether file has the certificate.
func hasCA(file, certificate string) bool {
	return strings.Contains(file, strings.TrimSpace(certificate))
}

// follows links the API server's file of that name to the file on the control plane's node, and returns its path.
func (c *cluster) follows(t *testing.T, name string) string {
	t.Helper()
	file, link := c.path("pki/"+name), c.path("pki/follow")
	if err := errors.Join(os.Symlink(c.machines[firstNode].file(trustDir+"/"+name), link), os.Rename(link, file)); err != nil {
		t.Fatal(err)
	}
	return file
}
