package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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
		var mu sync.Mutex
		status, runs, logged := check.Failed, 0, []string(nil)
		task := &checkTask{ask: func(context.Context) []check.Result {
			mu.Lock()
			defer mu.Unlock()
			runs++
			return []check.Result{{Check: "test-repeats", Subject: "it", Status: status, Evidence: "seen"}}
		}}
		s := &selfCheck{interval: time.Hour, clock: clock.RealClock{}, tasks: []*checkTask{task},
			log: funcr.New(func(_, args string) {
				mu.Lock()
				defer mu.Unlock()
				logged = append(logged, args)
			}, funcr.Options{})}
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
			mu.Lock()
			if runs != step.runs || !slices.EqualFunc(logged, step.want, strings.Contains) {
				t.Errorf("step %d: it has run %d times, and logged %q, want %+v", i, runs, logged, step)
			}
			for _, status := range check.Statuses() {
				if got := gauge(t, "csr_check_result", "test-repeats", string(status)) == 1; got != (status == step.now) {
					t.Errorf("step %d: %s is current: %t", i, status, got)
				}
			}
			status, logged = step.next, nil
			mu.Unlock()
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

// TestMissingRightsAreNamed checks the metrics, the readiness and the Event while rights are denied and granted. A replica is
// ready once its rights have been reviewed, unless a right was denied. An answer that is missing changes nothing. A missing optional
// right, to write Events for example, must not page anyone. TestLostRightsAreNamed of test/rotation has the shipped rights.
func TestMissingRightsAreNamed(t *testing.T) {
	rights := []check.Right{
		{Verb: "test", Resource: "b", Name: "one"}, {Verb: "test", Resource: "b", Name: "two"}, {Verb: "test", Resource: "c", Optional: true},
	}
	denied, fault := "", error(nil)
	answers := reviewer{answer: func(resource string) (bool, error) { return !strings.Contains(denied, resource), fault }}
	s, recorder := &selfCheck{log: logr.Discard(), clock: clock.RealClock{}, notReady: errNotChecked}, events.NewFakeRecorder(10)
	task := &checkTask{ask: s.ownRights(answers, &SelfCheck{Rights: rights, Namespace: "ours"}, report.New(recorder, clock.RealClock{}))}
	const missing = "missing rights: test b one, test b two"
	if err := s.ready(nil); !errors.Is(err, errNotChecked) {
		t.Errorf("ready before anybody has asked: %v", err)
	}
	for _, test := range []struct {
		denied string
		fault  error
		failed string // the check with this result
		want   string // how many rights of b and c are missing, the readiness and the Event
	}{
		{"", errors.New("timeout"), "", "0 0 <nil>"},
		{"b", nil, "own-rights", "2 0 " + missing + " Warning RightsMissing " + missing +
			": apply the roles and bindings of the manager's manifests; its log says which manifest has which right"},
		{"", errors.New("timeout"), "", "2 0 " + missing},
		{"c", nil, "optional-rights", "0 1 <nil>"},
		{"", nil, "", "0 0 <nil>"},
	} {
		denied, fault = test.denied, test.fault
		s.run(t.Context(), task)
		got := fmt.Sprint(gauge(t, "csr_check_missing_rights", "b", "test"), gauge(t, "csr_check_missing_rights", "c", "test")) +
			" " + fmt.Sprint(s.ready(nil))
		for len(recorder.Events) > 0 {
			got += " " + <-recorder.Events
		}
		for _, name := range []string{"own-rights", "optional-rights"} {
			if failed := gauge(t, "csr_check_result", name, "failed") == 1; failed != (name == test.failed) {
				t.Errorf("without %q, error %v: %s has failed: %t", test.denied, test.fault, name, failed)
			}
		}
		if got != test.want {
			t.Errorf("without %q, error %v: %s, want %s", test.denied, test.fault, got, test.want)
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
