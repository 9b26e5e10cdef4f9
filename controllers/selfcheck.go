package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// SelfCheck configures the checks that the manager repeats while it runs, see docs/reference/check.md.
type SelfCheck struct {
	// Interval is the time between two checks. A check that did not pass is repeated within a minute. The manager's own
	// rights are checked every 30 seconds, or at Interval if that is shorter.
	Interval time.Duration
	// Rights are the rights that the manager needs.
	Rights []check.Right
	// BootstrapGroups and NodeGroups are groups of kubelets. At least one of BootstrapGroups must be able to join nodes.
	// All NodeGroups must be able to renew.
	BootstrapGroups, NodeGroups []string
}

const (
	// checkRetry is the pause before a check that did not pass is repeated. It also bounds how late a new CA is noticed.
	checkRetry = time.Minute
	// rightsInterval is the longest time between two checks of the manager's own rights. A right that is lost while
	// nothing uses it must be reported within a minute. After a refused call, the next check is up to half of it later.
	rightsInterval = 30 * time.Second
	// refusalPause is the minimum time between two checks of the manager's own rights that refused calls cause.
	refusalPause = 5 * time.Second
	// checkPatience bounds one check. If an API server does not answer in that time, the result is unknown.
	checkPatience = time.Minute
	// caPatience bounds how long the trust check waits until the CA is read.
	caPatience = 10 * time.Second
)

var (
	checkResult = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_check_result",
		Help: "Result of each self-check: 1 for the current result, 0 for the other results.",
	}, []string{"check", "result"})

	missingRights = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_check_missing_rights",
		Help: "Rights that the API server denies to the manager, by verb and resource: the number of objects, " +
			"namespaces or signers for which it lacks the right.",
	}, []string{"verb", "resource"})

	checkLastRun = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "csr_check_last_run_timestamp_seconds",
		Help: "Time of the last run of each self-check, in seconds since 1970.",
	}, []string{"check"})
)

func init() { metrics.Registry.MustRegister(checkResult, missingRights, checkLastRun) }

// selfCheck is a Runnable of the leader and the standbys, because each replica has rights of its own.
type selfCheck struct {
	interval time.Duration
	tasks    []*checkTask
	elected  <-chan struct{}
	refused  <-chan struct{} // receives when an API server has refused a call, which makes all tasks due
	clock    clock.WithTicker
	log      logr.Logger

	mu sync.Mutex
	// asked reports whether the manager's own rights have been checked. missing names the rights that an API server has
	// denied.
	asked   bool
	missing error
}

// checkTask is one kind of check, with the results of its last run.
type checkTask struct {
	name string
	run  func(ctx context.Context) []check.Result
	// leader restricts the check to the leader. before, if set, returns a key. If the key changes, the check runs again
	// at once.
	leader bool
	before func() string

	due  time.Time
	last map[string]check.Status
	key  string
}

// setupSelfCheck adds the checks that o.SelfCheck configures to mgr. It also adds a readiness check of the manager's
// own rights.
func (o Options) setupSelfCheck(mgr manager.Manager) error {
	if o.SelfCheck == nil {
		return nil
	}
	rights, s := o.newSelfCheck(mgr, min(o.SelfCheck.Interval, rightsInterval)), o.newSelfCheck(mgr, o.SelfCheck.Interval)
	rights.refused = o.Observer.Refused()
	rights.tasks = []*checkTask{{name: check.OwnRights, run: rights.ownRights(mgr.GetClient(), o.SelfCheck.Rights)}}
	if o.Approver != nil {
		s.tasks = append(s.tasks, &checkTask{name: check.KubeletRights, run: func(ctx context.Context) []check.Result {
			return check.Kubelets(ctx, mgr.GetClient(), o.SelfCheck.BootstrapGroups, o.SelfCheck.NodeGroups)
		}})
	}
	if len(clientPairs(o.Signer)) > 0 && !o.Signer.DryRun { // a dry run signs nothing, not even a probe
		trust := check.Trust{Reader: mgr.GetAPIReader(), Cluster: mgr.GetConfig(), Audit: o.Signer.Audit}
		authorities := func() []check.CA { return ClientCAs(o.Signer, s.clock.Now()) }
		s.tasks = append(s.tasks, &checkTask{name: check.CATrusted, leader: true,
			before: func() string { return keyIDs(authorities()) },
			run: func(ctx context.Context) []check.Result {
				s.awaitCA(ctx, authorities)
				return trust.CAs(ctx, authorities(), s.clock.Now())
			}})
	}
	if err := mgr.AddReadyzCheck(check.OwnRights, rights.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	// The checks of the rights are a Runnable of their own, because the others may wait for the CA.
	return errors.Join(mgr.Add(rights), mgr.Add(s))
}

// newSelfCheck returns a selfCheck without tasks.
func (o Options) newSelfCheck(mgr manager.Manager, interval time.Duration) *selfCheck {
	s := &selfCheck{
		interval: interval, elected: mgr.Elected(), clock: o.Clock, log: mgr.GetLogger().WithName("self-check"),
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	return s
}

// awaitCA waits until every CA is read, for caPatience at most.
func (s *selfCheck) awaitCA(ctx context.Context, authorities func() []check.CA) {
	_ = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, caPatience, true, func(context.Context) (bool, error) {
		for _, one := range authorities() {
			if one.Authority == nil {
				return false, nil
			}
		}
		return true, nil
	})
}

// NeedLeaderElection returns false, because a standby checks its own rights.
func (*selfCheck) NeedLeaderElection() bool { return false }

// Start repeats the checks until ctx ends.
func (s *selfCheck) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, s.log)
	ticker := s.clock.NewTicker(s.pause())
	defer ticker.Stop()
	elected, refused := s.elected, s.refused
	var listenAgain <-chan time.Time
	leads := false
	for {
		for _, task := range s.tasks {
			if !task.leader || leads {
				s.runIfDue(ctx, task)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-elected:
			elected, leads = nil, true
		case <-refused: // refused calls must not cause as many reviews
			refused, listenAgain = nil, time.After(refusalPause)
			for _, task := range s.tasks {
				task.due = time.Time{}
			}
		case <-listenAgain:
			refused, listenAgain = s.refused, nil
		case <-ticker.C():
		}
	}
}

