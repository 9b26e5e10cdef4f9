package manager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

const (
	// arrivals is the pause between two requests of a load: twelve a second.
	arrivals = time.Second / 12
	// stopCosts and killCosts bound how much longer than usual a request waits if the leader is stopped, and if it is
	// killed: the Lease of 15 seconds and three more.
	stopCosts, killCosts = 2500 * time.Millisecond, 18 * time.Second
)

// pair is a leader and a standby, each behind a proxy of its own.
type pair struct {
	leader, standby           *kit.Process
	leaderProxy, standbyProxy *faults.Proxy
	audits                    []string
	first                     *kit.Request // which showed that the leader works
}

// startPair starts two replicas with args, and waits until the first one leads and the other one is ready.
func startPair(t *testing.T, args ...string) *pair {
	t.Helper()
	p := startLeader(t, args...)
	p.startStandby(t, args...)
	return p
}

// startLeader starts only the first replica of a pair.
func startLeader(t *testing.T, args ...string) *pair {
	t.Helper()
	kit.InstallRBAC(t)
	kit.Create(t, kit.Admin(t), kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM))
	kit.GrantJoining(t, "joiner")
	forgetLeader(t)
	t.Cleanup(func() { forgetLeader(t) }) // the next test would wait for the end of the Lease
	p := &pair{leaderProxy: kit.ThroughFaults(t, kit.ServiceAccountConfig(t))}
	p.leader = p.start(t, p.leaderProxy.Config, args)
	leaderAfter(t, "")
	p.first = kit.Reaches(t, kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, "first")), csr.Issued)
	return p
}

func (p *pair) startStandby(t *testing.T, args ...string) {
	t.Helper()
	p.standbyProxy = kit.ThroughFaults(t, kit.ServiceAccountConfig(t))
	p.standby = p.start(t, p.standbyProxy.Config, args)
	p.standby.Answers(t, p.standby.Probes, "/readyz", http.StatusOK)
}

func (p *pair) start(t *testing.T, cfg *rest.Config, args []string) *kit.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	kit.Write(t, file, nil)
	p.audits = append(p.audits, file)
	return kit.StartManager(t, cfg, append([]string{"--audit-log-path", file, "--self-check-interval=0"}, args...)...)
}

// joins is the label of a load.
var joins = client.MatchingLabels{"joins": "during-failover"}

// joining creates requests until stop is called, and measures how long each waits for its certificate.
type joining struct {
	stop  func()
	mu    sync.Mutex
	made  map[types.UID]time.Time
	waits map[types.UID]time.Duration
	all   map[types.UID]*kit.Request // with their certificates
	wrong map[types.UID]*refusal     // requests that must not get a certificate
}

