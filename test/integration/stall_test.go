package integration

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// timedRequests are enough for a median. The benchmark measures the slowest percent.
	timedRequests = 50
	// moved is by how much the median of those who are not concerned may move.
	moved = 50 * time.Millisecond
	// rounds bounds how often a measurement is made: the machine's other work is not what is measured.
	rounds = 3
	// waits labels what is deleted after each measurement.
	waits = "waits"
)

// TestAStalledSourceDelaysNoRenewal has a source hold every lookup for ten seconds while a thousand requests wait for it:
// renewals, which need no source, take as long as before.
func TestAStalledSourceDelaysNoRenewal(t *testing.T) {
	parallel(t)
	stalls := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is it noticed that the client has gone
		select {
		case <-time.After(10 * time.Second):
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(stalls.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stalls.Certificate().Raw}))
	grantGroup(t, csr.NodeGroup, mayRenewOwn)
	startServingManager(t, fmt.Sprintf("}, inventory: {sources: [{webhook: {url: %q, caFile: %q, timeout: 10s}}, {node: {}}]", stalls.URL, ca))

	renewals := func(name string) []time.Duration {
		return timed(t, func(i int) (string, *request) {
			node := fmt.Sprintf("renews-%s-%d", name, i)
			return node, nodeRequest(t, node)
		})
	}
	idle := func() func() { return func() {} }
	delaysNobody(t, renewals, idle, func() func() {
		for i := range 10 {
			node := fmt.Sprintf("stalled-%d", i)
			obj := servingRequest(t, node, "192.0.2.200")
			obj.Labels = map[string]string{waits: "yes"}
			keepWaiting(t, 100, node, obj)
		}
		return func() {}
	})
}

// delaysNobody measures what honest ones take under usual load and under one that makes others wait, until the median has
// not moved. Each load returns what ends it. On a machine so busy that the usual median is beyond what it may move by, it may be
// twice as much: two measurements of the same differ by that.
func delaysNobody(t *testing.T, honest func(name string) []time.Duration, usual, load func() (end func())) {
	t.Helper()
	measure := func(name string, load func() func()) []time.Duration {
		end := load()
		took := honest(name)
		end()
		deleteRequests(t, client.MatchingLabels{waits: "yes"})
		t.Logf("%s: p50 %s, p99 %s, at most %s", name, percentile(took, 50), percentile(took, 99), slices.Max(took))
		return took
	}
	for round := range rounds {
		before := percentile(measure(fmt.Sprintf("usual-%d", round), usual), 50)
		while := measure(fmt.Sprintf("while-%d", round), load)
		if slices.Max(while) > 9*time.Second { // whoever waits for a worker that stalls takes ten
			t.Fatal("somebody waited for others")
		}
		if percentile(while, 50) <= before+max(moved, before) {
			return
		}
	}
	t.Errorf("the median has moved by more than %s in each of %d rounds", moved, rounds)
}

// percentile is the value that so many of a hundred don't exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	return slices.Sorted(slices.Values(all))[(len(all)*percent+99)/100-1]
}

// timed returns how long each of some requests of kubelets took, one after the other, from creation to certificate.
func timed(t *testing.T, next func(i int) (node string, obj *request)) []time.Duration {
	t.Helper()
	label := client.MatchingLabels{"timed": "yes"}
	issued := issuedRequests(t, label)
	defer deleteRequests(t, label)
	var took []time.Duration
	for i := range timedRequests {
		node, obj := next(i)
		obj.Labels = label
		kubelet := kubeletOf(t, node)
		start := time.Now()
		if err := kubelet.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		select {
		case <-issued: // it is the only one that is not yet
		case <-time.After(patience):
			t.Fatalf("request %s is not issued", obj.Name)
		}
		took = append(took, time.Since(start))
	}
	return took
}

// keepWaiting has the kubelet of node make obj, which has a label, so many times.
func keepWaiting(t *testing.T, count int, node string, obj *request) {
	t.Helper()
	t.Cleanup(func() { deleteRequests(t, obj.Labels) })
	const creators = 10
	asking := kubeletOf(t, node)
	var done sync.WaitGroup
	for range creators {
		done.Go(func() {
			for range count / creators {
				if err := asking.Create(t.Context(), obj.DeepCopy()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
}

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := admin(t).DeleteAllOf(context.Background(), &request{}, label); err != nil {
		t.Error(err)
	}
}
