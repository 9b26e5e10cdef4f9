package commands

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var listed = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// waitingFor returns a row of that age.
func waitingFor(name, node, reason string, age time.Duration) waiting {
	return waiting{Name: name, Node: node, Signer: "s", Requester: "u", WaitsFor: waitsForApproval, Since: listed.Add(-age), Reason: reason, ReasonFrom: fromManager}
}

func TestPendingTables(t *testing.T) {
	t.Parallel()
	now := waitingFor("csr-3", "", "can be approved", time.Second)
	now.ReasonFrom = fromRules
	rows := []waiting{waitingFor("csr-1", "a", "NotAuthorized", time.Hour), waitingFor("csr-2", "a", "", 3*time.Minute), now}
	for name, test := range map[string]struct {
		table [][]string
		want  string
	}{
		"requests": {append([][]string{pendingHeader}, pendingTable(rows, listed)...), "" +
			"NAME   NODE  SIGNER  REQUESTER  WAITS FOR  SINCE  REASON\n" +
			"csr-1  a     s       u          approval   60m    NotAuthorized\n" +
			"csr-2  a     s       u          approval   3m     not checked\n" +
			"csr-3  -     s       u          approval   1s     can be approved (now)\n"},
		"nodes": {nodeTable(groupByNode(rows), listed), "" +
			"NODE  REQUESTS  OLDEST  NEWEST  REASON OF THE NEWEST\n" +
			"a     2         60m     3m      not checked\n" +
			"-     1         1s      1s      can be approved (now)\n"},
	} {
		var out bytes.Buffer
		if err := writeTable(&out, test.table); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A requester chooses the name of a request and of its node, and many a requester its own name.
func TestPendingTableShowsHostileTextAsOneWord(t *testing.T) {
	t.Parallel()
	row := waitingFor("csr-1  a\x1b[2K\nx", "b; true  s  u", "can be approved", time.Second)
	row.Requester = "$(true)"
	var out bytes.Buffer
	if err := writeTable(&out, pendingTable([]waiting{row}, listed)); err != nil {
		t.Fatal(err)
	}
	if want := `'csr-1  a\x1b[2K x'  'b; true  s  u'  s  '$(true)'  approval  1s  can be approved` + "\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestPendingWatchPrintsChanges(t *testing.T) {
	t.Parallel()
	o, printed := &pendingOptions{}, map[string]string{}
	names := func(rows ...waiting) (names []string) {
		for _, line := range o.changes(rows, printed, listed) {
			names = append(names, line[0]+" "+line[6])
		}
		return names
	}
	first, second := waitingFor("csr-1", "a", "NotAuthorized", time.Hour), waitingFor("csr-2", "a", "NodeAlive", time.Minute)
	changed := waitingFor("csr-2", "a", "NotAuthorized", time.Minute)
	for i, step := range []struct {
		rows []waiting
		want []string
	}{
		{[]waiting{first, second}, []string{"csr-1 NotAuthorized", "csr-2 NodeAlive"}},
		{[]waiting{first, second}, nil},
		{[]waiting{first, changed}, []string{"csr-2 NotAuthorized"}},
		{[]waiting{changed}, []string{"csr-1 waits no more"}},
		{nil, []string{"csr-2 waits no more"}},
		{nil, nil},
	} {
		if diff := cmp.Diff(step.want, names(step.rows...)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestPendingTakesTheLastEventOfTheControllerInCharge(t *testing.T) {
	t.Parallel()
	event := func(by, reason string, age time.Duration) *corev1.Event {
		return &corev1.Event{ReportingController: by, Reason: reason, EventTime: metav1.NewMicroTime(listed.Add(-age))}
	}
	row := waiting{WaitsFor: waitsForApproval}
	for _, event := range []*corev1.Event{
		event("csr-approver", "NodeAlive", time.Minute), event("csr-approver", "NotAuthorized", time.Hour),
		event("csr-signer", "CAMissing", 0), event("another", "Odd", 0),
	} {
		row.hear(event)
	}
	if row.Reason != "NodeAlive" || row.ReasonFrom != "manager" {
		t.Errorf("%+v", row)
	}
	row = waiting{WaitsFor: waitsForCertificate}
	row.hear(event("csr-approver", "NodeAlive", 0))
	row.hear(event("csr-signer", "CAMissing", time.Hour))
	if row.Reason != "CAMissing" {
		t.Errorf("%+v", row)
	}
}
