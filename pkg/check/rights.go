package check

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Right is one verb on one kind of object.
type Right struct {
	// Verb, Group, Resource (with /subresource), Namespace and Name are as in a Role; empty Names and Namespaces are all.
	Verb, Group, Resource, Namespace, Name string
	// Need says who needs it.
	Need string
	// Manifest is the folder that grants it, as it is shipped; empty if only a role of the operator's own can.
	Manifest string
	// Optional rights are missed, but the work goes on without them.
	Optional bool
}

// String is the Right as in `kubectl auth can-i`.
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

func (r Right) attributes() authorizationv1.ResourceAttributes {
	resource, subresource := splitResource(r.Resource)
	return authorizationv1.ResourceAttributes{
		Verb: r.Verb, Group: r.Group, Resource: resource, Subresource: subresource, Namespace: r.Namespace, Name: r.Name,
	}
}

// check is which check it belongs to: a controller stops for want of its own rights only.
func (r Right) check() string {
	if r.Optional {
		return OptionalRights
	}
	return OwnRights
}

// howToGrant names the manifest that grants r.
func (r Right) howToGrant() string {
	if r.Manifest == "" {
		return "grant it to this user by a role of your own: no manifest that is shipped has it"
	}
	return fmt.Sprintf("apply the roles and bindings of %s, and see that they name this user", r.Manifest)
}

// Rights asks for each of rights whether c's user has it. The results are in the order of rights.
func Rights(ctx context.Context, c client.Client, rights []Right) []Result {
	results := make([]Result, len(rights))
	for i, right := range rights {
		got := selfMay(ctx, c, right.attributes())
		result := Result{Check: right.check(), Subject: right.String(), Status: got.status}
		switch got.status {
		case OK:
			result.Evidence = fmt.Sprintf("allowed; needed by %s", right.Need)
		case Failed:
			result.Evidence = got.because(fmt.Sprintf("not allowed, but needed by %s", right.Need))
			result.NextStep = right.howToGrant()
			if right.Optional {
				result.Evidence += "; the work goes on without it"
			}
		default:
			result.Evidence, result.NextStep = got.reason, askAgain
		}
		results[i] = result
	}
	return results
}

const askAgain = "ask again once the API server answers"
