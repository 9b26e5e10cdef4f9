//go:build soak

package reliability

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

const (
	// perRequest is the time from one request of a form of the soak to the next.
	perRequest = 200 * time.Millisecond
	// soakNodes is the number of nodes that join and renew. Their certificates live for soakLifetime, the shortest that a
	// request may ask for. The turn of a node comes when two thirds of it have passed, as with kubelets.
	soakNodes    = 200
	soakLifetime = int32(600)
	// settledAfter is when the values are measured that the last ones are compared with, and tolerance how much more
	// the last ones may be.
	settledAfter, tolerance = 5 * time.Minute, 1.10
)

// decidedKeptFor and keptFor are how long the cleaner keeps decided and pending requests: shortly, so that as many are
// deleted as are created.
const decidedKeptFor, keptFor = 30 * time.Second, time.Minute

const soakConfig = `approval: {kubeletServing: {enabled: true}}
cleaning: {retention: {approved: 30s, denied: 30s, failed: 30s, pending: 1m}}
rotation: {enabled: true, settleFor: 5s}
`

// soak is an endurance test: a load, a fault each minute, and a rotation after the other.
type soak struct {
	*world
	leader, standby *replica
	number          int

	users     []byte     // the administrator's CA in the API server's client CA file
	started   bool       // a rotation
	rotations int        // that were completed
	rolling   sync.Mutex // held while a replica is replaced, or an operator acts

	mu     sync.Mutex
	items  []*item                      // that were created and are not checked yet
	stored map[string]*x509.Certificate // by fingerprint
	failed []error
	// authorities are all CAs that were published.
	authorities []*x509.Certificate
}

// TestSoak measures memory, goroutines, latency and stored requests of the leader after five minutes, and at the end, which is
// SOAK later than the start (ten minutes at least; default half an hour).
func TestSoak(t *testing.T) {
	lasts := 30 * time.Minute
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts < 2*settledAfter {
			t.Fatalf("SOAK is %q, error %v: want ten minutes at least", text, err)
		}
	}
	s, end := startSoak(t, "")
	s.standby = s.startReplica(true)
	s.waitReady(s.standby)
	begin, changes := time.Now(), s.leaderChanges()
	var before sample
	for minute := 0; time.Since(begin) < lasts; minute++ {
		if minute == int(settledAfter.Minutes()) {
			before = s.sample()
		}
		s.disturb(minute)
		s.pause(time.Until(begin.Add(time.Duration(minute+1) * time.Minute)))
	}
	after := s.sample()
	if changed := s.leaderChanges() - changes; changed > 0 {
		t.Errorf("the Lease has changed its holder %d times", changed)
	}
	t.Logf("after %s: %v", settledAfter, before)
	t.Logf("after %s: %v", lasts, after)
	s.finish(end)
	for _, err := range after.above(before) {
		t.Error(err)
	}
	if s.rotations == 0 {
		t.Error("no rotation was completed")
	}
}

// finish ends the load, and checks what became of it.
func (s *soak) finish(end func()) {
	s.t.Helper()
	end()
	if !s.poll(keptFor+2*patience, func(context.Context) bool { s.check(); return len(s.items) == 0 }) {
		s.fail("%d requests are left at the end", len(s.items))
	}
	s.t.Logf("%d requests, %d rotations", s.number, s.rotations)
	serials := map[string]bool{}
	for _, cert := range s.stored {
		if serials[serial(cert)] {
			s.fail("two certificates have the serial number %s", serial(cert))
		}
		serials[serial(cert)] = true
	}
	for _, err := range slices.Concat(s.failed, s.completeRecords(&scenario{}, s.stored), s.verifySecrecy(), s.verifyProcesses(manyMore)) {
		s.t.Error(err)
	}
}

// startSoak starts a replica of binary, or of this version if binary is empty, then the load and the rotations. The
// returned function ends both.
func startSoak(t *testing.T, binary string) (s *soak, end func()) {
	t.Helper()
	s = &soak{world: newWorld(t, false), stored: map[string]*x509.Certificate{}}
	s.binary, s.config = binary, soakConfig
	s.args = []string{"--audit-log-maxsize=4000"} // one file has all records
	s.prepareRotation()
	s.leader = s.startReplica(true)
	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	end = func() { cancel(); background.Wait() }
	t.Cleanup(end)
	background.Go(func() { s.rotate(ctx) })
	s.waitReady(s.leader) // the first CA must be proven to be trusted
	s.items = append(s.items, s.warmUp())
	background.Go(func() { s.load(ctx) })
	return s, end
}

// load creates requests until ctx ends, and checks what became of them.
func (s *soak) load(ctx context.Context) {
	ticker := time.NewTicker(perRequest)
	defer ticker.Stop()
	var group errgroup.Group
	group.SetLimit(creators)
	addresses := map[string]order{}
	for {
		select {
		case <-ctx.Done():
			if err := group.Wait(); err != nil {
				s.fail("%w", err)
			}
			return
		case <-ticker.C:
			i := s.next(addresses)
			group.Go(func() error {
				err := s.create(s.t.Context(), i)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.items = append(s.items, i)
				return err
			})
			if s.number%100 == 0 {
				s.check()
			}
		}
	}
}

// next makes the next request. Each kind of the usual load comes in turn, but nothing that is never decided for long.
func (s *soak) next(addresses map[string]order) *item {
	s.number++
	turn := []string{"join", "renewal", "serving", "approved", "join", "denied", "renewal", "stranger", "join", "malformed"}
	name := turn[s.number%len(turn)]
	k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
	node := fmt.Sprintf("soak-%03d", s.number/len(turn)%soakNodes)
	made, known := addresses[node]
	switch {
	case name != "serving":
		made = k.make(s.world, node)
	case !known: // a node reports one address
		made = k.make(s.world, node)
		addresses[node] = made
	}
	seconds := soakLifetime
	made.seconds = &seconds
	k.make = func(*world, string) order { return made }
	return s.newItem(&k, fmt.Sprintf("soak-%s-%07d", name, s.number))
}

