package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// scripted is a check whose result the test sets.
type scripted struct {
	status atomic.Value
	runs   atomic.Int32
}

func (s *scripted) task(name string) *checkTask {
	s.status.Store(check.OK)
	return &checkTask{ask: func(context.Context) []check.Result {
		s.runs.Add(1)
		return []check.Result{{Check: name, Subject: "it", Status: s.status.Load().(check.Status), Evidence: "seen"}}
	}}
}

// runSelfCheck runs a selfCheck until the test ends, and returns the lines of its log. It must be called in a synctest
// bubble.
func runSelfCheck(t *testing.T, interval time.Duration, tasks ...*checkTask) <-chan string {
	t.Helper()
	lines := make(chan string, 100)
	s := &selfCheck{interval: interval, clock: clock.RealClock{}, tasks: tasks,
		log: funcr.New(func(_, args string) { lines <- args }, funcr.Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return lines
}

// after lets the time pass, and fails the test unless the check has run want times by then.
func (s *scripted) after(t *testing.T, pass time.Duration, want int32) {
	t.Helper()
	time.Sleep(pass)
	synctest.Wait()
	if runs := s.runs.Load(); runs != want {
		t.Errorf("it has run %d times, want %d", runs, want)
	}
}

// TestSelfCheckTimes checks when a check runs again. After success that is an hour later. After a failure or an
// unknown result it is a minute later, or earlier if the interval is shorter.
func TestSelfCheckTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := &scripted{}
		runSelfCheck(t, time.Hour, one.task("test-times"))
		one.after(t, 0, 1)
		one.after(t, 59*time.Minute, 1)
		one.status.Store(check.Unknown)
		one.after(t, time.Minute, 2)
		one.status.Store(check.Failed)
		one.after(t, time.Minute, 3)
		one.status.Store(check.OK)
		one.after(t, time.Minute, 4)
		one.after(t, 59*time.Minute, 4)
		one.after(t, time.Minute, 5)

		ill := &scripted{}
		task := ill.task("test-ill")
		ill.status.Store(check.Failed)
		runSelfCheck(t, 30*time.Second, task)
		ill.after(t, 30*time.Second, 2)
	})
}

// TestSelfCheckTells checks that each change is logged once, and is in the metrics.
func TestSelfCheckTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := &scripted{}
		task := one.task("test-tells")
		one.status.Store(check.Failed)
		lines := runSelfCheck(t, time.Second, task)
		now := func(result check.Status, want ...string) {
			t.Helper()
			var logged []string
			for len(lines) > 0 {
				logged = append(logged, <-lines)
			}
			if !slices.EqualFunc(logged, want, strings.Contains) {
				t.Errorf("logged %q, want %q", logged, want)
			}
			for _, status := range check.Statuses() {
				if got := gauge(t, "csr_check_result", "test-tells", string(status)) == 1; got != (status == result) {
					t.Errorf("%s is current: %t", status, got)
				}
			}
		}
		now(check.Failed, `"Self-check completed" "check"="test-tells" "result"="failed" "questions"=1`,
			`"Self-check failed" "error"=null "check"="test-tells" "subject"="it" "result"="failed" "evidence"="seen" "nextStep"=""`)
		one.after(t, time.Second, 2)
		now(check.Failed)
		one.status.Store(check.Unknown)
		one.after(t, time.Second, 3)
		now(check.Unknown, "Self-check could not complete")
		one.status.Store(check.OK)
		one.after(t, time.Second, 4)
		now(check.OK, "Self-check passes again")
		one.after(t, time.Second, 5)
		now(check.OK)
		if at := gauge(t, "csr_check_last_run_timestamp_seconds", "test-tells"); at != float64(time.Now().Unix()) {
			t.Errorf("last run at %v", at)
		}
	})
}

// reviewer answers SelfSubjectAccessReviews by resource.
type reviewer struct {
	reviewsv1.SelfSubjectAccessReviewInterface
	answer func(resource string) (allowed bool, err error)
}

