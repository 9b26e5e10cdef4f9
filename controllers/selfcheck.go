package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
)

// SelfCheck configures the checks that the manager repeats while it runs, see docs/reference/check.md.
type SelfCheck struct {
	// Interval is the time between two checks. A check that did not pass is repeated within a minute.
	Interval time.Duration
	// Rights are the rights that the manager needs. Namespace is the manager's own: Events about missing rights name it.
	Rights    []Right
	Namespace string
	// BootstrapGroups and NodeGroups are groups of kubelets. At least one of BootstrapGroups, if any, must be able to join nodes.
	// All NodeGroups must be able to renew.
	BootstrapGroups, NodeGroups []string
}

const (
	// checkRetry is the pause before a check that did not pass is repeated.
	checkRetry = time.Minute
	// checkPatience bounds one check. If an API server does not answer in that time, the result is unknown.
	checkPatience = time.Minute
	// reasonRights is the reason of Events about missing rights.
	reasonRights = "RightsMissing"
)

// errNotChecked is why a replica is not ready before its first check.
var errNotChecked = errors.New("the manager's rights are not checked yet")

var (
	checkResult = metric.Gauge("csr_check_result",
		"Result of each self-check: 1 for the current result, 0 for the others.", "check", "result")

	missingRights = metric.Gauge("csr_check_missing_rights",
		"Objects, namespaces or signers for which the manager lacks a right.", "verb", "resource", "cluster")

	checkLastRun = metric.Gauge("csr_check_last_run_timestamp_seconds", "Last run of each self-check.", "check")
)

// selfCheck is a Runnable of the leader and the standbys, because each replica has rights of its own.
type selfCheck struct {
	interval time.Duration
	tasks    []*checkTask
	clock    clock.Clock
	log      logr.Logger

	mu       sync.Mutex
	notReady error // names the rights that an API server has denied

	mayNotApprove sync.Map // signer to bool, as far as known
}

// checkTask is one kind of check, with the results of its last run by subject.
type checkTask struct {
	ask  func(ctx context.Context) []check.Result
	last map[string]check.Status
}

// setupSelfCheck adds the checks that o.SelfCheck configures to mgr. It also adds a readiness check of the manager's
// own rights.
func (o Options) setupSelfCheck(mgr manager.Manager) error {
	if o.SelfCheck == nil {
		return nil
	}
	s := &selfCheck{
		interval: o.SelfCheck.Interval, clock: cmp.Or[clock.Clock](o.Clock, clock.RealClock{}),
		log: mgr.GetLogger().WithName("self-check"), notReady: errNotChecked,
	}
	home := cmp.Or[cluster.Cluster](o.Home, mgr)
	reviews, err := reviewsv1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	atHome, homeErr := reviewsv1.NewForConfigAndClient(home.GetConfig(), home.GetHTTPClient())
	if err := errors.Join(err, homeErr); err != nil {
		return fmt.Errorf("set up self-check: %w", err)
	}
	missing := report.New(home.GetEventRecorder("csr-self-check"), s.clock)
	asking := clusterReviews{
		"": reviews.SelfSubjectAccessReviews(), ServedCluster: reviews.SelfSubjectAccessReviews(), HomeCluster: atHome.SelfSubjectAccessReviews(),
	}
	s.tasks = []*checkTask{{ask: s.ownRights(asking, o.SelfCheck, missing)}}
	if o.Approver != nil {
		for name, each := range o.Approver.Judges {
			if rules, are := each.(*approver.ApprovalRules); are {
				rules.Off = func() bool { denied, _ := s.mayNotApprove.Load(name); return denied == true }
			}
		}
		s.tasks = append(s.tasks, &checkTask{ask: func(ctx context.Context) []check.Result {
			return check.Kubelets(ctx, reviews.SubjectAccessReviews(), o.SelfCheck.BootstrapGroups, o.SelfCheck.NodeGroups)
		}})
	}
	if err := mgr.AddReadyzCheck(check.OwnRights, s.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return mgr.Add(s)
}

// NeedLeaderElection returns false, because a standby checks its own rights.
func (*selfCheck) NeedLeaderElection() bool { return false }

// Start repeats the checks until ctx ends: at every interval, and within a minute if one did not pass.
func (s *selfCheck) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, task := range s.tasks {
		running.Go(func() {
			for ctx.Err() == nil {
				pause := s.interval
				if s.run(ctx, task) != check.OK {
					pause = min(pause, checkRetry)
				}
				select {
				case <-ctx.Done():
				case <-s.clock.After(pause):
				}
			}
		})
	}
	running.Wait()
	return nil
}

