package check

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDifference(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	said := func(reason, message string) *Statement {
		return &Statement{Controller: "csr-approver", Reason: reason, Message: message, At: now.Add(-3 * time.Minute)}
	}
	refuses := Opinion{Reason: "NotAuthorized", Message: "no right"}
	for name, test := range map[string]struct {
		said    *Statement
		opinion Opinion
		want    string
	}{
		"nothing said":         {nil, refuses, ""},
		"same reason":          {said("NotAuthorized", "other words"), refuses, ""},
		"cannot be found out":  {said("NotAuthorized", ""), Opinion{Err: errors.New("no")}, ""},
		"now approves":         {said("NotAuthorized", ""), Opinion{Does: true, Reason: "AutoApproved", Message: "Auto approving."}, "The manager said NotAuthorized 3m ago; with this configuration it would now approve the request: Auto approving."},
		"now approves, no why": {said("NotAuthorized", ""), Opinion{Does: true}, "The manager said NotAuthorized 3m ago; with this configuration it would now approve the request."},
		"another reason":       {said("NodeAlive", ""), refuses, "The manager said NodeAlive 3m ago; with this configuration it would now say NotAuthorized: no right"},
		"no rule here":         {said("NodeAlive", ""), Opinion{}, "The manager said NodeAlive 3m ago; nothing in this configuration says so. The manager may run with another configuration."},
		"only the manager":     {said("RateLimited", ""), Opinion{Does: true}, "The manager said RateLimited 3m ago. Only the running manager can know this, so what it said counts."},
		"dry run, same":        {said("WouldWait", "NotAuthorized: no right"), refuses, ""},
		"dry run, now refuses": {said("WouldApprove", "yes"), refuses, "The manager said WouldApprove 3m ago; with this configuration it would now say NotAuthorized: no right"},
		"dry run, approves":    {said("WouldApprove", "yes"), Opinion{Does: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := test.said.Difference(test.opinion, "approve", now); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestLastStatement(t *testing.T) {
	t.Parallel()
	event := func(by, reason string, age time.Duration) corev1.Event {
		return corev1.Event{ReportingController: by, Reason: reason, EventTime: metav1.NewMicroTime(time.Unix(1000, 0).Add(-age))}
	}
	events := []corev1.Event{
		event("csr-approver", "Old", time.Hour), event("csr-approver", "New", time.Minute), event("csr-approver", "Older", 2*time.Hour),
		event("csr-signer", "Signer", time.Second), event("another", "Another", 0),
	}
	if got := LastStatement(events, "csr-approver"); got == nil || got.Reason != "New" {
		t.Errorf("%+v", got)
	}
	if got := LastStatement(events[3:], "csr-approver"); got != nil {
		t.Errorf("%+v of another controller", got)
	}
}
