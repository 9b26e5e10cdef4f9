//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/rotation"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// The authority cluster, of manifests/trust-files, is only for clients after manifests/moved-trust. The authority of
	// manifests/own-trust is for kubelets' serving certificates.
	authorityName, servingAuthority = "cluster", "kubelet-serving"
	servingSecret                   = "csr-kubelet-serving-ca"
	// The mount paths of config/overlays/trust-files and the files in them. The second is from its component
	// kubelet-serving.
	trustDir, clientFile, servingFile = "/etc/kubernetes/pki/csr-trust", "client-ca.crt", "kubelet-serving-ca.crt"
)

// bothAuthorities maps the authorities to their Secrets.
var bothAuthorities = map[string]string{authorityName: signingSecret, servingAuthority: servingSecret}

type status = v1alpha1.SigningAuthorityStatus

// TestCARotation gives kubelets' serving certificates a CA of their own, and then replaces both CAs. The API server is
// restarted so that it reads the file of --kubelet-certificate-authority, as required before version 1.36.
func TestCARotation(t *testing.T) {
	c := rotateCAs(t, (*cluster).restartAPIServer, func(c *cluster, name string) {
		c.ask(t, name, v1alpha1.OperationAccept) // the nodes are seen to have moved
	})
	clients, servers := c.ring(t, signingSecret).Signing.Cert, c.ring(t, servingSecret).Signing.Cert
	c.trustsFile(t, servingFile, []string{string(servers)}, []string{string(clients), string(c.next.CertPEM), string(c.retired.Cert)})
	c.restartAPIServer(t)
	step(t, "kubelets' servers are known by their own CA alone", func(t *testing.T) { c.wantReachable(t, c.machines["worker"]) })
}

// TestCARotationUntouched is TestCARotation without a restart of the API server once it has both files. It waits until every
// old certificate has expired.
func TestCARotationUntouched(t *testing.T) {
	rotateCAs(t, (*cluster).reloaded, func(c *cluster, name string) {
		c.reaches(t, name, 2*lifetime, v1alpha1.Prepared, func(s *status) bool { return len(s.Outstanding) == 0 })
	})
}

// rotateCAs moves kubelets' serving certificates to a CA of their own, and runs both rotations. trust ensures that the API
// server has read the CAs by which it verifies kubelets. settle ensures that no certificate of the old CA is needed.
func rotateCAs(t *testing.T, trust func(*cluster, *testing.T), settle func(*cluster, string)) *cluster {
	c := startCluster(t)
	step(t, "rotation is installed, and adopts the CA", func(t *testing.T) {
		c.adopt(t, "manifests/rotation")
		// All certificates that the CA issued before are from this test, and the known ones are in the ledger.
		c.ask(t, authorityName, v1alpha1.OperationAttest)
		c.reaches(t, authorityName, 30*time.Second, v1alpha1.Completed, func(s *status) bool { return s.Signing.AttestedAt != nil })
	})
	// An authority for kubelets' serving certificates makes its CA, which does not sign yet, before the worker joins.
	c.kubectl(t, "apply", "-k", "../../config/rotation/kubelet-serving")
	c.kubectl(t, "apply", "-k", "manifests/own-trust")
	worker := c.join(t, "worker", kubeletOptions{})
	c.wantJoined(t, worker)
	since, starts := c.readySince(t), worker.kubeletID(t)
	stolen := clientPair(t, c.next, "system:node:stolen", "system:nodes").file()
	step(t, "the servers' own CA is trusted", func(t *testing.T) { c.testServingTrusted(t, worker) })
	step(t, "the servers' own CA signs, and the kubelets move", func(t *testing.T) { c.testMovingOut(t, worker) })
	step(t, "the API server knows the new CA's clients, and its owner is asked about the servers' one", func(t *testing.T) {
		c.testPreparing(t)
		c.wantReachable(t, worker)
	})
	trust(c, t)
	c.wantReachable(t, worker)
	c.ask(t, servingAuthority, v1alpha1.OperationConfirm)
	step(t, "the new CAs sign, and the kubelets move", func(t *testing.T) { c.testMoving(t, worker) })
	kit.Must(c.whoAmI(t.Context(), stolen))(t) // the old CA has not left yet
	settle(c, authorityName)
	step(t, "the old CA leaves for clients", func(t *testing.T) { c.testLeaving(t, authorityName, worker) })
	c.wantUnauthorized(t, "a certificate of the old CA", stolen)
	settle(c, servingAuthority)
	step(t, "the old CA leaves for servers", func(t *testing.T) { c.testLeaving(t, servingAuthority, worker) })
	kit.Equal(t, "since when nodes are ready", c.readySince(t), since)
	kit.Equal(t, "the process of the kubelet", worker.kubeletID(t), starts)
	return c
}