// check judges the requests that were deleted since, and forgets them. It fails for each that should be deleted by now.
func (s *soak) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = slices.DeleteFunc(s.items, func(i *item) bool {
		past := s.history.of(i.object.Name)
		bad := func(err error) { s.failed = append(s.failed, fmt.Errorf("request %s: %w", i.object.Name, err)) }
		late := !past.created.IsZero() && time.Since(past.created) > keptFor+patience
		switch {
		case past.deleted:
			s.judge(i, past, bad)
		case late:
			bad(fmt.Errorf("it is %q and not deleted after %s, want %q and deleted", past.state(), keptFor+patience, i.kind.want))
		}
		return past.deleted || late
	})
}

// judge reports what was wrong in the life of a request that was deleted.
func (s *soak) judge(i *item, past past, bad func(error)) {
	for _, was := range past.wrong {
		bad(errors.New(was))
	}
	if past.state() != i.kind.want {
		bad(fmt.Errorf("it was %q, want %q", past.state(), i.kind.want))
	}
	least := decidedKeptFor
	if i.kind.want == csr.Pending {
		least = keptFor
	}
	if lived := past.settled.Sub(past.created); lived < least-5*time.Second {
		bad(fmt.Errorf("it was deleted after %s, and must live for %s", lived, least))
	}
	if i.kind.want != csr.Issued || past.state() != csr.Issued {
		return
	}
	cert, err := parseCertificate(past.last.Status.Certificate)
	if err != nil {
		bad(err)
		return
	}
	s.stored[fingerprint(cert)] = cert
	issuer := slices.IndexFunc(s.authorities, func(ca *x509.Certificate) bool { return cert.CheckSignatureFrom(ca) == nil })
	if issuer < 0 {
		bad(fmt.Errorf("no published CA has issued its certificate, but %s", cert.Issuer))
	} else if err := i.check(cert, s.authorities[issuer], past.settled); err != nil {
		bad(err)
	}
}

func (s *soak) fail(format string, values ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, fmt.Errorf(format, values...))
}

// disturb causes the fault of a minute.
func (s *soak) disturb(minute int) {
	inject := func(rules ...faults.Rule) {
		s.proxy.Use(rules...)
		s.pause(10 * time.Second)
		s.proxy.Use()
	}
	stop := func(r *replica) {
		s.signal(r, syscall.SIGSTOP)
		s.pause(6 * time.Second) // less than its Lease, so a leader still leads
		s.signal(r, syscall.SIGCONT)
	}
	switch minute % 6 {
	case 0:
		s.standby.kill()
		s.standby = s.startReplica(true)
	case 1:
		stop(s.leader)
	case 2:
		inject(faults.Rule{Resources: requestWrites, Share: 0.3, Do: faults.Answer(409)})
	case 3:
		inject(faults.Rule{Resources: requestWrites, Share: 0.3, Do: faults.Answer(500).Landed()})
	case 4:
		stop(s.standby)
	default:
		inject(faults.Rule{Share: 0.1, Do: faults.ResetConnection()})
	}
}

// sample holds the measurements of one process while there is no fault, by what was measured. The numbers of stored objects have the names
// of their kinds.
type sample map[string]float64

const memory, goroutines, latency = "bytes of resident memory", "goroutines", "ms from the creation of a request to its certificate"

// above returns what has grown by more than the tolerance. The negligible differences are there at any time.
func (s sample) above(before sample) (wrong []error) {
	for what, is := range s {
		negligible := map[string]float64{memory: 0, latency: 2}
		most, known := negligible[what]
		if !known {
			most = 10
		}
		if is > before[what]*tolerance+most {
			wrong = append(wrong, fmt.Errorf("%s: %v, and %v after %s", what, is, before[what], settledAfter))
		}
	}
	return wrong
}

// sample measures for a minute. The medians count. Events are not counted: the API server keeps each for an hour.
func (s *soak) sample() sample {
	s.t.Helper()
	began := time.Now()
	s.pause(50 * time.Second) // nothing else than time passes
	var bytes, routines, took []float64
	for range 10 {
		bytes = append(bytes, s.leader.metric(s.t.Context(), "process_resident_memory_bytes"))
		routines = append(routines, s.leader.metric(s.t.Context(), "go_goroutines"))
		s.pause(time.Second)
	}
	s.history.mu.Lock()
	for name, past := range s.history.requests {
		kubelets := strings.HasPrefix(name, "soak-join-") || strings.HasPrefix(name, "soak-renewal-")
		if kubelets && past.created.After(began) && !past.deleted && past.state() == csr.Issued {
			took = append(took, float64(past.settled.Sub(past.created).Microseconds())/1000)
		}
	}
	s.history.mu.Unlock()
	found := sample{memory: s.median(bytes), goroutines: s.median(routines), latency: s.median(took)}
	all, err := cluster.Objects(s.t.Context(), s.Config)
	kit.NoError(s.t, err)
	for object := range all {
		if kind, _, _ := strings.Cut(object, " "); !strings.HasPrefix(kind, "events.") {
			found[kind]++
		}
	}
	return found
}

// median returns the median of values, which must be known and above zero.
func (s *soak) median(values []float64) float64 {
	s.t.Helper()
	slices.Sort(values)
	if len(values) == 0 || values[0] < 0 || values[len(values)/2] == 0 {
		s.t.Fatalf("measured %v: %s", values, s.leader.Tail(20))
	}
	return values[len(values)/2]
}
