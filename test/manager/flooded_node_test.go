//go:build nightly

package manager

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// flooded is what the holder of one node's key stores: addresses in the Node's status, and requests that each ask for
// many of them.
type flooded struct {
	addresses, requests, each int
	// from and until are when the processor time is measured, since the first request.
	from, until time.Duration
	// cores is how many processors the manager may use then.
	cores float64
}

// TestOneNodesKeyCostsLittle has a node whose key is stolen. Its requests wait, because another Node reports the last
// address of each. They cost little processor time, although the Node's status changes each second, and delay no other
// node. The flood is as large as the limits of requests and of API objects permit.
func TestOneNodesKeyCostsLittle(t *testing.T) {
	kit.Alone(t)
	f := flooded{addresses: 25_000, requests: 3000, each: 900, from: 2 * time.Minute, until: 3 * time.Minute, cores: 0.3}
	p := startServingManager(t, "")
	kit.NewNode(t, "flooded-other", "198.51.100.1")
	kit.Reaches(t, asksFor(t, "flooded-other", "198.51.100.1"), csr.Issued)
	var all []string
	for i := range f.addresses {
		all = append(all, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250))
	}
	stolen := kit.NewNode(t, "flooded", all...)
	const contested = "198.51.100.2"
	kit.NewNode(t, "flooded-victim", contested)
	kit.Publish(t, stolen, append([]string{contested}, all...)...) // of so many, only the first count
	waiting := asksFor(t, stolen.Name, contested)
	kit.HasEvent(t, waiting, "SANContested", "Node flooded-victim")
	obj := kit.ServingRequest(t, stolen.Name, append(all[:f.each-1:f.each-1], contested)...)
	obj.Labels = map[string]string{waits: "yes"}

	ctx, stop := context.WithTimeout(t.Context(), f.until)
	defer stop()
	start, honest := time.Now(), issuedWithin(ctx, t, 5*time.Second, "flooded-other", "198.51.100.1")
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(honest)
	running.Go(func() { changeEachSecond(ctx, t, stolen) })
	keepWaiting(t, f.requests, stolen.Name, obj)
	t.Logf("%d requests are stored after %s", f.requests, time.Since(start))

	sleepUntil(ctx, start.Add(f.from))
	before, begun := processorTime(t, p.Pid()), time.Now()
	<-ctx.Done()
	used := (processorTime(t, p.Pid()) - before).Seconds() / time.Since(begun).Seconds()
	t.Logf("%.2f cores", used)
	if used > f.cores {
		t.Errorf("the manager uses %.2f cores, want at most %.1f", used, f.cores)
	}
	running.Wait()
	isPending(t, waiting)
	checkStop(t, p)
}

// changeEachSecond adds an address to what node reports, or removes it, each second until ctx ends.
func changeEachSecond(ctx context.Context, t *testing.T, node *corev1.Node) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	usual := node.Status.Addresses
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		node.Status.Addresses = usual
		if n%2 == 0 {
			node.Status.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "198.51.100.3"}}, usual...)
		}
		if err := kit.Admin(t).Status().Update(t.Context(), node); err != nil {
			t.Error(err)
			return
		}
	}
}

// issuedWithin returns a function that asks for certificates of node, one after the other until ctx ends. Each must be
// issued within bound.
func issuedWithin(ctx context.Context, t *testing.T, bound time.Duration, node, address string) func() {
	t.Helper()
	label := client.MatchingLabels{"timed": "yes"}
	issued, kubelet := issuedRequests(t, label), kit.KubeletOf(t, node)
	next := kit.ServingRequest(t, node, address)
	next.Labels = label
	t.Cleanup(func() { deleteRequests(t, label) })
	return func() {
		var longest time.Duration
		count := 0
		for ; ctx.Err() == nil; count++ {
			if err := kubelet.Create(t.Context(), next.DeepCopy()); err != nil {
				t.Error(err)
				return
			}
			start := time.Now() // what the API server needs to store a request is not the manager's
			select {
			case <-issued: // it is the only request without a certificate
			case <-time.After(bound):
				t.Errorf("request %d of node %s is not issued after %s", count, node, bound)
				return
			}
			longest = max(longest, time.Since(start))
			sleepUntil(ctx, start.Add(200*time.Millisecond))
		}
		t.Logf("%d certificates of another node, each within %s", count, longest)
	}
}

// sleepUntil returns at that time, or when ctx ends.
func sleepUntil(ctx context.Context, at time.Time) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(at)):
	}
}

// processorTime returns how much processor time a process has used.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), ") ") // the name of the program may contain spaces
	fields := strings.Fields(after)
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime, fields 14 and 15 in proc(5)
		value, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += value
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Linux counts 100 ticks a second for every program
}