// adopt installs the manager by the overlay, an authority for the CA in its Secret, and the DaemonSet that writes the API
// server's trust from then on.
func (c *cluster) adopt(t *testing.T, overlay string) {
	c.machines[firstNode].write(t, trustDir+"/others.crt", c.ca.CertPEM)
	c.kubectl(t, "label", "node", firstNode, "node-role.kubernetes.io/control-plane=")
	c.install(t, overlay, c.next)
	c.kubectl(t, "wait", "--for=condition=Established", "--timeout=30s", "crd/signingauthorities.csr-controller-manager.io")
	c.kubectl(t, "apply", "-k", "manifests/trust-files")
	adopted := c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
	kit.Equal(t, "the CA that signs, which was in the Secret", adopted.Signing.Certificate, string(c.next.CertPEM))
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.trustsFile(t, clientFile, []string{adopted.Signing.Certificate}, nil)
	c.follows(t, clientFile)
}

// testServingTrusted gives the API server a file with both CAs, and confirms the new one. Until then, the old CA signs
// and no API server is asked.
func (c *cluster) testServingTrusted(t *testing.T, worker *machine) {
	candidate := c.waitsForConfirmation(t).Candidate
	c.trustsFile(t, servingFile, []string{candidate.Certificate, string(c.next.CertPEM)}, nil)
	c.kubeletCA = c.follows(t, servingFile)
	c.restartAPIServer(t)
	c.wantReachable(t, worker) // with a certificate of the old CA
	c.wantNoClients(t, 1)
	c.ask(t, servingAuthority, v1alpha1.OperationConfirm)
	signing := c.reaches(t, servingAuthority, 30*time.Second, v1alpha1.Completed, nil).Signing
	kit.Equal(t, "the CA that signs, which was confirmed", signing.Certificate, candidate.Certificate)
	for _, m := range c.machines {
		kit.Check(t, signedBy(t, c.served(t, m), c.next), "%s serves with a certificate of another CA than the configuration names", m.name)
	}
	c.wantReachable(t, worker)
}

// testMovingOut makes the new CA sign. When all kubelets have a certificate of it, the old CA is no longer for kubelets'
// servers.
func (c *cluster) testMovingOut(t *testing.T, worker *machine) {
	c.kubectl(t, "apply", "-k", "manifests/own-ca")
	c.deploymentsAvailable(t, "csr-controller-manager")
	own := c.ring(t, servingSecret).Signing
	c.kubeletsMove(t, worker, &csrenv.CA{CertPEM: own.Cert}, nil)
	c.wantOurs(t, worker)
	c.kubectl(t, "apply", "-k", "manifests/moved-trust")
	c.wantNoClients(t, 1)
	c.wantReachable(t, worker)
}

