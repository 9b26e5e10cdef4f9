package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

const (
	// arrivals is the pause between two requests of a load: twelve a second.
	arrivals = time.Second / 12
	// leaseEnds is less than the Lease's duration, so a shorter wait shows that the standby worked early.
	leaseEnds = 12 * time.Second
)

// pair is a leader and a standby, each behind a proxy of its own.
type pair struct {
	leader, standby           *process
	leaderProxy, standbyProxy *faults.Proxy
	audits                    []string
}

// startPair starts two replicas, and waits until the first one leads and the other one is ready.
func startPair(t *testing.T, leaderRules ...faults.Rule) *pair {
	t.Helper()
	installRBAC(t)
	create(t, admin(t), signingSecret(controlPlane(t).CA.CertPEM, controlPlane(t).CA.KeyPEM))
	grant(t, "joiner", mayCreate)
	grant(t, "joiner", mayJoin)
	eventuallyAllowed(t, "joiner", true)
	forgetLeader(t)
	p := &pair{leaderProxy: throughFaults(t, serviceAccountConfig(t), leaderRules...), standbyProxy: throughFaults(t, serviceAccountConfig(t))}
	p.leader = p.start(t, p.leaderProxy.Config)
	leaderAfter(t, "")
	reaches(t, createRequest(t, as(t, "joiner"), nodeRequest(t, "first")), csr.Issued)
	p.standby = p.start(t, p.standbyProxy.Config)
	p.standby.answers(t, p.standby.probes, "/readyz", http.StatusOK)
	return p
}

func (p *pair) start(t *testing.T, cfg *rest.Config) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	write(t, file, nil)
	p.audits = append(p.audits, file)
	return startManager(t, cfg, "--audit-log-path", file, "--self-check-interval=0")
}

// joining creates requests until stop is called, and measures how long each waits for its certificate.
type joining struct {
	stop  func()
	mu    sync.Mutex
	made  map[types.UID]time.Time
	waits map[types.UID]time.Duration
	all   map[types.UID]*request // with their certificates
}

func startJoining(t *testing.T) *joining {
	t.Helper()
	l := &joining{made: map[types.UID]time.Time{}, waits: map[types.UID]time.Duration{}, all: map[types.UID]*request{}}
	label := client.MatchingLabels{"joins": "during-failover"}
	t.Cleanup(func() { deleteRequests(t, label) })
	ctx, stop := context.WithCancel(t.Context())
	watch, err := admin(t).Watch(ctx, &certificatesv1.CertificateSigningRequestList{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for event := range watch.ResultChan() {
			obj, ok := event.Object.(*request)
			if !ok || len(obj.Status.Certificate) == 0 {
				continue
			}
			l.mu.Lock()
			if _, known := l.waits[obj.UID]; !known {
				l.waits[obj.UID], l.all[obj.UID] = time.Since(l.made[obj.UID]), obj
			}
			l.mu.Unlock()
		}
	}()
	var creating sync.WaitGroup
	joiner, ended := as(t, "joiner"), make(chan struct{})
	creating.Go(func() {
		ticker := time.NewTicker(arrivals)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
			obj := nodeRequest(t, fmt.Sprint("load-", i))
			obj.Labels = label
			start := time.Now()
			if err := joiner.Create(ctx, obj); err != nil {
				t.Error(err)
				return
			}
			l.mu.Lock()
			l.made[obj.UID] = start
			if _, early := l.waits[obj.UID]; early { // the watch was faster than this goroutine
				l.waits[obj.UID] = time.Since(start)
			}
			l.mu.Unlock()
		}
	})
	l.stop = func() { close(ended); creating.Wait() }
	t.Cleanup(stop)
	return l
}

