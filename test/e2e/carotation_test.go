//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// The authority cluster, of manifests/trust-files, is only for clients after manifests/moved-trust. The authority of
// manifests/own-trust is for kubelets' serving certificates.
const servingAuthority, servingSecret = "kubelet-serving", "csr-kubelet-serving-ca"

// bothAuthorities maps the authorities to their Secrets.
var bothAuthorities = map[string]string{authorityName: signingSecret, servingAuthority: servingSecret}

// TestCARotation is step 11: kubelets' serving certificates get a CA of their own, and then both CAs are replaced. The
// API server is restarted so that it reads the file of --kubelet-certificate-authority, as required before version
// 1.36.
func TestCARotation(t *testing.T) {
	c := rotateCAs(t, func(c *cluster) { c.restarted(t) }, func(c *cluster, name string) {
		c.ask(t, name, v1alpha1.OperationAccept) // the nodes are seen to have moved
	})
	clients, servers := c.ring(t, signingSecret).Signing.Cert, c.ring(t, servingSecret).Signing.Cert
	c.trustsFile(t, servingFile, func(file string) bool {
		return hasCA(file, string(servers)) && !hasCA(file, string(clients)) && !hasCA(file, string(c.next.CertPEM)) && !hasCA(file, string(c.retired.Cert))
	})
	c.restarted(t)
	step(t, "11 kubelets' servers are known by their own CA alone", func(t *testing.T) { c.wantReachable(t, c.machines["worker"]) })
}

// TestCARotationUntouched is step 11 without a restart of the API server once it has both files. It waits until every
// old certificate has expired.
func TestCARotationUntouched(t *testing.T) {
	rotateCAs(t, func(c *cluster) { c.reloaded(t) }, func(c *cluster, name string) {
		c.reaches(t, name, 2*lifetime, v1alpha1.Prepared, func(s *v1alpha1.SigningAuthorityStatus) bool { return len(s.Outstanding) == 0 })
	})
}

// rotateCAs moves kubelets' serving certificates to a CA of their own, and runs both rotations. trust ensures that the API
// server has read the CAs by which it verifies kubelets. settle ensures that no certificate of the old CA is needed.
func rotateCAs(t *testing.T, trust func(*cluster), settle func(*cluster, string)) *cluster {
	c := startCluster(t)
	step(t, "11 rotation is installed, and adopts the CA", func(t *testing.T) { c.testAdoption(t) })
	c.createServingAuthority(t) // before the worker joins with the first CA
	worker := c.join(t, "worker", kubeletOptions{})
	c.wantJoined(t, worker)
	since, starts := c.readySince(t), worker.kubeletID(t)
	stolen, err := clientPair(c.next, "system:node:stolen", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	step(t, "11 the servers' own CA is trusted", func(t *testing.T) { c.testServingTrusted(t, worker) })
	step(t, "11 the servers' own CA signs, and the kubelets move", func(t *testing.T) { c.testMovingOut(t, worker) })
	step(t, "11 the API server knows the new CA's clients, and its owner is asked about the servers' one", func(t *testing.T) {
		c.testPreparing(t)
		c.wantReachable(t, worker)
	})
	trust(c)
	c.wantReachable(t, worker)
	c.ask(t, servingAuthority, v1alpha1.OperationConfirm)
	step(t, "11 the new CAs sign, and the kubelets move", func(t *testing.T) { c.testMoving(t, worker) })
	if _, err := c.whoAmI(t.Context(), slices.Concat(stolen.cert, stolen.key)); err != nil {
		t.Errorf("a certificate of the old CA is not good any more, before it leaves: %v", err)
	}
	settle(c, authorityName)
	step(t, "11 the old CA leaves for clients", func(t *testing.T) { c.testLeaving(t, authorityName, worker) })
	if who, err := c.whoAmI(t.Context(), slices.Concat(stolen.cert, stolen.key)); !apierrors.IsUnauthorized(err) {
		t.Errorf("with a certificate of the old CA the API server takes one for %q: %v, want Unauthorized", who.Username, err)
	}
	settle(c, servingAuthority)
	step(t, "11 the old CA leaves for servers", func(t *testing.T) { c.testLeaving(t, servingAuthority, worker) })
	if now := c.readySince(t); now != since {
		t.Errorf("nodes were not ready in between: they are since\n%s, and were since\n%s", now, since)
	}
	if starts != worker.kubeletID(t) {
		t.Error("the kubelet is not the same process as before")
	}
	return c
}

// restarted restarts the API server.
func (c *cluster) restarted(t *testing.T) {
	t.Helper()
	if err := c.restartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// testAdoption installs the manager, an authority for the CA in its Secret, and the DaemonSet that writes the API
// server's trust from then on.
func (c *cluster) testAdoption(t *testing.T) {
	if err := c.machines[firstNode].write(trustDir+"/others.crt", c.ca.CertPEM); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "label", "node", firstNode, "node-role.kubernetes.io/control-plane=")
	c.install(t, "manifests/rotation", c.next)
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/signingauthorities.csr-controller-manager.io")
	c.kubectl(t, "apply", "-k", "manifests/trust-files")
	adopted := c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
	if certOf(t, adopted.Signing); adopted.Signing.Certificate != string(c.next.CertPEM) {
		t.Errorf("what signs is not the CA that was in the Secret:\n%s", adopted.Signing.Certificate)
	}
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.trustsFile(t, clientFile, func(file string) bool { return hasCA(file, adopted.Signing.Certificate) })
	c.follows(t, clientFile)
	// All certificates that the CA issued before are from this test, and the known ones are in the ledger.
	c.ask(t, authorityName, v1alpha1.OperationAttest)
	c.reaches(t, authorityName, 30*time.Second, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Signing.AttestedAt != nil })
}