// testPreparing requests both rotations. The clients' CA is proven, and signs. The servers' CA waits for its owner.
func (c *cluster) testPreparing(t *testing.T) {
	c.ask(t, authorityName, v1alpha1.OperationStart)
	clients := c.reaches(t, authorityName, 10*time.Second, v1alpha1.Preparing, nil).Signing
	kit.Equal(t, "the CA that signs before the new one is proven", clients.Certificate, string(c.next.CertPEM))
	serving := c.reaches(t, servingAuthority, 10*time.Second, v1alpha1.Completed, nil).Signing
	c.ask(t, servingAuthority, v1alpha1.OperationStart)
	c.waitsFor(t, controlPlaneAddress) // the one endpoint of the Service kubernetes
	c.reaches(t, authorityName, 2*time.Minute, v1alpha1.Prepared, func(s *status) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionTrusted)
	})
	c.wantRefused(t, authorityName)
	found := c.waitsForConfirmation(t)
	kit.Equal(t, "the servers' CA that signs before the new one is confirmed", found.Signing.Certificate, serving.Certificate)
	c.trustsFile(t, servingFile, []string{found.Candidate.Certificate, found.Signing.Certificate}, []string{string(c.next.CertPEM)})
	c.wantNoClients(t, 2)
}

func (c *cluster) testMoving(t *testing.T, worker *machine) {
	clients := c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, nil).Signing
	servers := c.reaches(t, servingAuthority, time.Minute, v1alpha1.Prepared, nil).Signing
	c.wantRefused(t, servingAuthority)
	c.wantNoClients(t, 2)
	c.kubeletsMove(t, worker, &csrenv.CA{CertPEM: []byte(servers.Certificate)}, &csrenv.CA{CertPEM: []byte(clients.Certificate)})
	file, cert := worker.current(t)
	c.wantIdentity(t, worker, file, cert)
	c.wantOurs(t, worker)
	c.wantReachable(t, worker)
	for _, left := range c.reaches(t, servingAuthority, 10*time.Second, v1alpha1.Prepared, nil).Outstanding {
		kit.Equal(t, "the signer of certificates for which the old CA of servers waits", left.Signer, certificatesv1.KubeletServingSignerName)
	}
}

// testLeaving completes one rotation. Clients' certificates of the old CA are refused, while servers' certificates
// are still valid.
func (c *cluster) testLeaving(t *testing.T, name string, worker *machine) {
	retiring, cas := c.ring(t, bothAuthorities[name]).Retiring, 2 // the servers' rotation is not completed yet
	if name == servingAuthority {
		c.retired, cas = retiring, 1
	} else if string(retiring.Key) != string(c.next.KeyPEM) {
		t.Error("the CA that clients leave is not the old one")
	}
	c.ask(t, name, v1alpha1.OperationComplete)
	found := c.reaches(t, name, 3*time.Minute, v1alpha1.Completed, nil)
	kit.Check(t, found.Retiring == nil && found.Generation == 2, "%s is completed, with %+v", name, found)
	kit.Check(t, name != authorityName || meta.IsStatusConditionTrue(found.Conditions, v1alpha1.ConditionRefused),
		"no API server was asked whether it refuses clients of the old CA: %+v", found.Conditions)
	for key, data := range c.secret(t, bothAuthorities[name]) {
		kit.Check(t, !bytes.Contains(data, bytes.TrimSpace(retiring.Key)) && !strings.HasPrefix(key, "retiring"),
			"the old CA's key is still in the Secret of %s, in %s", name, key)
	}
	c.wantNoClients(t, cas)
	c.wantReachable(t, worker)
	c.nodeReady(t, worker.name)
}

func (c *cluster) secret(t *testing.T, name string) map[string][]byte {
	t.Helper()
	obj := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.get(t, obj)
	return obj.Data
}

func (c *cluster) ring(t *testing.T, name string) keypair.Ring {
	t.Helper()
	return kit.Must(keypair.ParseRing(c.secret(t, name)))(t)
}

// wantNoClients checks that a kubelet's serving certificate, or any certificate that a CA of servers could issue, is no
// client certificate for the API server. cas is the number of CAs in the Secret for servers.
func (c *cluster) wantNoClients(t *testing.T, cas int) {
	for _, m := range c.machines {
		c.wantUnauthorized(t, "what "+m.name+" serves with", []byte(m.must(t, "cat", "/var/lib/kubelet/pki/kubelet-server-current.pem")))
	}
	servers, minted := c.ring(t, servingSecret), 0
	for _, one := range []keypair.Pair{servers.Signing, servers.Candidate, servers.Retiring} {
		if !one.Empty() {
			minted++
			intruder := clientPair(t, &csrenv.CA{CertPEM: one.Cert, KeyPEM: one.Key}, "intruder", "system:masters")
			c.wantUnauthorized(t, "a certificate of a CA for servers", intruder.file())
		}
	}
	kit.Equal(t, "CAs for servers", minted, cas)
}

