//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const (
	// joinBinding is a binding without which no join is approved.
	joinBinding = "kubeadm:node-autoapprove-bootstrap"
	// lifetime is the value of manifests/config, and bounds the wait for a renewal. A kubelet renews when 70 to 90 % of the
	// lifetime and the five minutes before it have passed, which is 36 s to 2 m 12 s after the issuance.
	lifetime = 3 * time.Minute
)

// TestDeployment takes a cluster without CSR loops from the first install to the removal.
func TestDeployment(t *testing.T) {
	c := startCluster(t)
	before := c.objects(t)
	c.install(t, "manifests/default", c.ca, "csr-controller-manager")
	var worker, impostor *machine
	step(t, "a kubelet joins through the Deployment", func(t *testing.T) {
		worker = c.join(t, "worker", kubeletOptions{})
		c.wantJoined(t, worker)
	})
	impostor = c.join(t, "impostor", kubeletOptions{SelfSigned: true}) // it is ready when it is needed
	step(t, "the API server verifies kubelets", func(t *testing.T) { c.testServing(t, worker, impostor) })
	step(t, "a kubelet has the metrics that alerts use", func(t *testing.T) { c.testKubeletMetrics(t, worker) })
	step(t, "at the same time", func(t *testing.T) {
		parallel(t, "the client certificate rotates without an outage", func(t *testing.T) { c.testRotation(t, worker) })
		parallel(t, "a kubelet that was killed finds its request again", func(t *testing.T) { c.testResume(t) })
		parallel(t, "the serving certificate rotates without an outage", func(t *testing.T) { c.testServingRotation(t, worker) })
		parallel(t, "a node does not get another one's address", func(t *testing.T) { c.testImpostor(t, impostor, worker) })
	})
	step(t, "another CA signs without a restart", func(t *testing.T) { c.testNewCA(t) })
	step(t, "at the same time", func(t *testing.T) {
		parallel(t, "the kubelet's next certificate is the other CA's", func(t *testing.T) { c.testNewCAReachesKubelet(t, worker) })
		parallel(t, "no request is lost with its leader", func(t *testing.T) {
			t.Run("deleted", func(t *testing.T) { c.testLeaderDeleted(t) })
			t.Run("killed", func(t *testing.T) { c.testLeaderKilled(t) })
		})
	})
	step(t, "uninstalled", func(t *testing.T) { c.uninstall(t, "manifests/default", before) })
	step(t, "three identities", func(t *testing.T) { c.testSplit(t) })
	step(t, "uninstalled again", func(t *testing.T) { c.uninstall(t, "manifests/split", before) })
	c.nodeReady(t, worker.name)
}

// step runs a subtest on which the following subtests depend.
func step(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	if !t.Run(name, test) {
		t.FailNow()
	}
}

func parallel(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(t)
	})
}

// wantJoined checks that the node got its certificate from the Deployment with a bootstrap token, and runs pods.
func (c *cluster) wantJoined(t *testing.T, m *machine) {
	c.nodeReady(t, m.name)
	requests, err := c.requestsOf(t.Context(), m.name)
	kit.Require(t, err == nil && len(requests) > 0 && requests[0].Spec.Username == bootstrapUser,
		"the request of %s was not made with the bootstrap token: %v, %v", m.name, requests, err)
	for _, subresource := range []string{"approval", "status"} {
		c.wantWriter(t, "update", requests[0].Name, subresource, kit.ManagerAccount)
	}
	c.runPod(t, m.name)
	c.wantLog(t, m.name)
}

// testServing checks that the API server connects to a kubelet with a serving certificate from the Deployment, and to no
// kubelet that signed its own.
func (c *cluster) testServing(t *testing.T, m, selfSigned *machine) {
	c.wantOurs(t, m)
	c.wantReachable(t, m)
	c.nodeReady(t, selfSigned.name)
	answer, err := c.health(selfSigned)
	kit.Check(t, err != nil && strings.Contains(answer, "x509: "), "the API server talks to %s, which signed its certificate: %v", selfSigned.name, err)
}

// testKubeletMetrics reads the kubelet's metrics through the API server, and finds those that alerts, dashboard and reference name: without
// labels, with the lifetimes that are left and no errors.
func (c *cluster) testKubeletMetrics(t *testing.T, m *machine) {
	serves, used := map[string]float64{}, map[string]bool{}
	for line := range strings.Lines(c.kubectl(t, "get", "--raw", "/api/v1/nodes/"+m.name+"/proxy/metrics")) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found && strings.HasPrefix(name, "kubelet_") {
			serves[name] = kit.Must(strconv.ParseFloat(value, 64))(t)
		}
	}
	for _, file := range []string{"config/prometheus/alerts.yaml", "config/grafana/csr-controller-manager.json", "docs/reference/metrics.md"} {
		names := regexp.MustCompile(`\bkubelet_\w+`).FindAllString(string(read(t, filepath.Join(root, file))), -1)
		kit.Check(t, len(names) > 0, "%s names no metric of kubelets", file)
		for _, name := range names {
			used[name] = true
		}
	}
	kit.Equal(t, "metrics in use", len(used), 4)
	for name := range used {
		value, found := serves[name]
		if strings.HasSuffix(name, "_ttl_seconds") {
			kit.Check(t, found && 0 < value && value <= lifetime.Seconds(), "%s is %v, found %t, want what is left of %s", name, value, found, lifetime)
		} else {
			kit.Check(t, found && value == 0, "%s is %v, found %t, want 0", name, value, found)
		}
	}
}

