package reliability

import (
	"context"
	"encoding/json"
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

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/faults"
)

// proxied returns a fault of the API server's answers.
func proxied(lasts time.Duration, rules ...faults.Rule) func(*world) {
	return func(w *world) {
		w.proxy.Use(rules...)
		w.pause(lasts)
		applied := w.proxy.Applied()
		w.proxy.Use()
		for i, times := range applied {
			if times == 0 {
				w.wrong("rule %d never applied", i)
			}
		}
	}
}

// stallWatches lets the watches of Nodes and Services bring nothing, so the manager can't know new nodes.
func stallWatches(w *world) {
	defer func() {
		waiting := 0
		for n := range 60 {
			if w.history.of(fmt.Sprintf("serving-%03d", n)).state == string(csr.Pending) {
				waiting++
			}
		}
		if waiting == 0 {
			w.wrong("no request for a serving certificate waits")
		}
		w.proxy.Use()
	}()
	w.proxy.Use(faults.Rule{Verbs: faults.Watch, Resources: []string{"nodes", "services"}, Do: faults.Stall(0)})
	w.pause(15 * time.Second)
}

// restartAPIServer kills the API server, because it would wait for its watches to end, and starts it again.
func restartAPIServer(w *world) {
	w.pause(3 * time.Second)
	w.outages++
	if err := w.KillAPIServer(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.RestartAPIServer(func(*envtest.Arguments) {}); err != nil {
		w.t.Fatal(err)
	}
}

// restartEnded starts replicas again that ended because they could not renew their Lease, as a kubelet does.
func (w *world) restartEnded() {
	for _, r := range w.replicas {
		if r.Ended() == nil || r.killed {
			continue
		}
		if log := r.Tail(20); strings.Contains(log, "leader election lost") || strings.Contains(log, "leaderelection lost") {
			r.killed = true // its end is no fault
			w.startReplica(true)
		}
	}
}

func stopEtcd(w *world) {
	w.pause(3 * time.Second)
	w.outages++
	etcd := w.Env.ControlPlane.Etcd
	if err := etcd.Stop(); err != nil {
		w.t.Fatal(err)
	}
	for range 20 {
		w.pause(time.Second)
		w.restartEnded()
	}
	if err := etcd.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// oldest returns the replica that has run longest. It leads, unless it is paused.
func (w *world) oldest() *replica {
	for _, r := range w.replicas {
		if r.Ended() == nil {
			return r
		}
	}
	w.t.Fatal("no replica runs")
	return nil
}

func killLeaders(w *world) {
	before := w.leaderChanges()
	defer func() {
		if changes := w.leaderChanges() - before; changes < 10 {
			w.wrong("the Lease changed its holder %d times", changes)
		}
	}()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		w.pause(6 * time.Second)
		w.oldest().kill()
		w.startReplica(true)
	}
}

// pauseLeader pauses the leader for longer than its Lease. When it wakes up, there are two, until it notices; then it
// ends, and is started again, as a kubelet does.
func pauseLeader(w *world) {
	for range 2 {
		w.pause(2 * time.Second)
		leader := w.oldest()
		if err := leader.signal(syscall.SIGSTOP); err != nil {
			w.t.Fatal(err)
		}
		w.pause(7 * time.Second)
		leader.killed = true // its end is no fault
		if err := leader.signal(syscall.SIGCONT); err != nil {
			w.t.Fatal(err)
		}
		select {
		case <-leader.Done:
		case <-time.After(30 * time.Second):
			w.wrong("the paused leader did not notice that another one leads")
		}
		w.waitReady(w.startReplica(true))
	}
}

// leaderChanges returns how often the Lease has changed its holder.
func (w *world) leaderChanges() int {
	w.t.Helper()
	leases, err := w.admin.CoordinationV1().Leases("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	changes := 0
	for _, lease := range leases.Items {
		if lease.Spec.LeaseTransitions != nil {
			changes += int(*lease.Spec.LeaseTransitions)
		}
	}
	return changes
}

func besideTheirs(sameCA bool) func(*world) {
	return func(w *world) {
		ca := w.roots[0]
		if !sameCA {
			var err error
			if ca, err = csrenv.NewCA(); err != nil {
				w.t.Fatal(err)
			}
			w.roots = append(w.roots, ca)
		}
		theirs := w.startTheirs(false, w.Config, ca)
		w.pause(15 * time.Second)
		theirs.killed = true
		if err := theirs.Stop(); err != nil {
			w.t.Logf("kube-controller-manager: %v", err)
		}
	}
}

// startSkewed shifts the API server's time, and starts the program anew, because a running one measures that time once a
// minute.
func startSkewed(by time.Duration) func(*world) {
	return func(w *world) {
		w.proxy.Use(faults.Rule{Do: faults.ShiftDate(by)})
		w.oldest().kill()
		w.pause(time.Second)
		w.whileSkewed(w.startReplica(false), by)
	}
}

// stepBack shifts the API server's time by a day while the program runs.
func stepBack(w *world) {
	w.proxy.Use(faults.Rule{Do: faults.ShiftDate(-24 * time.Hour)})
	w.whileSkewed(w.oldest(), -24*time.Hour)
}

// whileSkewed waits until r knows that the API server's time is shifted by more than five minutes, and ends that. Until
// then r signs nothing. By a time that is a day behind, nothing is due for deletion.
func (w *world) whileSkewed(r *replica, by time.Duration) {
	w.until(patience, "the skew is known", func(ctx context.Context) bool {
		return math.Abs(r.metric(ctx, "csr_clock_skew_seconds")+by.Seconds()) < 60
	})
	w.pause(time.Second) // the last writes
	if status, body := r.page(w.t.Context(), r.probes, "/readyz/clock"); status != http.StatusInternalServerError {
		w.wrong("/readyz/clock answers %d: %s", status, body)
	}
	issued, deleted := w.count()
	w.pause(5 * time.Second)
	issuedAfter, deletedAfter := w.count()
	if issuedAfter != issued || by == -24*time.Hour && deletedAfter != deleted {
		w.wrong("%d certificates were signed and %d requests deleted while the API server's time was shifted by %s",
			issuedAfter-issued, deletedAfter-deleted, by)
	}
	w.proxy.Use()
}

// issued returns how many requests have a certificate.
func (w *world) issued() int {
	issued, _ := w.count()
	return issued
}

// count returns how many requests have a certificate, and how many were deleted.
func (w *world) count() (issued, deleted int) {
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	for _, past := range w.history.requests {
		switch {
		case past.deleted:
			deleted++
		case len(past.last.Status.Certificate) > 0:
			issued++
		}
	}
	return issued, deleted
}

func breakSecret(w *world) {
	good, other := w.roots[0], newCA(w.t)
	leafCert, leafKey := selfSigned(w.t, false, time.Hour)
	expiredCert, expiredKey := selfSigned(w.t, true, -time.Minute)
	secrets := w.admin.CoreV1().Secrets(systemNamespace)
	for _, state := range []struct {
		name      string
		cert, key []byte
	}{
		{name: "deleted"},
		{"empty", nil, nil},
		{"half", good.CertPEM, nil},
		{"mismatched", good.CertPEM, other.KeyPEM},
		{"a leaf", leafCert, leafKey},
		{"expired", expiredCert, expiredKey},
		{"garbage", []byte("garbage"), []byte("garbage")},
		{"1 MB", make([]byte, 500_000), make([]byte, 500_000)},
	} {
		before := w.issued()
		if state.name == "deleted" {
			if err := secrets.Delete(w.t.Context(), signingSecret, metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
		} else {
			w.putSecret(state.cert, state.key)
		}
		w.pause(2 * time.Second)
		if w.issued() == before {
			w.wrong("the Secret is %s: a manager that runs does not keep the last good CA", state.name)
		}
	}
	// A running manager keeps the last good CA. One that starts has none.
	w.oldest().kill()
	w.pause(time.Second) // its last writes
	before, r := w.issued(), w.startReplica(false)
	w.pause(5 * time.Second)
	if status, body := r.page(w.t.Context(), r.probes, "/readyz/signing-ca"); status != http.StatusInternalServerError {
		w.wrong("/readyz/signing-ca answers %d: %s", status, body)
	}
	if after := w.issued(); after != before {
		w.wrong("%d certificates were signed without a CA", after-before)
	}
	w.putSecret(good.CertPEM, good.KeyPEM)
}

// right is a verb for a resource.
type right struct{ group, resource, verb string }

// removeVerbs removes each right from all roles of ours for a second, and ends the watches that it permitted. The first
// one is away until readiness and metrics name it.
func removeVerbs(w *world) {
	kinds, r := w.roles(), w.oldest()
	first := right{certificatesv1.GroupName, "certificatesigningrequests/approval", "update"}
	rights := []right{first}
	for _, role := range kinds {
		for _, rule := range role.rules {
			for _, one := range rightsOf(rule) {
				if !slices.Contains(rights, one) {
					rights = append(rights, one)
				}
			}
		}
	}
	for _, one := range rights {
		for _, role := range kinds {
			role.put(without(role.rules, one))
		}
		w.proxy.Use()
		if one == first {
			w.until(time.Minute, "the loss of a right shows", func(ctx context.Context) bool {
				status, _ := r.page(ctx, r.probes, "/readyz/own-rights")
				return status == http.StatusInternalServerError && r.metric(ctx, "csr_check_missing_rights") > 0
			})
		}
		w.pause(time.Second)
		for _, role := range kinds {
			role.put(role.rules)
		}
	}
	w.until(time.Minute, "no right is missing", func(ctx context.Context) bool {
		return r.metric(ctx, "csr_check_missing_rights") == 0
	})
}

// until waits until done returns true, and fails the test of ours if it does not.
func (w *world) until(most time.Duration, what string, done func(context.Context) bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(w.t.Context(), 100*time.Millisecond, most, true, func(ctx context.Context) (bool, error) {
		return done(ctx), nil
	})
	if err != nil {
		w.wrong("not within %s: %s", most, what)
	}
}

// role is a Role or a ClusterRole of ours with all its rules.
type role struct {
	rules []rbacv1.PolicyRule
	put   func([]rbacv1.PolicyRule)
}

// roles returns the roles of ours.
func (w *world) roles() (all []role) {
	w.t.Helper()
	add := func(kind, namespace, name string, rules []rbacv1.PolicyRule) {
		if !strings.HasPrefix(name, "csr-") {
			return
		}
		all = append(all, role{rules, func(rules []rbacv1.PolicyRule) {
			patch, err := json.Marshal(map[string]any{"rules": rules})
			if err == nil {
				client := w.admin.RbacV1().RESTClient()
				err = retry(w.t.Context(), func() error {
					return client.Patch(types.MergePatchType).NamespaceIfScoped(namespace, namespace != "").
						Resource(kind).Name(name).Body(patch).Do(w.t.Context()).Error()
				})
			}
			if err != nil {
				w.t.Fatal(err)
			}
		}})
	}
	clusterRoles, err := w.admin.RbacV1().ClusterRoles().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range clusterRoles.Items {
		add("clusterroles", "", one.Name, one.Rules)
	}
	roles, err := w.admin.RbacV1().Roles("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range roles.Items {
		add("roles", one.Namespace, one.Name, one.Rules)
	}
	return all
}

// rightsOf returns the rights that rule grants.
func rightsOf(rule rbacv1.PolicyRule) (all []right) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all = append(all, right{group, resource, verb})
			}
		}
	}
	return all
}