// kubeletsMove waits until every kubelet serves with a certificate of servers, and the worker's client certificate is of clients unless
// that is nil. It reads a log through the worker's kubelet all the time.
func (c *cluster) kubeletsMove(t *testing.T, worker *machine, servers, clients *csrenv.CA) {
	until(t, lifetime, "the kubelets' certificates are of the new CA", func(context.Context) (bool, error) {
		_, err := c.tryKubectl("logs", "on-"+worker.name)
		kit.Check(t, err == nil, "the log can't be read while kubelets move: %v", err)
		if clients != nil {
			if _, cert, err := worker.certificate(); err != nil || !signedBy(t, cert, clients) {
				return false, err
			}
		}
		for _, m := range c.machines {
			if cert, err := c.servedBy(m); err != nil || !signedBy(t, cert, servers) {
				return false, err
			}
		}
		return true, nil
	})
}

// trustsFile waits until the DaemonSet has written a file with some certificates, and without others, to the control plane's node.
func (c *cluster) trustsFile(t *testing.T, name string, with, without []string) {
	t.Helper()
	until(t, 2*time.Minute, name+" on the node is as it should be", func(context.Context) (bool, error) {
		data, err := os.ReadFile(c.machines[firstNode].file(trustDir + "/" + name))
		has := func(cert string) bool { return strings.Contains(string(data), strings.TrimSpace(cert)) }
		hasNot := func(cert string) bool { return !has(cert) }
		return !slices.ContainsFunc(with, hasNot) && !slices.ContainsFunc(without, has), err
	})
}

// follows links the API server's file of that name to the file on the control plane's node, and returns its path.
func (c *cluster) follows(t *testing.T, name string) string {
	t.Helper()
	file, link := c.path("pki/"+name), c.path("pki/follow")
	kit.NoError(t, errors.Join(os.Symlink(c.machines[firstNode].file(trustDir+"/"+name), link), os.Rename(link, file)))
	return file
}

// ask writes the annotation, as kubectl annotate does, and waits until the manager has accepted it.
func (c *cluster) ask(t *testing.T, name string, operation v1alpha1.Operation) {
	t.Helper()
	c.kubectl(t, "annotate", "signingauthority", name, v1alpha1.OperationAnnotation+"="+string(operation))
	until(t, 30*time.Second, string(operation)+" is taken", func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: name}, obj)
		return obj.Annotations[v1alpha1.OperationAnnotation] == "", err
	})
}

// reaches waits until the authority is in phase and also reports success.
func (c *cluster) reaches(t *testing.T, name string, timeout time.Duration, phase v1alpha1.Phase, also func(*status) bool) *status {
	t.Helper()
	obj := &v1alpha1.SigningAuthority{}
	kit.Within(t, timeout, fmt.Sprintf("the authority %s is %s", name, phase), func(ctx context.Context) error {
		err := c.admin.Get(ctx, client.ObjectKey{Name: name}, obj)
		return kit.OrError(err == nil && obj.Status.Phase == phase && (also == nil || also(&obj.Status)), "it is %q, and waits for %q: %+v, error %w",
			obj.Status.Phase, obj.Status.WaitingFor, obj.Status.Conditions, err)
	})
	return &obj.Status
}

// waitsForConfirmation waits until the administrator must confirm the next CA of kubelets' servers, and checks that the
// authority waits for nothing else.
func (c *cluster) waitsForConfirmation(t *testing.T) *status {
	found := c.reaches(t, servingAuthority, time.Minute, v1alpha1.Preparing, func(s *status) bool {
		return s.Candidate != nil && len(s.WaitingFor) > 0 && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionPublished)
	})
	kit.Check(t, len(found.WaitingFor) == 1 && strings.Contains(found.WaitingFor[0], v1alpha1.OperationConfirm.Command()),
		"it waits for %q, want for its owner alone", found.WaitingFor)
	return found
}

