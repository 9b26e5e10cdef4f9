// Package check asks the API server about what the manager depends on: its own rights, the kubelets' rights, and the
// trust in the signing CA. It also finds the step at which the certificate of one node is stuck. It changes nothing. If
// it can't ask a question, the answer is Unknown, never Failed.
package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	OK      Status = "ok"
	Failed  Status = "failed"
	Unknown Status = "unknown" // the question could not be asked, or the answer proves nothing
)

// Statuses returns all statuses, the worst last.
func Statuses() []Status { return []Status{OK, Unknown, Failed} }

// The names of the checks. The first three are also values of a label of metrics.
const (
	OwnRights      = "own-rights"
	OptionalRights = "optional-rights"
	KubeletRights  = "kubelet-rights"
	CATrusted      = "ca-trusted"
	ManagerRunning = "manager-running"
	// Configured is whether the running manager has published its configuration.
	Configured  = "configuration"
	Authorities = "authorities"
)

// Result is the answer to one question.
type Result struct {
	// Check is the kind of question and Subject what it was about.
	Check, Subject string
	Status         Status
	// Evidence is a sentence that says what was observed. NextStep says what to do, and is empty for OK.
	Evidence, NextStep string
}

// Worst returns Failed if one of results is, else Unknown if one is or if there are none.
func Worst(results []Result) Status {
	if len(results) == 0 {
		return Unknown
	}
	return slices.MaxFunc(results, func(a, b Result) int {
		return cmp.Compare(slices.Index(Statuses(), a.Status), slices.Index(Statuses(), b.Status))
	}).Status
}

// Right is one verb on one kind of object.
type Right struct {
	// Verb, Group, Resource (with /subresource), Namespace and Name are as in a Role; empty Names and Namespaces are all.
	Verb, Group, Resource, Namespace, Name string
	// Need names the part of the manager that needs it.
	Need string
	// Manifest is the shipped folder that grants it. It is empty if only a role of the operator can.
	Manifest string
	// Optional means that the controllers work without the right.
	Optional bool
}

// GroupResource returns the resource and its API group, as in `kubectl auth can-i`.
func (r Right) GroupResource() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// String returns the Right as in `kubectl auth can-i`.
func (r Right) String() string {
	text := r.Verb + " " + r.GroupResource()
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// Rights asks for each of rights whether c's user has it. The results are in the order of rights.
func Rights(ctx context.Context, c client.Client, rights []Right) []Result {
	results := make([]Result, len(rights))
	for i, right := range rights {
		results[i] = right.review(ctx, c)
	}
	return results
}

// review asks for r by a SelfSubjectAccessReview.
func (r Right) review(ctx context.Context, c client.Client) Result {
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.ResourceAttributes = r.attributes()
	err := c.Create(ctx, review)
	return r.result(answerOf(review.Status, err), "this user")
}

// User is a user of the API server.
type User struct {
	Name   string
	Groups []string
}

// RightsOf asks for each of rights whether user has it. If c's user may not ask about others, it returns one Result.
func RightsOf(ctx context.Context, c client.Client, user User, rights []Right) []Result {
	var results []Result
	for _, right := range rights {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Name, Groups: user.Groups, ResourceAttributes: right.attributes(),
		}}
		err := c.Create(ctx, review)
		if apierrors.IsForbidden(err) {
			return []Result{{
				Check: OwnRights, Subject: "rights of " + user.Name, Status: Unknown,
				Evidence: ReadError("create subjectaccessreviews", err),
				NextStep: "run the command as a user who may create subjectaccessreviews",
			}}
		}
		results = append(results, right.result(answerOf(review.Status, err), user.Name))
	}
	return results
}

// attributes returns r as an authorizer takes it.
func (r Right) attributes() *authorizationv1.ResourceAttributes {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
	}
}

// result returns the Result about r for an answer. user names the user of the question.
func (r Right) result(got answer, user string) Result {
	result := Result{Check: OwnRights, Subject: r.String(), Status: got.status}
	if r.Optional {
		result.Check = OptionalRights
	}
	switch got.status {
	case OK:
		result.Evidence = fmt.Sprintf("allowed; needed by %s", r.Need)
	case Failed:
		result.Evidence = got.because(fmt.Sprintf("not allowed, but needed by %s", r.Need))
		if r.Optional {
			result.Evidence += "; the controllers work without it"
		}
		result.NextStep = fmt.Sprintf("apply the roles and bindings of %s, and check that they name %s", r.Manifest, user)
		if r.Manifest == "" {
			result.NextStep = fmt.Sprintf("grant it to %s by a role of your own: no shipped manifest has it", user)
		}
	default:
		result.Evidence, result.NextStep = got.reason, askAgain
	}
	return result
}

const askAgain = "ask again once the API server answers"

// answer holds the answer of the authorizers. The zero value is Unknown.
type answer struct {
	status Status
	reason string // may be empty
}

// answerOf distinguishes a refusal from a failed review. An authorizer that could not be asked leaves an
// evaluationError.
func answerOf(status authorizationv1.SubjectAccessReviewStatus, err error) answer {
	switch {
	case err != nil:
		return answer{Unknown, fmt.Sprintf("could not ask: %v", err)}
	case status.Allowed:
		return answer{OK, ""}
	case status.EvaluationError != "" && !status.Denied:
		return answer{Unknown, "an authorizer could not tell: " + status.EvaluationError}
	default:
		return answer{Failed, status.Reason}
	}
}

// because appends the reason of an answer to a sentence.
func (a answer) because(sentence string) string {
	if a.reason == "" {
		return sentence
	}
	return sentence + " (" + a.reason + ")"
}

// ReadError returns the text for a question that err left open. what is the call that failed, such as "get nodes".
func ReadError(what string, err error) string {
	if apierrors.IsForbidden(err) {
		return "unknown: may not " + what
	}
	return fmt.Sprintf("unknown: could not %s: %v", what, err)
}
