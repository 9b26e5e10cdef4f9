package report

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// event is one written Event.
type event struct{ Object, Type, Reason, Action, Note string }

// recorder is a Reporter with its clock and the Events that it has written. client-go merges Events with equal keys.
type recorder struct {
	*Reporter
	*clocktesting.FakePassiveClock
	events []event
	keys   map[string]bool
}

func newRecorder() *recorder {
	r := &recorder{keys: map[string]bool{}, FakePassiveClock: clocktesting.NewFakePassiveClock(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))}
	r.Reporter = New(r, r)
	return r
}

func (r *recorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	r.keys[fmt.Sprint(regarding.(metav1.Object).GetName(), related, eventType, reason, action)] = true
	r.events = append(r.events, event{regarding.(metav1.Object).GetName(), eventType, reason, action, fmt.Sprintf(note, args...)})
}

// take returns the Events since the last call.
func (r *recorder) take() []event {
	taken := r.events
	r.events = nil
	return taken
}

func (r *recorder) pass(pause time.Duration) { r.SetTime(r.FakePassiveClock.Now().Add(pause)) }

// request returns a request of user, who has that group.
func request(uid, user, group string) *certificatesv1.CertificateSigningRequest {
	obj := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "name-" + uid, UID: types.UID(uid)}}
	obj.Spec.Username, obj.Spec.Groups = user, []string{"system:authenticated", group}
	return obj
}

// TestOncePerDistinctOutcome checks that an outcome is reported once, and again after its Event ends.
func TestOncePerDistinctOutcome(t *testing.T) {
	r := newRecorder()
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
		{minute, "1", "NotAuthorized", "100% no", true}, // an earlier outcome again
		{49 * minute, "1", "NotAuthorized", "100% no", false},
		{minute, "1", "NotAuthorized", "100% no", true}, // 50 minutes later
		{49 * minute, "1", "NotAuthorized", "100% no", false},
	} {
		r.pass(step.pause)
		expect.Equal(t, fmt.Sprintf("step %d: new", i), r.Request(request(step.uid, "user", ""), "Approve", step.reason, step.message), step.want)
		var want []event
		if step.want {
			want = []event{{"name-" + step.uid, "Warning", step.reason, "Approve", step.message}}
		}
		expect.Equal(t, fmt.Sprintf("step %d: Events", i), r.take(), want)
	}
}

// TestEachTextIsAnEventOfItsOwn checks that client-go merges no two Events: it would keep the note of the first.
func TestEachTextIsAnEventOfItsOwn(t *testing.T) {
	r := newRecorder()
	for i, message := range []string{"blocked nodes: none", "blocked nodes: w1", "blocked nodes: none"} {
		r.Request(request("1", "user", ""), "Approve", "NodeBlocked", message)
		r.Object(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "signer"}}, "Normal", "Load", "CALoaded", message)
		expect.Equal(t, message+": Events that client-go keeps apart", len(r.keys), 2*(i+1))
	}
}

// TestEventsOfOneRequester checks that the Events of a requester are bounded: ten, then one a minute. The first outcome of a
// request is new nevertheless, and so is another reason. Another text is not: a node may change it as often as it likes.
func TestEventsOfOneRequester(t *testing.T) {
	r := newRecorder()
	next := 0
	for _, step := range []struct {
		what            string
		pause           time.Duration
		user            string
		requests, texts int
		fresh, told     int
	}{
		{"at first", 0, "noisy", 2000, 1, 2000, 10},
		{"somebody else", 0, "quiet", 1, 1, 1, 1},
		{"within the minute", 59 * time.Second, "noisy", 3, 1, 3, 0},
		{"after a minute", time.Second, "noisy", 2, 1, 2, 1},
		{"after an hour", time.Hour, "noisy", 11, 1, 11, 10},
		{"changed texts", 0, "node", 1, 1000, 10, 10},
		{"a changed text after a minute", time.Minute, "node", 1, 3, 1, 1},
	} {
		r.pass(step.pause)
		fresh := 0
		for range step.requests {
			next++
			for text := range step.texts {
				if r.Request(request(fmt.Sprint(next), step.user, "system:nodes"), "Approve", "SANNotOwned", fmt.Sprint(text)) {
					fresh++
				}
			}
		}
		expect.Equal(t, step.what+": new and told", []int{fresh, len(r.take())}, []int{step.fresh, step.told})
	}
	expect.True(t, r.Request(request(fmt.Sprint(next), "node", "system:nodes"), "Approve", "NodeBlocked", "blocked"), "another reason is not new")
}

// TestStrangersLeaveRoomForNodes checks that all requesters but nodes and bootstrap tokens have one bound for their Events together: a
// hundred, then one a second. They take no Event from a node, and each request is new nevertheless. Only a group of the API server counts.
func TestStrangersLeaveRoomForNodes(t *testing.T) {
	r := newRecorder()
	before := omitted(t)
	told := func(step string, requesters, each, want int, who, group string) {
		t.Helper()
		for i := range requesters {
			for j := range each {
				obj := request(fmt.Sprint(step, i, "-", j), fmt.Sprint(who, i), group)
				expect.True(t, r.Request(obj, "Approve", "NotAuthorized", "no"), "%s: request %s is not new", step, obj.Name)
			}
		}
		expect.Equal(t, step+": Events", len(r.take()), want)
	}
	told("150 ServiceAccounts", 150, 10, 100, "system:serviceaccount:a:", "system:serviceaccounts")
	told("names like those of nodes", 100, 1, 0, "system:node:", "system:nodes:not")
	told("names like those of bootstrap tokens", 100, 1, 0, "system:bootstrap:", "system:authenticated")
	told("nodes", 300, 1, 300, "system:node:n", "system:nodes")
	told("bootstrap tokens", 30, 11, 300, "system:bootstrap:t", "system:bootstrappers")
	r.pass(5 * time.Second)
	told("strangers after five seconds", 100, 1, 5, "user-", "")
	r.pass(time.Hour)
	told("strangers after an hour", 300, 1, 100, "user-", "")
	expect.Equal(t, "Events left out", omitted(t)-before, float64(1400+100+100+30+95+200))
}

