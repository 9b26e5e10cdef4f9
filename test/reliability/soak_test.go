//go:build soak

package reliability

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
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

	mu     sync.Mutex // also for the CAs that may have issued a certificate
	items  []*item    // that are not checked yet
	failed []error
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
	kit.Equal(t, "changes of the Lease's holder", s.leaderChanges(), changes)
	t.Logf("after %s: %v", settledAfter, before)
	t.Logf("after %s: %v", lasts, after)
	s.compare(before, after)
	s.finish(end)
	kit.Check(t, s.rotations > 0, "no rotation was completed")
}

func (s *soak) finish(end func()) {
	end()
	if !s.poll(keptFor+2*patience, func(context.Context) bool { s.check(); return len(s.items) == 0 }) {
		s.fail("%d requests are left at the end", len(s.items))
	}
	s.t.Logf("%d requests, %d rotations", s.number, s.rotations)
	for _, err := range s.failed {
		s.t.Error(err)
	}
	s.completeRecords()
	s.verifySecrecy()
	s.verifyProcesses(manyMore)
}

// startSoak starts a replica of binary, or of this version if binary is empty, then the load and the rotations. The
// returned function ends both.
func startSoak(t *testing.T, binary string) (s *soak, end func()) {
	records := []string{"--audit-log-maxsize=4000"} // one file has all records
	s = &soak{world: newWorld(t, scenario{config: soakConfig, args: records}, false)}
	s.binary = binary
	s.prepareRotation()
	s.leader = s.startReplica(true)
	ctx, cancel := context.WithCancel(t.Context())
	var background sync.WaitGroup
	end = func() { cancel(); background.Wait() }
	t.Cleanup(end)
	background.Go(func() { s.rotate(ctx) })
	s.waitReady(s.leader) // the first CA must be proven to be trusted
	s.items = append(s.items, s.warmUp())
	background.Go(func() {
		if err := <-s.createAll(s.requests(ctx), 0, perRequest); err != nil {
			s.fail("%w", err)
		}
	})
	return s, end
}

// requests returns requests until ctx ends. Each kind of the usual load comes in turn, but nothing that is never decided for long.
func (s *soak) requests(ctx context.Context) iter.Seq[*item] {
	turn := []string{"join", "renewal", "serving", "approved", "join", "denied", "renewal", "stranger", "join", "malformed"}
	return func(yield func(*item) bool) {
		for ctx.Err() == nil {
			s.number++
			name := turn[s.number%len(turn)]
			k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })]
			made := k.make(s.world, fmt.Sprintf("soak-%03d", s.number/len(turn)%soakNodes))
			made.seconds = new(soakLifetime)
			k.make = func(*world, string) order { return made }
			i := s.newItem(&k, fmt.Sprintf("soak-%s-%07d", name, s.number))
			s.mu.Lock()
			s.items = append(s.items, i)
			s.mu.Unlock()
			yield(i)
			if s.number%100 == 0 {
				s.check()
			}
		}
	}
}

func (s *soak) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items = slices.DeleteFunc(s.items, func(i *item) bool {
		past := s.history.of(i.object.Name)
		late := !past.created.IsZero() && time.Since(past.created) > keptFor+patience
		if !past.deleted && !late {
			return false
		}
		lived, least := past.settled.Sub(past.created), decidedKeptFor
		if i.kind.want == csr.Pending {
			least = keptFor
		}
		err := errors.Join(s.verifyCertificate(i, past), kit.OrError(past.deleted && past.state() == i.kind.want && lived >= least-5*time.Second,
			"it is %q, want %q; deleted: %t, after %s, want %s", past.state(), i.kind.want, past.deleted, lived, least))
		if err != nil {
			s.failed = append(s.failed, fmt.Errorf("request %s: %w", i.object.Name, err))
		}
		return true
	})
}

func (s *soak) fail(format string, values ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = append(s.failed, fmt.Errorf(format, values...))
}

