package manager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// arrivals is the pause between two requests of a load: twelve a second.
	arrivals = time.Second / 12
	// stopCosts bounds how much longer than usual a request waits if the leader is stopped and releases the Lease.
	stopCosts = 2500 * time.Millisecond
	// leaseCosts is how long the Lease of a leader that is killed may keep a standby away. The standby reads it every 0.5 s,
	// and client-go adds up to 1.2 times as much at random: it sees the last renewal up to 1.1 s late, waits for the 15 s of
	// the Lease, and tries to take it up to 1.1 s after that.
	leaseCosts = 15*time.Second + 2*1100*time.Millisecond
	// backlogCosts bounds how long the standby then needs for the requests of 15 s. On a machine with a load of 20 it took 5 s.
	backlogCosts = 10 * time.Second
)

// replicas are managers that take part in one election.
type replicas struct {
	all    []*kit.Process
	audits []string
	holder string       // of the Lease at the start
	first  *kit.Request // which showed that the leader works
}

// startPair starts a leader and a standby with args, and waits until the first one leads and the other one is ready.
func startPair(t *testing.T, args ...string) *replicas {
	t.Helper()
	signingSecret(t)
	kit.GrantJoining(t, "joiner")
	p := &replicas{}
	p.start(t, args...)
	p.holder = *leaderAfter(t, "").Spec.HolderIdentity
	p.first = kit.Reaches(t, joins(t, "first"), csr.Issued)
	p.start(t, args...)
	return p
}

// start starts one more, and waits until it is ready.
func (p *replicas) start(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	kit.Write(t, file, nil)
	next := kit.StartManager(t, kit.ManagerConfig(t), append([]string{"--audit-log-path", file, "--self-check-interval=0"}, args...)...)
	next.Answers(t, next.Probes, "/readyz", http.StatusOK)
	p.all, p.audits = append(p.all, next), append(p.audits, file)
	return next
}

// leaderAfter waits for a holder of the Lease other than before, and returns the Lease.
func leaderAfter(t *testing.T, before string) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	kit.Eventually(t, "a new leader", func(ctx context.Context) error {
		err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		return errors.Join(err, kit.OrError(holder != "" && holder != before, "there is none"))
	})
	return lease
}

// every calls do with 0, 1 and so on at that interval, until the returned function is called, the test ends or do
// fails. The returned function waits for the last call.
func every(t *testing.T, interval time.Duration, do func(i int) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	i := 0
	calls.Go(func() {
		wait.NonSlidingUntilWithContext(ctx, func(context.Context) {
			if err := do(i); err != nil {
				if t.Context().Err() == nil { // the context ends before the cleanups of t
					t.Error(err)
				}
				cancel()
			}
			i++
		}, interval)
	})
	stop = func() {
		cancel()
		calls.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// gets waits until n more requests of the load have their certificates, and returns the longest wait until then.
func (l *load) gets(t *testing.T, n int) (longest time.Duration) {
	t.Helper()
	issued := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.waits)
	}
	want := issued() + n
	kit.Eventually(t, "the load runs", func(context.Context) error { return kit.OrError(issued() >= want, "%d requests are issued", issued()) })
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range l.made { // the watch may be faster than the answer to the creation
		longest = max(longest, l.waits[uid])
	}
	return longest
}

// checkRecords checks the audit logs: each stored certificate was signed by one process, and each other certificate is recorded
// as discarded. No request of the load was denied or failed, and no process took another for a second signer. It returns the
// number of stored and of discarded certificates of each process.
func (p *replicas) checkRecords(t *testing.T, l *load) (stored, discarded []int) {
	t.Helper()
	names := p.storedCertificates(t, l)
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		stored, discarded = make([]int, len(p.all)), make([]int, len(p.all))
		decided, holders, running := map[types.UID]bool{}, map[string]int{}, true
		for i, file := range p.audits {
			ended := p.all[i].Ended() != nil // one that is killed completes no record
			running = running && !ended
			for sum, last := range l.read(t, file, p.first.UID, decided) {
				switch _, is := names[sum]; {
				case is && (last == audit.Signed || last == audit.Stored):
					stored[i]++
					holders[sum]++
				case !is && last == audit.Discarded:
					discarded[i]++
				case is || !ended:
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
			if !decided[uid] && running {
				return fmt.Errorf("request %s has no decision", l.all[uid].Name)
			}
		}
		return nil
	})
	for _, each := range p.all {
		kit.Check(t, !strings.Contains(each.Output(t), "Another signer has stored a certificate"),
			"a replica takes another for a second signer")
	}
	t.Logf("the replicas stored %v certificates and discarded %v", stored, discarded)
	return stored, discarded
}

// storedCertificates returns the name of each request of l and of the first one, by the SHA-256 of its certificate, which must be
// the first one that the request had.
func (p *replicas) storedCertificates(t *testing.T, l *load) map[string]string {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list, l.label))
	names := map[string]string{}
	for _, obj := range append(list.Items, *p.first) {
		if one := l.all[obj.UID]; one != nil && !bytes.Equal(one.Status.Certificate, obj.Status.Certificate) {
			t.Errorf("the certificate of %s has changed", obj.Name)
		}
		names[fmt.Sprintf("%x", sha256.Sum256(kit.Leaf(t, &obj).Raw))] = obj.Name
	}
	kit.Equal(t, "number of requests with a certificate", len(names), len(l.made)+1)
	return names
}

