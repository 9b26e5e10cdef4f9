//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// trustDir is what config/overlays/trust-files mounts. The name of the authority is that of manifests/trust-files.
const trustDir = "/etc/kubernetes/pki/csr-trust"

// TestCARotation is step 11: a CA for kubelets' client and serving certificates is replaced, and the API server is restarted
// so that it reads the file of --kubelet-certificate-authority, as one before 1.36 must be.
func TestCARotation(t *testing.T) {
	rotateCA(t, func(c *cluster) {
		if err := c.restartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	}, func(c *cluster) {
		c.ask(t, v1alpha1.OutstandingAccepted) // the nodes are seen to have moved
	})
}

// TestCARotationUntouched is step 11 without a hand at the API server, and with patience for every old certificate to end.
func TestCARotationUntouched(t *testing.T) {
	rotateCA(t, func(c *cluster) { c.reloaded(t) }, func(c *cluster) {
		c.reaches(t, 2*lifetime, v1alpha1.Prepared, func(s *v1alpha1.SigningAuthorityStatus) bool { return len(s.Outstanding) == 0 })
	})
}

// rotateCA has trust see to it that the API server trusts the new CA for serving certificates, and settle that nothing of the
// old one is needed.
func rotateCA(t *testing.T, trust, settle func(*cluster)) {
	c := startCluster(t)
	step(t, "11 rotation is installed, and adopts the CA", func(t *testing.T) { c.testAdoption(t) })
	worker := c.join(t, "worker", kubeletOptions{})
	c.wantJoined(t, worker)
	since, starts := c.readySince(t), worker.kubeletID(t)
	stolen, err := clientPair(c.next, "system:node:stolen", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	step(t, "11 the API server knows the new CA's clients, and its owner is asked about the rest", func(t *testing.T) {
		c.testPreparing(t)
		c.wantReachable(t, worker)
	})
	trust(c)
	c.wantReachable(t, worker)
	c.ask(t, v1alpha1.TrustConfirmed)
	step(t, "11 the new CA signs, and the kubelets move", func(t *testing.T) { c.testMoving(t, worker) })
	if _, err := c.whoAmI(t.Context(), slices.Concat(stolen.cert, stolen.key)); err != nil {
		t.Errorf("a certificate of the old CA is not good any more, before it leaves: %v", err)
	}
	settle(c)
	step(t, "11 the old CA leaves", func(t *testing.T) { c.testLeaving(t, worker) })
	if who, err := c.whoAmI(t.Context(), slices.Concat(stolen.cert, stolen.key)); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a certificate of the old CA the API server takes one for %q: %v, want Unauthorized", who.Username, err)
	}
	if now := c.readySince(t); now != since {
		t.Errorf("nodes were not ready in between: they are since\n%s, and were since\n%s", now, since)
	}
	if starts != worker.kubeletID(t) {
		t.Error("the kubelet is not the same process as before")
	}
}

// testAdoption installs the manager, an authority for the CA in its Secret, and the DaemonSet that writes what the API server
// trusts from then on.
func (c *cluster) testAdoption(t *testing.T) {
	plane := c.machines[firstNode]
	if err := plane.write(trustDir+"/others.crt", c.ca.CertPEM); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "label", "node", firstNode, "node-role.kubernetes.io/control-plane=")
	c.install(t, "manifests/rotation", c.next)
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/signingauthorities.csr-controller-manager.io")
	c.kubectl(t, "apply", "-k", "manifests/trust-files")
	adopted := c.reaches(t, time.Minute, v1alpha1.Completed, nil)
	if certOf(t, adopted.Signing); adopted.Signing.Certificate != string(c.next.CertPEM) {
		t.Errorf("what signs is not the CA that was in the Secret:\n%s", adopted.Signing.Certificate)
	}
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.trustsFile(t, adopted.Signing)
	file, link := c.path("pki/client-ca.crt"), c.path("pki/follow")
	if err := errors.Join(os.Symlink(plane.file(trustDir+"/client-ca.crt"), link), os.Rename(link, file)); err != nil {
		t.Fatal(err)
	}
	// What the CA has issued before is of this test, and what it knows of is in the ledger.
	c.ask(t, v1alpha1.AdoptionAttested)
	c.reaches(t, 30*time.Second, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Signing.AttestedAt != nil })
}