func (s *soak) disturb(minute int) {
	inject := func(rule faults.Rule) { proxied(10*time.Second, rule)(s.world) }
	stop := func(r *replica) {
		kit.NoError(s.t, syscall.Kill(r.Pid(), syscall.SIGSTOP))
		s.pause(6 * time.Second) // less than its Lease, so a leader still leads
		kit.NoError(s.t, syscall.Kill(r.Pid(), syscall.SIGCONT))
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

// compare checks what has grown by more than the tolerance. The negligible differences are there at any time.
func (s *soak) compare(before, after sample) {
	for what, is := range after {
		negligible := 10.0
		switch what {
		case memory:
			negligible = 0
		case latency:
			negligible = 2
		}
		kit.Check(s.t, is <= before[what]*tolerance+negligible, "%s: %v, and %v after %s", what, is, before[what], settledAfter)
	}
}

// sample measures for a minute. The medians count. Events are not counted: the API server keeps each for an hour.
func (s *soak) sample() sample {
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
	all := kit.Must(cluster.Objects(s.t.Context(), s.Config))(s.t)
	for object := range all {
		if kind, _, _ := strings.Cut(object, " "); !strings.HasPrefix(kind, "events.") {
			found[kind]++
		}
	}
	return found
}

// median returns the median of values, which must be known and above zero.
func (s *soak) median(values []float64) float64 {
	slices.Sort(values)
	if len(values) == 0 || values[0] < 0 || values[len(values)/2] == 0 {
		s.t.Fatalf("measured %v: %s", values, s.leader.Tail(20))
	}
	return values[len(values)/2]
}

// trustBundle is where the manager publishes the CAs.
var trustBundle = v1alpha1.TrustEntry{Namespace: kit.SystemNamespace, Name: "csr-trust", Key: "ca.crt"}

func (s *soak) prepareRotation() {
	kit.CreateMissing(s.t, kit.Admin(s.t), kit.Rendered(s.t, "rotation"))
	authority := &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster"},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret: v1alpha1.SecretReference{Namespace: kit.SystemNamespace, Name: "csr-signer"},
			Signers: []string{
				"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
			},
			Trust: v1alpha1.Trust{ConfigMaps: []v1alpha1.TrustEntry{trustBundle}},
			Verification: v1alpha1.Verification{
				APIServers: []string{s.Env.ControlPlane.GetAPIServer().HostPort()}, ServerName: "localhost",
			},
		},
	}
	kit.NoError(s.t, retry(s.t.Context(), func() error { return kit.Admin(s.t).Create(s.t.Context(), authority) }))
	users := kit.Must(os.ReadFile(s.ClientCAFile()))(s.t)
	block, _ := pem.Decode(users)
	s.users = pem.EncodeToMemory(block) // the administrator's CA
}

// rotate replaces the CA again and again until ctx ends. A rotation that takes 20 minutes is an error.
func (s *soak) rotate(ctx context.Context) {
	for {
		err := wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, s.step)
		if ctx.Err() != nil {
			return
		}
		secret, read := s.admin.CoreV1().Secrets(kit.SystemNamespace).Get(s.t.Context(), "csr-signer", metav1.GetOptions{})
		if err := errors.Join(err, read); err != nil {
			s.fail("rotation: %w: %+v", err, s.authority(ctx).Status)
			return
		}
		s.rotations++
		s.keys = append(s.keys, secret.Data[corev1.TLSPrivateKeyKey])
	}
}

// authority returns the SigningAuthority, or an empty one if it can't be read.
func (s *soak) authority(ctx context.Context) *v1alpha1.SigningAuthority {
	obj := &v1alpha1.SigningAuthority{}
	_ = kit.Admin(s.t).Get(ctx, client.ObjectKey{Name: "cluster"}, obj) // the next attempt may succeed
	return obj
}

// step does what an operator does, and reports whether a rotation was completed. It also copies the published CAs to the
// API server's client CA file, as a trust file does.
func (s *soak) step(ctx context.Context) (done bool, err error) {
	s.rolling.Lock()
	defer s.rolling.Unlock()
	s.copyTrust(ctx)
	obj := s.authority(ctx)
	switch {
	case obj.Annotations[v1alpha1.OperationAnnotation] != "": // the manager has not seen the operation yet
	case obj.Status.Phase == v1alpha1.Completed && s.started:
		s.started = false
		return true, nil
	case obj.Status.Phase == v1alpha1.Completed:
		s.started = s.ask(ctx, v1alpha1.OperationStart)
	case obj.Status.Phase == v1alpha1.Preparing && obj.Status.Candidate != nil && obj.Status.Candidate.TrustConfirmedAt == nil:
		s.ask(ctx, v1alpha1.OperationConfirm)
	case obj.Status.Phase == v1alpha1.Prepared && obj.Status.Retiring != nil && obj.Status.Retiring.OutstandingAcceptedAt == nil:
		s.ask(ctx, v1alpha1.OperationAccept)
	case obj.Status.Phase == v1alpha1.Prepared:
		s.ask(ctx, v1alpha1.OperationComplete)
	}
	return false, nil
}