// longest ends the load, waits until each request has its certificate, and returns the longest wait.
func (l *joining) longest(t *testing.T) time.Duration {
	t.Helper()
	l.stop()
	eventually(t, "all requests are issued", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for uid := range l.made {
			if _, issued := l.waits[uid]; !issued {
				return fmt.Errorf("%d of %d are", len(l.waits), len(l.made))
			}
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	var longest time.Duration
	for uid := range l.made {
		longest = max(longest, l.waits[uid])
	}
	t.Logf("%d requests, longest wait %s", len(l.made), longest.Round(time.Millisecond))
	return longest
}

// checkRecords checks both audit logs: each stored certificate was signed by one process, and each other certificate
// is recorded as discarded. Nothing was denied or failed, and no process took the other for a second signer.
func (p *pair) checkRecords(t *testing.T, l *joining) {
	t.Helper()
	eventually(t, "the records are complete", func(context.Context) error {
		signed, ends := map[string]int{}, map[string]audit.Event{}
		decided := map[types.UID]bool{}
		for _, file := range p.audits {
			for _, record := range readAudit(t, file) {
				switch record.Event {
				case audit.Decided:
					if record.Verdict != "Approve" {
						t.Fatalf("a wrong verdict: %+v", record)
					}
					decided[record.UID] = true
				case audit.NotSigned:
					t.Fatalf("not signed: %+v", record)
				case audit.Signed:
					signed[record.CertificateSHA256]++
				default:
					ends[record.CertificateSHA256] = record.Event
				}
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for uid := range l.made {
			sum := sha256.Sum256(leaf(t, l.all[uid]).Raw)
			stored := hex.EncodeToString(sum[:])
			// A leader that is killed after its write records no decision.
			recorded := decided[uid] || p.leader.Ended() != nil
			if signed[stored] != 1 || ends[stored] == audit.Discarded || ends[stored] == audit.Uncertain || !recorded {
				return fmt.Errorf("request %s: signed %d times, then %q, decided %t", l.all[uid].Name, signed[stored], ends[stored], decided[uid])
			}
			delete(signed, stored)
		}
		unstored := 0
		for sum := range signed {
			if ends[sum] != audit.Discarded {
				unstored++
			}
		}
		if unstored > 1 && p.leader.Ended() == nil { // the request of startPair; a killed leader completes no record
			return fmt.Errorf("%d certificates are neither stored nor discarded", unstored)
		}
		return nil
	})
	for _, each := range []*process{p.leader, p.standby} {
		if log := each.log(t); strings.Contains(log, "Another signer has stored a certificate") {
			t.Error("a replica takes the other for a second signer")
		}
	}
}

// works waits until the standby works early, or until it has ended that.
func (p *pair) works(t *testing.T, early bool) {
	t.Helper()
	line := map[bool]string{true: "No leader renews the Lease", false: "The early work has ended"}[early]
	eventually(t, line, func(context.Context) error {
		if !strings.Contains(p.standby.log(t), line) {
			return fmt.Errorf("not in the log")
		}
		return nil
	})
}

func TestFailoverWhenTheLeaderIsKilled(t *testing.T) {
	parallel(t)
	p := startPair(t)
	l := startJoining(t)
	time.Sleep(time.Second)
	p.leader.Kill()
	p.works(t, true)
	if longest := l.longest(t); longest > leaseEnds {
		t.Errorf("a request waited %s", longest)
	}
	p.checkRecords(t, l)
}

func TestFailoverWhenTheLeaderIsStopped(t *testing.T) {
	parallel(t)
	p := startPair(t)
	l := startJoining(t)
	time.Sleep(time.Second)
	if err := p.leader.Stop(); err != nil {
		t.Error(err)
	}
	time.Sleep(2 * time.Second)
	if longest := l.longest(t); longest > leaseEnds {
		t.Errorf("a request waited %s", longest)
	}
	p.checkRecords(t, l)
}

// TestFailoverWhenTheLeaderIsPaused suspends the leader for some seconds. Afterwards it leads again, and the standby
// waits again.
func TestFailoverWhenTheLeaderIsPaused(t *testing.T) {
	parallel(t)
	p := startPair(t)
	p.interrupts(t,
		func() error { return syscall.Kill(p.leader.Pid(), syscall.SIGSTOP) },
		func() error { return syscall.Kill(p.leader.Pid(), syscall.SIGCONT) })
}

// TestFailoverWhenTheLeaderIsCutOff cuts the leader off from the API server for some seconds.
func TestFailoverWhenTheLeaderIsCutOff(t *testing.T) {
	parallel(t)
	p := startPair(t)
	p.interrupts(t, p.leaderProxy.Down, p.leaderProxy.Up)
}

// interrupts checks that the standby works between begin and end, which interrupt the leader, and waits afterwards.
func (p *pair) interrupts(t *testing.T, begin, end func() error) {
	t.Helper()
	l := startJoining(t)
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	p.works(t, true)
	time.Sleep(2 * time.Second) // the standby serves requests that are made during the interruption
	if err := end(); err != nil {
		t.Fatal(err)
	}
	p.works(t, false)
	if longest := l.longest(t); longest > leaseEnds {
		t.Errorf("a request waited %s", longest)
	}
	p.checkRecords(t, l)
}

// TestFailoverWithTwoActiveReplicas delays the leader's writes and fails its renewals, so both replicas work on the
// same requests.
func TestFailoverWithTwoActiveReplicas(t *testing.T) {
	parallel(t)
	p := startPair(t)
	p.leaderProxy.Use(
		faults.Rule{Verbs: []string{"update"}, Resources: []string{"leases"}, Do: faults.Answer(http.StatusInternalServerError)},
		faults.Rule{
			Verbs: []string{"update"}, Resources: []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"},
			Do: faults.Delay(2 * time.Second),
		})
	l := startJoining(t)
	p.works(t, true)
	time.Sleep(4 * time.Second)
	p.leaderProxy.Use()
	p.works(t, false)
	l.longest(t)
	p.checkRecords(t, l)
	discarded := 0
	for _, file := range p.audits {
		for _, record := range readAudit(t, file) {
			if record.Event == audit.Discarded {
				discarded++
			}
		}
	}
	t.Logf("%d discarded certificates", discarded)
}

// TestStandbyIsQuietWhileTheLeaderRenews counts the calls of both replicas under a load. A leader that stalls for two
// seconds, on a slow machine, ends an attempt.
func TestStandbyIsQuietWhileTheLeaderRenews(t *testing.T) {
	parallel(t)
	p := startPair(t)
	stalls := func() int { return strings.Count(p.standby.log(t), "No leader renews the Lease") }
	for range 5 {
		stalled, before, beforeLeader := stalls(), len(p.standbyProxy.Calls()), len(p.leaderProxy.Calls())
		l := startJoining(t)
		time.Sleep(5 * time.Second)
		l.longest(t)
		// A standby measures the time of the API servers, too.
		calls := slices.DeleteFunc(p.standbyProxy.Calls()[before:], func(c faults.Call) bool { return c.Path == "/version" })
		leader := len(p.leaderProxy.Calls()) - beforeLeader
		if stalls() > stalled {
			continue
		}
		for _, call := range calls {
			if call.Verb != "watch" && (call.Verb != "get" || call.Resource != "leases") {
				t.Errorf("a call of the standby: %s %s %s", call.Verb, call.Resource, call.Path)
			}
		}
		if len(calls)*10 > leader {
			t.Errorf("%d calls of the standby and %d of the leader", len(calls), leader)
		}
		t.Logf("%d calls of the standby and %d of the leader", len(calls), leader)
		p.checkRecords(t, l)
		return
	}
	t.Error("the leader did not renew its Lease in time in any of five attempts")
}
