package reliability

import (
	"cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/clock"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

func proxied(lasts time.Duration, rules ...faults.Rule) func(*world) {
	return func(w *world) {
		w.proxy.Use(rules...)
		w.pause(lasts)
		applied := w.proxy.Applied()
		w.proxy.Use()
		w.check(!slices.Contains(applied, 0), "the rules applied %v times", applied)
	}
}

// stallWatches lets the watches of Nodes and Services bring nothing, so the manager can't know new nodes.
func stallWatches(w *world) {
	w.proxy.Use(faults.Rule{Verbs: faults.Watch, Resources: []string{"nodes", "services"}, Do: faults.Stall()})
	w.pause(15 * time.Second)
	told := map[string]bool{}
	for _, event := range kit.Must(w.admin.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{}))(w.t).Items {
		told[event.InvolvedObject.Name+" "+event.Reason] = true
	}
	waiting := 0
	for _, i := range w.items {
		if i.kind.name != "serving" || w.history.of(i.object.Name).state() != csr.Pending {
			continue
		}
		waiting++
		w.check(told[i.object.Name+" NodeNotFound"], "request %s waits without an Event NodeNotFound", i.object.Name)
	}
	w.check(waiting > 0, "no request for a serving certificate waits")
	w.proxy.Use()
}

// restartAPIServer kills the API server, because it would wait for its watches to end, and starts it again.
func restartAPIServer(w *world) {
	w.pause(3 * time.Second)
	kit.NoError(w.t, w.KillAPIServer())
	w.pause(time.Second) // two renewals of the Lease, so that at least one fails
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		w.until(patience, "the API server answers again", func(ctx context.Context) bool {
			return w.admin.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Error() == nil
		})
		w.over()
	}()
	kit.NoError(w.t, w.RestartAPIServer(func(*envtest.Arguments) {}))
	<-answered
}

// lostElection reports whether log says that the process ended because it could not renew its Lease, in the words of
// controller-runtime or of kube-controller-manager.
func lostElection(log string) bool {
	return strings.Contains(log, "leader election lost") || strings.Contains(log, "leaderelection lost")
}

// restartEnded starts replicas again that ended because they could not renew their Lease, as a kubelet does.
func (w *world) restartEnded() {
	for _, r := range w.replicas {
		if r.Ended() != nil && !r.killed && lostElection(r.Tail(20)) {
			r.killed = true
			w.startReplica(true)
		}
	}
}

func stopEtcd(w *world) {
	w.pause(3 * time.Second)
	etcd := w.Env.ControlPlane.Etcd
	kit.NoError(w.t, etcd.Stop())
	for range 20 {
		w.pause(time.Second)
		w.restartEnded()
	}
	kit.NoError(w.t, etcd.Start()) // returns when etcd answers
	w.over()
}

// killLeaders kills the leader every six seconds, twenty times. Each has exactly one successor, the standby. Then another standby is
// started: earlier it could win the election, and the oldest replica would not lead.
func killLeaders(w *world) {
	before := w.leaderChanges()
	for kills := 1; kills <= 20; kills++ {
		next := time.Now().Add(6 * time.Second)
		w.oldest().kill()
		w.over()
		w.until(patience, "the killed leader has a successor", func(context.Context) bool { return w.leaderChanges()-before >= kills })
		w.waitReady(w.startReplica(true))
		w.pause(time.Until(next))
	}
	most := 20 // and one more for each leader that could not renew its Lease
	for _, r := range w.replicas {
		if log, err := r.Log(); err != nil || lostElection(log) {
			most++
		}
	}
	changes := w.leaderChanges() - before
	w.check(changes >= 20 && changes <= most, "20 leaders were killed, and the Lease changed its holder %d times", changes)
}

// restart kills the only replica twice, once while it starts. The kernel ends a process in the same way if its memory limit is reached.
func restart(w *world) {
	w.pause(2 * time.Second)
	w.oldest().kill()
	w.startReplica(false).kill()
	w.waitReady(w.startReplica(false))
}