// wantRefused asks for the completion while certificates of the old CA are valid. The status and an Event must refuse it.
func (c *cluster) wantRefused(t *testing.T, name string) {
	const part = "are valid until"
	c.ask(t, name, v1alpha1.OperationComplete)
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.get(t, obj)
	last := obj.Status.LastOperation
	kit.Check(t, last != nil && last.Result == v1alpha1.Refused && strings.Contains(last.Message, part),
		"the last operation is %+v, want it refused with %q", last, part)
	until(t, 30*time.Second, "an Event refuses the operation", func(ctx context.Context) (bool, error) {
		return c.hasEvent(ctx, obj, "RotationRefused", part)
	})
}

// reloaded waits until the API server has read the current file of --kubelet-certificate-authority. It does so when
// it connects to a kubelet, at most every five minutes.
func (c *cluster) reloaded(t *testing.T) {
	reloads := func() (found string) {
		for line := range strings.Lines(c.kubectl(t, "get", "--raw", "/metrics")) {
			if strings.HasPrefix(line, "rest_client_transport_ca_reload_total{") {
				found += line
			}
		}
		return found
	}
	before := reloads()
	until(t, 6*time.Minute, "the API server has read the kubelets' CAs again", func(context.Context) (bool, error) {
		_, err := c.tryKubectl("logs", "on-worker")
		return reloads() != before, err
	})
}

// readySince returns since when each Node has been Ready without a break, from the time of the last change.
func (c *cluster) readySince(t *testing.T) (all string) {
	t.Helper()
	list := &corev1.NodeList{}
	kit.NoError(t, c.admin.List(t.Context(), list))
	for _, node := range list.Items {
		if one := ready(&node); c.machines[node.Name] != nil {
			all += fmt.Sprintln(node.Name, one.Status, one.LastTransitionTime)
		}
	}
	return all
}

// Several API servers on one etcd, each with its own address and client CA file. The CA that is rotated is the cluster's
// next CA. The administrator's certificate is from the cluster's own CA.
const firstAPIServer, secondAPIServer, thirdAPIServer = "10.98.0.1", "10.98.0.2", "10.98.0.3"

var bundleKey = v1alpha1.TrustEntry{Namespace: metav1.NamespaceSystem, Name: "client-ca", Key: "ca.crt"}

// TestAPIServersGetTheBundleLate runs a rotation that waits for API servers that it finds by the endpoints of the
// Service kubernetes. One of two gets the bundle late, and a third is added when all seemed to trust it.
func TestAPIServersGetTheBundleLate(t *testing.T) {
	c := newCluster(t, firstAPIServer)
	c.certificates(t)
	c.start(t, "etcd", "etcd", etcdArgs(c.path("etcd"))...)
	c.startOne(t, firstAPIServer)
	c.waitForAPIServer(t)
	c.startOne(t, secondAPIServer)
	c.runRotation(t)
	c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
	c.ask(t, authorityName, v1alpha1.OperationStart)
	c.waitsFor(t, firstAPIServer, secondAPIServer)
	both := c.published(t)
	c.trusts(t, firstAPIServer, both)
	waiting := c.waitsFor(t, secondAPIServer).WaitingFor[0]
	kit.Check(t, strings.Contains(waiting, "401"), "it waits because %s, want that it answers 401", waiting)
	c.trusts(t, secondAPIServer, both)
	c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(s *status) bool {
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionTrusted)
	})

	c.startOne(t, thirdAPIServer) // with the CA that signed when its host was set up
	c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, func(s *status) bool {
		trusted := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionTrusted)
		return trusted.Status == metav1.ConditionFalse && strings.Contains(trusted.Message, thirdAPIServer)
	})
	for _, operation := range []v1alpha1.Operation{v1alpha1.OperationAttest, v1alpha1.OperationAccept, v1alpha1.OperationComplete} {
		c.ask(t, authorityName, operation)
		c.reaches(t, authorityName, time.Minute, v1alpha1.Prepared, nil)
	}
	c.trusts(t, thirdAPIServer, both)
	until(t, time.Minute, "it begins to complete", func(ctx context.Context) (bool, error) {
		obj := &v1alpha1.SigningAuthority{}
		if err := c.admin.Get(ctx, client.ObjectKey{Name: authorityName}, obj); err != nil || obj.Status.Phase == v1alpha1.Completing {
			return true, err
		}
		c.ask(t, authorityName, v1alpha1.OperationComplete)
		return false, nil
	})
	for _, address := range []string{firstAPIServer, secondAPIServer, thirdAPIServer} {
		c.reaches(t, authorityName, time.Minute, v1alpha1.Completing, func(s *status) bool {
			return strings.Contains(strings.Join(s.WaitingFor, "\n"), thirdAPIServer+":443: ")
		})
		c.trusts(t, address, c.published(t))
	}
	c.reaches(t, authorityName, time.Minute, v1alpha1.Completed, nil)
}

