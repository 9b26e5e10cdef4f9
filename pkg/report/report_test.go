package report_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
)

// event is one written Event.
type event struct{ Object, Type, Reason, Action, Note string }

// recorder records Events.
type recorder struct {
	mu     sync.Mutex
	events []event
}

func (r *recorder) Eventf(regarding, _ runtime.Object, eventType, reason, action, note string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event{regarding.(metav1.Object).GetName(), eventType, reason, action, fmt.Sprintf(note, args...)})
}

func (r *recorder) take() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.events
	r.events = nil
	return taken
}

func request(uid string) *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{}
	obj.Name, obj.UID = "name-"+uid, types.UID(uid)
	return obj
}

func newReporter() (*report.Reporter, *recorder, *clocktesting.FakePassiveClock) {
	written := &recorder{}
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	return report.New(written, clock), written, clock
}

// TestOncePerDistinctOutcome checks that an outcome is reported once, and again after its Event ends.
func TestOncePerDistinctOutcome(t *testing.T) {
	t.Parallel()
	reporter, written, clock := newReporter()
	const minute = time.Minute
	for i, step := range []struct {
		pause                time.Duration
		uid, reason, message string
		want                 bool
	}{
		{0, "1", "NotAuthorized", "100% no", true},
		{minute, "1", "NotAuthorized", "100% no", false},
		{minute, "2", "NotAuthorized", "100% no", true}, // another request
		{minute, "1", "NotAuthorized", "other", true},   // another message
		{minute, "1", "Malformed", "other", true},       // another reason
		{minute, "1", "Malformed", "other", false},
		{minute, "1", "NotAuthorized", "100% no", true}, // an earlier outcome again
		{minute, "2", "NotAuthorized", "100% no", false},
		{48 * minute, "1", "NotAuthorized", "100% no", false},
		{minute, "1", "NotAuthorized", "100% no", true}, // 50 minutes later
		{49 * minute, "1", "NotAuthorized", "100% no", false},
		{minute, "1", "NotAuthorized", "100% no", true},
	} {
		clock.SetTime(clock.Now().Add(step.pause))
		if got := reporter.Request(request(step.uid), "user", "Approve", step.reason, step.message); got != step.want {
			t.Errorf("step %d: new %t, want %t", i, got, step.want)
		}
		var want []event
		if step.want {
			want = []event{{"name-" + step.uid, "Warning", step.reason, "Approve", step.message}}
		}
		if diff := cmp.Diff(want, written.take()); diff != "" {
			t.Errorf("step %d: Events (-want +got):\n%s", i, diff)
		}
	}
}

// TestChangedTextsAreBounded has a requester whose outcome has another text each time. Beyond the Events of that requester,
// only another reason, or another request, is a new outcome.
func TestChangedTextsAreBounded(t *testing.T) {
	t.Parallel()
	reporter, _, clock := newReporter()
	fresh := 0
	for i := range 1000 {
		if reporter.Request(request("1"), "node", "Approve", "SANNotOwned", fmt.Sprintf("the node has %d addresses", i)) {
			fresh++
		}
	}
	if fresh != 10 {
		t.Errorf("%d outcomes are new, want 10", fresh)
	}
	if !reporter.Request(request("1"), "node", "Approve", "NodeBlocked", "blocked") || !reporter.Request(request("2"), "node", "Approve", "SANNotOwned", "the node has 0 addresses") {
		t.Error("another reason, or another request, is not new")
	}
	clock.SetTime(clock.Now().Add(time.Minute))
	if !reporter.Request(request("2"), "node", "Approve", "SANNotOwned", "the node has 1 address") {
		t.Error("a minute later, a changed text is not new")
	}
}

// TestOnceHoweverManyWait checks that each outcome is reported once until its request is gone, however many requests
// wait.
func TestOnceHoweverManyWait(t *testing.T) {
	t.Parallel()
	reporter, _, _ := newReporter()
	const waiting = 50_000
	tell := func() (fresh int) {
		for i := range waiting {
			if reporter.Request(request(fmt.Sprint(i)), "user", "Approve", "NotAuthorized", "no") {
				fresh++
			}
		}
		return fresh
	}
	if first, second := tell(), tell(); first != waiting || second != 0 {
		t.Errorf("%d of %d are told, and %d again", first, waiting, second)
	}
	for i := range waiting {
		reporter.Forget(request(fmt.Sprint(i)))
	}
	if kept := reporter.Kept(); kept != 0 {
		t.Errorf("%d outcomes outlive their requests", kept)
	}
}

