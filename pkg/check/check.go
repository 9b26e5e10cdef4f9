// Package check asks the API server about the ground that the manager stands on: its own rights, the kubelets' rights,
// whether the signing CA is trusted, and where the certificate of one node is stuck. It changes nothing. What could not
// be asked is Unknown, never Failed.
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
	Unknown Status = "unknown" // it could not be asked, or the answer proves nothing
)

// Statuses returns all of them, the worst last.
func Statuses() []Status { return []Status{OK, Unknown, Failed} }

// The names of the checks, also as a label of metrics.
const (
	OwnRights      = "own-rights"
	OptionalRights = "optional-rights"
	KubeletRights  = "kubelet-rights"
	CATrusted      = "ca-trusted"
	ManagerRunning = "manager-running"
	Authorities    = "authorities"
)

// Result is the answer to one question.
type Result struct {
	// Check is the kind of question and Subject what it was about.
	Check, Subject string
	Status         Status
	// Evidence is a sentence that says what was seen, and NextStep one that says what to do; it is empty for OK.
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
	// Manifest is the folder that grants it, as it is shipped; empty if only a role of the operator's own can.
	Manifest string
	// Optional is true if the work goes on without the right.
	Optional bool
}

// String returns the Right as in `kubectl auth can-i`.
func (r Right) String() string {
	text := r.Verb + " " + r.Resource
	if r.Group != "" {
		text += "." + r.Group
	}
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
		resource, subresource, _ := strings.Cut(right.Resource, "/")
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb: right.Verb, Group: right.Group, Resource: resource, Subresource: subresource,
			Namespace: right.Namespace, Name: right.Name,
		}
		err := c.Create(ctx, review)
		got := answerOf(review.Status, err)
		result := Result{Check: OwnRights, Subject: right.String(), Status: got.status}
		if right.Optional {
			result.Check = OptionalRights
		}
		switch got.status {
		case OK:
			result.Evidence = fmt.Sprintf("allowed; needed by %s", right.Need)
		case Failed:
			result.Evidence = got.because(fmt.Sprintf("not allowed, but needed by %s", right.Need))
			if right.Optional {
				result.Evidence += "; the work goes on without it"
			}
			result.NextStep = "apply the roles and bindings of " + right.Manifest + ", and see that they name this user"
			if right.Manifest == "" {
				result.NextStep = "grant it to this user by a role of your own: no manifest that is shipped has it"
			}
		default:
			result.Evidence, result.NextStep = got.reason, askAgain
		}
		results[i] = result
	}
	return results
}

const askAgain = "ask again once the API server answers"

// answer is what the authorizers said. The zero value is Unknown.
type answer struct {
	status Status
	reason string // may be empty
}

// answerOf tells a refusal from a review that failed: an authorizer that could not be asked leaves an evaluationError.
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

// ReadError returns the text for a question that err left open, which came of trying to do what.
func ReadError(what string, err error) string {
	if apierrors.IsForbidden(err) {
		return "unknown: may not " + what
	}
	return fmt.Sprintf("unknown: could not %s: %v", what, err)
}
