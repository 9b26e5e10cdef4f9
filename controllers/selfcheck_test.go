package controllers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authorizationv1 "k8s.io/api/authorization/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// scripted is a check whose result the test sets.
type scripted struct {
	status atomic.Value
	key    atomic.Value
	runs   atomic.Int32
}

func (s *scripted) task(name string, leader bool) *checkTask {
	s.status.Store(check.OK)
	s.key.Store("")
	return &checkTask{name: name, leader: leader, before: func() string { return s.key.Load().(string) }, run: func(context.Context) []check.Result {
		s.runs.Add(1)
		return []check.Result{{Check: name, Subject: "it", Status: s.status.Load().(check.Status), Evidence: "seen"}}
	}}
}

// bench runs a selfCheck with a fake clock.
type bench struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	lines chan string
}

func runSelfCheck(t *testing.T, interval time.Duration, elected <-chan struct{}, tasks ...*checkTask) *bench {
	t.Helper()
	b := &bench{t: t, clock: clocktesting.NewFakeClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)), lines: make(chan string, 100)}
	s := &selfCheck{interval: interval, elected: elected, clock: b.clock, tasks: tasks,
		log: funcr.New(func(_, args string) { b.lines <- args }, funcr.Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return b
}

// ran waits until the check has run want times.
func (b *bench) ran(s *scripted, want int32) {
	b.t.Helper()
	for end := time.Now().Add(10 * time.Second); s.runs.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("made %d times, want %d", s.runs.Load(), want)
		}
	}
}

// step steps the clock, and gives the selfCheck time to handle the tick.
func (b *bench) step(by time.Duration) {
	b.t.Helper()
	b.clock.Step(by)
	time.Sleep(20 * time.Millisecond) // a check that is not due has no effect to wait for
}

// TestSelfCheckTimes checks when a check runs again. After success that is an hour later. After a failure or an
// unknown result it is a minute later. With a new CA it is at once.
func TestSelfCheckTimes(t *testing.T) {
	t.Parallel()
	well, ill := &scripted{}, &scripted{}
	b := runSelfCheck(t, time.Hour, nil, well.task("test-well", false), ill.task("test-ill", false))
	b.ran(well, 1)
	b.ran(ill, 1)
	for range 59 {
		b.step(time.Minute)
	}
	b.ran(well, 1)
	ill.status.Store(check.Unknown)
	b.step(time.Minute)
	b.ran(well, 2)
	b.ran(ill, 2)
	ill.status.Store(check.Failed)
	b.step(time.Minute)
	b.ran(ill, 3)
	ill.status.Store(check.OK)
	b.step(time.Minute)
	b.ran(ill, 4)
	b.step(time.Minute)
	b.ran(ill, 4)
	ill.key.Store("another CA")
	b.step(time.Minute)
	b.ran(ill, 5)
	b.ran(well, 2)
}

// TestRightsAreCheckedTwiceAMinute checks the manager's own rights at their default interval: after 30 seconds, whatever
// the result. So half of the minute, within which a lost right is reported, is left for the check.
func TestRightsAreCheckedTwiceAMinute(t *testing.T) {
	t.Parallel()
	well, ill := &scripted{}, &scripted{}
	tasks := []*checkTask{well.task("test-rights", false), ill.task("test-lost-rights", false)}
	ill.status.Store(check.Failed)
	b := runSelfCheck(t, rightsInterval, nil, tasks...)
	for run := range int32(5) {
		b.ran(well, run+1)
		b.ran(ill, run+1)
		b.step(30 * time.Second)
	}
}

// TestSelfCheckOfTheLeader checks that the leader's checks run at the election, and not before.
func TestSelfCheckOfTheLeader(t *testing.T) {
	t.Parallel()
	everybody, leader, elected := &scripted{}, &scripted{}, make(chan struct{})
	b := runSelfCheck(t, time.Hour, elected, everybody.task("test-everybody", false), leader.task("test-leader", true))
	b.ran(everybody, 1)
	b.step(2 * time.Hour)
	b.ran(everybody, 2)
	b.ran(leader, 0)
	close(elected)
	b.ran(leader, 1)
	b.ran(everybody, 2)
}