// without returns rules without one right. A rule with several groups or resources becomes several rules.
func without(rules []rbacv1.PolicyRule, removed right) []rbacv1.PolicyRule {
	left := []rbacv1.PolicyRule{}
	for _, rule := range rules {
		for _, one := range rightsOf(rule) {
			if one != removed {
				left = append(left, rbacv1.PolicyRule{
					APIGroups: []string{one.group}, Resources: []string{one.resource}, Verbs: []string{one.verb}, ResourceNames: rule.ResourceNames,
				})
			}
		}
	}
	return left
}

// hangingDisk makes the audit log a pipe that nobody reads.
func hangingDisk(w *world) {
	path := fmt.Sprint(w.audit, 0)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		w.t.Fatal(err)
	}
	pipe, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = syscall.Close(pipe) })
	for err == nil { // a write hangs when the pipe is full
		_, err = syscall.Write(pipe, make([]byte, 4096))
	}
	if !errors.Is(err, syscall.EAGAIN) {
		w.t.Fatal(err)
	}
}

// kubeconfigOf writes a kubeconfig for a webhook of the API server, and returns its path.
func (w *world) kubeconfigOf(url string) string {
	w.t.Helper()
	path := filepath.Join(w.Dir, "webhook.kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: w, cluster: {server: %q}}]\n"+
		"contexts: [{name: w, context: {cluster: w}}]\ncurrent-context: w\n", url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}