// read returns the last record about each certificate in an audit log, and adds the approved requests to decided. It
// fails if a request of the load that must get a certificate was refused, or if a request was decided twice.
func (l *load) read(t *testing.T, file string, first types.UID, decided map[types.UID]bool) map[string]audit.Event {
	t.Helper()
	last, here := map[string]audit.Event{}, map[types.UID]bool{}
	for _, record := range kit.ReadAudit(t, file) {
		if _, ours := l.made[record.UID]; !ours && record.UID != first {
			continue // of a request that must not get a certificate
		}
		switch record.Event {
		case audit.Decided:
			kit.Require(t, record.Verdict == "Approve" && !here[record.UID], "a wrong or a second verdict: %+v", record)
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

// TestFailover stops the leader while kubelets join, and then kills the next one.
func TestFailover(t *testing.T) {
	kit.Alone(t)
	p := startPair(t)
	l := newLoad(t, client.MatchingLabels{"joins": "during-failover"})
	stop := l.start(t)
	usual := l.gets(t, 10)
	kit.NoError(t, p.all[0].Stop())
	second := *leaderAfter(t, p.holder).Spec.HolderIdentity
	l.gets(t, 10)
	stop()
	if longest := l.longest(t); longest > usual+stopCosts {
		t.Errorf("the leader stopped: a request waited %s, before %s at most", longest, usual)
	}

	p.start(t)
	stop = l.start(t)
	usual = max(usual, l.gets(t, 10))
	killed := time.Now()
	p.all[1].Kill()
	took := leaderAfter(t, second).Spec.AcquireTime.Sub(killed)
	t.Logf("the next one leads after %s", took)
	// On a busy machine the calls take longer: those that read and take the Lease, and those for a certificate.
	kit.Check(t, took <= leaseCosts+2*usual,
		"the next one leads after %s, want at most %s and two calls; a request took %s", took, leaseCosts, usual)
	l.gets(t, 10)
	stop()
	if longest := l.longest(t); longest > usual+took+backlogCosts {
		t.Errorf("the leader was killed: a request waited %s, before %s at most", longest, usual)
	}
	p.checkRecords(t, l)
}

// load is requests of kubelets, and how long each waits for its certificate.
type load struct {
	label client.MatchingLabels
	mu    sync.Mutex
	made  map[types.UID]time.Time
	waits map[types.UID]time.Duration
	all   map[types.UID]*kit.Request // with their certificates
}

// newLoad watches the requests with a label until the test ends, and deletes them then.
func newLoad(t *testing.T, label client.MatchingLabels) *load {
	t.Helper()
	l := &load{
		label: label, made: map[types.UID]time.Time{}, waits: map[types.UID]time.Duration{}, all: map[types.UID]*kit.Request{},
	}
	deletesRequests(t, label)
	certificates := kubernetes.NewForConfigOrDie(kit.ControlPlane(t).Config).CertificatesV1()
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewFilteredListWatchFromClient(certificates.RESTClient(), "certificatesigningrequests", "",
			func(options *metav1.ListOptions) { options.LabelSelector = labels.FormatLabels(label) }),
		ObjectType: &kit.Request{},
		Handler:    toolscache.ResourceEventHandlerFuncs{AddFunc: l.see, UpdateFunc: func(_, obj any) { l.see(obj) }},
	})
	go informer.RunWithContext(t.Context())
	kit.Require(t, toolscache.WaitForCacheSync(t.Context().Done(), informer.HasSynced), "the requests are not watched")
	return l
}

// see notes when a request is issued.
func (l *load) see(obj any) {
	found := obj.(*kit.Request)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.waits[found.UID]; !known && csr.StateOf(found) == csr.Issued {
		l.waits[found.UID], l.all[found.UID] = time.Since(l.made[found.UID]), found
	}
}

// start has kubelets join until stop is called.
func (l *load) start(t *testing.T) (stop func()) {
	t.Helper()
	joiner := kit.As(t, "joiner")
	return every(t, arrivals, func(i int) error { return l.add(t.Context(), joiner, kit.NodeRequest(t, fmt.Sprint("load-", i))) })
}

// add creates obj as c's user.
func (l *load) add(ctx context.Context, c client.Client, obj *kit.Request) error {
	obj.Labels = l.label
	start := time.Now()
	if err := c.Create(ctx, obj); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.made[obj.UID] = start
	if _, early := l.waits[obj.UID]; early { // the watch was faster than this goroutine
		l.waits[obj.UID] = time.Since(start)
	}
	return nil
}

// joinAll has count kubelets join at once.
func joinAll(t *testing.T, joiner client.Client, count int) *load {
	t.Helper()
	l := newLoad(t, client.MatchingLabels{"join": "all"})
	var creators errgroup.Group
	creators.SetLimit(10)
	for i := range count {
		obj := kit.NodeRequest(t, fmt.Sprint("joins-", i))
		creators.Go(func() error { return l.add(t.Context(), joiner, obj) })
	}
	kit.NoError(t, creators.Wait())
	return l
}

// longest waits until each request has its certificate, and returns the longest wait.
func (l *load) longest(t *testing.T) (longest time.Duration) {
	t.Helper()
	kit.Within(t, 3*time.Minute, "all requests are issued", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for uid := range l.made {
			wait, issued := l.waits[uid]
			if !issued {
				return fmt.Errorf("%d of %d are", len(l.waits), len(l.made))
			}
			longest = max(longest, wait)
		}
		return nil
	})
	t.Logf("%d requests, longest wait %s", len(l.made), longest.Round(time.Millisecond))
	return longest
}

// deletesRequests deletes the requests with a label at the end of the test.
func deletesRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	kit.AtEnd(t, func() error { return kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, label) })
}
