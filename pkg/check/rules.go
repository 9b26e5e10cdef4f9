package check

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// noNamespace is not a valid name of a namespace, so no RoleBinding adds to the rules there. A rule of a Role would
// otherwise pass for a right in all namespaces.
const noNamespace = "csr-controller-manager.io"

// RightsByRules is Rights with fewer calls, for a check that is often repeated. It asks once for all rules of each
// namespace, by SelfSubjectRulesReview. It asks for a single right, by SelfSubjectAccessReview, if no rule grants it or
// if an authorizer cannot list its rules, as an authorizer webhook cannot.
func RightsByRules(ctx context.Context, c client.Client, rights []Right) []Result {
	rules := map[string]rulesOf{}
	results := make([]Result, len(rights))
	for i, right := range rights {
		if _, asked := rules[right.Namespace]; !asked {
			rules[right.Namespace] = rulesIn(ctx, c, right.Namespace)
		}
		switch there := rules[right.Namespace]; {
		case there.err != nil: // not one call for each right, at a time when calls fail
			results[i] = right.result(answerOf(authorizationv1.SubjectAccessReviewStatus{}, there.err), "this user")
		case slices.ContainsFunc(there.rules, right.grantedBy):
			results[i] = right.result(answer{status: OK}, "this user")
		default:
			results[i] = right.review(ctx, c)
		}
	}
	return results
}

// rulesOf are the rules of a user in a namespace, or the error of the question.
type rulesOf struct {
	rules []authorizationv1.ResourceRule
	err   error
}

// rulesIn returns the rules of c's user in namespace, or those in all namespaces if it is empty. It returns no rules if
// they are not all that decides, or if the question is not permitted.
func rulesIn(ctx context.Context, c client.Client, namespace string) rulesOf {
	if namespace == "" {
		namespace = noNamespace
	}
	review := &authorizationv1.SelfSubjectRulesReview{}
	review.Spec.Namespace = namespace
	err := c.Create(ctx, review)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), err == nil && review.Status.Incomplete:
		return rulesOf{}
	default:
		return rulesOf{review.Status.ResourceRules, err}
	}
}

// grantedBy reports whether rule grants r. Resources with a wildcard and a subresource are not compared.
func (r Right) grantedBy(rule authorizationv1.ResourceRule) bool {
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	return has(rule.Verbs, r.Verb) && has(rule.APIGroups, r.Group) && has(rule.Resources, r.Resource) &&
		(len(rule.ResourceNames) == 0 || r.Name != "" && slices.Contains(rule.ResourceNames, r.Name))
}