// testRotation waits until the kubelet renews its client certificate, and works on after the old one has expired.
func (c *cluster) testRotation(t *testing.T, m *machine) {
	outages, before := c.watchOutages(t, m.name), m.kubeletID(t)
	oldFile, old := m.current(t)
	newFile, renewed := c.renewed(t, m, old)
	c.wantIdentity(t, m, oldFile, old)
	c.wantIdentity(t, m, newFile, renewed)
	expires(t, old)
	c.wantUnauthorized(t, "the expired certificate", oldFile)
	until(t, time.Minute, "the kubelet renews its lease without the old certificate", func(ctx context.Context) (bool, error) {
		lease := &coordinationv1.Lease{}
		err := c.admin.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: m.name}, lease)
		return err == nil && lease.Spec.RenewTime.After(old.NotAfter), err
	})
	kit.Equal(t, "the process of the kubelet", m.kubeletID(t), before)
	outages()
}

func (c *cluster) renewed(t *testing.T, m *machine, old *x509.Certificate) ([]byte, *x509.Certificate) {
	until(t, lifetime, m.name+" has a new client certificate", func(context.Context) (bool, error) {
		_, now, err := m.certificate()
		return err == nil && !now.Equal(old), err
	})
	return m.current(t)
}

func expires(t *testing.T, cert *x509.Certificate) {
	t.Helper()
	until(t, time.Until(cert.NotAfter)+time.Second, "the certificate has expired", func(context.Context) (bool, error) {
		return time.Now().After(cert.NotAfter), nil
	})
}

