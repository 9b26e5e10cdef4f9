package check

import (
	"context"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// answer is what the authorizers said. The zero value is Unknown.
type answer struct {
	status Status
	reason string // why, if something was said
}

// selfMay asks whether c's user may do what.
func selfMay(ctx context.Context, c client.Client, what authorizationv1.ResourceAttributes) answer {
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &what}}
	err := c.Create(ctx, review)
	return answerOf(review.Status, err)
}

// may asks whether user in groups may do what.
func may(ctx context.Context, c client.Client, user string, groups []string, what authorizationv1.ResourceAttributes) answer {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: groups, ResourceAttributes: &what,
	}}
	err := c.Create(ctx, review)
	return answerOf(review.Status, err)
}

// answerOf tells a no from a review that failed: an authorizer that could not be asked leaves an evaluationError.
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

// splitResource and joinResource know resource/subresource.
func splitResource(text string) (resource, subresource string) {
	resource, subresource, _ = strings.Cut(text, "/")
	return resource, subresource
}

func joinResource(resource, subresource string) string {
	if subresource == "" {
		return resource
	}
	return resource + "/" + subresource
}