func startJoining(t *testing.T) *joining {
	t.Helper()
	l := &joining{
		made: map[types.UID]time.Time{}, waits: map[types.UID]time.Duration{}, all: map[types.UID]*kit.Request{}, wrong: map[types.UID]*refusal{},
	}
	t.Cleanup(func() { deleteRequests(t, joins) })
	ctx, stop := context.WithCancel(t.Context())
	watch, err := kit.Admin(t).Watch(ctx, &certificatesv1.CertificateSigningRequestList{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for event := range watch.ResultChan() {
			obj, ok := event.Object.(*kit.Request)
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
	t.Cleanup(stop)
	joiner := kit.As(t, "joiner")
	l.stop = every(t, arrivals, func(i int) error {
		obj := kit.NodeRequest(t, fmt.Sprint("load-", i))
		obj.Labels = joins
		start := time.Now()
		if err := joiner.Create(ctx, obj); err != nil {
			return err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.made[obj.UID] = start
		if _, early := l.waits[obj.UID]; early { // the watch was faster than this goroutine
			l.waits[obj.UID] = time.Since(start)
		}
		return nil
	})
	return l
}

// every calls do with 0, 1 and so on at that interval, until the returned function is called, the test ends or do
// fails. The returned function waits for the last call.
func every(t *testing.T, interval time.Duration, do func(i int) error) (stop func()) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for i := 0; ; i++ {
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
			if err := do(i); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(ended); <-done })
	t.Cleanup(stop)
	return stop
}

// gets waits until n more requests of the load have their certificates, and returns the longest wait until then.
func (l *joining) gets(t *testing.T, n int) (longest time.Duration) {
	t.Helper()
	issued := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.waits)
	}
	want := issued() + n
	kit.Eventually(t, "the load runs", func(context.Context) error {
		if got := issued(); got < want {
			return fmt.Errorf("%d requests are issued, want %d", got, want)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.made { // the watch may be faster than the answer to the creation
		longest = max(longest, l.waits[uid])
	}
	return longest
}

// longest ends the load, waits until each request has its certificate, and returns the longest wait.
func (l *joining) longest(t *testing.T) time.Duration {
	t.Helper()
	l.stop()
	kit.Eventually(t, "all requests are issued", func(context.Context) error {
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
// is recorded as discarded. No request of the load was denied or failed, and no process took the other for a second
// signer. It returns the number of stored and of discarded certificates of each process.
func (p *pair) checkRecords(t *testing.T, l *joining) (stored, discarded []int) {
	t.Helper()
	names := p.storedCertificates(t, l)
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		stored, discarded = make([]int, len(p.audits)), make([]int, len(p.audits))
		decided, holders := map[types.UID]bool{}, map[string]int{}
		for i, file := range p.audits {
			for sum, last := range l.read(t, file, decided) {
				killed := i == 0 && p.leader.Ended() != nil // a leader that is killed completes no record
				switch _, is := names[sum]; {
				case is && (last == audit.Signed || last == audit.Stored):
					stored[i]++
					holders[sum]++
				case !is && last == audit.Discarded:
					discarded[i]++
				case is || !killed:
					return fmt.Errorf("the last record of %s about certificate %s (stored: %t) is %s", file, sum, is, last)
				}
			}
		}
		for sum, name := range names {
			if holders[sum] != 1 {
				return fmt.Errorf("%d processes recorded the certificate of %s", holders[sum], name)
			}
		}
		for uid := range l.made {
			if !decided[uid] && p.leader.Ended() == nil {
				return fmt.Errorf("request %s has no decision", l.all[uid].Name)
			}
		}
		return nil
	})
	for _, each := range []*kit.Process{p.leader, p.standby} {
		if log := each.Output(t); strings.Contains(log, "Another signer has stored a certificate") {
			t.Error("a replica takes the other for a second signer")
		}
	}
	t.Logf("leader and standby stored %v certificates and discarded %v", stored, discarded)
	return stored, discarded
}

// storedCertificates returns the name of each request of l and of earlier loads, by the SHA-256 of its certificate. The
// certificate must be for the request's own key and subject. It must be the first one that the request had.
func (p *pair) storedCertificates(t *testing.T, l *joining) map[string]string {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := kit.Admin(t).List(t.Context(), list, joins); err != nil {
		t.Fatal(err)
	}
	names, missing := map[string]string{}, maps.Clone(l.made)
	for _, obj := range append(list.Items, *p.first) {
		if _, refused := l.wrong[obj.UID]; refused {
			continue // see checkRefused
		}
		if one := l.all[obj.UID]; one != nil && !bytes.Equal(one.Status.Certificate, obj.Status.Certificate) {
			t.Errorf("the certificate of %s has changed", obj.Name)
		}
		certificate, asked := kit.Leaf(t, &obj), payloadOf(t, &obj)
		if !bytes.Equal(certificate.RawSubjectPublicKeyInfo, asked.RawSubjectPublicKeyInfo) || certificate.Subject.String() != asked.Subject.String() {
			t.Errorf("the certificate of %s is for %s", obj.Name, certificate.Subject)
		}
		sum := sha256.Sum256(certificate.Raw)
		names[hex.EncodeToString(sum[:])] = obj.Name
		delete(missing, obj.UID)
	}
	if len(missing) > 0 {
		t.Errorf("%d requests have no certificate", len(missing))
	}
	return names
}

func payloadOf(t *testing.T, obj *kit.Request) *x509.CertificateRequest {
	t.Helper()
	block, _ := pem.Decode(obj.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return asked
}

// read returns the last record about each certificate in an audit log, and adds the approved requests to decided. It
// fails if a request of the load that must get a certificate was refused, or if a request was decided twice.
func (l *joining) read(t *testing.T, file string, decided map[types.UID]bool) map[string]audit.Event {
	t.Helper()
	last, here := map[string]audit.Event{}, map[types.UID]bool{}
	for _, record := range kit.ReadAudit(t, file) {
		if _, refused := l.wrong[record.UID]; refused {
			continue // see checkRefused
		}
		switch record.Event {
		case audit.Decided:
			if record.Verdict != "Approve" || here[record.UID] {
				t.Fatalf("a wrong or a second verdict: %+v", record)
			}
			here[record.UID], decided[record.UID] = true, true
		case audit.NotSigned:
			t.Fatalf("not signed: %+v", record)
		case audit.Signed, audit.Discarded, audit.Stored, audit.Uncertain:
			if _, known := last[record.CertificateSHA256]; known == (record.Event == audit.Signed) {
				t.Fatalf("signed twice or never: %+v", record)
			}
			last[record.CertificateSHA256] = record.Event
		}
	}
	return last
}

// standbyLeads waits until the standby has been elected.
func (p *pair) standbyLeads(t *testing.T) {
	t.Helper()
	start := time.Now()
	kit.Eventually(t, "the standby leads", func(context.Context) error {
		if !p.standby.HasLed(t) {
			return errors.New("it does not")
		}
		return nil
	})
	t.Logf("the standby leads after %s", time.Since(start).Round(time.Millisecond))
}

func TestFailoverWhenTheLeaderIsKilled(t *testing.T) {
	kit.Alone(t)
	p := startPair(t)
	l := startJoining(t)
	usual := l.gets(t, 10)
	p.leader.Kill()
	p.standbyLeads(t)
	l.gets(t, 10)
	if longest := l.longest(t); longest > usual+killCosts {
		t.Errorf("a request waited %s, before %s at most", longest, usual)
	}
	p.checkRecords(t, l)
}

func TestFailoverWhenTheLeaderIsStopped(t *testing.T) {
	kit.Alone(t)
	p := startPair(t)
	l := startJoining(t)
	usual := l.gets(t, 10)
	if err := p.leader.Stop(); err != nil {
		t.Error(err)
	}
	p.standbyLeads(t)
	l.gets(t, 10)
	if longest := l.longest(t); longest > usual+stopCosts {
		t.Errorf("a request waited %s, before %s at most", longest, usual)
	}
	p.checkRecords(t, l)
}
