package reliability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
			if full && s.oursOnly == "" {
				t.Run("kube-controller-manager", func(t *testing.T) { s.run(t, true) })
			}
		})
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
	stopProbing, stopWatching := w.probe(), w.watchIndicators()
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
	unready, silent := stopProbing()
	fired := stopWatching()
	result := row{scenario: s, theirs: theirs, finished: finished, total: len(items), recovery: w.recovery(items), unready: unready}
	result.slowest = w.slowest(items)
	wrong := w.verify(s, slices.Concat(items, w.twins, []*item{first}))
	result.wrong, result.violations = named(items, wrong), len(wrong)
	results = append(results, result)
	t.Log(result)
	if theirs { // a comparison, not a test
		for _, err := range wrong {
			t.Log(err)
		}
		return
	}
	for _, err := range wrong {
		t.Error(err)
	}
	for _, err := range slices.Concat(s.verifyIndicators(fired), w.verifyMetrics(), w.verifyReports(s, began)) {
		t.Error(err)
	}
	if s.ready == stays && (unready > 0 || silent >= moment) || s.ready == falls && unready < moment {
		t.Errorf("it was not ready for %s, and did not answer for %s", unready, silent)
	}
	if t.Failed() {
		w.explain(items)
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

// explain logs what the replicas said of the first requests that are not in their state, calls without an answer, and the end of their
// logs.
func (w *world) explain(items []*item) {
	shown := 0
	for _, i := range items {
		if w.isFinished(i) || shown == 3 {
			continue
		}
		shown++
		for _, r := range w.replicas {
			log, _ := r.Log() // what can't be read is not shown
			for line := range strings.Lines(log) {
				if strings.Contains(line, fmt.Sprintf("%q", i.object.Name)) {
					w.t.Logf("replica %d: %s", r.number, line)
				}
			}
		}
	}
	for _, call := range w.proxy.Calls() {
		if !call.Ended && call.Verb != "watch" {
			w.t.Logf("no answer since %s: %s %s (%s)", call.Start.Format(time.TimeOnly), call.Verb, call.Path, call.Fault)
		}
	}
	for _, r := range w.replicas {
		w.t.Logf("the end of the log of replica %d:\n%s", r.number, r.Tail(10))
	}
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
	queue, done := make(chan *item), make(chan error, 1)
	errs := make([]error, creators)
	var group sync.WaitGroup
	for creator := range creators {
		group.Go(func() {
			for i := range queue {
				errs[creator] = errors.Join(errs[creator], w.create(w.t.Context(), i))
			}
		})
	}
	go func() {
		half := len(items) / 2
		ticker := time.NewTicker(takes / time.Duration(len(items)-half))
		defer ticker.Stop()
		for n, i := range items {
			if n >= half {
				<-ticker.C
			}
			queue <- i
		}
		close(queue)
		group.Wait()
		done <- errors.Join(errs...)
	}()
	return done
}

// probe asks the replicas of ours all the time whether they are ready. The returned function waits until one is. It returns for how
// long those that answered said that they were not, and for how long none answered. A paused or killed replica answers nothing.
func (w *world) probe() (stop func() (unready, silent time.Duration)) {
	if w.theirs {
		return func() (unready, silent time.Duration) { return 0, 0 }
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var unready, silent time.Duration
	done := make(chan struct{})
	anyReady := func() (ready, answered bool, said string) {
		for _, r := range w.running() {
			status, body := r.page(ctx, r.probes, "/readyz")
			ready, answered = ready || status == http.StatusOK, answered || status != 0
			said += fmt.Sprintf("replica %d: %d %s", r.number, status, body)
		}
		return ready, answered, said
	}
	go func() {
		defer close(done)
		began := time.Now()
		last := began
		for ctx.Err() == nil {
			ready, answered, said := anyReady()
			now := time.Now()
			switch {
			case ready || ctx.Err() != nil:
			case !answered:
				silent += now.Sub(last)
			default:
				if unready == 0 {
					w.t.Logf("not ready after %s: %s", now.Sub(began).Round(time.Second), said)
				}
				unready += now.Sub(last)
			}
			last = now
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() (time.Duration, time.Duration) {
		w.t.Helper()
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			ready, _, _ := anyReady()
			return ready, nil
		})
		cancel()
		<-done
		if err != nil {
			w.t.Error("it is not ready again")
		}
		return unready, silent
	}
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

// named returns how many of items the errors name.
func named(items []*item, wrong []error) (count int) {
	for _, i := range items {
		name := regexp.MustCompile(`\brequests? (\S+ and )?` + regexp.QuoteMeta(i.object.Name) + `\b`)
		if slices.ContainsFunc(wrong, func(err error) bool { return name.MatchString(err.Error()) }) {
			count++
		}
	}
	return count
}

// row is a row of the table.
type row struct {
	scenario          *scenario
	theirs            bool
	finished, total   int
	recovery, slowest time.Duration
	unready           time.Duration
	wrong, violations int // requests that are not as they must be, and everything that is wrong
}

var results []row

func (r row) String() string {
	program := "ours"
	if r.theirs {
		program = "kube-controller-manager"
	}
	return fmt.Sprintf("%s: %d of %d in their state, longest wait %.1f s, recovery %.1f s, not ready %.1f s, %d violations",
		program, r.finished, r.total, r.slowest.Seconds(), r.recovery.Seconds(), r.unready.Seconds(), r.violations)
}

// table returns the results in Markdown. Where kube-controller-manager goes through a scenario, its value is the second. A list
// of the other scenarios follows.
func table() string {
	text := "| Fault | What users see | Metrics that show it | Longest wait of a joining kubelet | Recovery | Not ready | " +
		"Requests that are not as they must be |\n|---|---|---|---|---|---|---|\n"
	for i := range scenarios {
		var wait, recovery, unready, wrong []string
		for _, r := range results {
			if r.scenario != &scenarios[i] {
				continue
			}
			wait = append(wait, fmt.Sprintf("%.1f s", r.slowest.Seconds()))
			after := fmt.Sprintf("%.1f s", r.recovery.Seconds())
			if r.finished < r.total {
				after = "over " + patience.String()
			}
			recovery = append(recovery, after)
			wrong = append(wrong, fmt.Sprintf("%d of %d", r.wrong, r.total))
			if !r.theirs {
				unready = append(unready, fmt.Sprintf("%.1f s", r.unready.Seconds()))
			}
		}
		if len(wait) > 0 {
			text += fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s |\n", scenarios[i].name, scenarios[i].users, scenarios[i].metrics(),
				strings.Join(wait, " / "), strings.Join(recovery, " / "), strings.Join(unready, ""), strings.Join(wrong, " / "))
		}
	}
	return text + "\n" + notTheirs()
}

// metrics returns the names of the metrics that must show the fault, or why there is none.
func (s *scenario) metrics() string {
	if len(s.indicators) == 0 {
		return "none: " + s.silent
	}
	var names []string
	for _, name := range s.indicators {
		names = append(names, "`"+string(name)+"`")
	}
	return strings.Join(names, ", ")
}

// notTheirs lists the scenarios through which kube-controller-manager does not go.
func notTheirs() string {
	text := "kube-controller-manager does not go through these:\n\n"
	for _, s := range scenarios {
		if s.oursOnly != "" {
			text += fmt.Sprintf("- %s: %s.\n", s.name, s.oursOnly)
		}
	}
	return text
}
