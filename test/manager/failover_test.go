package manager

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
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

// pair is a leader and a standby.
type pair struct {
	leader, standby *kit.Process
	holder          string // of the Lease at the start
	audits          []string
	first           *kit.Request // which showed that the leader works
}

// startPair starts two replicas with args, and waits until the first one leads and the other one is ready.
func startPair(t *testing.T, args ...string) *pair {
	t.Helper()
	signingSecret(t)
	kit.GrantJoining(t, "joiner")
	p := &pair{}
	p.leader = p.start(t, args)
	p.holder = *leaderAfter(t, "").Spec.HolderIdentity
	p.first = kit.Reaches(t, joins(t, "first"), csr.Issued)
	p.standby = p.start(t, args)
	p.standby.Answers(t, p.standby.Probes, "/readyz", http.StatusOK)
	return p
}

func (p *pair) start(t *testing.T, args []string) *kit.Process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "audit.log")
	kit.Write(t, file, nil)
	p.audits = append(p.audits, file)
	return kit.StartManager(t, kit.ManagerConfig(t), append([]string{"--audit-log-path", file, "--self-check-interval=0"}, args...)...)
}

// leaderAfter waits for a holder of the Lease other than before, and returns the Lease.
func leaderAfter(t *testing.T, before string) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	kit.Eventually(t, "a new leader", func(ctx context.Context) error {
		err := kit.Admin(t).Get(ctx, client.ObjectKey{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}, lease)
		if err != nil {
			return err
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" || *holder == before {
			return errors.New("there is none")
		}
		return nil
	})
	return lease
}

// startLoad has kubelets join until stop is called.
func startLoad(t *testing.T) (l *load, stop func()) {
	t.Helper()
	l = newLoad(t, client.MatchingLabels{"joins": "during-failover"})
	joiner := kit.As(t, "joiner")
	return l, every(t, arrivals, func(i int) error { return l.add(t.Context(), joiner, kit.NodeRequest(t, fmt.Sprint("load-", i))) })
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
				if t.Context().Err() == nil { // the context ends before the cleanups of t
					t.Error(err)
				}
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(ended); <-done })
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

