//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// patientToken is that of the group patientGroup, which may ask, but whose requests nobody approves.
	patientToken = "07401c.f395accd246ae52d"
	patientGroup = "system:bootstrappers:patient"
	// held is how long they wait; a kubelet exits after five minutes without a certificate.
	held = 6 * time.Minute

	nodeClientRole = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
)

// TestNodes is step 8 and the long part of step 3: what takes too long for every change.
func TestNodes(t *testing.T) {
	versions := map[string]string{"new": binary("kubelet"), "old": os.Getenv("OLD_KUBELET")}
	if versions["old"] == "" {
		t.Fatal("OLD_KUBELET names no kubelet of an older version: make e2e-nightly does")
	}
	c := startCluster(t)
	c.install(t, "manifests/default")
	c.deploymentsAvailable(t, "csr-controller-manager")
	c.testVersions(t, versions)
	t.Run("at the same time", func(t *testing.T) {
		// Each starts its machine before the first waits: these are counted.
		patient := c.machine(t, "patient")
		late := c.machine(t, "late")
		t.Run("3 a supervised kubelet outlives six minutes without approval", func(t *testing.T) {
			t.Parallel()
			c.testPatience(t, patient)
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

// testVersions has kubelets of two versions join, and pods run on both.
func (c *cluster) testVersions(t *testing.T, kubelets map[string]string) {
	t.Helper()
	seen := map[string]string{}
	for name, path := range kubelets {
		c.join(t, name, kubeletOptions{Binary: path})
	}
	for name := range kubelets {
		c.nodeReady(t, name)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "on-" + name},
			Spec: corev1.PodSpec{
				NodeSelector: map[string]string{corev1.LabelHostname: name},
				Containers:   []corev1.Container{{Name: "pause", Image: pauseImage, ImagePullPolicy: corev1.PullNever}},
			},
		}
		c.create(t, pod)
		c.podReady(t, pod.Namespace, pod.Name)
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

// testSwitch switches rotation off, sees that a certificate is kept that would have been renewed, and switches it on again.
func (c *cluster) testSwitch(t *testing.T, m *machine, kubelet string) {
	outages := c.watchOutages(t, m.name)
	_, old := m.current(t)
	_, kept := c.renewed(t, m, old)
	c.restartKubelet(t, m, kubeletOptions{Binary: kubelet, KeepCertificate: true})
	requests, err := c.requestsOf(t.Context(), m.name)
	if err != nil {
		t.Fatal(err)
	}
	// With rotation it asks at 90 % of the lifetime at the latest.
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

// restartKubelet does what systemctl restart does.
func (c *cluster) restartKubelet(t *testing.T, m *machine, options kubeletOptions) {
	t.Helper()
	if err := m.kubelet.end(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := m.startKubelet(options); err != nil {
		t.Fatal(err)
	}
}

// testNoBinding removes what lets the group's requests be approved: its nodes don't join until it is back.
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

// testPatience is the part of step 3 that takes more than six minutes.
func (c *cluster) testPatience(t *testing.T, m *machine) {
	c.kubectl(t, "apply", "-k", "manifests/patient")
	if err := m.configureKubelet(c.bootstrapConfig(patientToken)); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	ends := supervise(t, m)
	c.refused(t, m.name)
	c.until(t, held+10*time.Second, "six minutes are over", func(context.Context) (bool, error) { return time.Since(begin) > held, nil })
	before := ends()
	if len(before) == 0 {
		t.Errorf("the kubelet did not exit within %s without a certificate", held)
	}
	for _, state := range before {
		if !strings.HasPrefix(state, "exit status") {
			t.Errorf("the kubelet ended by itself with %q", state)
		}
	}
	c.create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "patient-nodes-are-approved"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: nodeClientRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: patientGroup}},
	})
	c.nodeWithin(t, m.name, 2*time.Minute)
	t.Logf("the kubelet ended by itself with %v, and joined after %s", ends(), time.Since(begin).Round(time.Second))
}

// supervise starts the kubelet again each time that it ends, as systemd does. It returns how it ended so far.
func supervise(t *testing.T, m *machine) func() []string {
	t.Helper()
	ended := make(chan string, 100)
	if err := m.startKubelet(kubeletOptions{}); err != nil {
		t.Fatal(err)
	}
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