// reachSoftLimit lasts as long as the load. The collector of the program tries to stay within GOMEMLIMIT.
func reachSoftLimit(w *world) {
	w.pause(12 * time.Second)
	r := w.oldest()
	used := r.metric(w.t.Context(), "go_memstats_sys_bytes") - r.metric(w.t.Context(), "go_memstats_heap_released_bytes")
	w.check(used >= 0.9*(24<<20), "the program uses %.0f bytes, so its limit is not reached", used)
}

// pauseLeader pauses the leader for longer than its Lease. When it wakes up, there are two, until it notices; then it
// ends, and is started again, as a kubelet does.
func pauseLeader(w *world) {
	for range 2 {
		w.pause(2 * time.Second)
		leader := w.oldest()
		kit.NoError(w.t, syscall.Kill(leader.Pid(), syscall.SIGSTOP))
		w.pause(7 * time.Second)
		leader.killed = true
		kit.NoError(w.t, syscall.Kill(leader.Pid(), syscall.SIGCONT))
		w.over()
		w.until(30*time.Second, "the paused leader notices that another one leads", func(context.Context) bool { return leader.Ended() != nil })
		w.waitReady(w.startReplica(true))
	}
}

func (w *world) leaderChanges() (changes int) {
	for _, lease := range kit.Must(w.admin.CoordinationV1().Leases("").List(w.t.Context(), metav1.ListOptions{}))(w.t).Items {
		changes += int(*cmp.Or(lease.Spec.LeaseTransitions, new(int32)))
	}
	return changes
}

func besideTheirs(sameCA bool) func(*world) {
	return func(w *world) {
		ca := w.CA
		if !sameCA {
			ca = kit.NewCA(w.t)
			w.roots = append(w.roots, kit.Certificate(w.t, ca))
		}
		kit.NoError(w.t, w.writeTheirCA(ca.CertPEM, ca.KeyPEM))
		theirs := w.startTheirs(false, w.Config)
		w.pause(15 * time.Second)
		theirs.killed = true
		if err := theirs.Stop(); err != nil {
			w.t.Logf("kube-controller-manager: %v", err)
		}
	}
}

func (w *world) shiftAPIServersClock(by time.Duration) {
	kit.NoError(w.t, clock.Shift(kit.Must(w.APIServerPid())(w.t), by))
}

func setOwnClock(by time.Duration) func(*world) {
	return func(w *world) {
		w.pause(2 * time.Second)
		w.shiftClock(w.oldest(), by)
		w.whileSkewed(by)
	}
}

// allAhead sets the clocks of the API server and of the program a day ahead, before the load.
func allAhead(w *world) {
	w.ahead = 24 * time.Hour
	w.shiftAPIServersClock(w.ahead)
}

// setBack sets the API server's clock right during the load, so it goes back by a day, and new requests seem to be a day old. Some time
// after that it sets the program's clock right, too.
func setBack(w *world) {
	w.pause(3 * time.Second)
	w.shiftAPIServersClock(0)
	w.whileSkewed(w.ahead)
}

// whileSkewed waits while the clock of the program is ahead of the API server's by that time, and sets it right. Ours must say that
// it is. Then it may sign nothing, and deletes the old requests, which are due by the API server's time.
func (w *world) whileSkewed(by time.Duration) {
	r := w.oldest()
	defer w.shiftClock(r, 0)
	if w.theirs {
		w.pause(15 * time.Second)
		return
	}
	w.until(patience, "the skew is known", func(ctx context.Context) bool {
		return math.Abs(r.metric(ctx, "csr_clock_skew_seconds")-by.Seconds()) < 60
	})
	status, body := r.page(w.t.Context(), r.probes, "/readyz/clock")
	kit.Equal(w.t, "/readyz/clock: "+body, status, http.StatusInternalServerError)
	w.pause(time.Second) // the last writes
	issued := w.issued()
	w.until(patience, "old requests are deleted, because they are due by the API server's time", func(context.Context) bool {
		return !slices.ContainsFunc(w.items, func(i *item) bool { return i.kind.gone && !w.history.of(i.object.Name).deleted })
	})
	w.pause(5 * time.Second)
	kit.Equal(w.t, fmt.Sprint("certificates after the clock was ahead by ", by), w.issued(), issued)
}

