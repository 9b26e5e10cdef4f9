package reliability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// requests is the size of the load, and fewRequests that of the subset.
	requests, fewRequests = 500, 150
	// spread is how long a load takes to be created, unless a scenario says otherwise.
	spread = 10 * time.Second
	// moment is how long readiness must be away if it falls, because a replica that starts is not ready at once. If it stays, answers
	// may be missing for as long, because a page may be late on a busy machine.
	moment = 2 * time.Second
	// creators is the number of concurrent clients.
	creators = 10
)

// TestFaults runs the scenarios: all of them with ours and with kube-controller-manager, or a subset with ours.
func TestFaults(t *testing.T) {
	for i := range scenarios {
		s := &scenarios[i]
		if !s.quick && !full {
			continue
		}
		t.Run(strings.ReplaceAll(s.name, " ", "-"), func(t *testing.T) {
			t.Run("ours", func(t *testing.T) { s.run(t, false) })
			if full && !s.oursOnly {
				t.Run("kube-controller-manager", func(t *testing.T) { s.run(t, true) })
			}
		})
	}
	if file := os.Getenv("RELIABILITY_TABLE"); file != "" {
		kit.Write(t, file, []byte(table))
	}
}

func (s *scenario) run(t *testing.T, theirs bool) {
	w := newWorld(t, theirs)
	w.config, w.args, w.environment = s.config, s.args, s.environment
	if s.prepare != nil {
		s.prepare(w)
	}
	w.shortLease, w.restarts = s.replicas > 1, s.replicas > 1
	w.startReplica(s.replicas > 1)
	first := w.warmUp()
	for range s.replicas - 1 { // the first one leads
		w.waitReady(w.startReplica(true))
	}
	w.items = s.load(w)
	stop := w.observe()
	began, created := time.Now(), w.createAll(w.items, cmp.Or(s.spread, spread))
	s.fault(w)
	if len(w.ends) == 0 {
		w.over()
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	items := w.items
	finished := w.settle(items)
	w.pause(3 * time.Second) // what comes too late would come now
	for _, r := range w.running() {
		w.waitReady(r)
	}
	saw := stop()
	count, wrong := w.verify(s, slices.Concat(items, w.twins, []*item{first}))
	result := row{w.recovery(items), w.slowest(items), saw.unready, finished, len(items), count}
	table += fmt.Sprintf("| %s | %s | %s |\n", s.name, filepath.Base(w.replicas[0].program), result)
	t.Log(result)
	if theirs { // a comparison, not a test
		t.Log(errors.Join(wrong...))
		return
	}
	for _, err := range slices.Concat(wrong, s.verifyIndicators(saw.fired), w.verifyMetrics(), w.verifyReports(s, began)) {
		t.Error(err)
	}
	if s.ready == stays && (saw.unready > 0 || saw.silent >= moment) || s.ready == falls && saw.unready < moment {
		t.Errorf("it was not ready for %s, and did not answer for %s", saw.unready, saw.silent)
	}
	if t.Failed() {
		for _, r := range w.replicas {
			t.Logf("the end of the log of replica %d:\n%s", r.number, r.Tail(100))
		}
	}
}

// load returns the requests that are made during the scenario.
func (s *scenario) load(w *world) []*item {
	total := requests
	if !full {
		total = fewRequests
	}
	w.oldAge = cmp.Or(s.oldAge, 4*time.Hour)
	items := w.newLoad(total)
	if s.random > 0 {
		items = append(items, w.randomItems(s.random)...)
		mathrand.New(mathrand.NewPCG(w.seed, 2)).Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	}
	return items
}

// warmUp waits until the program works, and returns the request that shows it.
func (w *world) warmUp() *item {
	w.t.Helper()
	first := w.newItem(&kinds[0], "first")
	if err := w.create(w.t.Context(), first); err != nil {
		w.t.Fatal(err)
	}
	if w.settle([]*item{first}) == 0 {
		w.t.Fatalf("the first request is %q: %s", w.history.of("first").state, w.replicas[0].Tail(40))
	}
	leader := w.replicas[0]
	w.waitReady(leader)
	if leader.metrics == "" {
		return first
	}
	if leader.idle = leader.metric(w.t.Context(), "go_goroutines"); leader.idle <= 0 {
		w.t.Fatalf("no metrics: %s", leader.Tail(40))
	}
	return first
}

// waitReady waits until r says that it is ready, if it can say so.
func (w *world) waitReady(r *replica) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		return r.probes == "" || r.ready(ctx), nil
	})
	if err != nil {
		w.t.Fatalf("replica %d is not ready: %s", r.number, r.Tail(40))
	}
}

