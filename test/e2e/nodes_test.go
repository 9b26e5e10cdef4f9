//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// patientToken belongs to a group that may create requests, but whose requests are not approved. barredToken
	// belongs to a group that may not even create requests.
	patientToken = "07401c.f395accd246ae52d"
	barredToken  = "07401d.f395accd246ae52d"
	// held is how long both wait.
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
		// Each starts its machine before the first test waits, because machines are numbered.
		patient, barred := c.machine(t, "patient"), c.machine(t, "barred")
		late := c.machine(t, "late")
		c.kubectl(t, "apply", "-k", "manifests/patient")
		t.Run("3 a supervised kubelet joins when it is approved after six minutes", func(t *testing.T) {
			t.Parallel()
			c.testPatience(t, patient)
		})
		t.Run("3 a supervised kubelet exits, comes back and joins after six minutes", func(t *testing.T) {
			t.Parallel()
			c.testBarred(t, barred)
		})
		for name, kubelet := range versions {
			t.Run("8 rotation off and on again, "+name, func(t *testing.T) {
				t.Parallel()
				c.testSwitch(t, c.machines[name], kubelet)
			})
		}
		t.Run("8 joins stop without the group's binding", func(t *testing.T) {
			t.Parallel()
			c.testNoBinding(t, late)
		})
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

// testSwitch disables rotation, checks that a certificate is kept that would have been renewed, and enables rotation
// again.
func (c *cluster) testSwitch(t *testing.T, m *machine, kubelet string) {
	outages := c.watchOutages(t, m.name)
	_, old := m.current(t)
	_, kept := c.renewed(t, m, old)
	c.restartKubelet(t, m, kubeletOptions{Binary: kubelet, KeepCertificate: true})
	requests, err := c.requestsOf(t.Context(), m.name)
	if err != nil {
		t.Fatal(err)
	}
	// With rotation, it requests a new certificate at 90 % of the lifetime at the latest.
	latest := kept.NotBefore.Add(kept.NotAfter.Sub(kept.NotBefore) * 9 / 10)
	c.until(t, time.Until(latest)+10*time.Second, "the time to renew is over", func(context.Context) (bool, error) {
		return time.Now().After(latest.Add(5 * time.Second)), nil
	})
	if now, err := m.certificate(); err != nil || now.SerialNumber.Cmp(kept.SerialNumber) != 0 {
		t.Errorf("the kubelet renewed its certificate without rotation: %v", err)
	}
	now, err := c.requestsOf(t.Context(), m.name)
	if err != nil {
		t.Fatal(err)
	}
	for _, obj := range now {
		if !slices.ContainsFunc(requests, func(one certificatesv1.CertificateSigningRequest) bool { return one.UID == obj.UID }) {
			t.Errorf("the kubelet made request %s without rotation", obj.Name)
		}
	}
	c.restartKubelet(t, m, kubeletOptions{Binary: kubelet})
	file, cert := c.renewed(t, m, kept)
	if time.Now().After(kept.NotAfter) {
		t.Error("the new certificate came only after the end of the old one")
	}
	c.wantIdentity(t, m, file, cert)
	for _, outage := range outages() {
		t.Errorf("Node %s was not ready: %s", m.name, outage)
	}
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

// testNoBinding removes the binding that permits the group's requests: its nodes don't join until it is back.
func (c *cluster) testNoBinding(t *testing.T, m *machine) {
	c.kubectl(t, "delete", "clusterrolebinding", joinBinding)
	if err := m.configureKubelet(c.bootstrapConfig(bootstrapToken)); err != nil {
		t.Fatal(err)
	}
	if err := m.startKubelet(kubeletOptions{}); err != nil {
		t.Fatal(err)
	}
	request := c.refused(t, m.name)
	begin := time.Now()
	c.until(t, time.Minute, "the manager has asked again, several times", func(context.Context) (bool, error) {
		return time.Since(begin) > 30*time.Second, nil
	})
	request, err := c.get(t.Context(), request.Name)
	if err != nil {
		t.Fatal(err)
	}
	if len(request.Status.Conditions) > 0 || issued(request) != nil {
		t.Errorf("request %s has conditions without the binding: %v", request.Name, request.Status.Conditions)
	}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Name: m.name}, &corev1.Node{}); !apierrors.IsNotFound(err) {
		t.Errorf("Node %s: %v, want it not to be there", m.name, err)
	}
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	c.nodeWithin(t, m.name, 2*time.Minute)
}

// testPatience is a part of step 3: a request that waits for six minutes. KEP-266 says that the kubelet restarts
// after five minutes. In fact it only does so if the API server has refused one of its calls, as in testBarred.
// Otherwise it continues to wait for the same request.
func (c *cluster) testPatience(t *testing.T, m *machine) {
	ends := c.supervised(t, m, patientToken)
	request := c.refused(t, m.name)
	c.hold(t)
	c.kubectl(t, "create", "clusterrolebinding", "patient-nodes-are-approved", "--group=system:bootstrappers:patient",
		"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient")
	c.nodeWithin(t, m.name, 2*time.Minute)
	all := ends()
	t.Logf("ends of the kubelet meanwhile: %v", all)
	cert, err := m.certificate()
	if err != nil {
		t.Fatal(err)
	}
	request, err = c.get(t.Context(), request.Name)
	if err != nil {
		t.Fatal(err)
	}
	if first := issued(request); len(all) == 0 && (first == nil || !first.Equal(cert)) {
		t.Errorf("the kubelet does not use the certificate of request %s, for which it has waited", request.Name)
	}
}

// testBarred is the other part: the kubelet may not even create a request, and exits after five minutes.
func (c *cluster) testBarred(t *testing.T, m *machine) {
	ends := c.supervised(t, m, barredToken)
	c.hold(t)
	if got := ends(); !slices.Equal(got, []string{"exit status 1"}) {
		t.Errorf("the kubelet ended %v within %s without a certificate, want once, by itself", got, held)
	}
	for name, role := range map[string]string{"ask": "node-bootstrapper", "are-approved": "certificates.k8s.io:certificatesigningrequests:nodeclient"} {
		c.kubectl(t, "create", "clusterrolebinding", "barred-nodes-"+name, "--group=system:bootstrappers:barred", "--clusterrole=system:"+role)
	}
	c.nodeWithin(t, m.name, 2*time.Minute)
}

// hold waits for as long as no request may be approved.
func (c *cluster) hold(t *testing.T) {
	t.Helper()
	begin := time.Now()
	c.until(t, held+10*time.Second, "the wait is over", func(context.Context) (bool, error) { return time.Since(begin) > held, nil })
}

// supervised starts a kubelet with that bootstrap token, and restarts it each time that it ends, as systemd does. The
// returned function returns how it has ended since the last call.
func (c *cluster) supervised(t *testing.T, m *machine, token string) func() []string {
	t.Helper()
	if err := errors.Join(m.configureKubelet(c.bootstrapConfig(token)), m.startKubelet(kubeletOptions{})); err != nil {
		t.Fatal(err)
	}
	ended := make(chan string, 100)
	go func() {
		for range cap(ended) {
			select {
			case <-t.Context().Done():
				return
			case <-m.kubelet.done:
			}
			ended <- m.kubelet.ended().String()
			time.Sleep(time.Second)
			if err := m.startKubelet(kubeletOptions{}); err != nil {
				ended <- fmt.Sprintf("start: %v", err)
				return
			}
		}
	}()
	return func() []string {
		var all []string
		for {
			select {
			case one := <-ended:
				all = append(all, one)
			default:
				return all
			}
		}
	}
}
