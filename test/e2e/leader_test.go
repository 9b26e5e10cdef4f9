//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	requestCount = 200
	// disturbAt is the number of certificates at which the leader is removed.
	disturbAt = 60
	// lastRequests is the first of the requests that are created after that, however fast the machine is.
	lastRequests = 150
)

// testLeaderDeleted is step 5 with a leader that is asked to stop.
func (c *cluster) testLeaderDeleted(t *testing.T) {
	var leader corev1.Pod
	c.burst(t, "deleted", func() {
		leader = c.leader(t)
		if err := c.admin.Delete(t.Context(), &leader); err != nil {
			t.Fatal(err)
		}
	})
	c.until(t, time.Minute, "the deleted pod is gone", func(ctx context.Context) (bool, error) {
		err := c.admin.Get(ctx, client.ObjectKeyFromObject(&leader), &corev1.Pod{})
		return err != nil, client.IgnoreNotFound(err)
	})
	c.deploymentsAvailable(t, "csr-controller-manager")
}

// testLeaderKilled is step 5 with a leader that the kernel ends.
func (c *cluster) testLeaderKilled(t *testing.T) {
	var leader corev1.Pod
	c.burst(t, "killed", func() {
		leader = c.leader(t)
		m, container := c.machines[leader.Spec.NodeName], strings.TrimPrefix(leader.Status.ContainerStatuses[0].ContainerID, "containerd://")
		pid, err := m.processOf(container, string(leader.UID))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := run(m.command("kill", "-KILL", pid)); err != nil {
			t.Fatal(err)
		}
	})
	c.deploymentsAvailable(t, "csr-controller-manager")
	pod := &corev1.Pod{}
	if err := c.admin.Get(t.Context(), client.ObjectKeyFromObject(&leader), pod); err != nil {
		t.Fatal(err)
	}
	if ended := pod.Status.ContainerStatuses[0].LastTerminationState.Terminated; ended == nil || ended.ExitCode != 137 {
		t.Errorf("the leader's container was not killed: %+v", pod.Status.ContainerStatuses)
	}
}

// burst creates 200 requests, calls disturb in the middle, and waits until all of them have a certificate.
func (c *cluster) burst(t *testing.T, name string, disturb func()) {
	t.Helper()
	bootstrap, err := client.New(c.bootstrapConfig(bootstrapToken), client.Options{Scheme: c.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*certificatesv1.CertificateSigningRequest, requestCount)
	for i := range all {
		one := fmt.Sprintf("%s-%03d", name, i)
		all[i] = requestFor(t, one, one)
	}
	created, disturbed := make(chan error, 1), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(disturbed) })
	defer goOn()
	go func() {
		for i, obj := range all {
			if i == lastRequests {
				<-disturbed
			}
			if err := bootstrap.Create(t.Context(), obj); err != nil {
				created <- fmt.Errorf("create request %s: %w", obj.Name, err)
				return
			}
		}
		created <- nil
	}()
	c.until(t, 20*time.Second, "the first certificates", func(ctx context.Context) (bool, error) {
		done, err := c.issuedOf(ctx, name)
		return done >= disturbAt, err
	})
	disturb()
	done, err := c.issuedOf(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d certificates when the leader was gone or told to go", done, requestCount)
	goOn()
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c.until(t, time.Minute, "all requests have a certificate", func(ctx context.Context) (bool, error) {
		done, err = c.issuedOf(ctx, name)
		return done == requestCount, err
	})
	t.Logf("all after %s", time.Since(begin).Round(time.Second))
}

// issuedOf returns how many requests of a burst have a certificate.
func (c *cluster) issuedOf(ctx context.Context, name string) (done int, err error) {
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := c.admin.List(ctx, list); err != nil {
		return 0, err
	}
	for i := range list.Items {
		if obj := &list.Items[i]; strings.HasPrefix(obj.Name, name+"-") && issued(obj) != nil {
			done++
		}
	}
	return done, nil
}

// leader returns the pod that holds the Lease.
func (c *cluster) leader(t *testing.T) corev1.Pod {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := c.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "csr-controller-manager"}, lease); err != nil {
		t.Fatal(err)
	}
	holder, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	for _, pod := range c.pods(t.Context(), t) {
		if pod.Name == holder {
			return pod
		}
	}
	t.Fatalf("no pod for the Lease's holder %s", *lease.Spec.HolderIdentity)
	return corev1.Pod{}
}