// checkRecords checks both audit logs: each stored certificate was signed by one process, and each other certificate
// is recorded as discarded. No request of the load was denied or failed, and no process took the other for a second
// signer. It returns the number of stored and of discarded certificates of each process.
func (p *pair) checkRecords(t *testing.T, l *load) (stored, discarded []int) {
	t.Helper()
	names := p.storedCertificates(t, l)
	kit.Eventually(t, "the records are complete", func(context.Context) error {
		stored, discarded = make([]int, len(p.audits)), make([]int, len(p.audits))
		decided, holders := map[types.UID]bool{}, map[string]int{}
		for i, file := range p.audits {
			for sum, last := range l.read(t, file, p.first.UID, decided) {
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
func (p *pair) storedCertificates(t *testing.T, l *load) map[string]string {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	if err := kit.Admin(t).List(t.Context(), list, l.label); err != nil {
		t.Fatal(err)
	}
	names, missing := map[string]string{}, maps.Clone(l.made)
	for _, obj := range append(list.Items, *p.first) {
		if one := l.all[obj.UID]; one != nil && !bytes.Equal(one.Status.Certificate, obj.Status.Certificate) {
			t.Errorf("the certificate of %s has changed", obj.Name)
		}
		certificate := kit.Leaf(t, &obj)
		asked, err := csr.Parse(&obj)
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKIXPublicKey(asked.Cert.PublicKey)
		if err != nil || !bytes.Equal(certificate.RawSubjectPublicKeyInfo, key) || certificate.Subject.String() != asked.Cert.Subject.String() {
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

func TestFailoverWhenTheLeaderIsKilled(t *testing.T) {
	kit.Alone(t)
	p := startPair(t)
	l, stop := startLoad(t)
	usual, killed := l.gets(t, 10), time.Now()
	p.leader.Kill()
	took := leaderAfter(t, p.holder).Spec.AcquireTime.Sub(killed)
	t.Logf("the standby leads after %s", took)
	// On a busy machine the calls take longer: those that read and take the Lease, and those for a certificate.
	if took > leaseCosts+2*usual {
		t.Errorf("the standby leads after %s, want at most %s and two calls; a request took %s", took, leaseCosts, usual)
	}
	l.gets(t, 10)
	stop()
	if longest := l.longest(t); longest > usual+took+backlogCosts {
		t.Errorf("a request waited %s, before %s at most", longest, usual)
	}
	p.checkRecords(t, l)
}

func TestFailoverWhenTheLeaderIsStopped(t *testing.T) {
	kit.Alone(t)
	p := startPair(t)
	l, stop := startLoad(t)
	usual := l.gets(t, 10)
	stops(t, p.leader)
	leaderAfter(t, p.holder)
	l.gets(t, 10)
	stop()
	if longest := l.longest(t); longest > usual+stopCosts {
		t.Errorf("a request waited %s, before %s at most", longest, usual)
	}
	p.checkRecords(t, l)
}

// TestStandbyQueuesNothing creates and deletes requests while another replica leads. The queues of the standby stay
// empty. When it becomes the leader, it finds the waiting request in its cache.
func TestStandbyQueuesNothing(t *testing.T) {
	kit.Parallel(t)
	lease := leaseOf(t, "another")
	p := start(t, "--leader-elect=true")
	waiting := joins(t, "waits")
	for i := range 20 {
		kit.Remove(t, joins(t, fmt.Sprint("gone-", i)))
	}
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, // the cache of the standby is filled
		`csr_requests{signer="kubernetes.io/kube-apiserver-client-kubelet",state="Pending"} 1`)
	status, metrics := cluster.Get(t.Context(), p.Metrics, "/metrics")
	if status != http.StatusOK {
		t.Errorf("status %d: %s", status, metrics)
	}
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, `workqueue_adds_total{controller="csr-`) && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			t.Errorf("the standby queues requests: %s", line)
		}
	}
	kit.Remove(t, lease)
	kit.Reaches(t, waiting, csr.Issued)
	p.Answers(t, p.Metrics, "/metrics", http.StatusOK, `workqueue_queue_duration_seconds_count{controller="csr-approver",name="csr-approver"} 1`)
}

// leaseOf creates the Lease of the managers, held by a replica that does not exist. It is renewed until it is deleted.
func leaseOf(t *testing.T, holder string) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kit.SystemNamespace, Name: "csr-controller-manager"}}
	hold(lease, holder)
	kit.Create(t, kit.Admin(t), lease)
	renewed := lease.DeepCopy()
	every(t, time.Second, func(int) error {
		hold(renewed, holder)
		err := kit.Admin(t).Update(t.Context(), renewed)
		if apierrors.IsConflict(err) { // it was deleted, and the manager has made another one
			return nil
		}
		return client.IgnoreNotFound(err)
	})
	return lease
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
	t.Cleanup(func() { deleteRequests(t, label) })
	clientset, err := kubernetes.NewForConfig(kit.ControlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	_, informer := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.NewFilteredListWatchFromClient(clientset.CertificatesV1().RESTClient(), "certificatesigningrequests", "",
			func(options *metav1.ListOptions) { options.LabelSelector = labels.FormatLabels(label) }),
		ObjectType: &kit.Request{},
		Handler:    toolscache.ResourceEventHandlerFuncs{AddFunc: l.see, UpdateFunc: func(_, obj any) { l.see(obj) }},
	})
	go informer.RunWithContext(t.Context())
	if !toolscache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the requests are not watched")
	}
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
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
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

func deleteRequests(t *testing.T, label client.MatchingLabels) {
	t.Helper()
	if err := kit.Admin(t).DeleteAllOf(context.Background(), &kit.Request{}, label); err != nil {
		t.Error(err)
	}
}