// watchOutages watches the Node. The returned function fails the test if the Node was not ready in between.
func (c *cluster) watchOutages(t *testing.T, name string) func() {
	t.Helper()
	events := kit.Must(c.admin.Watch(t.Context(), &corev1.NodeList{}, client.MatchingFields{"metadata.name": name}))(t)
	var watching sync.WaitGroup
	watching.Go(func() {
		for event := range events.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok && ready(node).Status != corev1.ConditionTrue {
				t.Errorf("Node %s is not ready at %s: %v", name, time.Now().Format(time.TimeOnly), node.Status.Conditions)
			}
		}
	})
	stop := sync.OnceFunc(func() {
		events.Stop()
		watching.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// testServingRotation waits until the serving certificate is renewed. The API server still connects after the old one has
// expired.
func (c *cluster) testServingRotation(t *testing.T, m *machine) {
	before, old := m.kubeletID(t), c.served(t, m)
	until(t, lifetime, m.name+" has a new serving certificate", func(context.Context) (bool, error) {
		now, err := c.servedBy(m)
		return err == nil && !now.Equal(old), err
	})
	c.wantOurs(t, m)
	c.wantReachable(t, m)
	expires(t, old)
	c.wantReachable(t, m)
	kit.Equal(t, "the process of the kubelet", m.kubeletID(t), before)
}

// testResume kills a kubelet while its request waits. It must find the same request again.
func (c *cluster) testResume(t *testing.T) {
	c.kubectl(t, "delete", "clusterrolebinding", joinBinding)
	options := kubeletOptions{KeepCertificate: true}
	m := c.join(t, "resumed", options)
	request := c.refused(t, m.name)
	kit.Check(t, strings.HasPrefix(request.Name, "node-csr-"), "request %s has not the name that comes from its key", request.Name)
	m.kubelet.kill(t)
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	m.startKubelet(t, options)
	c.nodeReady(t, m.name)
	all, err := c.requestsOf(t.Context(), m.name)
	kit.Require(t, err == nil && len(all) == 1 && all[0].UID == request.UID,
		"requests of the resumed kubelet: %d, want only %s (%s): %v", len(all), request.Name, request.UID, err)
	_, used := m.current(t)
	kit.Check(t, used.Equal(issued(&all[0])), "the kubelet uses another certificate than its request's")
	m.kubelet.kill(t) // it is not needed any more, and without rotation its certificate soon expires
}

// refused waits until an Event says that the request of node is not approved, and returns it.
func (c *cluster) refused(t *testing.T, node string) (request *kit.Request) {
	until(t, time.Minute, "the request of "+node+" is refused for now", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsOf(ctx, node)
		if err != nil || len(requests) == 0 {
			return false, err
		}
		request = &requests[0]
		return c.hasEvent(ctx, request, "NotAuthorized", "")
	})
	c.wantPending(t, request)
	return request
}

func (c *cluster) wantPending(t *testing.T, request *kit.Request) {
	t.Helper()
	now := request.DeepCopy()
	c.get(t, now)
	kit.Check(t, len(now.Status.Conditions) == 0 && issued(now) == nil, "request %s is not pending: %v", now.Name, now.Status.Conditions)
}

// testImpostor checks that a node gets a certificate for its own address, and none for the victim's, which it reports as its own.
func (c *cluster) testImpostor(t *testing.T, m, victim *machine) {
	m.restartKubelet(t, kubeletOptions{})
	until(t, time.Minute, "the API server talks to "+m.name, func(context.Context) (bool, error) {
		answer, err := c.health(m)
		return answer == "ok", err
	})
	c.wantOurs(t, m)
	claimed := c.claim(t, m, victim)
	until(t, 20*time.Second, "an Event names the victim", func(ctx context.Context) (bool, error) {
		return c.hasEvent(ctx, claimed, "SANContested", "Node "+victim.name)
	})
	c.wantPending(t, claimed)
	time.Sleep(30 * time.Second) // the manager looks again, several times
	c.wantPending(t, claimed)
	kit.Check(t, c.served(t, m).VerifyHostname(victim.address) != nil, "%s has a certificate for %s", m.name, victim.address)
	c.wantReachable(t, victim)
	m.kubelet.kill(t) // no pod must be scheduled here
	c.kubectl(t, "delete", "node", m.name)
}

// claim configures the kubelet to report the victim's address as its own, as root on a node can. It returns the
// request that the kubelet then creates.
func (c *cluster) claim(t *testing.T, m, victim *machine) (claimed *kit.Request) {
	// The kubelet needs the address on the machine. No traffic must go there, so that only the request is tested.
	m.must(t, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore")
	m.must(t, "ip", "address", "add", victim.address+"/32", "dev", "lo")
	m.restartKubelet(t, kubeletOptions{Address: victim.address})
	until(t, time.Minute, "Node "+m.name+" reports the victim's address", func(ctx context.Context) (bool, error) {
		node := &corev1.Node{}
		err := c.admin.Get(ctx, client.ObjectKey{Name: m.name}, node)
		return slices.Contains(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: victim.address}), err
	})
	until(t, time.Minute, m.name+" asks for the victim's address", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsTo(ctx, certificatesv1.KubeletServingSignerName, m.name)
		for i := range requests {
			req, err := csr.Parse(&requests[i])
			if err == nil && slices.ContainsFunc(req.Cert.IPAddresses, net.ParseIP(victim.address).Equal) {
				claimed = &requests[i]
			}
		}
		return claimed != nil, err
	})
	return claimed
}

// testNewCA checks that the Secret's new CA signs, in the same processes as before.
func (c *cluster) testNewCA(t *testing.T) {
	before := c.starts(t)
	kit.Check(t, signedBy(t, c.joinLight(t, "before-the-new-ca"), c.ca), "the certificate is not of the first CA")
	kit.NoError(t, c.admin.Update(t.Context(), kit.SigningSecret(c.next.CertPEM, c.next.KeyPEM)))
	tries := 0
	until(t, 10*time.Second, "the next certificate is of the new CA", func(context.Context) (bool, error) {
		tries++
		return signedBy(t, c.joinLight(t, fmt.Sprintf("after-the-new-ca-%d", tries)), c.next), nil
	})
	kit.Check(t, tries <= 2, "the new CA signed only the request number %d", tries) // the first may have been faster than the Secret
	kit.Equal(t, "starts of the manager's containers", c.starts(t), before)
}

func signedBy(t *testing.T, cert *x509.Certificate, ca *csrenv.CA) bool {
	t.Helper()
	return cert.CheckSignatureFrom(kit.Certificate(t, ca)) == nil
}

// starts returns the restarts of each pod's container, by the pod's UID.
func (c *cluster) starts(t *testing.T) map[string]int32 {
	pods, starts := &corev1.PodList{}, map[string]int32{}
	kit.NoError(t, c.admin.List(t.Context(), pods, client.InNamespace(namespace)))
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			starts[string(pod.UID)+" "+status.ContainerID] = status.RestartCount
		}
	}
	return starts
}

// joinLight gets a client certificate like a bootstrapping kubelet, without running pods. It checks that the API
// server identifies the holder as that node.
func (c *cluster) joinLight(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	node := &kubelet.Node{Name: name, Dir: t.TempDir(), Bootstrap: c.bootstrapConfig(bootstrapToken)}
	return node.Join(t).Leaf
}