func TestOneRequesterCausesTenEventsThenOneAMinute(t *testing.T) {
	t.Parallel()
	reporter, written, clock := newReporter()
	next := 0
	for _, step := range []struct {
		what     string
		pause    time.Duration
		user     string
		requests int
		want     int
	}{
		{"at first", 0, "noisy", 2000, 10},
		{"somebody else", 0, "quiet", 1, 1},
		{"within the minute", 59 * time.Second, "noisy", 3, 0},
		{"after a minute", time.Second, "noisy", 2, 1},
		{"after another", time.Minute, "noisy", 1, 1},
		{"after an hour", time.Hour, "noisy", 11, 10},
	} {
		clock.SetTime(clock.Now().Add(step.pause))
		for range step.requests {
			next++
			if !reporter.Request(request(fmt.Sprint(next)), step.user, "Approve", "NotAuthorized", "no") {
				t.Error("a first outcome is not new, though its Event may be left out")
			}
		}
		if got := len(written.take()); got != step.want {
			t.Errorf("%s: %d Events, want %d", step.what, got, step.want)
		}
	}
}

// TestNotes checks that a note fits into an Event, and that text from a requester or a node can neither control a terminal
// nor imitate other text.
func TestNotes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ message, want string }{
		"short":                 {"a", "a"},
		"as long as fits":       {strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		"a byte too long":       {strings.Repeat("a", 1025), strings.Repeat("a", 1021) + "..."},
		"far too long":          {strings.Repeat("a", 100_000), strings.Repeat("a", 1021) + "..."},
		"longer as ASCII":       {strings.Repeat("ü", 200), strings.Repeat(`\u00fc`, 170) + `\...`},
		"format verbs are text": {"%s %d %!", "%s %d %!"},
		"not ASCII":             {"a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff", `a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff`},
	} {
		reporter, written, _ := newReporter()
		reporter.Request(request("1"), "user", "Sign", "Malformed", test.message)
		reporter.Would(request("2"), "user", "Sign", "WouldSign", test.message)
		reporter.Object(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "signer"}}, "Normal", "Load", "CALoaded", test.message)
		want := []event{
			{"name-1", "Warning", "Malformed", "Sign", test.want}, {"name-2", "Normal", "WouldSign", "Sign", test.want},
			{"signer", "Normal", "CALoaded", "Load", test.want},
		}
		if diff := cmp.Diff(want, written.take()); diff != "" || len(test.want) > 1024 {
			t.Errorf("%s: Events (-want +got):\n%s", name, diff)
		}
	}
}

func TestReporterIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	reporter, written, _ := newReporter()
	var done sync.WaitGroup
	var fresh atomic.Int32
	for i := range 100 {
		done.Go(func() {
			if reporter.Request(request(fmt.Sprint(i%5)), "user", "Sign", "Malformed", "no") {
				fresh.Add(1)
			}
		})
	}
	done.Wait()
	if got := len(written.take()); got != 5 || fresh.Load() != 5 {
		t.Errorf("%d Events and %d new outcomes for five requests", got, fresh.Load())
	}
}

// A dry run may report about every request. So the Events of all requesters together are bounded.
func TestSuccessesOfADryRunAreBounded(t *testing.T) {
	t.Parallel()
	reporter, written, clock := newReporter()
	would := func(first, count int, requester func(int) string) (fresh, told int) {
		for i := first; i < first+count; i++ {
			if reporter.Would(request(fmt.Sprint(i)), requester(i), "Approve", "WouldApprove", "yes") {
				fresh++
			}
		}
		return fresh, len(written.take())
	}
	each := func(i int) string { return fmt.Sprint("system:node:", i) }
	one := func(int) string { return "system:bootstrap:abcdef" }
	if fresh, told := would(0, 1000, each); fresh != 1000 || told != 100 {
		t.Errorf("%d are new and %d told, want 1000 and 100", fresh, told)
	}
	if fresh, told := would(0, 1000, each); fresh != 0 || told != 0 {
		t.Errorf("%d are new and %d told the second time", fresh, told)
	}
	reporter.Request(request("refused"), "stranger", "Approve", "WouldWait", "no")
	if events := written.take(); len(events) != 1 || events[0].Type != "Warning" {
		t.Errorf("what is refused waits for no success: %v", events)
	}
	clock.SetTime(clock.Now().Add(time.Hour))
	if fresh, told := would(2000, 50, one); fresh != 50 || told != 10 {
		t.Errorf("of one requester %d are new and %d told, want 50 and 10", fresh, told)
	}
}