// waitsFor waits until the authority waits for exactly these API servers.
func (c *cluster) waitsFor(t *testing.T, addresses ...string) *status {
	return c.reaches(t, authorityName, time.Minute, v1alpha1.Preparing, func(s *status) bool {
		return len(s.WaitingFor) == len(addresses) && !slices.ContainsFunc(addresses, func(address string) bool {
			return !slices.ContainsFunc(s.WaitingFor, func(one string) bool { return strings.HasPrefix(one, address+":443: ") })
		})
	})
}

// startOne starts an API server that trusts the signing CA.
func (c *cluster) startOne(t *testing.T, address string) {
	mustRun(t, exec.Command("ip", "address", "add", address+"/24", "dev", "machines"))
	pki := c.path("pki-" + address)
	writePKI(t, pki, address, c.ca, c.next)
	c.start(t, "kube-apiserver-"+address, "kube-apiserver", append(apiServerArgs(pki, address), "--bind-address="+address)...)
}

// trusts sets the client CA file of the API server at address to bundle and its administrator's CA.
func (c *cluster) trusts(t *testing.T, address string, bundle []byte) {
	t.Helper()
	file := filepath.Join(c.path("pki-"+address), "client-ca.crt")
	kit.Write(t, file+".part", slices.Concat(c.ca.CertPEM, bundle))
	kit.NoError(t, os.Rename(file+".part", file))
}

func (c *cluster) published(t *testing.T) []byte {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: bundleKey.Namespace, Name: bundleKey.Name}}
	c.get(t, obj)
	return []byte(obj.Data[bundleKey.Key])
}

// runRotation creates an authority whose API servers are the endpoints of the Service kubernetes, and runs its
// controller.
func (c *cluster) runRotation(t *testing.T) {
	crds := envtest.CRDInstallOptions{Paths: []string{"../../config/crd/csr-controller-manager.io_signingauthorities.yaml"}, ErrorIfPathMissing: true}
	kit.Must(envtest.InstallCRDs(c.config, crds))(t)
	secret := kit.SigningSecret(c.next.CertPEM, c.next.KeyPEM)
	secret.Namespace = metav1.NamespaceSystem
	kit.NoError(t, c.admin.Create(t.Context(), secret))
	kit.NoError(t, c.admin.Create(t.Context(), &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: authorityName},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:       v1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name},
			Signers:      []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName},
			Trust:        v1alpha1.Trust{ConfigMaps: []v1alpha1.TrustEntry{bundleKey}},
			Verification: v1alpha1.Verification{SettleFor: &metav1.Duration{Duration: 2 * time.Second}},
		},
	}))
	mgr := kit.Must(manager.New(c.config, manager.Options{
		Scheme: kit.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
	}))(t)
	kit.NoError(t, controllers.Options{Rotation: &rotation.Reconciler{}}.SetupWithManager(mgr))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	kit.AtEnd(t, func() error {
		cancel()
		return <-ended
	})
}