// TestSelfCheckTells checks that each change is logged once, and is in the metrics.
func TestSelfCheckTells(t *testing.T) {
	t.Parallel()
	one := &scripted{}
	task := one.task("test-tells", false)
	one.status.Store(check.Failed)
	b := runSelfCheck(t, time.Second, nil, task)
	next := func(want string, parts ...string) {
		t.Helper()
		select {
		case line := <-b.lines:
			for _, part := range append(parts, want) {
				if !strings.Contains(line, part) {
					t.Errorf("%q is not in: %s", part, line)
				}
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing is logged, want %q", want)
		}
	}
	next("Self-check completed", `"result"="failed"`)
	next("Self-check failed", `"subject"="it"`, `"evidence"="seen"`)
	is := func(result string) {
		t.Helper()
		for _, status := range check.Statuses() {
			want := 0.0
			if string(status) == result {
				want = 1
			}
			if got := gauge(t, "csr_check_result", "test-tells", string(status)); got != want {
				t.Errorf("%s is %v, want %v", status, got, want)
			}
		}
	}
	is("failed")
	b.step(time.Second)
	b.ran(one, 2)
	one.status.Store(check.Unknown)
	b.step(time.Second)
	next("Self-check could not complete")
	is("unknown")
	one.status.Store(check.OK)
	b.step(time.Second)
	next("Self-check passes again")
	is("ok")
	b.step(time.Second)
	b.ran(one, 5)
	if len(b.lines) > 0 {
		t.Errorf("logged without a change: %s", <-b.lines)
	}
	if at := gauge(t, "csr_check_last_run_timestamp_seconds", "test-tells"); at < 1 {
		t.Errorf("last run at %v", at)
	}
}

// reviewer answers SelfSubjectAccessReviews by resource. It does not know all rules, as an authorizer webhook.
type reviewer struct {
	client.Client
	answer func(resource string) (allowed bool, err error)
}

func (r reviewer) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) (err error) {
	switch review := obj.(type) {
	case *authorizationv1.SelfSubjectRulesReview:
		review.Status.Incomplete = true
	case *authorizationv1.SelfSubjectAccessReview:
		review.Status.Allowed, err = r.answer(review.Spec.ResourceAttributes.Resource)
	}
	return err
}

// TestReadyFollowsRights checks that a replica is ready once its rights have been reviewed, unless a right was denied.
func TestReadyFollowsRights(t *testing.T) {
	t.Parallel()
	rights := []check.Right{{Verb: "get", Resource: "a"}, {Verb: "get", Resource: "b"}}
	for name, test := range map[string]struct {
		answer func(string) (bool, error)
		want   string
	}{
		"all":         {func(string) (bool, error) { return true, nil }, ""},
		"unknown":     {func(string) (bool, error) { return false, errors.New("timeout") }, ""},
		"one missing": {func(resource string) (bool, error) { return resource == "b", nil }, "missing rights: get a"},
		"all missing": {func(string) (bool, error) { return false, nil }, "missing rights: get a, get b"},
	} {
		s := &selfCheck{}
		if err := s.ready(nil); err == nil {
			t.Errorf("%s: ready before anybody has asked", name)
		}
		s.ownRights(reviewer{answer: test.answer}, rights)(t.Context())
		got := ""
		if err := s.ready(nil); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestMissingRightsAreNamed checks the metrics of each verb and resource. It also checks that optional rights have a
// check of their own, because a missing right to write Events must not page anyone.
func TestMissingRightsAreNamed(t *testing.T) {
	rights := []check.Right{
		{Verb: "test", Group: "example.com", Resource: "a/status"},
		{Verb: "test", Resource: "b", Name: "one"}, {Verb: "test", Resource: "b", Name: "two"},
		{Verb: "test", Resource: "c", Optional: true},
	}
	denied, fault := "", error(nil)
	s := &selfCheck{log: logr.Discard(), clock: clocktesting.NewFakeClock(time.Now())}
	task := &checkTask{name: "own-rights", run: s.ownRights(reviewer{answer: func(resource string) (bool, error) { return resource != denied, fault }}, rights)}
	for _, test := range []struct {
		denied string
		fault  error
		want   map[string]float64
		failed string
	}{
		{},
		{denied: "a", want: map[string]float64{"a/status.example.com": 1}, failed: "own-rights"},
		{denied: "b", want: map[string]float64{"b": 2}, failed: "own-rights"},
		{fault: errors.New("timeout"), want: map[string]float64{"b": 2}}, // unknown, so as before
		{denied: "c", want: map[string]float64{"c": 1}, failed: "optional-rights"},
		{},
	} {
		denied, fault, task.due = test.denied, test.fault, time.Time{}
		s.runIfDue(t.Context(), task)
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
		if err := s.ready(nil); (err != nil) != (len(test.want) > 0 && test.want["c"] == 0) {
			t.Errorf("without %q: ready says %v", test.denied, err)
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

// TestSelfCheckIsAskedFor checks that a library user has no self-check, nor a manager that disables it.
func TestSelfCheckIsAskedFor(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		options, err := FromConfiguration(configured(func(c *config.Configuration) { c.SelfCheck.Interval.Duration = interval }))
		if err != nil || (options.SelfCheck != nil) != want {
			t.Errorf("every %s: %+v, error %v", interval, options.SelfCheck, err)
		}
	}
}
