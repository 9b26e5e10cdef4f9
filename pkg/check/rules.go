package check

import (
	"context"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// noNamespace is not a valid name of a namespace, so no RoleBinding adds to the rules there. A rule of a Role would
// otherwise pass for a right in all namespaces.
const noNamespace = "csr-controller-manager.io"

// RightsByRules is Rights with fewer calls, for a check that is often repeated. It asks once for all rules of each
// namespace, by SelfSubjectRulesReview. It asks for a single right, by SelfSubjectAccessReview, if no rule grants it or
// if an authorizer cannot list its rules, as an authorizer webhook cannot.
func RightsByRules(ctx context.Context, c client.Client, rights []Right) []Result {
	rules := map[string][]authorizationv1.ResourceRule{}
	results := make([]Result, len(rights))
	for i, right := range rights {
		if _, asked := rules[right.Namespace]; !asked {
			rules[right.Namespace] = rulesIn(ctx, c, right.Namespace)
		}
		if slices.ContainsFunc(rules[right.Namespace], right.grantedBy) {
			results[i] = right.result(answer{status: OK}, "this user")
		} else {
			results[i] = right.review(ctx, c)
		}
	}
	return results
}

// rulesIn returns the rules of c's user in namespace, or those in all namespaces if it is empty. It returns no rules if
// they are not all that decides.
func rulesIn(ctx context.Context, c client.Client, namespace string) []authorizationv1.ResourceRule {
	if namespace == "" {
		namespace = noNamespace
	}
	review := &authorizationv1.SelfSubjectRulesReview{}
	review.Spec.Namespace = namespace
	if err := c.Create(ctx, review); err != nil || review.Status.Incomplete {
		return nil
	}
	return review.Status.ResourceRules
}

// grantedBy reports whether rule grants r. Resources with a wildcard and a subresource are not compared.
func (r Right) grantedBy(rule authorizationv1.ResourceRule) bool {
	has := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	return has(rule.Verbs, r.Verb) && has(rule.APIGroups, r.Group) && has(rule.Resources, r.Resource) &&
		(len(rule.ResourceNames) == 0 || r.Name != "" && slices.Contains(rule.ResourceNames, r.Name))
}
