//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	bootstrapUser = "system:bootstrap:07401b"
	joinBinding   = "kubeadm:node-autoapprove-bootstrap" // without it, no join is approved

	auditPatience = 10 * time.Second // the audit log is written in batches
)

// testJoin is step 1.
func (c *cluster) testJoin(t *testing.T) *machine {
	worker := c.join(t, "worker", kubeletOptions{})
	c.wantJoined(t, worker)
	return worker
}

// wantJoined checks that the node got its certificate from the Deployment with a bootstrap token, and runs pods.
func (c *cluster) wantJoined(t *testing.T, m *machine) {
	t.Helper()
	c.nodeReady(t, m.name)
	requests, err := c.requestsOf(t.Context(), m.name)
	if err != nil || len(requests) == 0 {
		t.Fatalf("no request of %s: %v", m.name, err)
	}
	first := requests[0]
	if first.Spec.Username != bootstrapUser {
		t.Errorf("the request was made by %q, not with the bootstrap token", first.Spec.Username)
	}
	for _, subresource := range []string{"approval", "status"} {
		c.wantWriter(t, "update", first.Name, subresource, "csr-controller-manager")
	}
	pod := c.runPod(t, m.name)
	c.wantLog(t, pod)
}

// wantLog reads the log of one of our pods through the API server.
func (c *cluster) wantLog(t *testing.T, pod string) {
	t.Helper()
	c.until(t, 20*time.Second, "the log of pod "+pod+" can be read", func(context.Context) (bool, error) {
		log, err := c.tryKubectl("logs", pod)
		return log == "running\n", err
	})
}

// runPod creates a pod for the node, waits until it is ready, and returns its name.
func (c *cluster) runPod(t *testing.T, node string) string {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "on-" + node},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: node},
			Containers:   []corev1.Container{{Name: "pause", Image: pauseImage, ImagePullPolicy: corev1.PullNever}},
		},
	}
	c.create(t, pod)
	c.podReady(t, pod.Namespace, pod.Name)
	return pod.Name
}

// testResume is step 3: a kubelet that is killed while its request waits finds the same request again.
func (c *cluster) testResume(t *testing.T) {
	c.kubectl(t, "delete", "clusterrolebinding", joinBinding)
	options := kubeletOptions{KeepCertificate: true}
	m := c.join(t, "resumed", options)
	request := c.refused(t, "resumed")
	if !strings.HasPrefix(request.Name, "node-csr-") {
		t.Errorf("request %s has not the name that comes from its key", request.Name)
	}
	if err := m.kubelet.kill(); err != nil {
		t.Fatal(err)
	}
	c.kubectl(t, "apply", "-k", "manifests/bootstrap")
	if err := m.startKubelet(options); err != nil {
		t.Fatal(err)
	}
	c.nodeReady(t, "resumed")
	all, err := c.requestsOf(t.Context(), "resumed")
	if err != nil || len(all) != 1 || all[0].UID != request.UID {
		t.Fatalf("requests of the resumed kubelet: %d, want only %s (%s): %v", len(all), request.Name, request.UID, err)
	}
	used, err := m.certificate()
	if err != nil {
		t.Fatal(err)
	}
	if cert := issued(&all[0]); cert == nil || !bytes.Equal(cert.Raw, used.Raw) {
		t.Error("the kubelet uses another certificate than its request's")
	}
	// The kubelet is not needed any more, and without rotation its certificate soon expires.
	if err := m.kubelet.kill(); err != nil {
		t.Fatal(err)
	}
}

// refused waits until an Event says that the request of node is not approved, and returns it.
func (c *cluster) refused(t *testing.T, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	var request *certificatesv1.CertificateSigningRequest
	c.until(t, time.Minute, "the request of "+node+" is refused for now", func(ctx context.Context) (bool, error) {
		requests, err := c.requestsOf(ctx, node)
		if err != nil || len(requests) == 0 {
			return false, err
		}
		request = &requests[0]
		note, err := c.noteOn(ctx, request, "NotAuthorized")
		return note != "", err
	})
	if len(request.Status.Conditions) > 0 {
		t.Fatalf("request %s has conditions: %s", request.Name, fmt.Sprint(request.Status.Conditions))
	}
	return request
}

// noteOn returns the note of an Event with that reason about a request, or an empty text.
func (c *cluster) noteOn(ctx context.Context, request *certificatesv1.CertificateSigningRequest, reason string) (string, error) {
	events := &eventsv1.EventList{}
	if err := c.admin.List(ctx, events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return "", err
	}
	for _, event := range events.Items {
		if event.Regarding.UID == request.UID && event.Reason == reason {
			return event.Note, nil
		}
	}
	return "", nil
}
