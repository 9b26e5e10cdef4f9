package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// TestSelfCheckRepeats checks when a check runs again: an hour after a success, and a minute after a failure or an unknown
// result. Each change is logged once, and is in the metrics.
func TestSelfCheckRepeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		status, runs, logged := check.Failed, 0, []string(nil)
		task := &checkTask{ask: func(context.Context) []check.Result {
			runs++
			return []check.Result{{Check: "test-repeats", Subject: "it", Status: status, Evidence: "seen"}}
		}}
		s := &selfCheck{interval: time.Hour, clock: clock.RealClock{}, tasks: []*checkTask{task},
			log: funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Start(ctx) }()
		for i, step := range []struct {
			pause time.Duration
			next  check.Status // the result of the next run
			runs  int          // by then
			now   check.Status
			want  []string // is logged
		}{
			{0, check.Failed, 1, check.Failed, []string{
				`"Self-check completed" "check"="test-repeats" "result"="failed" "questions"=1`,
				`"Self-check failed" "error"=null "check"="test-repeats" "subject"="it" "result"="failed" "evidence"="seen" "nextStep"=""`,
			}},
			{59 * time.Second, check.Failed, 1, check.Failed, nil},
			{time.Second, check.Unknown, 2, check.Failed, nil},
			{time.Minute, check.OK, 3, check.Unknown, []string{"Self-check could not complete"}},
			{time.Minute, check.OK, 4, check.OK, []string{"Self-check passes again"}},
			{59 * time.Minute, check.OK, 4, check.OK, nil},
			{time.Minute, check.OK, 5, check.OK, nil},
		} {
			time.Sleep(step.pause)
			synctest.Wait()
			if runs != step.runs || !slices.EqualFunc(logged, step.want, strings.Contains) {
				t.Errorf("step %d: it has run %d times, and logged %q, want %+v", i, runs, logged, step)
			}
			for _, status := range check.Statuses() {
				if got := gauge(t, "csr_check_result", "test-repeats", string(status)) == 1; got != (status == step.now) {
					t.Errorf("step %d: %s is current: %t", i, status, got)
				}
			}
			status, logged = step.next, nil
		}
		if at := gauge(t, "csr_check_last_run_timestamp_seconds", "test-repeats"); at != float64(time.Now().Unix()) {
			t.Errorf("last run at %v", at)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
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
