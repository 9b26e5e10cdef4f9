package report_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
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
	name := ""
	switch obj := regarding.(type) {
	case *certificatesv1.CertificateSigningRequest:
		name = obj.Name
	case *corev1.Secret:
		name = obj.Name
	}
	r.events = append(r.events, event{name, eventType, reason, action, fmt.Sprintf(note, args...)})
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

func TestSameOutcomeIsReportedAgainAfterItsEventEnds(t *testing.T) {
	t.Parallel()
	reporter, written, clock := newReporter()
	for i, step := range []struct {
		pause time.Duration
		want  bool
	}{{0, true}, {49 * time.Minute, false}, {time.Minute, true}, {49 * time.Minute, false}, {time.Minute, true}} {
		clock.SetTime(clock.Now().Add(step.pause))
		if got := reporter.Request(request("1"), "user", "Approve", "NotAuthorized", "no"); got != step.want {
			t.Errorf("step %d: reported %t, want %t", i, got, step.want)
		}
	}
	if n := len(written.take()); n != 3 {
		t.Errorf("%d Events, want 3", n)
	}
}

func TestOncePerDistinctOutcome(t *testing.T) {
	t.Parallel()
	reporter, written, clock := newReporter()
	steps := []struct {
		uid, action, reason, message string
		want                         bool
	}{
		{"1", "Approve", "NotAuthorized", "100% no", true},
		{"1", "Approve", "NotAuthorized", "100% no", false},
		{"2", "Approve", "NotAuthorized", "100% no", true}, // another request
		{"1", "Approve", "NotAuthorized", "other", true},   // another message
		{"1", "Approve", "Malformed", "other", true},       // another reason
		{"1", "Approve", "Malformed", "other", false},
		{"1", "Approve", "NotAuthorized", "100% no", true}, // an earlier outcome again
		{"2", "Approve", "NotAuthorized", "100% no", false},
	}
	for i, step := range steps {
		if got := reporter.Request(request(step.uid), "user", step.action, step.reason, step.message); got != step.want {
			t.Errorf("step %d: new %t, want %t", i, got, step.want)
		}
		clock.SetTime(clock.Now().Add(time.Minute))
	}
	want := []event{
		{"name-1", "Warning", "NotAuthorized", "Approve", "100% no"},
		{"name-2", "Warning", "NotAuthorized", "Approve", "100% no"},
		{"name-1", "Warning", "NotAuthorized", "Approve", "other"},
		{"name-1", "Warning", "Malformed", "Approve", "other"},
		{"name-1", "Warning", "NotAuthorized", "Approve", "100% no"},
	}
	if diff := cmp.Diff(want, written.take()); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
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
	flood := func(user string, requests int) {
		for range requests {
			next++
			if !reporter.Request(request(fmt.Sprint(next)), user, "Approve", "NotAuthorized", "no") {
				t.Error("a first outcome is not new, though its Event may be left out")
			}
		}
	}
	notes := func() []string {
		var notes []string
		for _, one := range written.take() {
			notes = append(notes, one.Note)
		}
		return notes
	}
	ten := strings.Split(strings.Repeat("no,", 9)+"no", ",")
	check := func(what string, want []string) {
		t.Helper()
		if diff := cmp.Diff(want, notes()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	flood("noisy", 2000)
	check("at first", ten)
	flood("quiet", 1)
	check("somebody else", []string{"no"})
	clock.SetTime(clock.Now().Add(59 * time.Second))
	flood("noisy", 3)
	check("within the minute", nil)
	clock.SetTime(clock.Now().Add(time.Second))
	flood("noisy", 2)
	check("after a minute", []string{"no"})
	clock.SetTime(clock.Now().Add(time.Minute))
	flood("noisy", 1)
	check("after another", []string{"no"})
	clock.SetTime(clock.Now().Add(time.Hour))
	flood("noisy", 11)
	check("after an hour", ten)
}

func TestNotesFitIntoAnEvent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ message, want string }{
		"short":                 {"a", "a"},
		"as long as fits":       {strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		"a byte too long":       {strings.Repeat("a", 1025), strings.Repeat("a", 1021) + "..."},
		"far too long":          {strings.Repeat("a", 100_000), strings.Repeat("a", 1021) + "..."},
		"longer as ASCII":       {strings.Repeat("ü", 200), strings.Repeat(`\u00fc`, 170) + `\...`},
		"format verbs are text": {"%s %d %!", "%s %d %!"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reporter, written, _ := newReporter()
			secret := &corev1.Secret{}
			secret.Name = "signer"
			reporter.Request(request("1"), "user", "Sign", "Malformed", test.message)
			reporter.Object(secret, "Normal", "Load", "CALoaded", test.message)
			want := []event{{"name-1", "Warning", "Malformed", "Sign", test.want}, {"signer", "Normal", "CALoaded", "Load", test.want}}
			got := written.take()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Events (-want +got):\n%s", diff)
			}
			if note := got[0].Note; len(note) > 1024 || !utf8.ValidString(note) {
				t.Errorf("%d bytes, valid UTF-8: %t", len(note), utf8.ValidString(note))
			}
		})
	}
}

// Text from a requester or a node can neither control a terminal nor imitate other text.
func TestNotesAreASCII(t *testing.T) {
	t.Parallel()
	reporter, written, _ := newReporter()
	const chosen = "a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff"
	reporter.Request(request("a"), "user", "Sign", "Reason", chosen)
	reporter.Would(request("b"), "user", "Sign", "Reason", chosen)
	reporter.Object(&corev1.Secret{}, corev1.EventTypeWarning, "Load", "Reason", chosen)
	events := written.take()
	for _, each := range events {
		if want := `a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff`; each.Note != want {
			t.Errorf("%s, want %s", each.Note, want)
		}
	}
	if len(events) != 3 {
		t.Errorf("%d Events", len(events))
	}
}

func TestReporterIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	reporter, written, _ := newReporter()
	var done sync.WaitGroup
	var mu sync.Mutex
	fresh := 0
	for i := range 100 {
		done.Go(func() {
			if reporter.Request(request(fmt.Sprint(i%5)), "user", "Sign", "Malformed", "no") {
				mu.Lock()
				fresh++
				mu.Unlock()
			}
		})
	}
	done.Wait()
	if got := len(written.take()); got != 5 || fresh != 5 {
		t.Errorf("%d Events and %d new outcomes for five requests", got, fresh)
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
