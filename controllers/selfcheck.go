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
	corev1 "k8s.io/api/core/v1"
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
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// SelfCheck configures the checks that the manager repeats while it runs, see docs/reference/check.md.
type SelfCheck struct {
	// Interval is the time between two checks. A check that did not pass is repeated within a minute.
	Interval time.Duration
	// Rights are the rights that the manager needs. Namespace is the manager's own: Events about missing rights name it.
	Rights    []check.Right
	Namespace string
	// BootstrapGroups and NodeGroups are groups of kubelets. At least one of BootstrapGroups must be able to join nodes.
	// All NodeGroups must be able to renew.
	BootstrapGroups, NodeGroups []string
}

const (
	// checkRetry is the pause before a check that did not pass is repeated. It also bounds how late a new CA is noticed.
	checkRetry = time.Minute
	// checkPatience bounds one check. If an API server does not answer in that time, the result is unknown.
	checkPatience = time.Minute
	// caPatience bounds how long the trust check waits until the CA is read.
	caPatience = 10 * time.Second
	// reasonRights is the reason of Events about missing rights.
	reasonRights = "RightsMissing"
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
	// leader restricts the check to the leader. key, if set, identifies what is checked. If it changes, the check is
	// repeated within a minute.
	leader bool
	key    func() string

	last map[string]check.Status
}

// setupSelfCheck adds the checks that o.SelfCheck configures to mgr. It also adds a readiness check of the manager's
// own rights.
func (o Options) setupSelfCheck(mgr manager.Manager) error {
	if o.SelfCheck == nil {
		return nil
	}
	s := &selfCheck{
		interval: o.SelfCheck.Interval, elected: mgr.Elected(), clock: o.Clock, log: mgr.GetLogger().WithName("self-check"),
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	missing := report.New(mgr.GetEventRecorder("csr-self-check"), s.clock)
	s.tasks = []*checkTask{{name: check.OwnRights, run: s.ownRights(mgr.GetClient(), o.SelfCheck, missing)}}
	if o.Approver != nil {
		s.tasks = append(s.tasks, &checkTask{name: check.KubeletRights, run: func(ctx context.Context) []check.Result {
			return check.Kubelets(ctx, mgr.GetClient(), o.SelfCheck.BootstrapGroups, o.SelfCheck.NodeGroups)
		}})
	}
	if len(clientPairs(o.Signer)) > 0 && !o.Signer.DryRun { // a dry run signs nothing, not even a probe
		trust := check.Trust{Reader: mgr.GetAPIReader(), Cluster: mgr.GetConfig(), Audit: o.Signer.Audit}
		authorities := func() []check.CA { return ClientCAs(o.Signer, s.clock.Now()) }
		s.tasks = append(s.tasks, &checkTask{name: check.CATrusted, leader: true,
			key: func() string { return keyIDs(authorities()) },
			run: func(ctx context.Context) []check.Result {
				awaitCA(ctx, authorities)
				return trust.CAs(ctx, authorities(), s.clock.Now())
			}})
	}
	if err := mgr.AddReadyzCheck(check.OwnRights, s.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(s)
}

// awaitCA waits until every CA is read, for caPatience at most.
func awaitCA(ctx context.Context, authorities func() []check.CA) {
	_ = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, caPatience, true, func(context.Context) (bool, error) {
		unread := func(one check.CA) bool { return one.Authority == nil }
		return !slices.ContainsFunc(authorities(), unread), nil
	})
}

// NeedLeaderElection returns false, because a standby checks its own rights.
func (*selfCheck) NeedLeaderElection() bool { return false }

// Start repeats the checks until ctx ends.
func (s *selfCheck) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, task := range s.tasks {
		running.Go(func() { s.repeat(log.IntoContext(ctx, s.log), task) })
	}
	running.Wait()
	return nil
}

// repeat runs task at once, at every interval, and within a minute if it did not pass or its key has changed.
func (s *selfCheck) repeat(ctx context.Context, task *checkTask) {
	if task.leader {
		select {
		case <-ctx.Done():
			return
		case <-s.elected:
		}
	}
	tick := min(s.interval, checkRetry)
	ticker := s.clock.NewTicker(tick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		due := s.clock.Now().Add(s.interval - tick/2) // the nearest tick counts
		worst := s.run(ctx, task)
		key := task.currentKey()
		for waiting := true; waiting; waiting = worst == check.OK && key == task.currentKey() && s.clock.Now().Before(due) {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
			}
		}
	}
}

func (t *checkTask) currentKey() string {
	if t.key == nil {
		return ""
	}
	return t.key()
}

// run runs task once, reports its results, and returns the worst status.
func (s *selfCheck) run(ctx context.Context, task *checkTask) check.Status {
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	results := task.run(asking)
	if ctx.Err() != nil {
		return check.Unknown // an interrupted check has no result
	}
	s.report(task, results)
	return check.Worst(results)
}

// report updates the metrics of each check in results, and logs the results that changed since the last run. The first
// run logs every result that is not OK.
func (s *selfCheck) report(task *checkTask, results []check.Result) {
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
			checkResult.WithLabelValues(name, string(status)).Set(0)
		}
		checkResult.WithLabelValues(name, string(worst)).Set(1)
		checkLastRun.WithLabelValues(name).Set(float64(s.clock.Now().Unix()))
		if task.last == nil {
			s.log.Info("Self-check completed", "check", name, "result", worst, "questions", len(checks[name]))
		}
	}
	last := make(map[string]check.Status, len(results))
	for _, result := range results {
		last[result.Subject] = result.Status
		before, known := task.last[result.Subject]
		if before == result.Status || !known && result.Status == check.OK {
			continue
		}
		s.logChange(result)
	}
	task.last = last
}

// logChange logs a result that was another one, or none, at the last run.
func (s *selfCheck) logChange(result check.Result) {
	details := []any{"check", result.Check, "subject", result.Subject, "result", result.Status, "evidence", result.Evidence}
	switch result.Status {
	case check.Failed:
		s.log.Error(nil, "Self-check failed", append(details, "nextStep", result.NextStep)...)
	case check.OK:
		s.log.Info("Self-check passes again", details...)
	case check.Unknown:
		s.log.Info("Self-check could not complete", append(details, "nextStep", result.NextStep)...)
	}
}

// ownRights returns a check of the rights that c configures. It records which of them are denied: in the metrics, and for
// those that the controllers need, in an Event and for ready. A result that is unknown changes nothing.
func (s *selfCheck) ownRights(
	reviewer client.Client, c *SelfCheck, events *report.Reporter,
) func(context.Context) []check.Result {
	denied := make([]bool, len(c.Rights)) // as far as known
	return func(ctx context.Context) []check.Result {
		results := check.Rights(ctx, reviewer, c.Rights)
		var names []string
		missing := map[[2]string]float64{}
		for i, right := range c.Rights {
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
			manager := &corev1.Namespace{}
			manager.Name = c.Namespace
			events.Request(manager, "", "CheckRights", reasonRights, fmt.Sprintf(
				"%v: apply the roles and bindings of the manager's manifests; its log says which manifest has which right", s.missing))
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