// run runs task once, reports its results, and returns the worst status.
func (s *selfCheck) run(ctx context.Context, task *checkTask) check.Status {
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	results := task.ask(asking)
	if ctx.Err() != nil {
		return check.Unknown // an interrupted check has no result
	}
	s.report(task, results)
	return check.Worst(results)
}

// report updates the metrics of each check in results, and logs the results that changed since the last run. The first
// run logs every result that is not OK.
func (s *selfCheck) report(task *checkTask, results []check.Result) {
	checks, last := map[string][]check.Result{}, map[string]check.Status{}
	for _, result := range results {
		checks[result.Check] = append(checks[result.Check], result)
		last[result.Subject] = result.Status
	}
	for name, answers := range checks {
		worst := check.Worst(answers)
		for _, status := range check.Statuses() {
			checkResult.WithLabelValues(name, string(status)).Set(0)
		}
		checkResult.WithLabelValues(name, string(worst)).Set(1)
		checkLastRun.WithLabelValues(name).Set(float64(s.clock.Now().Unix()))
		if task.last == nil {
			s.log.Info("Self-check completed", "check", name, "result", worst, "questions", len(answers))
		}
	}
	for _, result := range results {
		log := s.log.WithValues("check", result.Check, "subject", result.Subject, "result", result.Status,
			"evidence", result.Evidence, "nextStep", result.NextStep)
		switch {
		case result.Status == cmp.Or(task.last[result.Subject], check.OK):
		case result.Status == check.Failed:
			log.Error(nil, "Self-check failed")
		case result.Status == check.OK:
			log.Info("Self-check passes again")
		default:
			log.Info("Self-check could not complete")
		}
	}
	task.last = last
}

// clusterReviews has the reviews of each cluster, by Right.Cluster.
type clusterReviews map[string]reviewsv1.SelfSubjectAccessReviewInterface

// ownRights returns a check of the rights that c configures. It records which of them are denied: in the metrics, and for
// those that the controllers need, in an Event and for ready. A result that is unknown changes nothing.
func (s *selfCheck) ownRights(reviews clusterReviews, c *SelfCheck, events *report.Reporter) func(context.Context) []check.Result {
	denied, rights := make([]bool, len(c.Rights)), make([]check.Right, len(c.Rights)) // denied as far as known
	for i, right := range c.Rights {
		rights[i] = check.Right(right)
	}
	return func(ctx context.Context) []check.Result {
		var results []check.Result
		var names []string
		missing := map[[3]string]float64{}
		for i, right := range rights {
			results = append(results, check.Rights(ctx, reviews[right.Cluster], rights[i:i+1])...)
			label := [3]string{right.Verb, right.GroupResource(), right.Cluster}
			missing[label] += 0 // a series for each right
			if status := results[i].Status; status != check.Unknown {
				denied[i] = status == check.Failed
			}
			if right.Resource == "signers" && right.Verb == "approve" {
				s.mayNotApprove.Store(right.Name, denied[i])
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
		s.notReady = nil
		if len(names) > 0 {
			s.notReady = errors.New("missing rights: " + strings.Join(names, ", "))
			manager := &corev1.Namespace{}
			manager.Name = c.Namespace
			events.Request(manager, "CheckRights", reasonRights, fmt.Sprintf(
				"%v: apply the roles and bindings of the manager's manifests; its log says which manifest has which right", s.notReady))
		}
		return results
	}
}

// ready returns an error while rights are missing or not checked yet.
func (s *selfCheck) ready(*http.Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notReady
}