func (w *world) issued() int {
	return len(slices.DeleteFunc(w.history.present(), func(obj *request) bool { return len(obj.Status.Certificate) == 0 }))
}

// secretState is a content of the signing Secret with which nothing can be signed.
type secretState struct {
	name      string
	cert, key []byte // nil if it is deleted
}

func (w *world) secretStates() []secretState {
	other := kit.NewCA(w.t)
	expired := kit.IssueCA(w.t, "expired", kit.NewKey(w.t), nil, -time.Minute)
	leaf := kit.IssueCA(w.t, "of a leaf", kit.NewKey(w.t), nil, time.Hour).Leaf(w.t, "leaf")
	leafKey := kit.Must(keyutil.MarshalPrivateKeyToPEM(leaf.PrivateKey))(w.t)
	w.keys = append(w.keys, other.KeyPEM, leafKey, expired.KeyPEM(w.t))
	return []secretState{
		{"empty", []byte{}, []byte{}},
		{"half", w.CA.CertPEM, []byte{}},
		{"mismatched", w.CA.CertPEM, other.KeyPEM},
		{"a leaf", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), leafKey},
		{"expired", expired.PEM(), expired.KeyPEM(w.t)},
		{"garbage", []byte("garbage"), []byte("garbage")},
		{"1 MB", make([]byte, 500_000), make([]byte, 500_000)},
		{"deleted", nil, nil}, // at last: kube-controller-manager then reads its files once a minute only
	}
}

// breakSecret breaks the signing Secret in each way, first while the program runs, and then while it starts.
func breakSecret(w *world) {
	states := w.secretStates()
	for _, state := range states {
		w.putCA(state.cert, state.key)
		w.keepsItsCA(state)
		w.putCA(w.CA.CertPEM, w.CA.KeyPEM)
		w.showsCA("good again", func(value float64) bool { return value == 0 })
	}
	for _, state := range states {
		w.putCA(state.cert, state.key)
		w.startsWithoutCA(state)
		w.over()
	}
}

// showsCA waits until the metric of ours has the value that shown accepts. kube-controller-manager has no such metric.
func (w *world) showsCA(state string, shown func(value float64) bool) {
	w.t.Helper()
	if w.theirs {
		w.pause(2 * time.Second)
		return
	}
	w.until(10*time.Second, string(caRejected)+" shows that the Secret is "+state, func(ctx context.Context) bool {
		return shown(w.oldest().metric(ctx, string(caRejected)))
	})
}

// join makes one more request of a joining kubelet, which must be issued soon.
func (w *world) join(name, what string) *item {
	w.t.Helper()
	made := w.newItem(&kinds[0], "join-"+name)
	w.items = append(w.items, made)
	kit.NoError(w.t, w.create(w.t.Context(), made))
	w.until(10*time.Second, what, func(context.Context) bool { return w.isFinished(made) })
	return made
}

// keepsItsCA checks that a running program shows the broken Secret, and signs with the last good CA.
func (w *world) keepsItsCA(state secretState) {
	w.showsCA(state.name, func(value float64) bool { return value > 0 })
	w.join("while-"+strings.ReplaceAll(strings.ToLower(state.name), " ", "-"),
		"a manager that runs keeps the last good CA while the Secret is "+state.name)
	w.check(w.theirs || w.oldest().ready(w.t.Context()), "the Secret is %s: a manager that runs and has the last good CA is not ready", state.name)
}

// startsWithoutCA starts the program anew with the broken Secret, and then restores it. Ours must not be ready, and must sign nothing.
func (w *world) startsWithoutCA(state secretState) {
	w.oldest().kill()
	w.pause(time.Second) // its last writes
	before, r := w.issued(), w.startReplica(false)
	if w.theirs {
		w.pause(3 * time.Second)
		w.putCA(w.CA.CertPEM, w.CA.KeyPEM)
		if r.Ended() != nil {
			r.killed = true
			w.startReplica(false)
		}
		return
	}
	w.until(10*time.Second, "a manager that starts is not ready while the Secret is "+state.name, func(ctx context.Context) bool {
		status, text := r.page(ctx, r.probes, "/readyz")
		return status == http.StatusInternalServerError && strings.Contains(text, "[-]signing-ca failed")
	})
	w.pause(2 * time.Second)
	kit.Equal(w.t, "certificates after the Secret was "+state.name, w.issued(), before)
	w.putCA(w.CA.CertPEM, w.CA.KeyPEM)
	w.waitReady(r)
}

