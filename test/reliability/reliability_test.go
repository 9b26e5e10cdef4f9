// Package reliability injects faults from outside while requests of all kinds are in flight: into the API server, etcd,
// the permissions, the CA, the clock, the disk and the processes themselves. kube-controller-manager goes through the same
// schedules. Afterwards each request must be as it would be without the fault. docs/explanation/reliability.md has the
// results.
package reliability

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// full reports whether all scenarios run, with kube-controller-manager beside ours, and with the whole load. Otherwise
// one runs, in two minutes.
var full = os.Getenv("RELIABILITY") == "full"

func TestMain(m *testing.M) { kit.Main(m, 4) }

const (
	// requests is the size of the load, and fewRequests that of the subset.
	requests, fewRequests = 500, 150
	// moment is how long readiness must be away if it falls, because a replica that starts is not ready at once. If it stays, answers
	// may be missing for as long, because a page may be late on a busy machine.
	moment = 2 * time.Second
	// creators is the number of concurrent clients.
	creators = 10
)

// TestFaults runs the scenarios: all of them with ours and with kube-controller-manager, or a subset with ours.
func TestFaults(t *testing.T) {
	table := "| Fault | Program | Longest wait of a joining kubelet | Recovery | Not ready | In their state | Wrong |\n|---|---|---|---|---|---|---|\n"
	for i := range scenarios {
		s := &scenarios[i]
		if !s.quick && !full {
			continue
		}
		t.Run(strings.ReplaceAll(s.name, " ", "-"), func(t *testing.T) {
			t.Run("ours", func(t *testing.T) { table += s.run(t, false) })
			if full && !s.oursOnly {
				t.Run("kube-controller-manager", func(t *testing.T) { table += s.run(t, true) })
			}
		})
	}
	if file := os.Getenv("RELIABILITY_TABLE"); file != "" {
		kit.Write(t, file, []byte(table))
	}
}

// run starts the programs and the load, injects the fault, waits until all requests are in their state, and verifies what must hold. It
// returns a row of the table.
func (s *scenario) run(t *testing.T, theirs bool) string {
	w := newWorld(t, *s, theirs)
	if s.prepare != nil {
		s.prepare(w)
	}
	w.startReplica(s.replicas > 1)
	first := w.warmUp()
	for range s.replicas - 1 { // the first one leads
		w.waitReady(w.startReplica(true))
	}
	w.items = w.newLoad()
	stop := w.observe()
	half := len(w.items) / 2
	began, created := time.Now(), w.createAll(slices.Values(w.items), half, cmp.Or(s.spread, 10*time.Second)/time.Duration(len(w.items)-half))
	s.fault(w)
	if len(w.ends) == 0 {
		w.over()
	}
	kit.NoError(t, <-created)
	items := w.items
	finished := w.settle(items)
	w.pause(3 * time.Second) // what comes too late would come now
	for _, r := range w.running() {
		w.waitReady(r)
	}
	saw := stop()
	count, wrong := w.verify(slices.Concat(items, w.twins, []*item{first}))
	slowest, recovery := w.times(items)
	row := fmt.Sprintf("| %s | %s | %.1f s | %.1f s | %.1f s | %d of %d | %d of %[7]d |\n", s.name, filepath.Base(w.replicas[0].program),
		slowest.Seconds(), recovery.Seconds(), saw.unready.Seconds(), finished, len(items), count)
	t.Log(row)
	if theirs { // a comparison, not a test
		t.Log(errors.Join(wrong...))
		return row
	}
	kit.Check(t, count == 0, "%v", errors.Join(wrong...))
	if !w.noRecords {
		w.completeRecords()
	}
	w.verifySecrecy()
	w.verifyIndicators(saw.fired)
	w.verifyReports(began)
	kit.Check(t, s.ready != stays || saw.unready == 0 && saw.silent < moment, "not ready for %s, and without an answer for %s", saw.unready, saw.silent)
	kit.Check(t, s.ready != falls || saw.unready >= moment, "readiness fell for %s only", saw.unready)
	w.verifyProcesses(fewMore)
	w.verifyMetrics()
	return row
}

// warmUp waits until the program works, and returns the request that shows it.
func (w *world) warmUp() *item {
	first := w.newItem(&kinds[0], "first")
	kit.NoError(w.t, w.create(w.t.Context(), first))
	leader := w.replicas[0]
	if w.settle([]*item{first}) == 0 {
		w.t.Fatalf("the first request is %q", w.history.of("first").state())
	}
	w.waitReady(leader)
	if leader.metrics != "" {
		leader.idle = leader.metric(w.t.Context(), "go_goroutines")
		kit.Check(w.t, leader.idle > 0, "no metrics")
	}
	return first
}