// createAll creates half of items at once, and the others at a constant rate within takes.
func (w *world) createAll(items []*item, takes time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		var group errgroup.Group
		group.SetLimit(creators)
		half := len(items) / 2
		ticker := time.NewTicker(takes / time.Duration(len(items)-half))
		defer ticker.Stop()
		for n, i := range items {
			if n >= half {
				<-ticker.C
			}
			group.Go(func() error { return w.create(w.t.Context(), i) })
		}
		done <- group.Wait()
	}()
	return done
}

// observed is what the replicas of ours said during a scenario.
type observed struct {
	// unready is for how long those that answered said that they were not ready, and silent for how long none answered. A paused or
	// killed replica answers nothing.
	unready, silent time.Duration
	// fired are the indicators that fired, with what they said first.
	fired map[indicator]string
}

// observe asks the replicas of ours all the time whether they are ready, and reads their metrics. The returned function waits until one
// is ready, and returns what was observed.
func (w *world) observe() (stop func() observed) {
	saw := observed{fired: map[indicator]string{}}
	if w.theirs {
		return func() observed { return saw }
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	before := map[int]map[indicator]float64{} // what counters of the first replicas have counted already
	for _, r := range w.running() {
		before[r.number] = r.indicators(ctx, nil)
	}
	go func() {
		defer close(done)
		last := time.Now()
		for ctx.Err() == nil {
			ready, answered := w.anyReady(ctx)
			now := time.Now()
			switch {
			case ready || ctx.Err() != nil:
			case !answered:
				saw.silent += now.Sub(last)
			default:
				saw.unready += now.Sub(last)
			}
			last = now
			for _, r := range w.running() {
				for name, value := range r.indicators(ctx, before[r.number]) {
					if _, known := saw.fired[name]; !known {
						saw.fired[name] = fmt.Sprintf("replica %d: %s is %v", r.number, name, value)
					}
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() observed {
		w.t.Helper()
		w.until(time.Minute, "a replica is ready again", func(ctx context.Context) bool { ready, _ := w.anyReady(ctx); return ready })
		cancel()
		<-done
		return saw
	}
}

// anyReady reports whether a replica of ours says that it is ready, and whether one answers.
func (w *world) anyReady(ctx context.Context) (ready, answered bool) {
	for _, r := range w.running() {
		status, _ := r.page(ctx, r.probes, "/readyz")
		ready, answered = ready || status == http.StatusOK, answered || status != 0
	}
	return ready, answered
}

// slowest returns the longest time that a request of a joining kubelet took.
func (w *world) slowest(items []*item) (longest time.Duration) {
	for _, i := range items {
		if past := w.history.of(i.object.Name); i.kind == &kinds[0] && w.isFinished(i) {
			longest = max(longest, past.settled.Sub(past.created))
		}
	}
	return longest
}

// recovery returns the longest time from the end of a fault to the final state of a request. Only requests that were tried before that
// end count. If a request has met several faults, the last one counts.
func (w *world) recovery(items []*item) (longest time.Duration) {
	for _, i := range items {
		if i.kind.want == csr.Pending || !w.isFinished(i) {
			continue
		}
		settled := w.history.of(i.object.Name).settled
		for _, end := range slices.Backward(w.ends) {
			if end.After(settled) {
				continue
			}
			if i.tried.Before(end) {
				longest = max(longest, settled.Sub(end))
			}
			break
		}
	}
	return longest
}

// row is a row of the table.
type row struct {
	recovery, slowest, unready time.Duration
	finished, total, wrong     int // requests
}

func (r row) String() string {
	return fmt.Sprintf("%.1f s | %.1f s | %.1f s | %d of %d | %d of %d",
		r.slowest.Seconds(), r.recovery.Seconds(), r.unready.Seconds(), r.finished, r.total, r.wrong, r.total)
}

// table has a row for each run of a scenario. It is written to RELIABILITY_TABLE.
var table = "| Fault | Program | Longest wait of a joining kubelet | Recovery | Not ready | In their state | Wrong |\n|---|---|---|---|---|---|---|\n"