func (c *cluster) testNewCAReachesKubelet(t *testing.T, m *machine) {
	outages := c.watchOutages(t, m.name)
	file, cert := m.current(t)
	for range 2 { // one may have been signed just before
		if signedBy(t, cert, c.next) {
			break
		}
		file, cert = c.renewed(t, m, cert)
	}
	kit.Check(t, signedBy(t, cert, c.next), "the kubelet's certificate is not of the new CA")
	c.wantIdentity(t, m, file, cert)
	outages()
}

const (
	requestCount = 200
	// disturbAt is the number of certificates at which the leader is removed.
	disturbAt = 60
	// lastRequests is the first of the requests that are created after that, however fast the machine is.
	lastRequests = 150
)

func (c *cluster) testLeaderDeleted(t *testing.T) {
	var leader corev1.Pod
	c.burst(t, "deleted", func() {
		leader = c.leader(t)
		kit.NoError(t, c.admin.Delete(t.Context(), &leader))
	})
	c.kubectl(t, "-n", namespace, "wait", "--for=delete", "pod/"+leader.Name, "--timeout=60s")
	c.deploymentsAvailable(t, "csr-controller-manager")
}

// testLeaderKilled ends the leader as the kernel does, during a burst.
func (c *cluster) testLeaderKilled(t *testing.T) {
	var leader corev1.Pod
	c.burst(t, "killed", func() {
		leader = c.leader(t)
		container := strings.TrimPrefix(leader.Status.ContainerStatuses[0].ContainerID, "containerd://")
		c.machines[leader.Spec.NodeName].must(t, "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", container)
	})
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.get(t, &leader)
	ended := leader.Status.ContainerStatuses[0].LastTerminationState.Terminated
	kit.Check(t, ended != nil && ended.ExitCode == 137, "the leader's container was not killed: %+v", ended)
}

// burst creates 200 requests, calls disturb in the middle, and waits until all of them have a certificate.
func (c *cluster) burst(t *testing.T, name string, disturb func()) {
	bootstrap, created := kit.ClientOf(t, c.bootstrapConfig(bootstrapToken)), make(chan error, 1)
	var all []*kit.Request
	for i := range requestCount {
		all = append(all, requestFor(t, fmt.Sprintf("%s-%03d", name, i)))
	}
	disturbed, goOn := context.WithCancel(t.Context())
	defer goOn()
	go func() {
		var err error
		for i := 0; i < requestCount && err == nil; i++ {
			if i == lastRequests {
				<-disturbed.Done()
			}
			err = bootstrap.Create(t.Context(), all[i])
		}
		created <- err
	}()
	reach := func(within time.Duration, count int) {
		kit.Within(t, within, "certificates", func(ctx context.Context) error {
			list, done := &certificatesv1.CertificateSigningRequestList{}, 0
			err := c.admin.List(ctx, list)
			for i := range list.Items {
				if obj := &list.Items[i]; strings.HasPrefix(obj.Name, name+"-") && issued(obj) != nil {
					done++
				}
			}
			return kit.OrError(err == nil && done >= count, "%d of %d, error %w", done, count, err)
		})
	}
	reach(20*time.Second, disturbAt)
	disturb()
	goOn()
	kit.NoError(t, <-created)
	reach(time.Minute, requestCount)
}

func (c *cluster) leader(t *testing.T) corev1.Pod {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "csr-controller-manager"}}
	c.get(t, lease)
	holder, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: holder}}
	c.get(t, &pod)
	return pod
}

// testSplit follows requests through all three Deployments. One is approved and signed, and one that is denied is deleted,
// each by another identity.
func (c *cluster) testSplit(t *testing.T) {
	c.install(t, "manifests/split", c.ca, "csr-approver", "csr-signer", "csr-cleaner")
	c.joinLight(t, "split")
	requests, err := c.requestsOf(t.Context(), "split")
	kit.Require(t, err == nil && len(requests) == 1, "%d requests of the node, want 1: %v", len(requests), err)
	c.wantWriter(t, "update", requests[0].Name, "approval", "csr-approver")
	c.wantWriter(t, "update", requests[0].Name, "status", "csr-signer")

	denied := requestFor(t, "split-denied")
	denied.Spec.SignerName = "example.com/nobodys"
	kit.NoError(t, c.admin.Create(t.Context(), denied))
	csr.AddCondition(denied, certificatesv1.CertificateDenied, "ForTheTest", "so that it is deleted soon", time.Now())
	kit.NoError(t, c.admin.SubResource("approval").Update(t.Context(), denied))
	c.kubectl(t, "wait", "--for=delete", "csr/"+denied.Name, "--timeout=30s")
	c.wantWriter(t, "delete", denied.Name, "", "csr-cleaner")
}
