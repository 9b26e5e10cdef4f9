// Package check asks the API server about the rights that the manager and the kubelets need. It changes nothing. If it
// can't ask a question, the answer is Unknown, never Failed.
package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	reviewsv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
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

// The names of the checks, which are values of a label of metrics.
const (
	OwnRights      = "own-rights"
	OptionalRights = "optional-rights"
	KubeletRights  = "kubelet-rights"
)

// Result is the answer to one question.
type Result struct {
	// Check is the kind of question and Subject what it was about.
	Check   string `json:"check"`
	Subject string `json:"subject"`
	Status  Status `json:"status"`
	// Evidence is a sentence that says what was observed. NextStep says what to do, and is empty for OK.
	Evidence string `json:"evidence"`
	NextStep string `json:"nextStep,omitempty"`
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
	// Cluster is the cluster with the object: home or served. It is empty if both are one.
	Cluster string
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

// String returns the Right as in `kubectl auth can-i`, with its cluster.
func (r Right) String() string {
	text := r.Verb + " " + r.GroupResource()
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	if r.Cluster != "" {
		text += " of the " + r.Cluster + " cluster"
	}
	return text
}

// Rights asks for each of rights whether the user of reviews has it. The results are in the order of rights.
func Rights(ctx context.Context, reviews reviewsv1.SelfSubjectAccessReviewInterface, rights []Right) []Result {
	results := make([]Result, len(rights))
	for i, right := range rights {
		got := right.ask(ctx, reviews)
		if domain, _, found := strings.Cut(right.Name, "/"); got.status != OK && found && right.Resource == "signers" {
			// Admission also permits a signer by the name DOMAIN/* (Kubernetes pkg/certauthorization).
			all := right
			all.Name = domain + "/*"
			if every := all.ask(ctx, reviews); every.status != Failed {
				got = every
			}
		}
		results[i] = right.result(got)
	}
	return results
}

// ask asks whether the user of reviews has r.
func (r Right) ask(ctx context.Context, reviews reviewsv1.SelfSubjectAccessReviewInterface) answer {
	review := &authorizationv1.SelfSubjectAccessReview{}
	review.Spec.ResourceAttributes = r.attributes()
	review, err := reviews.Create(ctx, review, metav1.CreateOptions{})
	return answerOf(review.Status, err)
}

// attributes returns r as an authorizer takes it.
func (r Right) attributes() *authorizationv1.ResourceAttributes {
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	return &authorizationv1.ResourceAttributes{
		Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
	}
}

// result returns the Result about r for an answer.
func (r Right) result(got answer) Result {
	result := Result{Check: OwnRights, Subject: r.String(), Status: got.status, Evidence: "allowed; needed by " + r.Need}
	works := ""
	if r.Optional {
		result.Check, works = OptionalRights, "; the controllers work without it"
	}
	switch {
	case got.status == Unknown:
		result.Evidence, result.NextStep = got.reason, askAgain
	case got.status == Failed && r.Manifest == "":
		result.NextStep = "grant it to this user by a role of your own: no shipped manifest has it"
	case got.status == Failed:
		result.NextStep = fmt.Sprintf("apply the roles and bindings of %s, and check that they name this user", r.Manifest)
	}
	if got.status == Failed {
		result.Evidence = got.because("not allowed, but needed by "+r.Need) + works
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

// WhoIs returns the user for whom the API server at place takes the holder of a certificate and its key, both in PEM.
func WhoIs(ctx context.Context, place *rest.Config, cert, key []byte) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(place)
	config.CertData, config.KeyData = cert, key
	api, err := authenticationclient.NewForConfig(config)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	review, err := api.SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("ask the API server who this is: %w", err)
	}
	return review.Status.UserInfo, nil
}

// KnownAs returns an error unless WhoIs returns user for a new certificate.
func KnownAs(ctx context.Context, place *rest.Config, cert, key []byte, user string) error {
	who, err := WhoIs(ctx, place, cert, key)
	if err == nil && who.Username != user {
		err = fmt.Errorf("the API server takes the holder of the new certificate for %q, not for %q", who.Username, user)
	}
	return err
}