func (r reviewer) Create(
	_ context.Context, review *authorizationv1.SelfSubjectAccessReview, _ metav1.CreateOptions,
) (_ *authorizationv1.SelfSubjectAccessReview, err error) {
	review.Status.Allowed, err = r.answer(review.Spec.ResourceAttributes.Resource)
	return review, err
}

// TestMissingRightsAreNamed checks the metrics of each verb and resource, the readiness and the Event. A replica is ready
// once its rights have been reviewed, unless a right was denied. Optional rights have a check of their own, because a
// missing right to write Events must not page anyone.
func TestMissingRightsAreNamed(t *testing.T) {
	rights := []check.Right{
		{Verb: "test", Group: "example.com", Resource: "a/status"},
		{Verb: "test", Resource: "b", Name: "one"}, {Verb: "test", Resource: "b", Name: "two"},
		{Verb: "test", Resource: "c", Optional: true},
	}
	denied, fault := "", error(nil)
	s := &selfCheck{log: logr.Discard(), clock: clock.RealClock{}, notReady: errNotChecked}
	if s.ready(nil) == nil {
		t.Error("ready before anybody has asked")
	}
	answers := reviewer{answer: func(resource string) (bool, error) { return !strings.Contains(denied, resource), fault }}
	recorder := events.NewFakeRecorder(10)
	task := &checkTask{ask: s.ownRights(answers, &SelfCheck{Rights: rights, Namespace: "ours"}, report.New(recorder, clock.RealClock{}))}
	const aStatus, bOne, bTwo = "test a/status.example.com", "test b one", "test b two"
	for _, test := range []struct {
		denied string
		fault  error
		want   map[string]float64
		failed string
		ready  string
	}{
		{fault: errors.New("timeout")},
		{},
		{denied: "a", want: map[string]float64{"a/status.example.com": 1}, failed: "own-rights", ready: aStatus},
		{denied: "b", want: map[string]float64{"b": 2}, failed: "own-rights", ready: bOne + ", " + bTwo},
		{fault: errors.New("timeout"), want: map[string]float64{"b": 2}, ready: bOne + ", " + bTwo}, // unknown, so as before
		{denied: "ab", want: map[string]float64{"a/status.example.com": 1, "b": 2}, failed: "own-rights", ready: aStatus + ", " + bOne + ", " + bTwo},
		{denied: "c", want: map[string]float64{"c": 1}, failed: "optional-rights"},
		{},
	} {
		denied, fault = test.denied, test.fault
		s.run(t.Context(), task)
		for _, resource := range []string{"a/status.example.com", "b", "c"} {
			if got := gauge(t, "csr_check_missing_rights", resource, "test"); got != test.want[resource] {
				t.Errorf("without %q: %v of %s are missing, want %v", test.denied, got, resource, test.want[resource])
			}
		}
		for _, name := range []string{"own-rights", "optional-rights"} {
			if got := gauge(t, "csr_check_result", name, "failed") == 1; got != (name == test.failed) {
				t.Errorf("without %q: %s has failed: %t", test.denied, name, got)
			}
		}
		ready, event, wantEvent := "", "", ""
		if err := s.ready(nil); err != nil {
			ready = strings.TrimPrefix(err.Error(), "missing rights: ")
		}
		if len(recorder.Events) > 0 {
			event = <-recorder.Events
		}
		if test.ready != "" && test.fault == nil {
			wantEvent = "Warning RightsMissing missing rights: " + test.ready +
				": apply the roles and bindings of the manager's manifests; its log says which manifest has which right"
		}
		if ready != test.ready || event != wantEvent {
			t.Errorf("without %q: ready says %q, Event %q; want %q, %q", test.denied, ready, event, test.ready, wantEvent)
		}
	}
}

// gauge returns the value of a gauge with labels, which are sorted.
func gauge(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var values []string
			for _, label := range metric.GetLabel() {
				values = append(values, label.GetValue())
			}
			if family.GetName() == name && slices.Equal(values, labels) {
				return metric.GetGauge().GetValue()
			}
		}
	}
	t.Fatalf("there is no %s%v", name, labels)
	return 0
}