func (w *world) waitReady(r *replica) {
	w.t.Helper()
	kit.Within(w.t, patience, fmt.Sprint("replica ", r.number), func(ctx context.Context) error {
		return kit.OrError(r.probes == "" || r.ready(ctx), "it is not ready")
	})
}

// createAll creates the first items at once, and the others at a constant rate.
func (w *world) createAll(items iter.Seq[*item], first int, every time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		var group errgroup.Group
		group.SetLimit(creators)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for i := range items {
			if first--; first < 0 {
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
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			ready, answered := w.anyReady(ctx)
			took := time.Since(last)
			switch last = last.Add(took); {
			case ready || ctx.Err() != nil:
			case !answered:
				saw.silent += took
			default:
				saw.unready += took
			}
			for _, r := range w.running() {
				for name, value := range r.indicators(ctx, before[r.number]) {
					if _, known := saw.fired[name]; !known {
						saw.fired[name] = fmt.Sprintf("replica %d: %s is %v", r.number, name, value)
					}
				}
			}
			return false, nil
		})
	}()
	return func() observed {
		w.t.Helper()
		w.until(time.Minute, "a replica is ready again", func(ctx context.Context) bool { ready, _ := w.anyReady(ctx); return ready })
		cancel()
		<-done
		return saw
	}
}

func (w *world) anyReady(ctx context.Context) (ready, answered bool) {
	for _, r := range w.running() {
		status, _ := r.page(ctx, r.probes, "/readyz")
		ready, answered = ready || status == 200, answered || status != 0
	}
	return ready, answered
}

// times returns the longest time that a request of a joining kubelet took, and the longest time from the end of a fault to the final state of
// a request. Only requests that were tried before that end count. If a request has met several faults, the last one counts.
func (w *world) times(items []*item) (slowest, recovery time.Duration) {
	for _, i := range items {
		if i.kind.want == csr.Pending || !w.isFinished(i) {
			continue
		}
		past := w.history.of(i.object.Name)
		if i.kind == &kinds[0] {
			slowest = max(slowest, past.settled.Sub(past.created))
		}
		for _, end := range slices.Backward(w.ends) {
			if end.After(past.settled) {
				continue
			}
			if i.tried.Before(end) {
				recovery = max(recovery, past.settled.Sub(end))
			}
			break
		}
	}
	return slowest, recovery
}

// readiness is the readiness of ours that a scenario requires.
type readiness int

const (
	either readiness = iota // each scenario with it says why
	stays                   // it never falls
	falls                   // it falls during the fault and comes back
)

type scenario struct {
	name        string
	quick       bool          // "make test" goes through it
	oursOnly    bool          // kube-controller-manager does not: it has no inventory, no audit log and no such metrics
	replicas    int           // processes, with leader election if there is more than one
	config      string        // the configuration of ours, in YAML
	args        []string      // more flags of ours
	environment []string      // of the process
	spread      time.Duration // how long the load takes to be created; zero means ten seconds
	oldAge      time.Duration // how long ago old requests were denied; zero means four hours
	random      int           // requests with random content beside the load
	ready       readiness
	indicators  []indicator // must fire while it lasts
	mayFire     []indicator
	events      []string     // reasons of Events that must be written while it lasts
	recorded    audit.Event  // that the audit log must have, if set
	noneLost    bool         // each certificate is stored, whatever the answer was
	noRecords   bool         // the audit log is away for a while, so a certificate may be without a record
	prepare     func(*world) // is called before the program starts
	// fault causes the fault and returns when it is over, unless it calls over. The load begins at the same time.
	fault func(*world)
}

// whileDown are indicators of a replica whose calls fail. An API server that has just started may refuse calls, because it does not
// know all roles yet.
var whileDown = []indicator{noRight, notApproved, notStored, notDeleted}

// requestWrites are the resources to which approver, signer and cleaner write.
var requestWrites = []string{"certificatesigningrequests", "certificatesigningrequests/approval", "certificatesigningrequests/status"}