// testPreparing requests both rotations. The clients' CA is proven, and signs. The servers' CA waits for its owner.
func (c *cluster) testPreparing(t *testing.T) {
	c.ask(t, authorityName, v1alpha1.OperationStart)
	if status := c.reaches(t, authorityName, 10*time.Second, v1alpha1.Preparing, nil); status.Signing.Certificate != string(c.next.CertPEM) {
		t.Error("the old CA does not sign any more, before the new one is proven")
	}
	serving := c.reaches(t, servingAuthority, 10*time.Second, v1alpha1.Completed, nil).Signing
	c.ask(t, servingAuthority, v1alpha1.OperationStart)
	asked := c.reaches(t, authorityName, 2*time.Minute, v1alpha1.Prepared, func(s *v1alpha1.SigningAuthorityStatus) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionTrusted) && len(s.APIServers) > 0
	}).APIServers
	if len(asked) != 1 || asked[0].Address != controlPlaneAddress+":443" || asked[0].Trust != "Recognised" {
		t.Errorf("API servers that were asked: %+v, want the one endpoint of the Service kubernetes", asked)
	}
	c.ask(t, authorityName, v1alpha1.OperationComplete) // while certificates of the old CA are valid
	c.toldRefused(t, authorityName, "are valid until")
	status := c.waitsForConfirmation(t)
	if status.Signing.Certificate != serving.Certificate {
		t.Error("the old CA does not sign servers' certificates any more, before the new one is confirmed")
	}
	c.trustsFile(t, servingFile, func(file string) bool {
		return hasCA(file, status.Candidate.Certificate) && hasCA(file, status.Signing.Certificate) && !hasCA(file, string(c.next.CertPEM))
	})
	c.wantNoClients(t, 2)
}

// testMoving waits until both kubelets use the new CAs, and follows a log all the time.
func (c *cluster) testMoving(t *testing.T, worker *machine) {
	clients := certOf(t, c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, nil).Signing)
	servers := certOf(t, c.reaches(t, servingAuthority, time.Minute, v1alpha1.Prepared, nil).Signing)
	c.ask(t, servingAuthority, v1alpha1.OperationComplete)
	c.toldRefused(t, servingAuthority, "are valid until")
	c.wantNoClients(t, 2)
	c.kubeletsMove(t, worker, func() (bool, error) {
		cert, err := worker.certificate()
		if err != nil || cert.CheckSignatureFrom(clients) != nil {
			return false, err
		}
		return c.servedOf(servers)
	})
	file, cert := worker.current(t)
	c.wantIdentity(t, worker, file, cert)
	c.wantOurs(t, worker, c.served(t, worker))
	c.wantReachable(t, worker)
	status := c.reaches(t, servingAuthority, 10*time.Second, v1alpha1.Prepared, nil)
	for _, left := range status.Outstanding {
		if left.Signer != certificatesv1.KubeletServingSignerName {
			t.Errorf("the old CA of servers must wait for certificates of %s", left.Signer)
		}
	}
}

// testLeaving completes one rotation. Clients' certificates of the old CA are refused, while servers' certificates
// are still valid.
func (c *cluster) testLeaving(t *testing.T, name string, worker *machine) {
	retiring := c.ring(t, bothAuthorities[name]).Retiring
	if name == servingAuthority {
		c.retired = retiring
	} else if string(retiring.Key) != string(c.next.KeyPEM) {
		t.Error("the CA that clients leave is not the old one")
	}
	c.ask(t, name, v1alpha1.OperationComplete)
	status := c.reaches(t, name, 3*time.Minute, v1alpha1.Completed, nil)
	if status.Retiring != nil || status.Generation != 2 {
		t.Errorf("%s is completed, with %+v", name, status)
	}
	if name == authorityName && !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionRefused) {
		t.Errorf("nobody was asked whether clients of the old CA are refused: %+v", status.Conditions)
	}
	secret := &corev1.Secret{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: bothAuthorities[name]}, secret); err != nil {
		t.Fatal(err)
	}
	for key, data := range secret.Data {
		if strings.Contains(string(data), strings.TrimSpace(string(retiring.Key))) || strings.HasPrefix(key, "retiring") {
			t.Errorf("the old CA's key is still in the Secret %s, in %s", secret.Name, key)
		}
	}
	cas := 1
	if name == authorityName {
		cas = 2 // the servers' rotation is not completed yet
	}
	c.wantNoClients(t, cas)
	c.wantReachable(t, worker)
	c.nodeReady(t, worker.name)
}