// omitted returns the number of Events that were left out.
func omitted(t *testing.T) float64 {
	t.Helper()
	var read dto.Metric
	expect.NoError(t, omittedTotal.Write(&read))
	return read.GetCounter().GetValue()
}

// TestNamesThatNoURLCanCarry checks that an Event holds the beginning of a name that is longer than a name may be, and the UID.
func TestNamesThatNoURLCanCarry(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("a", 253):              strings.Repeat("a", 253),
		strings.Repeat("a", 254):              strings.Repeat("a", 250) + "...",
		strings.Repeat("\x01", 400_000):       strings.Repeat("\x01", 250) + "...",
		strings.Repeat("\U0001f511", 100_000): strings.Repeat("\U0001f511", 62) + "...",
		"$(reboot)\n--all":                    "$(reboot)\n--all",
	} {
		r := newRecorder()
		obj := request("1", "user", "")
		obj.Name = name
		r.Request(obj, "Approve", "RequestTooLarge", "no")
		expect.Equal(t, "Event", r.take(), []event{{want, "Warning", "RequestTooLarge", "Approve", "no"}})
	}
}

// TestOnceHoweverManyWait checks that each outcome is reported once until its request is gone, however many requests
// wait.
func TestOnceHoweverManyWait(t *testing.T) {
	r := newRecorder()
	const waiting = 50_000
	for _, want := range []bool{true, false} {
		for i := range waiting {
			if r.Request(request(fmt.Sprint(i), "user", ""), "Approve", "NotAuthorized", "no") != want {
				t.Fatalf("request %d: new %t, want %t", i, !want, want)
			}
		}
	}
	for i := range waiting {
		r.Forget(request(fmt.Sprint(i), "user", ""))
	}
	expect.Equal(t, "outcomes that outlive their requests", r.outcomes.Len(), 0)
}

// TestSuccessesOfADryRunAreBounded checks that the Events of all requesters together are bounded in a dry run, which may report
// about every request. A refusal does not count.
func TestSuccessesOfADryRunAreBounded(t *testing.T) {
	r := newRecorder()
	for _, step := range []struct {
		pause       time.Duration
		first, last int
		requesters  int
		fresh, told int
	}{
		{0, 0, 1000, 1000, 1000, 100},
		{0, 0, 1000, 1000, 0, 0},
		{time.Hour, 2000, 2050, 1, 50, 10},
	} {
		r.pass(step.pause)
		fresh := 0
		for i := step.first; i < step.last; i++ {
			if r.Would(request(fmt.Sprint(i), fmt.Sprint("node-", i%step.requesters), "system:nodes"), "Approve", "WouldApprove", "yes") {
				fresh++
			}
		}
		expect.Equal(t, fmt.Sprintf("%+v: new and told", step), []int{fresh, len(r.take())}, []int{step.fresh, step.told})
		r.Request(request("refused", fmt.Sprint("stranger", step.pause), ""), "Approve", "WouldWait", fmt.Sprint(step))
		events := r.take()
		expect.True(t, len(events) == 1 && events[0].Type == "Warning", "%+v: a refusal waits for no success: %v", step, events)
	}
}

// TestNotes checks that a note fits into an Event, and that text from a requester or a node can neither control a terminal
// nor imitate other text.
func TestNotes(t *testing.T) {
	for name, test := range map[string]struct{ message, want string }{
		"as long as fits":       {strings.Repeat("a", 1024), strings.Repeat("a", 1024)},
		"a byte too long":       {strings.Repeat("a", 1025), strings.Repeat("a", 1021) + "..."},
		"longer as ASCII":       {strings.Repeat("ü", 200), strings.Repeat(`\u00fc`, 170) + `\...`},
		"format verbs are text": {"%s %d %!", "%s %d %!"},
		"not ASCII":             {"a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff", `a\u009b31m\u202e\u0435\x7f\n\U0001f511\xff`},
	} {
		r := newRecorder()
		r.Request(request("1", "user", ""), "Sign", "Malformed", test.message)
		r.Would(request("2", "user", ""), "Sign", "WouldSign", test.message)
		r.Object(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "signer"}}, "Normal", "Load", "CALoaded", test.message)
		want := []event{
			{"name-1", "Warning", "Malformed", "Sign", test.want}, {"name-2", "Normal", "WouldSign", "Sign", test.want},
			{"signer", "Normal", "CALoaded", "Load", test.want},
		}
		diff := cmp.Diff(want, r.take())
		expect.True(t, diff == "" && len(test.want) <= 1024, "%s: Events (-want +got):\n%s", name, diff)
	}
}