var scenarios = []scenario{
	{
		name: "random faults, and random requests",
		// It falls if the new process needs some time to start.
		quick: true, random: 100, spread: 20 * time.Second, ready: either, prepare: shortCA, fault: randomFaults,
		indicators: []indicator{notApproved, notStored}, mayFire: []indicator{noRight, notDeleted},
	},
	{
		name:  "30% of the writes conflict",
		ready: stays, indicators: []indicator{notApproved, notStored}, recorded: audit.Uncertain,
		fault: proxied(12*time.Second, faults.Rule{Verbs: faults.Writes, Resources: requestWrites, Share: 0.3, Do: faults.Answer(409)}),
	},
	{
		name:  "each write is answered 500 after it was stored",
		ready: stays, noneLost: true, indicators: []indicator{answered500, notDeleted}, recorded: audit.Stored,
		fault: proxied(12*time.Second, faults.Rule{Verbs: faults.Writes, Resources: requestWrites, Do: faults.Answer(500).Landed()}),
	},
	{
		name: "API server restarts",
		// It falls if both replicas lose the election, and start again, because the API server needs more than three seconds.
		replicas: 2, ready: either, indicators: []indicator{unanswered}, mayFire: whileDown, fault: restartAPIServer,
	},
	{
		name:     "etcd is stopped for 20 s",
		replicas: 2, ready: stays, indicators: []indicator{unanswered}, mayFire: whileDown, fault: stopEtcd,
	},
	{
		name:     "leader is killed every 6 s for two minutes",
		replicas: 2, ready: stays, spread: 125 * time.Second, indicators: []indicator{newLeader}, fault: killLeaders,
	},
	{
		name:  "leader is paused twice and wakes up",
		ready: stays, replicas: 2, spread: 20 * time.Second, indicators: []indicator{newLeader}, mayFire: whileDown, fault: pauseLeader,
	},
	{
		name:  "kube-controller-manager works beside it, with the same CA",
		ready: stays, indicators: []indicator{discardedCertificates},
		oursOnly: true, fault: besideTheirs(true),
	},
	{
		name:  "kube-controller-manager works beside it, with another CA",
		ready: stays, indicators: []indicator{foreign},
		events:   []string{"SecondSigner"},
		oursOnly: true, fault: besideTheirs(false),
	},
	{
		name:  "its clock is an hour ahead",
		ready: falls, indicators: []indicator{skewed}, oldAge: 90 * time.Minute, fault: setOwnClock(time.Hour),
	},
	{
		name:  "its clock is an hour behind",
		ready: falls, indicators: []indicator{skewed}, oldAge: 90 * time.Minute, fault: setOwnClock(-time.Hour),
	},
	{
		name:  "API server's clock goes back by a day",
		ready: falls, indicators: []indicator{skewed},
		spread: 30 * time.Second, prepare: allAhead, fault: setBack,
	},
	{
		name:  "signing Secret is empty, half, mismatched, a leaf, expired, garbage, 1 MB, and deleted",
		ready: falls, spread: 60 * time.Second, indicators: []indicator{caRejected}, fault: breakSecret,
	},
	{
		name:   "each of its roles is taken and given back",
		args:   []string{"--self-check-interval=1s"},
		spread: 60 * time.Second, ready: falls, indicators: []indicator{noRight, notApproved, notStored, notDeleted}, fault: loseRoles,
	},
	{
		name:  "authorizer webhook times out",
		ready: stays, prepare: slowAuthorizer, fault: hangAuthorizer,
	},
	{
		name:     "inventory is down, slow and lies",
		oursOnly: true, prepare: startInventory, ready: stays, spread: 15 * time.Second,
		indicators: []indicator{unavailable, notOwned}, events: []string{"InventoryUnavailable", "SANNotOwned"}, fault: breakInventory,
	},
	{
		name:     "watches of Nodes and Services stall",
		oursOnly: true, ready: stays, indicators: []indicator{unknownNode}, events: []string{"NodeNotFound"}, fault: stallWatches,
	},
	{
		name:     "disk of the audit log is full",
		oursOnly: true, noRecords: true, ready: stays, indicators: []indicator{notAudited}, prepare: fullDisk, fault: freeDisk,
	},
	{
		name:     "GOMEMLIMIT is reached",
		oursOnly: true, ready: stays, environment: []string{"GOMEMLIMIT=24MiB"}, fault: reachSoftLimit,
	},
	{
		name: "the only replica is killed, also while it starts",
		// Nothing answers while the process is down. When it starts, it is ready at once or after some time.
		ready: either, indicators: []indicator{restarted}, fault: restart,
	},
}
