package commands

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// neverOverridden are the reasons of the approver that no user can override: the signer would refuse the request too,
// or the node or the certificate of the requester is blocked.
var neverOverridden = []string{
	csr.ReasonMalformed, csr.ReasonTooLarge, csr.ReasonKeyNotPermitted, "NodeBlocked", "CertificateBlocked",
	"InternalError",
}

// refusal is a rule that stands against a request.
type refusal struct{ reason, message string }

// assessment holds the answer of the rules about one request.
type assessment struct {
	node string
	// refusals are the rules that stand against the request. There are none if the rules approve it.
	refusals []refusal
	// approves is the message of the rule that approves the request.
	approves string
	// never says why the request is not approved, whatever the user overrides. instead says what to do.
	never, instead string
}

// assess judges obj by the rules, by the signer and by the last Event of the manager.
func (a *byHand) assess(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) assessment {
	f := a.explainer.JudgeWithEvents(ctx, obj)
	var authorized *explain.Findings
	if f.Undecidable == nil && f.Decision.Reason == "NotAuthorized" {
		authorized = a.explainer.JudgeAsAuthorized(ctx, obj)
	}
	return assessed(obj, f, authorized, a.program)
}

// assessed returns the assessment of what f holds. authorized is not nil if the requester lacks a permission: it holds
// what the other rules say.
func assessed(
	obj *certificatesv1.CertificateSigningRequest, f, authorized *explain.Findings, program string,
) assessment {
	one := assessment{}
	if f.Request != nil {
		one.node = csr.Shorten(f.Request.NodeName())
	}
	if one.never, one.instead = forbidden(obj, f, program); one.never != "" {
		return one
	}
	switch {
	case f.Refusal() != nil:
		one.add(f.Said.Outcome(), f.Said.Message)
	case f.Rule == nil:
		one.add(noRule, fmt.Sprintf("no rule of this configuration approves requests for signer %s", obj.Spec.SignerName))
	case f.Decision.Verdict == verdict.Approve:
		one.approves = f.Decision.Message
	default:
		one.add(f.Decision.Reason, f.Decision.Message)
	}
	if authorized != nil {
		switch {
		case authorized.Undecidable != nil:
			one.never = "what the other rules say is unknown: " + authorized.Undecidable.Error()
			one.instead = "Run the command as a user who has the missing right."
		case authorized.Decision.Verdict != verdict.Approve:
			one.add(authorized.Decision.Reason, authorized.Decision.Message)
		}
	}
	one.addRateLimit(f.Said)
	if len(one.refusals) > 0 {
		one.approves = ""
	}
	return one
}

// addRateLimit adds the refusal that only the running manager knows. said is its last Event, or nil.
func (one *assessment) addRateLimit(said *check.Statement) {
	if said != nil && said.Outcome() == "RateLimited" {
		one.add("RateLimited", said.Message)
	}
}

// forbidden returns why the request must not be approved, whatever the user overrides, and what to do instead.
func forbidden( //nolint:gocyclo // one case for each reason
	obj *certificatesv1.CertificateSigningRequest, f *explain.Findings, program string,
) (never, instead string) {
	explained := fmt.Sprintf("For the details run %s explain %s", program, check.Argument(obj.Name))
	switch {
	case f.State != csr.Pending:
		return fmt.Sprintf("the request is already %s", strings.ToLower(string(f.State))), explained
	case obj.DeletionTimestamp != nil:
		return "the request is being deleted", "Make a new request."
	case f.Rule == nil && !f.Served:
		return fmt.Sprintf("the manager does not serve signer %s", obj.Spec.SignerName),
			"Ask the administrator of that signer. \"kubectl certificate approve\" approves without any check."
	case f.Request == nil && slices.Contains(neverOverridden, f.Decision.Reason):
		return fmt.Sprintf("the signer would refuse the request (%s): %s", f.Decision.Reason, f.Decision.Message),
			explain.NextStep(f.Decision.Reason)
	case f.Request == nil:
		return "the request cannot be parsed", "Delete the request."
	case f.Blocked.Reason != "":
		return fmt.Sprintf("%s: %s", f.Blocked.Reason, f.Blocked.Message),
			explain.NextStep(f.Blocked.Reason)
	case f.Served && f.Judged.Verdict == verdict.Deny:
		return fmt.Sprintf("the signer would refuse the request (%s): %s", f.Judged.Reason, f.Judged.Message),
			"Make a new request that the signer can sign. " + explained
	case f.Refusal() != nil:
		return "", ""
	case f.Unwatched:
		return "what the rules say is unknown: " + f.Undecidable.Error(),
			"Wait one minute until the running manager has written an Event, then run the command again."
	case f.Undecidable != nil:
		return "what the rules say is unknown: " + f.Undecidable.Error(),
			"Run the command as a user who has the missing right. \"kubectl certificate approve\" approves without any check."
	}
	return "", ""
}

// add adds a refusal, once for each reason.
func (one *assessment) add(reason, message string) {
	if !one.refusedFor(reason) {
		one.refusals = append(one.refusals, refusal{reason, message})
	}
}

// refusedFor reports whether a rule refuses the request for that reason.
func (one *assessment) refusedFor(reason string) bool {
	return slices.ContainsFunc(one.refusals, func(each refusal) bool { return each.reason == reason })
}

// reasons returns the reasons of all refusals.
func (one *assessment) reasons() []string {
	var reasons []string
	for _, each := range one.refusals {
		reasons = append(reasons, each.reason)
	}
	return reasons
}

// notIn returns the reasons of the refusals that override does not name.
func (one *assessment) notIn(override []string) []string {
	return slices.DeleteFunc(one.reasons(), func(reason string) bool { return slices.Contains(override, reason) })
}

// sentence returns what the rules say.
func (one *assessment) sentence() string {
	switch {
	case one.never != "":
		return "not checked to the end: " + one.never + "."
	case len(one.refusals) == 0:
		return "approve: " + one.approves
	}
	return "refuse: " + one.refused()
}

// refused returns the refusals with their messages.
func (one *assessment) refused() string {
	var texts []string
	for _, each := range one.refusals {
		message := strings.TrimSuffix(csr.ShortenTo(each.message, maxRefusal), ".")
		texts = append(texts, fmt.Sprintf("%s: %s.", each.reason, message))
	}
	return strings.Join(texts, " ")
}

// maxRefusal bounds the message of a refusal in a condition, in bytes, as the note of an Event is bounded.
const maxRefusal = 1024

// message returns the message of the Approved condition.
func (one *assessment) message(program, user string) string {
	text := fmt.Sprintf("Approved by hand by %s with %s approve. ", user, program)
	if len(one.refusals) == 0 {
		return text + "The rules of csr-controller-manager approve the request."
	}
	return text + "The user overrides " + one.refused()
}