// trustsFile waits until the DaemonSet has written a CA to the control plane's node.
func (c *cluster) trustsFile(t *testing.T, one *v1alpha1.CAStatus) {
	t.Helper()
	c.until(t, 2*time.Minute, "the CA "+one.KeyID+" is in the file on the node", func(context.Context) (bool, error) {
		data, err := os.ReadFile(c.machines[firstNode].file(trustDir + "/client-ca.crt"))
		return strings.Contains(string(data), strings.TrimSpace(one.Certificate)), err
	})
}

// testPreparing asks for a rotation.
func (c *cluster) testPreparing(t *testing.T) {
	c.ask(t, v1alpha1.RotateStart)
	status := c.reaches(t, 2*time.Minute, v1alpha1.Preparing, func(s *v1alpha1.SigningAuthorityStatus) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionTrusted)
	})
	asked := status.APIServers
	if len(asked) != 1 || asked[0].Address != controlPlaneAddress+":443" || asked[0].Trust != "Recognised" {
		t.Errorf("API servers that were asked: %+v, want the one endpoint of the Service kubernetes", asked)
	}
	if len(status.WaitingFor) != 1 || !strings.Contains(status.WaitingFor[0], string(v1alpha1.TrustConfirmed)) {
		t.Errorf("it waits for %q, want for its owner alone", status.WaitingFor)
	}
	if status.Signing.Certificate != string(c.next.CertPEM) {
		t.Error("the old CA does not sign any more, before the new one is proven")
	}
}

// testMoving waits until both kubelets live on the new CA, and reads a log all the time.
func (c *cluster) testMoving(t *testing.T, worker *machine) {
	now := c.reaches(t, time.Minute, v1alpha1.Prepared, nil)
	moved := func(cert *x509.Certificate) bool { return cert.CheckSignatureFrom(certOf(t, now.Signing)) == nil }
	c.ask(t, v1alpha1.RotateComplete)
	c.toldRefused(t, "live until")
	c.until(t, renewal, "the kubelets' certificates are of the new CA", func(context.Context) (bool, error) {
		if _, err := c.tryKubectl("logs", "on-"+worker.name); err != nil {
			t.Errorf("the log can't be read while kubelets move: %v", err)
		}
		all := []func() (*x509.Certificate, error){worker.certificate}
		for _, m := range c.machines {
			all = append(all, func() (*x509.Certificate, error) { return c.servedBy(m) })
		}
		for _, each := range all {
			if cert, err := each(); err != nil || !moved(cert) {
				return false, err
			}
		}
		return true, nil
	})
	file, cert := worker.current(t)
	c.wantIdentity(t, worker, file, cert)
	c.wantOurs(t, worker, c.served(t, worker))
	c.wantReachable(t, worker)
}

// testLeaving completes the rotation.
func (c *cluster) testLeaving(t *testing.T, worker *machine) {
	c.ask(t, v1alpha1.RotateComplete)
	status := c.reaches(t, 3*time.Minute, v1alpha1.Completed, nil)
	if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRefused) || status.Retiring != nil || status.Generation != 2 {
		t.Errorf("completed, with %+v", status)
	}
	secret := &corev1.Secret{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: signingSecret}, secret); err != nil {
		t.Fatal(err)
	}
	for key, data := range secret.Data {
		if strings.Contains(string(data), strings.TrimSpace(string(c.next.KeyPEM))) || strings.HasPrefix(key, "retiring") {
			t.Errorf("the old CA's key is still in the Secret, in %s", key)
		}
	}
	c.wantReachable(t, worker)
	c.nodeReady(t, worker.name)
}