// pause returns the time before a check that did not pass is repeated.
func (s *selfCheck) pause() time.Duration { return min(s.interval, checkRetry) }

// runIfDue runs task if it is due or its key has changed.
func (s *selfCheck) runIfDue(ctx context.Context, task *checkTask) {
	key := ""
	if task.before != nil {
		key = task.before()
	}
	now := s.clock.Now()
	if now.Before(task.due) && key == task.key {
		return
	}
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	results := task.run(asking)
	if ctx.Err() != nil {
		return // an interrupted check has no result
	}
	if task.before != nil {
		key = task.before()
	}
	worst := check.Worst(results)
	pause := s.interval
	if worst != check.OK {
		pause = s.pause()
	}
	task.key, task.due = key, now.Add(pause-s.pause()/2) // due at the nearest tick
	s.report(task, results, now)
}

// report updates the metrics of each check in results, which was made at now, and logs the results that changed since the last run. The first
// run logs every result that is not OK.
func (s *selfCheck) report(task *checkTask, results []check.Result, now time.Time) {
	checks := map[string][]check.Result{}
	if len(results) == 0 {
		checks[task.name] = nil
	}
	for _, result := range results {
		checks[result.Check] = append(checks[result.Check], result)
	}
	for _, name := range slices.Sorted(maps.Keys(checks)) {
		worst := check.Worst(checks[name])
		for _, status := range check.Statuses() {
			value := 0.0
			if status == worst {
				value = 1
			}
			checkResult.WithLabelValues(name, string(status)).Set(value)
		}
		checkLastRun.WithLabelValues(name).Set(float64(now.Unix()))
		if task.last == nil {
			s.log.Info("Self-check completed", "check", name, "result", worst, "questions", len(checks[name]))
		}
	}
	s.logChanges(task, results)
}

// logChanges logs the results that changed since the last run.
func (s *selfCheck) logChanges(task *checkTask, results []check.Result) {
	last := make(map[string]check.Status, len(results))
	for _, result := range results {
		last[result.Subject] = result.Status
		before, known := task.last[result.Subject]
		if before == result.Status || !known && result.Status == check.OK {
			continue
		}
		details := []any{
			"check", result.Check, "subject", result.Subject, "result", result.Status,
			"evidence", result.Evidence, "nextStep", result.NextStep,
		}
		switch result.Status {
		case check.Failed:
			s.log.Error(nil, "Self-check failed", details...)
		case check.OK:
			s.log.Info("Self-check passes again", details[:8]...)
		case check.Unknown:
			s.log.Info("Self-check could not complete", details...)
		}
	}
	task.last = last
}

// ownRights returns a check of rights. It records which of them are denied, in the metrics and, if the controllers need
// them, for ready. A result that is unknown changes nothing.
func (s *selfCheck) ownRights(c client.Client, rights []check.Right) func(context.Context) []check.Result {
	denied := make([]bool, len(rights)) // as far as known
	return func(ctx context.Context) []check.Result {
		results := check.RightsByRules(ctx, c, rights)
		var names []string
		missing := map[[2]string]float64{}
		for i, right := range rights {
			label := [2]string{right.Verb, right.GroupResource()}
			missing[label] += 0 // a series for each right
			if status := results[i].Status; status != check.Unknown {
				denied[i] = status == check.Failed
			}
			if !denied[i] {
				continue
			}
			missing[label]++
			if !right.Optional {
				names = append(names, right.String())
			}
		}
		for label, count := range missing {
			missingRights.WithLabelValues(label[:]...).Set(count)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked, s.missing = true, nil
		if len(names) > 0 {
			s.missing = errors.New("missing rights: " + strings.Join(names, ", "))
		}
		return results
	}
}

// ready returns an error while rights are missing or not checked yet.
func (s *selfCheck) ready(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked {
		return errors.New("the manager's rights are not checked yet")
	}
	return s.missing
}

// clientPairs returns the configured signers whose certificates the API server must accept, in order.
func clientPairs(r *signer.Reconciler) []string {
	var names []string
	for _, name := range csr.BuiltinSigners() {
		if csr.VerifiedByAPIServers(name) && r != nil && r.Signers[name].KeyPair != nil {
			names = append(names, name)
		}
	}
	return names
}

// ClientCAs returns the CAs that the API server must trust at now, without duplicates.
func ClientCAs(r *signer.Reconciler, now time.Time) []check.CA {
	var all []check.CA
	var pairs []*keypair.KeyPair
	for _, name := range clientPairs(r) {
		pair := r.Signers[name].KeyPair
		if i := slices.Index(pairs, pair); i >= 0 {
			all[i].Signers = append(all[i].Signers, name)
			continue
		}
		authority, err := pair.Authority(now)
		pairs, all = append(pairs, pair), append(all, check.CA{Signers: []string{name}, Authority: authority, Err: err})
	}
	return all
}

// keyIDs returns a text that identifies a set of CAs.
func keyIDs(all []check.CA) string {
	var ids []string
	for _, one := range all {
		if one.Authority != nil {
			ids = append(ids, string(one.Authority.CertificatePEM()))
		}
	}
	return strings.Join(ids, " ")
}