// putCA gives the program another CA, whatever it had before: ours in the Secret, and kube-controller-manager in its files. Nil deletes them.
func (w *world) putCA(cert, key []byte) {
	ctx, obj := w.t.Context(), kit.SigningSecret(cert, key)
	switch admin := kit.Admin(w.t); {
	case w.theirs && cert == nil:
		kit.NoError(w.t, errors.Join(os.Remove(filepath.Join(w.Dir, theirCert)), os.Remove(filepath.Join(w.Dir, theirKey))))
	case w.theirs:
		kit.NoError(w.t, w.writeTheirCA(cert, key))
	case cert == nil:
		kit.NoError(w.t, admin.Delete(ctx, obj))
	default:
		kit.NoError(w.t, retry(ctx, func() error {
			if admin.Update(ctx, obj) == nil {
				return nil
			}
			return admin.Create(ctx, obj)
		}))
	}
}

// loseRoles takes the rules of each role away that writes, until the metrics and readiness show it, and until a write has failed.
// TestEachLostRightIsNamed in test/rotation takes each verb of each role alone.
func loseRoles(w *world) {
	r, roles := w.oldest(), []string{"csr-cleaner", "csr-approver", "csr-signer"}
	counters := map[string]indicator{roles[0]: notDeleted, roles[1]: notApproved, roles[2]: notStored}
	if w.theirs {
		roles = []string{theirRole}
	}
	for _, name := range roles {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}
		kit.NoError(w.t, kit.Admin(w.t).Get(w.t.Context(), client.ObjectKeyFromObject(role), role))
		rules := role.Rules
		role.Rules = nil
		kit.Update(w.t, role)
		w.proxy.Use() // ends the watches that it permitted
		if w.theirs {
			w.pause(10 * time.Second)
		} else {
			w.until(time.Minute, "the loss of "+name+" shows", func(ctx context.Context) bool {
				status, _ := r.page(ctx, r.probes, "/readyz/own-rights")
				return status == http.StatusInternalServerError && r.metric(ctx, string(noRight)) > 0 && r.metric(ctx, string(counters[name])) > 0
			})
		}
		role.Rules = rules
		kit.Update(w.t, role)
		w.over()
	}
	if !w.theirs {
		w.until(time.Minute, "no right is missing", func(ctx context.Context) bool { return r.metric(ctx, string(noRight)) == 0 })
		return
	}
	wasForbidden := func(call faults.Call) bool { return call.Status == http.StatusForbidden }
	kit.Check(w.t, slices.ContainsFunc(w.proxy.Calls(), wasForbidden), "kube-controller-manager has lost no right")
}

// fullDisk makes the audit log a file in a full file system, which needs root.
func fullDisk(w *world) {
	folder := filepath.Dir(w.audit)
	kit.NoError(w.t, syscall.Mount("tmpfs", folder, "tmpfs", 0, "size=1m"))
	kit.AtEnd(w.t, func() error { return syscall.Unmount(folder, syscall.MNT_DETACH) })
	if err := os.WriteFile(w.filler(), make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		w.t.Fatalf("fill the disk: %v", err)
	}
}

func (w *world) filler() string { return filepath.Join(filepath.Dir(w.audit), "filler") }

// freeDisk lets the disk of the audit log work again. From then on every record must be written.
func freeDisk(w *world) {
	w.pause(12 * time.Second)
	kit.NoError(w.t, os.Remove(w.filler()))
	w.over()
	made := 0
	join := func() *item {
		made++
		return w.join(fmt.Sprint("late-", made), "a request is issued after the fault")
	}
	w.until(10*time.Second, "no record is lost any more", func(ctx context.Context) bool {
		lost := w.oldest().metric(ctx, string(notAudited))
		join()
		return lost > 0 && w.oldest().metric(ctx, string(notAudited)) == lost
	})
	for range 10 {
		w.late = append(w.late, join())
	}
}