func (s *soak) ask(ctx context.Context, operation v1alpha1.Operation) bool {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.OperationAnnotation, operation)
	obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	return kit.Admin(s.t).Patch(ctx, obj, client.RawPatch("application/merge-patch+json", []byte(patch))) == nil
}

// copyTrust writes the client CA file of the API server anew if the published CAs have changed.
func (s *soak) copyTrust(ctx context.Context) {
	obj := &corev1.ConfigMap{}
	if err := kit.Admin(s.t).Get(ctx, client.ObjectKey{Namespace: trustBundle.Namespace, Name: trustBundle.Name}, obj); err != nil {
		return
	}
	cas, _ := cert.ParseCertsPEM([]byte(obj.Data[trustBundle.Key])) // it is empty at first
	s.mu.Lock()
	for _, ca := range cas {
		if !slices.ContainsFunc(s.roots, ca.Equal) {
			s.roots = append(s.roots, ca)
		}
	}
	s.mu.Unlock()
	bundle := append(bytes.Clone(s.users), obj.Data[trustBundle.Key]...)
	if present, err := os.ReadFile(s.ClientCAFile()); err == nil && bytes.Equal(present, bundle) || obj.Data[trustBundle.Key] == "" {
		return
	}
	if err := s.TrustClients(bundle); err != nil {
		s.fail("%w", err)
	}
}

// TestUpgradeUnderLoad replaces the manager of the release before by this one, and this one by the one before, in each
// phase of a rotation and while requests arrive. RELEASE_BEFORE is the source of that release with its built manager:
// make nightly PARTS=test-upgrade.
func TestUpgradeUnderLoad(t *testing.T) {
	now := kit.Must(cluster.Manager())(t)
	versions := []string{os.Getenv("RELEASE_BEFORE") + "/csr-controller-manager", now}
	s, end := startSoak(t, versions[0])
	rolls := 0
	roll := func(phase v1alpha1.Phase) {
		s.hold(phase)
		defer s.rolling.Unlock()
		rolls++
		s.binary = versions[rolls%2]
		t.Logf("%s: version %d takes over", phase, rolls%2)
		changes, before := s.leaderChanges(), s.leader
		s.leader = s.startReplica(true) // a Deployment stops the present one when the new one is ready
		s.waitReady(s.leader)
		before.killed = true
		kit.NoError(t, before.Stop())
		s.until(patience, "the other version leads", func(context.Context) bool { return s.leaderChanges() > changes })
		time.Sleep(6 * time.Second) // more than settleFor, after which it may wrongly go on
		kit.Equal(t, "the phase after the roll", s.authority(t.Context()).Status.Phase, phase)
	}
	s.hold(v1alpha1.Completed) // at first the authority adopts its CA
	s.rolling.Unlock()
	phases := []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed}
	for range 2 { // each phase in both directions
		for _, phase := range phases {
			roll(phase)
		}
		roll(v1alpha1.Completed) // again, so that the other version meets Preparing next
	}
	s.finish(end)
}

// hold waits until the rotation is in phase and no operation is left to do, and locks s.rolling, so that no operator acts. Without one
// no phase ends: trust in a CA begins and ends when an operator copies the trust bundle.
func (s *soak) hold(phase v1alpha1.Phase) {
	last := v1alpha1.Phase("")
	if !s.poll(10*time.Minute, func(ctx context.Context) bool {
		s.rolling.Lock()
		obj := s.authority(ctx)
		candidate := obj.Status.Candidate
		confirmed := phase == v1alpha1.Preparing && (candidate == nil || candidate.TrustConfirmedAt != nil)
		if last = obj.Status.Phase; last == phase && !confirmed && obj.Annotations[v1alpha1.OperationAnnotation] == "" {
			return true
		}
		s.rolling.Unlock()
		return false
	}) {
		s.t.Fatalf("the rotation does not reach %s: it is %s", phase, last)
	}
}
