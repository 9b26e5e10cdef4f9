package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// Statement is an Event of the running manager about a request.
type Statement struct {
	// Controller is the name of the controller that wrote the Event, such as csr-approver.
	Controller string
	Reason     string
	Message    string
	At         time.Time
}

// LastStatement returns the newest of events that controller has written, or nil if there is none.
func LastStatement(events []corev1.Event, controller string) *Statement {
	var last *Statement
	for i := range events {
		event := &events[i]
		by := cmp.Or(event.ReportingController, event.Source.Component)
		if by != controller || last != nil && !EventTime(event).After(last.At) {
			continue
		}
		last = &Statement{Controller: by, Reason: event.Reason, Message: event.Message, At: EventTime(event)}
	}
	return last
}

// EventTime returns when event happened last. Which field holds that depends on the library that wrote the Event.
func EventTime(event *corev1.Event) time.Time {
	if event.Series != nil && !event.Series.LastObservedTime.IsZero() {
		return event.Series.LastObservedTime.Time
	}
	for _, at := range []time.Time{event.LastTimestamp.Time, event.EventTime.Time, event.FirstTimestamp.Time} {
		if !at.IsZero() {
			return at
		}
	}
	return event.CreationTimestamp.Time
}

// managerOnly lists the reasons that depend on the memory of the running manager or on a write that it tried. Nothing
// else can confirm or refute them.
var managerOnly = []string{
	"RateLimited", "InventoryPending", "LedgerUnavailable", "NotStored", "CertificateMismatch", "ClockSkewed",
	"InternalError", "SecondSigner", "LifetimeCut",
}

// dryRunReasons are the reasons of a dry run that stand for a refusal. The message of their Event begins with the
// reason of the refusal.
var dryRunReasons = []string{"WouldDeny", "WouldWait", "WouldIgnore", "WouldFail"}

// Outcome returns the reason of s as the manager would give it outside of a dry run. It is empty for success.
func (s *Statement) Outcome() string {
	switch {
	case s.Reason == "WouldApprove" || s.Reason == "WouldIssue":
		return ""
	case slices.Contains(dryRunReasons, s.Reason):
		reason, _, _ := strings.Cut(s.Message, ":")
		return reason
	default:
		return s.Reason
	}
}

// ManagerOnly reports whether only the running manager can know the reason of s. A nil Statement has no reason.
func (s *Statement) ManagerOnly() bool { return s != nil && slices.Contains(managerOnly, s.Outcome()) }

// Difference compares s with opinion, which is what the configuration at hand says at now. It returns what differs, in
// one or two sentences, or nothing if both agree. action is what a success does: "approve" or "sign". A nil Statement
// agrees with everything. An Opinion with an Err contradicts nothing.
func (s *Statement) Difference(opinion Opinion, action string, now time.Time) string {
	if s == nil || opinion.Err != nil {
		return ""
	}
	said := s.Outcome()
	refused := opinion.Reason
	if opinion.Does {
		refused = ""
	}
	if said == refused {
		return ""
	}
	begin := fmt.Sprintf("The manager said %s %s ago", cmp.Or(said, s.Reason), duration.HumanDuration(now.Sub(s.At)))
	switch {
	case s.ManagerOnly():
		return begin + ". Only the running manager can know this, so what it said counts."
	case opinion.Does && opinion.Message != "":
		return fmt.Sprintf("%s; with this configuration it would now %s the request: %s", begin, action, opinion.Message)
	case opinion.Does:
		return fmt.Sprintf("%s; with this configuration it would now %s the request.", begin, action)
	case refused == "":
		return begin + "; nothing in this configuration says so. The manager may run with another configuration."
	default:
		return fmt.Sprintf("%s; with this configuration it would now say %s: %s", begin, refused, opinion.Message)
	}
}

// BindRequester returns the next step for a request that is NotAuthorized: the command that binds the missing role, or
// what to do about a requester that must not have it. limits bound what is read of the request.
func BindRequester(obj *certificatesv1.CertificateSigningRequest, limits csr.Limits) string {
	return Node{RequestLimits: limits}.bindRequester(obj)
}
